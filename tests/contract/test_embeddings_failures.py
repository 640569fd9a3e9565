"""Training embeddings when something fails: whatever stops it, what was trained is on disk, and going on gives the same bits."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from marginlens.data.levels import Levels, level_sequences
from marginlens.embeddings import training
from marginlens.embeddings.checkpoint import read_checkpoint, write_checkpoint
from marginlens.embeddings.device_models import DeviceOneLayer
from marginlens.embeddings.keeping import keep_run
from marginlens.embeddings.results import Ending, RankCorrelations, TrainingRun
from marginlens.embeddings.run import main as run_script
from marginlens.embeddings.sequence_file import write_labelled
from marginlens.embeddings.settings import TrainingSettings
from marginlens.embeddings.training import train_embeddings
from marginlens.errors import InputError
from marginlens.runs.telling import Listener

LAW = Levels(deltas=(0.3, 0.1), sizes=(6, 9), n_irrelevant=20, share=0.4)
STEPS = 3  # of an epoch: 80 sequences, 32 at a time


@pytest.fixture(scope="module")
def data():
    return level_sequences(80, 9, 0, LAW)


@pytest.fixture(params=["compiled", "torch", "two layers"])
def settings(request, monkeypatch):
    if request.param == "torch":  # the one-layer model as it runs on a GPU
        monkeypatch.setattr(training, "model_of", DeviceOneLayer)
    return TrainingSettings(2 if request.param == "two layers" else 1, 8, 4, 32, milestones=(2,), seed=3)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run.npz"


def same(one, other):
    for mine, theirs in zip(vars(one.parameters).values(), vars(other.parameters).values(), strict=True):
        assert np.array_equal(mine, theirs)
    records = [repr([replace(record, seconds=0.0) for record in run.history]) for run in (one, other)]  # nan equals nan
    assert records[0] == records[1]
    assert (one.loss, one.accuracy, one.ending) == (other.loss, other.accuracy, other.ending)


def full():
    return OSError(28, "No space left on device")


def nth(usual, n, problem, first=lambda *given, **named: None):
    """A function that does what is usual but for its n-th call, from 1, which raises after `first` was done."""
    calls = []

    def work(*given, **named):
        calls.append(given)
        if len(calls) == n:
            first(*given, **named)
            raise problem
        return usual(*given, **named)

    return work


@pytest.mark.parametrize("problem", [FloatingPointError, KeyboardInterrupt, MemoryError])
def test_a_failure_while_measuring_loses_no_step(data, settings, file, monkeypatch, problem):
    whole = train_embeddings(data, settings)
    with monkeypatch.context() as planted:
        planted.setattr(RankCorrelations, "__call__", nth(RankCorrelations.__call__, 2, problem("planted")))
        with pytest.raises(problem) as caught:
            train_embeddings(data, settings, checkpoint=file)
    assert caught.value.__notes__ == [f"{file} holds where to go on, after 1 whole epochs and {STEPS} steps."]
    saved = read_checkpoint(file)
    assert (saved.epoch, saved.place, saved.taken, len(saved.history)) == (1, STEPS, 2 * STEPS, 1)
    assert saved.loss > 0.0
    same(train_embeddings(data, settings, checkpoint=file), whole)


@pytest.mark.parametrize("problem", [BrokenPipeError, SystemExit, ZeroDivisionError])
def test_a_failure_while_telling_loses_no_epoch(data, settings, file, problem):
    with pytest.raises(problem):
        train_embeddings(data, settings, checkpoint=file, watch=nth(lambda record: None, 3, problem()))
    saved = read_checkpoint(file)
    assert (saved.epoch, saved.place, saved.taken, len(saved.history)) == (3, 0, 3 * STEPS, 3)
    same(train_embeddings(data, settings, checkpoint=file), train_embeddings(data, settings))


@pytest.mark.parametrize("problem", [full, KeyboardInterrupt])
def test_a_save_that_fails_half_way_is_made_again(data, settings, file, monkeypatch, problem):
    with monkeypatch.context() as planted:
        half = nth(np.savez, 3, problem(), lambda stream, **arrays: stream.write(b"half"))  # after epoch 2
        planted.setattr(np, "savez", half)
        with pytest.raises((InputError, KeyboardInterrupt)) as caught:
            train_embeddings(data, settings, checkpoint=file, every=1)
    assert "holds where to go on, after 2 whole epochs and 0 steps" in caught.value.__notes__[0]
    assert read_checkpoint(file).epoch == 2
    assert [one.name for one in file.parent.iterdir()] == ["run.npz"]
    same(train_embeddings(data, settings, checkpoint=file), train_embeddings(data, settings))


def test_a_disk_that_refuses_for_good_leaves_the_earlier_checkpoint_and_the_run_is_told(
    data, settings, file, monkeypatch
):
    told, usual, calls = [], np.savez, []

    def refuses(stream, **arrays):
        calls.append(stream)
        if len(calls) > 2:
            stream.write(b"half")
            raise full()
        usual(stream, **arrays)

    listener = Listener(lambda record: None, told.append)
    with monkeypatch.context() as planted:
        planted.setattr(np, "savez", refuses)
        with pytest.raises(InputError, match="No space left on device"):
            train_embeddings(data, settings, checkpoint=file, every=1, watch=listener)
    assert read_checkpoint(file).epoch == 1
    assert [one.name for one in file.parent.iterdir()] == ["run.npz"]
    assert [len(one.history) for one in told] == [0, 1, 2]
    same(train_embeddings(data, settings, checkpoint=file), train_embeddings(data, settings))


def test_a_disk_that_refuses_is_found_before_the_first_step(data, settings, file, monkeypatch):
    records = []
    monkeypatch.setattr(np, "savez", nth(np.savez, 1, full()))
    with pytest.raises(InputError, match="'checkpoint' argument must be a file that can be written"):
        train_embeddings(data, settings, checkpoint=file, watch=records.append)
    assert records == []
    assert not file.exists()


def test_a_listener_that_fails_finds_the_checkpoint_written(data, settings, file):
    listener = Listener(lambda record: None, nth(lambda run: None, 2, OSError(30, "Read-only file system")))
    with pytest.raises(OSError, match="Read-only") as caught:
        train_embeddings(data, settings, checkpoint=file, every=2, watch=listener)
    assert "after 2 whole epochs" in caught.value.__notes__[0]
    assert read_checkpoint(file).epoch == 2


def test_a_listener_has_the_run_so_far_and_no_later_step_changes_it(data, settings, file):
    told = []
    whole = train_embeddings(data, settings, checkpoint=file, every=1, watch=Listener(lambda record: None, told.append))
    assert [len(one.history) for one in told] == [0, 1, 2, 3]
    assert {one.ending for one in told} == {Ending.UNFINISHED}
    for one in told[1:]:
        shorter = train_embeddings(data, replace(settings, epochs=len(one.history)))
        same(replace(one, ending=Ending.FINISHED), shorter)
    same(train_embeddings(data, settings), whole)  # telling changes nothing


def test_an_epoch_that_cannot_begin_is_kept_with_its_loss(data, settings, file, monkeypatch):
    train_embeddings(data, settings, checkpoint=file, time_limit=1e-9)
    before = read_checkpoint(file)
    assert before.place == 1
    real = training.model_of

    def fragile(*arguments):
        model = real(*arguments)
        model.begin = nth(model.begin, 1, MemoryError(), model.begin)
        return model

    with monkeypatch.context() as planted:
        planted.setattr(training, "model_of", fragile)
        with pytest.raises(MemoryError):
            train_embeddings(data, settings, checkpoint=file)
    assert read_checkpoint(file).loss == before.loss > 0.0
    same(train_embeddings(data, settings, checkpoint=file), train_embeddings(data, settings))


def test_an_interruption_at_any_line_of_a_run_leaves_one_to_go_on_from(data, file):
    settings = TrainingSettings(1, 4, 2, 32, seed=3)
    whole = train_embeddings(data, settings)
    run = training._Run
    functions = {one.__code__ for one in (run.begin_epoch, run.measured)}
    for n in range(200):
        left, usual = [n], sys.gettrace()

        def trace(frame, event, argument, left=left):
            if frame.f_code not in functions:
                return None
            left[0] -= event == "line"
            if left[0] < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
            return trace

        file.unlink(missing_ok=True)
        sys.settrace(trace)
        try:
            train_embeddings(data, settings, checkpoint=file)
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(usual)
        same(train_embeddings(data, settings, checkpoint=file), whole)
    assert n > 12  # lines of each of two epochs


def test_the_time_limit_counts_from_the_call(data, settings, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("marginlens.runs.loop.time.perf_counter", lambda: clock[0])
    real = training.model_of

    def slow(*arguments):
        clock[0] += 10.0
        return real(*arguments)

    monkeypatch.setattr(training, "model_of", slow)
    run = train_embeddings(data, settings, time_limit=5.0)
    assert run.ending is Ending.TIME_LIMIT
    assert run.history == ()


# ---- what stops being a number


@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")
def test_a_loss_that_is_no_number_ends_the_run(data, settings, file):
    told = []
    wild = replace(settings, learning_rate=1e30, epochs=50)
    run = train_embeddings(data, wild, checkpoint=file, watch=told.append)
    assert run.ending is Ending.DIVERGED
    assert len(run.history) == len(told) < 50
    assert np.isfinite([one.loss for one in run.history]).all()


def test_products_that_are_no_numbers_end_the_run(data, settings, monkeypatch):
    real = training.model_of

    def spoilt(*arguments):
        model = real(*arguments)
        products, calls = model.products, []

        def in_epoch_2():
            calls.append(1)
            a, b = products()
            return (np.where(np.arange(len(a)) == 7, np.inf, a), b) if len(calls) == 2 else (a, b)

        model.products = in_epoch_2
        return model

    monkeypatch.setattr(training, "model_of", spoilt)
    run = train_embeddings(data, settings)
    assert (run.ending, len(run.history)) == (Ending.DIVERGED, 1)


# ---- checkpoints from where a run cannot go on


def test_fewer_epochs_than_a_checkpoint_has_are_refused(data, settings, file):
    train_embeddings(data, settings, checkpoint=file)
    before = file.read_bytes()
    with pytest.raises(InputError, match=r"'epochs' argument must be at least 4, which '.*run.npz' has reached; got 3"):
        train_embeddings(data, replace(settings, epochs=3), checkpoint=file)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [
        {"generator": {"bit_generator": "PCG64"}},
        {"generator": {}},
        {"history": [[0.5, 0.1], [0.5, 0.1]]},
        {"history": 3},
        {"history": [[0.5, 0.1, 0.1, 1.0]]},
        {"taken": "many"},
        {"loss": "small"},
        {"loss": None},
        {"epoch": 2.0},
        {"place": STEPS + 1},
        {"seconds": None},
    ],
)
def test_a_checkpoint_of_other_contents_is_refused_in_one_sentence(data, settings, file, change):
    train_embeddings(data, replace(settings, epochs=2), checkpoint=file)
    write_checkpoint(file, replace(read_checkpoint(file), **change))
    with pytest.raises(InputError, match=r"'checkpoint' argument must be (one of the same model|a file that margin)"):
        train_embeddings(data, settings, checkpoint=file)


@pytest.mark.parametrize("array", [np.array(["a"] * 8), np.array([None] * 8), np.ones((1, 8)), np.ones(7)])
def test_a_checkpoint_with_other_arrays_is_refused_in_one_sentence(data, settings, file, array):
    train_embeddings(data, replace(settings, epochs=2), checkpoint=file)
    saved = read_checkpoint(file)
    write_checkpoint(file, replace(saved, arrays={**saved.arrays, "p": array}))
    with pytest.raises(InputError, match="'checkpoint' argument must be"):
        train_embeddings(data, settings, checkpoint=file)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"settings": {}}, "'settings' argument must be TrainingSettings; got dict"),
        ({"watch": 5}, "'watch' argument must be a function"),
        ({"checkpoint": 5}, "'checkpoint' argument must be a file"),
        ({"time_limit": 0}, "'time_limit' argument must be a positive number"),
        ({"every": 0}, "'every' argument must be a whole number of at least 1"),
    ],
)
def test_what_a_run_cannot_use_is_refused_in_one_sentence(data, given, sentence):
    with pytest.raises(InputError, match=sentence):
        train_embeddings(data, **{"settings": TrainingSettings(d_model=4, epochs=1), **given})
    with pytest.raises(InputError, match="'data' argument must be at least one sequence; got none"):
        train_embeddings(data.subset([]), TrainingSettings(d_model=4, epochs=1))


# ---- the command


@pytest.fixture
def line(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_labelled("d.npz", data)
    told = json.dumps({"d_model": 8, "epochs": 4, "batch": 32})
    return ["--data", "d.npz", "--out", "out", "--checkpoint", "run.npz", "--every", "1", "--settings", told]


def facts_in(folder):
    return json.loads((folder / "out" / "run.json").read_text())


def test_what_is_written_so_far_survives_the_end_of_the_process(line, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as planted:
        planted.setattr(training._Run, "step", nth(training._Run.step, 2 * STEPS + 2, SystemExit(9)))
        with pytest.raises(SystemExit):
            run_script(line)
    so_far = facts_in(tmp_path)
    assert (so_far["ending"], so_far["epochs_done"], len(so_far["history"]["loss"])) == ("UNFINISHED", 2, 2)
    assert so_far["command"].startswith("python -m marginlens.embeddings.run --data d.npz")
    assert "numpy" in so_far["versions"]
    kept = keep_run("out", "x", data="d.npz", into=".")
    assert json.loads(kept.read_text())["ending"] == "UNFINISHED"
    assert run_script(line) == 0
    assert (facts_in(tmp_path)["ending"], facts_in(tmp_path)["epochs_done"]) == ("FINISHED", 4)
    finished = (tmp_path / "out" / "tokens.csv").read_bytes()
    assert run_script([*line[:2], "--out", "again", *line[-2:]]) == 0  # never stopped
    assert (tmp_path / "again" / "tokens.csv").read_bytes() == finished
    assert not list(tmp_path.rglob("*.partial"))


def test_a_table_and_facts_of_different_checkpoints_are_not_kept(line, tmp_path, monkeypatch):
    usual = TrainingRun.write  # of two files

    def killed_between(run, folder, *, names=None, facts=None):
        if len(run.history) == 2:
            earlier = (folder / "run.json").read_bytes()
            usual(run, folder, names=names, facts=facts)
            (folder / "run.json").write_bytes(earlier)
            raise SystemExit(9)
        usual(run, folder, names=names, facts=facts)

    with monkeypatch.context() as planted:
        planted.setattr(TrainingRun, "write", killed_between)
        with pytest.raises(SystemExit):
            run_script(line)
    with pytest.raises(InputError, match=r"'folder' argument must be .*; got 'out', whose two files are of different"):
        keep_run("out", "x", data="d.npz", into=".")
    assert run_script(line) == 0
    assert keep_run("out", "x", data="d.npz", into=".").is_file()


def test_a_failure_is_one_sentence_with_where_to_go_on(line, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as planted:
        planted.setattr(np, "savez", nth(np.savez, 3, full()))
        assert run_script(line) == 2
    said = capsys.readouterr().err
    assert "No space left on device" in said
    assert said.endswith("run.npz holds where to go on, after 2 whole epochs and 0 steps.\n")
    assert said.count("\n") == 1
    assert facts_in(tmp_path)["epochs_done"] == 2
    with monkeypatch.context() as planted:
        planted.setattr(RankCorrelations, "__call__", nth(RankCorrelations.__call__, 1, KeyboardInterrupt()))
        assert run_script(line) == 130
    said = capsys.readouterr().err
    assert said == f"marginlens: interrupted. run.npz holds where to go on, after 2 whole epochs and {STEPS} steps.\n"


def test_a_folder_that_cannot_be_written_is_found_before_the_first_step(line, monkeypatch, capsys):
    monkeypatch.setattr("marginlens.embeddings.results.write_whole", nth(None, 1, InputError("planted.")))
    steps = []
    monkeypatch.setattr(training._Run, "step", lambda run: steps.append(run.place))
    assert run_script(line) == 2
    assert capsys.readouterr().err == "marginlens: planted.\n"
    assert steps == []


def test_a_run_that_diverges_is_no_success(line, capsys, tmp_path):
    wild = json.dumps({"d_model": 8, "epochs": 40, "batch": 32, "learning_rate": 1e30})
    assert run_script([*line[:-1], wild]) == 1
    assert "no longer a finite number" in capsys.readouterr().out
    assert facts_in(tmp_path)["ending"] == "DIVERGED"
