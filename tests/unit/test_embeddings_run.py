"""Encoded sequences in files, settings, checkpoints that cannot be used, and training as a command."""

import json
import subprocess
import sys

import numpy as np
import pytest

from marginlens.data.levels import Levels, level_sequences
from marginlens.embeddings import training
from marginlens.embeddings.checkpoint import read_checkpoint
from marginlens.embeddings.keeping import keep_run, read_kept
from marginlens.embeddings.run import main
from marginlens.embeddings.sequence_file import read_labelled, write_labelled
from marginlens.embeddings.settings import TrainingSettings
from marginlens.errors import InputError
from marginlens.runs.settings import check_device

LAW = Levels(deltas=(0.2,), sizes=(4,), n_irrelevant=6, share=0.5)
SMALL = json.dumps({"d_model": 8, "epochs": 3, "batch": 16})


@pytest.fixture
def encoded(tmp_path):
    data = level_sequences(60, 9, 0, LAW)
    write_labelled(tmp_path / "data.npz", data, [f"t{s}" for s in range(14)])
    return tmp_path / "data.npz"


def test_written_sequences_are_read_back(encoded):
    data, names = read_labelled(encoded)
    again = level_sequences(60, 9, 0, LAW)
    assert np.array_equal(data.tokens, again.tokens)
    assert np.array_equal(data.offsets, again.offsets)
    assert np.array_equal(data.y, again.y)
    assert names == [f"t{s}" for s in range(14)]


def test_a_part_of_a_file_is_taken_by_name(tmp_path):
    arrays = {"tokens": [0, 1, 2, 1], "offsets": [0, 2, 3, 4], "y": [1, -1, 1], "split": ["train", "test", "train"]}
    np.savez(tmp_path / "d.npz", **{name: np.array(one) for name, one in arrays.items()})
    data, names = read_labelled(tmp_path / "d.npz", "train")
    assert (data.tokens.tolist(), data.y.tolist(), data.n_vocabulary, names) == ([0, 1, 1], [1.0, 1.0], 3, None)
    with pytest.raises(InputError, match="'split' argument must be one of test, train"):
        read_labelled(tmp_path / "d.npz", "rest")
    arrays["split"] = ["train", "test"]
    np.savez(tmp_path / "d.npz", **{name: np.array(one) for name, one in arrays.items()})
    with pytest.raises(InputError, match=r"'split' argument must be one for each of 3 sequences in .*; got 2 instead"):
        read_labelled(tmp_path / "d.npz", "train")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tokens": None}, "without tokens"),
        (
            {"tokens": np.array([0.5, 1.0, 2.0])},
            "'tokens' argument must be a list of whole numbers in .* dtype float64",
        ),
        ({"offsets": np.array([0, 2, 4])}, "'offsets' argument must be numbers from 0 to 3"),
        ({"offsets": np.array([0, 3, 3])}, r"no sequence is empty in .* an empty sequence \(sample 1\)"),
        ({"offsets": np.array([1, 2, 3])}, r"'offsets' argument must be numbers from 0 to 3.*got \[1\] to \[3\]"),
        (
            {"offsets": np.array([0, 2, 1, 3], dtype=np.uint64), "y": np.array([1, -1, 1])},
            r"'offsets' argument must be increasing.*\(sample 1\)",
        ),
        ({"tokens": np.array([0, -1, 2])}, "'tokens' argument must be ids from 0 to 2 in .*; got ids from -1 to 2"),
        ({"names": np.array("a")}, r"'names' argument must be a list of names in .*; got shape \(\)"),
        ({"split": np.array([["a"], ["b"]])}, r"'split' argument must be a list of names in .*; got shape \(2, 1\)"),
        ({"y": np.array([1, 0])}, r"'y' argument must be 2 labels, each -1 or \+1"),
        ({"names": np.array(["a", "b"])}, "'tokens' argument must be ids from 0 to 1 in .*; got ids from 0 to 2"),
        ({"y": np.array([{}, {}], dtype=object)}, "which cannot be read"),
    ],
)
def test_files_that_cannot_be_used_say_why(tmp_path, change, sentence):
    arrays = {"tokens": np.array([0, 1, 2]), "offsets": np.array([0, 2, 3]), "y": np.array([1, -1]), **change}
    np.savez(tmp_path / "d.npz", **{name: one for name, one in arrays.items() if one is not None})
    with pytest.raises(InputError, match=sentence):
        read_labelled(tmp_path / "d.npz")


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"layers": 3}, "'layers' argument must be 1 or 2; got 3"),
        ({"d_model": 0}, "'d_model' argument must be a whole number of at least 1"),
        ({"learning_rate": -1.0}, "'learning_rate' argument must be a positive number"),
        ({"weight_decay": -1.0}, "'weight_decay' argument must be a number of at least 0"),
        ({"dtype": "float16"}, "'dtype' argument must be float32 or float64"),
        ({"layers": 1.0}, "'layers' argument must be 1 or 2; got 1.0"),
        ({"milestones": [1.5]}, "'milestones' argument must be a whole number of at least 0"),
        ({"rate": 1}, "'settings' argument must be some of batch, d_model.*; got rate"),
    ],
)
def test_settings_that_cannot_be_are_refused(told, sentence):
    with pytest.raises(InputError, match=sentence):
        TrainingSettings.of(told)


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"layers": True}, "'layers' argument must be 1 or 2; got True"),
        ({"learning_rate": None}, "'learning_rate' argument must be a positive number"),
        ({"weight_decay": "x"}, "'weight_decay' argument must be a number of at least 0; got 'x'"),
        ({"weight_decay": None}, "'weight_decay' argument must be a number of at least 0; got None"),
        ({"milestones": 5}, "'milestones' argument must be a list of epochs; got 5"),
        ({"train_v": "no"}, "'train_v' argument must be true or false; got 'no'"),
        ({"device": None}, "'device' argument must be cpu or cuda; got None"),
    ],
)
def test_settings_of_another_kind_are_refused_where_they_are_made(told, sentence):
    with pytest.raises(InputError, match=sentence):
        TrainingSettings(**told)


def test_settings_of_numpy_numbers_are_those_of_plain_ones():
    made = TrainingSettings(np.int64(1), np.int32(8), learning_rate=np.float32(0.5), weight_decay=np.float64(0.25))
    assert made == TrainingSettings(1, 8, learning_rate=0.5, weight_decay=0.25)
    assert [type(one) for one in (made.layers, made.d_model, made.learning_rate, made.weight_decay)] == [
        int,
        int,
        float,
        float,
    ]


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # on a machine with a GPU too
    with pytest.raises(InputError, match="'device' argument must be a device that this machine has; got 'cuda'"):
        check_device("cuda")
    with pytest.raises(InputError, match="'device' argument must be cpu or cuda; got 'abacus'"):
        check_device("abacus")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no", b"\x93NUMPY"])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path, content):
    (tmp_path / "kept.npz").write_bytes(content)
    with pytest.raises(InputError, match="'checkpoint' argument must be a file that marginlens wrote"):
        read_checkpoint(tmp_path / "kept.npz")


def test_the_command_trains_writes_and_goes_on(encoded, tmp_path, capsys):
    common = ["--data", str(encoded), "--settings", SMALL, "--checkpoint", str(tmp_path / "kept.npz")]
    assert main([*common, "--out", str(tmp_path / "a"), "--time-limit", "1e-9"]) == 0
    assert "The time limit came before the last epoch" in capsys.readouterr().out
    assert json.loads((tmp_path / "a" / "run.json").read_text())["ending"] == "TIME_LIMIT"
    assert main([*common, "--out", str(tmp_path / "b")]) == 0
    assert "epoch 3: loss" in capsys.readouterr().out
    assert main(["--data", str(encoded), "--settings", SMALL, "--out", str(tmp_path / "c")]) == 0
    assert (tmp_path / "b" / "tokens.csv").read_bytes() == (tmp_path / "c" / "tokens.csv").read_bytes()
    facts = json.loads((tmp_path / "b" / "run.json").read_text())
    assert facts["epochs_done"] == 3
    assert "--settings" in facts["command"]
    assert facts["versions"]["numpy"] == np.__version__


def test_the_command_measures_a_held_out_part_and_keeps_it(encoded, tmp_path, capsys):
    data, _ = read_labelled(encoded)
    write_labelled(encoded, data, split=["train"] * 40 + ["held-out"] * 20)
    given = ["--data", str(encoded), "--split", "train", "--held-out", "held-out", "--settings", SMALL]
    assert main([*given, "--out", str(tmp_path / "out")]) == 0
    assert "held out: loss" in capsys.readouterr().out
    run = read_kept(keep_run(tmp_path / "out", "x", data=encoded, into=tmp_path))
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    assert run.held_out_loss == facts["held_out_loss"] > 0.0
    assert run.held_out_accuracy == facts["held_out_accuracy"]
    assert run.facts["held_out_sequences"] == 20
    assert run.curves["held_out_loss"][-1] == pytest.approx(run.held_out_loss, rel=1e-4)


def test_the_command_keeps_its_time_limit_with_one_step_an_epoch(encoded, tmp_path, capsys):
    whole_batches = json.dumps({"d_model": 8, "epochs": 30, "batch": 60})
    common = ["--data", str(encoded), "--settings", whole_batches, "--out", str(tmp_path / "a")]
    assert main([*common, "--time-limit", "0.001"]) == 1  # nothing holds where to go on
    assert json.loads((tmp_path / "a" / "run.json").read_text())["epochs_done"] == 1
    assert main([*common, "--time-limit", "0.001", "--checkpoint", str(tmp_path / "c.npz")]) == 0
    capsys.readouterr()
    for option in ("--length", "--data-seed"):
        assert main([*common, option, "1"]) == 2
        assert "argument must be left out with --data; got 1" in capsys.readouterr().err


def test_a_run_that_did_not_begin_leaves_the_results_of_another(encoded, tmp_path, monkeypatch):
    common = ["--data", str(encoded), "--out", str(tmp_path / "a"), "--every", "1", "--settings"]
    assert main([*common, SMALL]) == 0
    before = (tmp_path / "a" / "run.json").read_bytes()
    usual, calls = training._Run.step, []

    def killed(run):
        calls.append(run.epoch)
        if len(calls) in (1, 6):  # in its first step, and in its second epoch of four steps
            raise SystemExit(9)
        usual(run)

    monkeypatch.setattr(training._Run, "step", killed)
    with pytest.raises(SystemExit):
        main([*common, json.dumps({"d_model": 4, "batch": 16, "epochs": 3})])
    assert (tmp_path / "a" / "run.json").read_bytes() == before
    with pytest.raises(SystemExit):
        main([*common, json.dumps({"d_model": 4, "batch": 16, "epochs": 3})])
    assert json.loads((tmp_path / "a" / "run.json").read_text())["ending"] == "UNFINISHED"


def test_the_command_ends_in_one_sentence(encoded, tmp_path, capsys):
    out = ["--out", str(tmp_path / "a")]
    assert main(["--data", str(tmp_path / "none.npz"), *out]) == 2
    assert "No such file" in capsys.readouterr().err
    assert main(["--data", str(encoded), "--settings", "{", *out]) == 2
    assert capsys.readouterr().err.startswith("marginlens: The 'settings' argument must be a JSON object")
    assert not (tmp_path / "a").exists()


def test_training_imports_neither_rich_nor_the_command_line():
    code = "import sys, marginlens.embeddings.run; print([m for m in ('rich', 'typer', 'torch') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_levels_can_be_trained_from_the_command(tmp_path):
    settings = json.dumps({"d_model": 4, "epochs": 1})
    arguments = ["--levels", "20", "--length", "8", "--settings", settings, "--out", str(tmp_path / "o")]
    assert main(arguments) == 0
    assert len((tmp_path / "o" / "tokens.csv").read_text().splitlines()) == 2049
