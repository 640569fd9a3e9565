"""What all training runs share: settings, checkpoints on disk, endings of scripts, lines, Ctrl-C, and commands without places."""

import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from marginlens.embeddings import checkpoint as embeddings_checkpoint
from marginlens.embeddings import keeping as embeddings_keeping
from marginlens.embeddings.run import main as train_embeddings
from marginlens.embeddings.settings import TrainingSettings
from marginlens.errors import InputError, MissingExtra
from marginlens.runs.checkpoints import read_archive, refuse_other_data, refuse_other_settings, write_archive
from marginlens.runs.display import watched
from marginlens.runs.interrupts import held_interrupts
from marginlens.runs.keeping import command_without_places, lines_of
from marginlens.runs.scripts import check_folder, in_one_sentence, settings_in, time_left, versions_on
from marginlens.runs.settings import RunSettings, check_device, given_settings
from marginlens.vision import checkpoint as vision_checkpoint
from marginlens.vision import results as vision_results
from marginlens.vision.settings import VisionSettings


@dataclass(frozen=True)
class Choices(RunSettings):
    FREE: ClassVar[tuple[str, ...]] = ("epochs",)

    epochs: int = 3
    rate: float = 0.1
    steps: tuple[int, ...] = (1, 2)
    mirrored: bool = False
    device: str = "cpu"


# ---- settings


def test_settings_come_back_from_what_is_told_of_them():
    chosen = Choices(epochs=5, steps=(4,))
    assert json.loads(json.dumps(chosen.told())) == chosen.told()
    for one in (TrainingSettings(milestones=(3, 4)), VisionSettings(width=24)):
        assert type(one).of(json.loads(json.dumps(one.told()))) == one


def test_only_what_is_free_may_differ():
    assert Choices().differences(Choices(epochs=9)) == []
    assert Choices(rate=0.2).differences(Choices(steps=(3,))) == [
        "rate 0.1 there, 0.2 here",
        "steps [3] there, [1, 2] here",
    ]
    assert VisionSettings().differences(VisionSettings(epochs=1, device="cuda", compiled=True)) == []
    assert len(VisionSettings().differences(VisionSettings(precision="bfloat16", device="cuda"))) == 1
    assert TrainingSettings().differences(TrainingSettings(epochs=1, device="cuda")) == []
    others = {"layers": 2, "d_model": 4, "batch": 1, "learning_rate": 1.0, "weight_decay": 1.0, "milestones": ()}
    others |= {"train_v": False, "seed": 1, "dtype": "float64", "spread": 2.0}
    for name, other in others.items():
        assert [one.split()[0] for one in TrainingSettings().differences(TrainingSettings(**{name: other}))] == [name]
    with pytest.raises(
        InputError, match=r"one of the same settings; got 'c.npz' with rate 0.2 there, 0.1 here instead. Go"
    ):
        refuse_other_settings(Path("c.npz"), Choices(), Choices(rate=0.2))
    with pytest.raises(InputError, match=r"one of the same data; got 'c.npz', made with other images"):
        refuse_other_data(Path("c.npz"), "a", "b", "images")


@pytest.mark.parametrize(
    ("kind", "told", "sentence"),
    [
        (Choices, {"pace": 1, "age": 2}, "'settings' argument must be some of .*; got age, pace"),
        (Choices, {"rate": "0.1"}, "'rate' argument must be a number; got '0.1'"),
        (Choices, {"rate": None}, "'rate' argument must be a number; got None"),
        (Choices, {"epochs": True}, "'epochs' argument must be a number; got True"),
        (Choices, {"mirrored": 1}, "'mirrored' argument must be true or false; got 1"),
        (Choices, {"device": 0}, "'device' argument must be text; got 0"),
        (Choices, {"steps": 5}, "'steps' argument must be a list; got 5"),
        (TrainingSettings, {"weight_decay": "much"}, "'weight_decay' argument must be a number"),
        (TrainingSettings, {"milestones": 5}, "'milestones' argument must be a list"),
        (TrainingSettings, {"train_v": "no"}, "'train_v' argument must be true or false"),
        (VisionSettings, {"learning_rate": "0.01"}, "'learning_rate' argument must be a number"),
        (VisionSettings, {"seed": 2**70}, "'seed' argument must be a whole number of at most 9223372036854775807"),
        (VisionSettings, {"device": "cpu:0", "precision": "bfloat16"}, "float32 on a processor"),
    ],
)
def test_settings_of_another_kind_are_refused(kind, told, sentence):
    with pytest.raises(InputError, match=sentence):
        kind.of(told)


def test_settings_of_numpy_numbers_are_told_as_json_takes_them():
    told = Choices(epochs=np.int64(5), rate=np.float32(0.5), steps=(np.int64(4),)).told()
    assert json.loads(json.dumps(told)) == told == {**Choices().told(), "epochs": 5, "rate": 0.5, "steps": [4]}


def test_settings_are_of_their_kind_or_the_defaults():
    assert given_settings(None, Choices) == Choices()
    assert given_settings(Choices(epochs=7), Choices).epochs == 7
    for other in ({}, {"epochs": 1}, TrainingSettings()):
        with pytest.raises(InputError, match="'settings' argument must be Choices; got"):
            given_settings(other, Choices)


@pytest.mark.parametrize("text", ["{", "[1]", "", "no-such-file.json", '{"a":' * 100_000, "\0"])
def test_what_is_no_json_object_is_no_settings(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="'settings' argument must be a JSON object, or a file that holds one"):
        settings_in(text)


def test_settings_may_be_in_a_file(tmp_path):
    (tmp_path / "s.json").write_text('{"rate": 0.5}')
    assert settings_in(str(tmp_path / "s.json")) == settings_in(' {"rate": 0.5}') == {"rate": 0.5}


@pytest.mark.parametrize("name", ["gpu", "meta", "cuda:x"])
def test_other_devices_are_refused(name):
    with pytest.raises(InputError, match="'device' argument must be cpu or cuda"):
        check_device(name)


def test_gpus_are_counted_from_zero(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [check_device(name).index for name in ("cuda", "cuda:0", "cuda:1")] == [None, 0, 1]
    with pytest.raises(InputError, match="'device' argument must be one of 2 GPUs, counted from 0; got 'cuda:2'"):
        check_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=r"got 'cuda' where torch finds no GPU instead\. Use cpu\."):
        check_device("cuda")


@pytest.mark.parametrize("name", ["cpu", "cpu:0"])
def test_a_processor_has_no_name_of_a_gpu(name):
    assert "device" not in versions_on(name)


# ---- checkpoints


def test_an_archive_comes_back(tmp_path):
    place, arrays = tmp_path / "c.npz", {"a/b": np.arange(3.0), "n": np.array(2, dtype=np.int8)}
    write_archive(place, "form 1", {"epoch": 7, "loss": float("nan")}, arrays)
    facts, found = read_archive(place, "form 1", lambda facts, found: (facts, found))
    assert facts["epoch"] == 7
    assert np.isnan(facts["loss"])
    assert found.keys() == arrays.keys()
    assert all(np.array_equal(found[name], arrays[name]) and found[name].dtype == arrays[name].dtype for name in found)
    with pytest.raises(InputError, match="of another form"):
        read_archive(place, "form 2", lambda facts, found: None)


def test_what_earlier_versions_wrote_is_read(tmp_path):
    forms = (vision_checkpoint._FORM, embeddings_checkpoint._FORM, vision_results.FORM, embeddings_keeping.FORM)
    assert forms == (
        "marginlens vision checkpoint 1",
        "marginlens training checkpoint 1",
        "marginlens vision run 1",
        "marginlens kept training run 1",
    )
    told = {"width": 8, "layers": 1, "heads": 2, "mlp": 8}  # without spread, which came later
    record = {
        **dict.fromkeys(vision_results.SCALARS, float("nan")),
        **{name: [1.0] for name in ("sparsity", "head_sparsity", "own_share", "norm", "norm_of_sum")},
        "epoch": 0,
    }
    facts = {"form": forms[0], "settings": told, "history": [record], "fingerprint": "f"}
    facts |= {"epoch": 0, "place": 2, "loss": 1.5, "right": 3.0, "seconds": 9.0}
    np.savez(
        tmp_path / "v.npz", **{"weight/w": np.ones(2), "maps/0": np.ones((1, 4)), "facts": np.array(json.dumps(facts))}
    )
    found = vision_checkpoint.read_checkpoint(tmp_path / "v.npz")
    assert found.settings == VisionSettings(**told)
    assert (found.place, found.history[0].norm, list(found.arrays), list(found.maps)) == (2, (1.0,), ["weight/w"], [0])
    facts = {"form": forms[1], "settings": {"milestones": [3], "d_model": 4}, "fingerprint": "f", "generator": {"s": 1}}
    facts |= {"epoch": 1, "place": 0, "taken": 5, "loss": 0.0, "history": [[1.0, 0.5, 0.5, 2.0]], "seconds": 2.0}
    np.savez(tmp_path / "e.npz", E=np.ones((2, 4)), facts=np.array(json.dumps(facts)))
    assert embeddings_checkpoint.read_checkpoint(tmp_path / "e.npz").settings.milestones == (3,)


@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_earlier_checkpoint_and_nothing_else(tmp_path, monkeypatch, problem):
    place = tmp_path / "c.npz"
    write_archive(place, "f", {"epoch": 1}, {})
    (tmp_path / ".c.npz.partial").write_bytes(b"of a process that was killed")

    def fails(stream, **arrays):
        stream.write(b"half")
        raise problem

    monkeypatch.setattr(np, "savez", fails)
    with pytest.raises((InputError, KeyboardInterrupt)) as caught:
        write_archive(place, "f", {"epoch": 2}, {})
    if isinstance(problem, OSError):
        assert "'checkpoint' argument must be a file that can be written; got" in str(caught.value)
        assert "No space left" in str(caught.value)
    assert [one.name for one in tmp_path.iterdir()] == ["c.npz"]
    assert read_archive(place, "f", lambda facts, arrays: facts) == {"epoch": 1}


def test_a_checkpoint_that_is_a_link_stays_one(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "c.npz").symlink_to(tmp_path / "elsewhere" / "c.npz")
    write_archive(tmp_path / "c.npz", "f", {}, {})
    assert (tmp_path / "c.npz").is_symlink()
    assert (tmp_path / "elsewhere" / "c.npz").is_file()


# ---- scripts


def raising(problem):
    def work():
        raise problem

    return work


def test_scripts_end_in_a_sentence_and_a_code(tmp_path, capsys):
    file = tmp_path / "c.npz"
    assert in_one_sentence(lambda: 1) == 1
    noted = InputError("Unusable.")
    noted.add_note("c.npz holds where to go on.")
    for problem, code, said in (
        (noted, 2, "marginlens: Unusable. c.npz holds where to go on.\n"),
        (MissingExtra("It needs torch."), 2, "marginlens: It needs torch.\n"),
        (FileNotFoundError(2, "No such file", "x"), 2, "marginlens: [Errno 2] No such file: 'x'\n"),
        (MemoryError("Unable to allocate 7 PiB."), 2, "marginlens: Unable to allocate 7 PiB.\n"),
        (MemoryError(), 2, "marginlens: Not enough memory.\n"),
        (KeyboardInterrupt(), 130, "marginlens: interrupted.\n"),
    ):
        assert in_one_sentence(raising(problem), file) == code
        assert capsys.readouterr().err == said
    file.write_bytes(b"")
    assert in_one_sentence(raising(KeyboardInterrupt()), file) == 130
    assert capsys.readouterr().err == f"marginlens: interrupted; {file} holds where to go on.\n"
    with pytest.raises(ZeroDivisionError):  # a defect keeps its traceback
        in_one_sentence(raising(ZeroDivisionError()))


def test_the_time_left_is_what_reading_left(monkeypatch):
    clock = [10.0]
    monkeypatch.setattr("marginlens.runs.scripts.time.perf_counter", lambda: clock[0])
    left = time_left(5.0)
    clock[0] = 12.0
    assert left() == 3.0
    clock[0] = 20.0
    assert 0.0 < left() < 0.01  # a run takes a step and stops
    assert time_left(None)() is None
    with pytest.raises(InputError, match="'time_limit' argument must be a positive number"):
        time_left(0.0)


def test_a_place_for_results_that_is_a_file_is_refused_before_any_work(tmp_path, capsys):
    (tmp_path / "out").write_text("")
    check_folder(tmp_path / "new", "out")
    with pytest.raises(InputError, match="'out' argument must be a folder, which need not exist"):
        check_folder(tmp_path / "out", "out")
    assert train_embeddings(["--levels", "8", "--out", str(tmp_path / "out")]) == 2
    assert "'out' argument" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--settings", "{"], "'settings' argument must be a JSON object"),
        (["--settings", '{"pace": 1}'], "got pace"),
        (["--settings", '{"d_model": 4, "epochs": 1}', "--every", "0"], "'every' argument"),
        (["--settings", '{"d_model": 4, "epochs": 1}', "--time-limit", "-1"], "'time_limit' argument"),
        (["--settings", '{"d_model": 4, "learning_rate": "1"}'], "'learning_rate' argument must be a number"),
        (["--settings", '{"d_model": 4}', "--split", "train"], "'split' argument must be left out with --levels"),
        (["--settings", '{"d_model": 4, "device": "cuda:x"}'], "'device' argument must be cpu or cuda"),
        (["--settings", '{"d_model": 4}', "--checkpoint", "no/such/file"], "'checkpoint' argument must be a file in"),
    ],
)
def test_training_embeddings_refuses_in_one_sentence(tmp_path, monkeypatch, capsys, more, sentence):
    monkeypatch.chdir(tmp_path)
    assert train_embeddings(["--levels", "8", "--out", "out", *more]) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert told.startswith("marginlens: The ")
    assert told.count("\n") == 1


# ---- watching and interrupting


@dataclass(frozen=True)
class Record:
    epoch: int

    def __str__(self):
        return f"epoch {self.epoch}"


@pytest.mark.parametrize("rich", [True, False])
def test_lines_where_no_terminal_or_no_rich_is(monkeypatch, capsys, rich):
    if not rich:
        monkeypatch.setitem(sys.modules, "rich", None)
        monkeypatch.setitem(sys.modules, "rich.console", None)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    clock = iter((2.0, 6.5, 7.5, 8.0))
    monkeypatch.setattr("marginlens.runs.display.time.monotonic", lambda: next(clock))
    with watched(4, lambda record: "", between=5.0) as watch:
        for epoch in range(1, 5):
            watch(Record(epoch))
    told = capsys.readouterr()
    assert told.out == "".join(f"epoch {k} of 4 epochs\n" for k in (1, 3, 4))
    assert told.err == ""


def test_a_failure_while_watched_is_not_blamed_on_rich(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(ZeroDivisionError) as caught, watched(1, str):
        raise ZeroDivisionError
    assert caught.value.__context__ is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_request_to_end_waits_and_the_second_does_not(number):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with held_interrupts() as interrupted:
        assert not interrupted()
        os.kill(os.getpid(), number)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def held_to_the_end():
    with held_interrupts():
        os.kill(os.getpid(), signal.SIGINT)


def test_a_request_to_end_that_nobody_asks_for_is_raised_at_the_end():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        held_to_the_end()
    assert signal.getsignal(signal.SIGINT) is before


# ---- kept runs


def test_commands_lose_places_and_keep_the_rest():
    command = "python -m m --data /a/b/c.npz --out=/o --checkpoint '/x y/c.npz' --settings '{\"a\": 1}' --every 5"
    assert command_without_places(command) == "python -m m --data c.npz --settings '{\"a\": 1}' --every 5"
    assert command_without_places("run --settings /a/s.json --save-models /m --save-every 2") == (
        "run --settings s.json --save-every 2"
    )
    assert command_without_places("run -- --o=/o --check /x/c.npz --set /a/s.json --save-m /m --data-seed 3 -") == (
        "run -- --settings s.json --data-seed 3 -"
    )


@pytest.mark.parametrize("command", [None, 5, ["a"]])
def test_what_is_no_command_is_refused(command):
    with pytest.raises(InputError, match="'command' argument must be text"):
        command_without_places(command)


def test_kept_json_has_one_line_for_each_name():
    told = {"form": "f", "values": [1, 2.5, None], "name": "ü"}
    assert lines_of(told).decode() == '{\n"form": "f",\n"values": [1,2.5,null],\n"name": "ü"\n}\n'
    assert json.loads(lines_of(told)) == told
