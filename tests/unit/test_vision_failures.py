"""A long run that fails: whatever stops it, what was trained is on disk, and going on gives what an undisturbed run gives."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from marginlens.errors import InputError
from marginlens.runs import loop
from marginlens.runs.telling import Ending, Listener
from marginlens.vision import training
from marginlens.vision.checkpoint import read_checkpoint, write_checkpoint
from marginlens.vision.images import LabelledImages
from marginlens.vision.measuring import ClsAttention
from marginlens.vision.results import curves_from
from marginlens.vision.run import main as run_script
from marginlens.vision.settings import VisionSettings
from marginlens.vision.training import train_vision

TINY = VisionSettings(
    width=8, layers=2, heads=2, mlp=8, patch=4, batch=16, measured=8, tested=8, epochs=3, optimiser="adamw", crop=1
)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """The same bits need one thread, for the runs that all tests share too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (60, 8, 8, 1), dtype=np.uint8)
    y = np.arange(60) % 3
    return LabelledImages("noise", x[:50], y[:50], x[50:], y[50:], ("a", "b", "c"))


@pytest.fixture(scope="module")
def whole(images):
    return train_vision(images, TINY)


def same(one, other):
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True))
    assert np.array_equal(one.curves.epochs, other.curves.epochs)
    for name, values in one.curves.by_layer.items():
        assert np.array_equal(values, other.curves.by_layer[name])
    for name in ("loss", "train_accuracy", "test_accuracy"):
        assert np.array_equal(one.curves.scalars[name], other.curves.scalars[name], equal_nan=True)
    assert one.curves.map_epochs == other.curves.map_epochs
    assert np.array_equal(one.curves.maps, other.curves.maps)


@pytest.mark.parametrize("failing", ["cls_attention", "key_query_norms", "save_model"])
@pytest.mark.parametrize("problem", [FloatingPointError("underflow"), KeyboardInterrupt(), MemoryError()])
def test_a_failure_while_measuring_loses_no_step(images, whole, tmp_path, monkeypatch, failing, problem):
    file, models = tmp_path / "run.npz", (tmp_path / "models", 1)
    usual, calls = getattr(training, failing), []

    def fails_in_epoch_2(*arguments):
        calls.append(arguments)
        if len(calls) > (4 if failing == "cls_attention" else 2):  # twice or once for each of epochs 0 and 1
            raise problem
        return usual(*arguments)

    monkeypatch.setattr(training, failing, fails_in_epoch_2)
    with pytest.raises(type(problem)) as caught:
        train_vision(images, TINY, checkpoint=file, save_models=models)
    assert any("holds where to go on, after 1 whole epochs and 4 steps" in note for note in caught.value.__notes__)
    saved = read_checkpoint(file)
    assert (saved.epoch, saved.place, len(saved.history)) == (1, 4, 2)  # all four steps of epoch 2, not measured
    monkeypatch.setattr(training, failing, usual)
    same(train_vision(images, TINY, checkpoint=file, save_models=models), whole)


def test_a_failure_while_telling_loses_no_epoch(images, whole, tmp_path):
    file = tmp_path / "run.npz"

    def broken(record):
        if record.epoch == 2:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        train_vision(images, TINY, checkpoint=file, watch=broken)
    saved = read_checkpoint(file)
    assert (saved.epoch, saved.place, len(saved.history)) == (2, 0, 3)
    same(train_vision(images, TINY, checkpoint=file), whole)


def test_the_first_failure_is_told_where_saving_fails_too(images, tmp_path, monkeypatch):
    file = tmp_path / "run.npz"
    usual, measured = training._Run.save, training._Run.measured

    def save(run):
        if run.place:
            raise RuntimeError("the device is gone")
        usual(run)

    def fails(run, epoch):
        if epoch:
            raise FloatingPointError("underflow")
        return measured(run, epoch)

    monkeypatch.setattr(training._Run, "save", save)
    monkeypatch.setattr(training._Run, "measured", fails)
    with pytest.raises(FloatingPointError) as caught:
        train_vision(images, TINY, checkpoint=file)
    assert caught.value.__notes__ == ["Saving failed too: the device is gone"]
    assert read_checkpoint(file).epoch == 0


def test_a_listener_has_the_run_so_far_at_every_checkpoint(images, whole, tmp_path):
    told = []
    watch = Listener(lambda record: None, told.append)
    train_vision(images, TINY, checkpoint=tmp_path / "run.npz", every=1, watch=watch)
    assert [int(one.curves.epochs[-1]) for one in told] == [0, 1, 2]  # the last epoch is in the result itself
    assert {one.ending for one in told} == {Ending.UNFINISHED}
    assert np.array_equal(told[-1].curves.by_layer["sparsity"], whole.curves.by_layer["sparsity"][:3])


def test_curves_so_far_survive_the_end_of_the_process(tmp_path, images, monkeypatch):
    here = tmp_path
    monkeypatch.chdir(here)
    parts = ("x_train", "y_train", "x_test", "y_test")
    np.savez("c.npz", **{name: getattr(images, name) for name in parts})
    told = {**TINY.told(), "epochs": 2}
    line = [
        "--data",
        "c.npz",
        "--out",
        "out",
        "--checkpoint",
        "run.npz",
        "--every",
        "1",
        "--settings",
        json.dumps(told),
    ]
    usual, calls = training._Run.step, []

    def step(run):
        calls.append(run.place)
        if len(calls) == 6:
            raise SystemExit(9)  # as good as killed: nothing but what is on disk is left
        usual(run)

    monkeypatch.setattr(training._Run, "step", step)
    with pytest.raises(SystemExit):
        run_script(line)
    so_far = json.loads((here / "out" / "run.json").read_text())
    assert (so_far["ending"], so_far["epochs_done"]) == ("UNFINISHED", 1)
    assert curves_from(so_far).by_layer["sparsity"].shape == (2, 2)
    assert "command" in so_far
    monkeypatch.setattr(training._Run, "step", usual)
    assert run_script(line) == 0
    assert json.loads((here / "out" / "run.json").read_text())["epochs_done"] == 2
    assert sorted(one.name for one in here.iterdir()) == ["c.npz", "out", "run.npz"]


def test_the_time_limit_leaves_the_time_that_saving_took(images, tmp_path, monkeypatch):
    clock, steps = [0.0], []
    monkeypatch.setattr(loop.time, "perf_counter", lambda: clock[0])
    save, step = training._Run.save, training._Run.step

    def slow_save(run):
        save(run)
        clock[0] += 10.0

    def slow_step(run):
        step(run)
        clock[0] += 10.0
        steps.append(clock[0])

    monkeypatch.setattr(training._Run, "save", slow_save)
    monkeypatch.setattr(training._Run, "step", slow_step)
    run = train_vision(images, TINY, checkpoint=tmp_path / "run.npz", time_limit=65.0)
    assert run.ending is Ending.TIME_LIMIT
    assert steps == [20.0, 30.0, 40.0]  # the first save, of weights alone, says that one with moments may take 30 s
    assert clock[0] <= 65.0


def test_weights_that_overflow_in_the_last_step_of_an_epoch_end_the_run(images, tmp_path, monkeypatch):
    usual = training._Run.step

    def step(run):
        usual(run)
        if run.place == run.steps - 1:
            with torch.no_grad():
                run.model.classifier.bias[0] = float("inf")

    monkeypatch.setattr(training._Run, "step", step)
    run = train_vision(images, TINY, checkpoint=tmp_path / "run.npz")
    assert run.ending is Ending.DIVERGED
    assert run.curves.epochs.tolist() == [0.0]
    assert read_checkpoint(tmp_path / "run.npz").epoch == 0


def test_measuring_changes_nothing_in_training(images, whole, monkeypatch):
    flat = ClsAttention(np.ones(2), np.ones(2), np.ones(2), np.full((3, 4), 0.25))
    monkeypatch.setattr(training, "cls_attention", lambda *arguments: flat)
    monkeypatch.setattr(training, "key_query_norms", lambda model: (np.ones(2), np.ones(2)))
    unmeasured = train_vision(images, TINY)
    mine, theirs = whole.model.parameters(), unmeasured.model.parameters()
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert whole.model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("damage", ["missing", "shape", "words", "moment", "name"])
def test_a_checkpoint_with_other_weights_is_refused_in_one_sentence(images, tmp_path, damage):
    file = tmp_path / "run.npz"
    train_vision(images, replace(TINY, epochs=1), checkpoint=file)
    saved = read_checkpoint(file)
    weight, moment = (
        next(name for name in saved.arrays if name.startswith(f"{kind}") and saved.arrays[name].ndim == 2)
        for kind in ("weight/", "moment/exp_avg/")
    )
    if damage == "missing":
        del saved.arrays[weight]
    elif damage == "shape":
        saved.arrays[weight] = saved.arrays[weight][:1]  # which would be repeated for every row
    elif damage == "words":
        saved.arrays[weight] = np.array(["a"])
    elif damage == "moment":
        saved.arrays[moment] = saved.arrays[moment][:1]
    else:
        saved.arrays["moment/nothing"] = np.ones(1)
    write_checkpoint(file, saved)
    with pytest.raises(InputError, match="'checkpoint' argument must be one of the same model"):
        train_vision(images, TINY, checkpoint=file)


def test_fewer_epochs_than_a_checkpoint_has_are_refused(images, tmp_path):
    file = tmp_path / "run.npz"
    train_vision(images, replace(TINY, epochs=2), checkpoint=file)
    with pytest.raises(InputError, match=r"'epochs' argument must be at least 2, which '.*run.npz' has reached; got 1"):
        train_vision(images, replace(TINY, epochs=1), checkpoint=file)
    saved = read_checkpoint(file)
    write_checkpoint(file, replace(saved, history=saved.history[:2]))
    with pytest.raises(
        InputError, match=r"'checkpoint' argument must be a file that marginlens wrote; got .* contradicts"
    ):
        train_vision(images, TINY, checkpoint=file)


def test_an_interruption_in_the_middle_of_saving_loses_nothing(images, whole, tmp_path, monkeypatch):
    file, usual, calls = tmp_path / "run.npz", np.savez, []

    def savez(stream, **arrays):
        calls.append(stream)
        if len(calls) == 3:  # after epoch 2
            stream.write(b"half")
            raise KeyboardInterrupt
        usual(stream, **arrays)

    monkeypatch.setattr(np, "savez", savez)
    with pytest.raises(KeyboardInterrupt) as caught:
        train_vision(images, TINY, checkpoint=file, every=1)
    assert "holds where to go on, after 2 whole epochs and 0 steps" in caught.value.__notes__[0]
    assert read_checkpoint(file).epoch == 2
    same(train_vision(images, TINY, checkpoint=file), whole)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"settings": {}}, "'settings' argument must be VisionSettings; got dict"),
        ({"data": 5}, "'data' argument must be LabelledImages; got int"),
        ({"watch": 5}, "'watch' argument must be a function"),
        ({"checkpoint": 5}, "'checkpoint' argument must be a file"),
        ({"save_models": "m"}, "'save_models' argument must be a folder and a number of epochs; got 'm'"),
        ({"save_models": (5, 1)}, "'save_models' argument must be a folder and a number of epochs"),
        ({"save_models": ("m", 0)}, "'save_every' argument must be a whole number of at least 1"),
    ],
)
def test_what_a_run_cannot_use_is_refused_in_one_sentence(images, given, sentence):
    with pytest.raises(InputError, match=sentence):
        train_vision(**{"data": images, "settings": TINY, **given})


def test_the_time_limit_is_kept_with_one_step_an_epoch(images, tmp_path):
    file, chosen = tmp_path / "run.npz", replace(TINY, batch=50)
    first = train_vision(images, chosen, checkpoint=file, time_limit=1e-9)
    assert (first.ending, first.curves.epochs.tolist()) == (Ending.TIME_LIMIT, [0.0, 1.0])
    same(train_vision(images, chosen, checkpoint=file), train_vision(images, chosen))
