"""Tables of training runs: what goes into a file and comes back, what is refused, and the tables that come with the package."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from experiments import archive
from experiments.embeddings import __main__ as embeddings
from experiments.embeddings.settings import TrainingSettings
from experiments.embeddings.train import RankCorrelations
from experiments.training.options import chosen_settings
from experiments.vision import __main__ as vision
from experiments.vision.settings import VisionTrainingSettings
from marginlens.data.files import write_labelled
from marginlens.data.sequence_generators import Levels, level_sequences
from marginlens.embeddings.statistics import token_statistics
from marginlens.errors import InputError
from marginlens_papers import tables
from marginlens_papers.claims.b.embedding_runs import EmbeddingRun, EmbeddingSettings, embedding_runs, shared_columns
from marginlens_papers.tables import read_file, results_folder
from refusals import refused
from tolerances import KEPT_RANKS

LAW = Levels(deltas=(0.2,), sizes=(4,), n_irrelevant=6, share=0.5)
SMALL = json.dumps({"d_model": 8, "epochs": 30, "batch": 16, "seed": 5})
MID_EPOCH = 0.05  # how far a correlation may move in part of an epoch
COMMANDS = {
    "embeddings": (embeddings.command_parser, TrainingSettings),
    "vision": (vision.command_parser, VisionTrainingSettings),
}
train = embeddings.main
PACKAGED = sorted(path.name for path in results_folder().glob("embeddings-*.json"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A data file, and the folder of a run on it."""
    place = tmp_path_factory.mktemp("trained")
    write_labelled(place / "tiny.npz", level_sequences(60, 9, 0, LAW), [f"t{s}" for s in range(14)])
    options = [str(place / "tiny.npz"), "--settings", SMALL, "--out", str(place / "run")]
    assert train([*options, "--checkpoint", str(place / "point.npz")]) == 0
    return place / "tiny.npz", place / "run"


@pytest.fixture
def copied(trained, tmp_path):
    """The data file and a copy of the run that may be changed."""
    (tmp_path / "run").mkdir()
    for name in ("run.json", "tokens.csv"):
        (tmp_path / "run" / name).write_bytes((trained[1] / name).read_bytes())
    return trained[0], tmp_path / "run"


def test_an_archived_run_has_the_data_of_its_figure(trained, tmp_path):
    encoded, folder = trained
    found = read_file(archive.archive_run(folder, "tiny-1", data=encoded, into=tmp_path), EmbeddingRun)
    data = level_sequences(60, 9, 0, LAW)
    facts = json.loads((folder / "run.json").read_text())
    table = np.genfromtxt(folder / "tokens.csv", delimiter=",", skip_header=1, usecols=(2, 3))
    assert (found.name, found.source, found.finished) == ("tiny-1", "tiny", True)
    assert found.settings == EmbeddingSettings(d_model=8, epochs=30, batch=16, seed=5)
    assert found.names == tuple(f"t{s}" for s in range(14))
    assert np.allclose(np.column_stack([found.a, found.b]), table, rtol=1e-4, atol=0.0)
    assert np.array_equal(found.statistics.in_positive, token_statistics(data).in_positive)
    assert (found.loss, found.accuracy) == (facts["loss"], facts["accuracy"])
    assert found.facts["data"]["sha256"] == data.fingerprint
    assert str(folder) not in found.facts["command"]
    assert found.epochs[:20].tolist() == list(range(1, 21))
    assert found.epochs[-1] == 30 > len(found.epochs)
    expected = np.array(facts["history"]["loss"])[found.epochs.astype(int) - 1]
    assert np.allclose(found.curves["loss"], expected, rtol=1e-4, atol=0.0)


def test_a_stopped_run_without_a_loss_is_reported(copied, tmp_path):
    encoded, folder = copied
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**facts, "ending": "DIVERGED", "loss": None}))
    found = read_file(archive.archive_run(folder, "tiny", data=encoded, into=tmp_path), EmbeddingRun)
    assert not found.finished
    assert "then stopped" in repr(found)
    assert np.isnan(found.loss)


def test_runs_on_a_split_and_on_levels_are_archived_with_their_counts(tmp_path, capsys):
    data, parts = level_sequences(60, 9, 0, LAW), np.where(np.arange(60) % 3 == 0, "test", "train")
    write_labelled(tmp_path / "tiny.npz", data, split=parts)
    common = ["--settings", '{"d_model": 4, "epochs": 1}', "--out", str(tmp_path / "run")]
    assert train([str(tmp_path / "tiny.npz"), "--split", "train", *common]) == 0
    found = read_file(
        archive.archive_run(tmp_path / "run", "part", data=tmp_path / "tiny.npz", into=tmp_path), EmbeddingRun
    )
    assert np.array_equal(found.statistics.count, token_statistics(data[parts == "train"]).count)
    assert train(["--levels", "40", "--length", "12", *common]) == 0
    capsys.readouterr()
    assert archive.main(["embeddings", str(tmp_path / "run"), "small", "--into", str(tmp_path)]) == 0
    assert "EmbeddingRun(small: levels, one layer, rate 0.01, 1 epochs)" in capsys.readouterr().out
    found = read_file(tmp_path / "embeddings-small.json", EmbeddingRun)
    assert found.names is None
    assert np.array_equal(found.statistics.count, token_statistics(level_sequences(40, 12, 0)).count)


def test_archived_data_have_given_names_and_equal_rates_sort_by_name(trained, tmp_path, monkeypatch):
    encoded, folder = trained
    for name in ("b", "a"):
        arguments = ["embeddings", str(folder), name, "--data", str(encoded), "--into", str(tmp_path)]
        assert archive.main([*arguments, "--source", "tiny-3"]) == 0
    monkeypatch.setattr(tables, "results_folder", lambda: tmp_path)
    assert [found.name for found in embedding_runs("tiny-3", 1)] == ["a", "b"]


@pytest.mark.parametrize("name", [*PACKAGED, *sorted(path.name for path in results_folder().glob("vision-*.json"))])
def test_the_command_of_an_archived_run_still_parses(name):
    values = json.loads((results_folder() / name).read_text(encoding="utf-8"))
    words = shlex.split(values["command"])
    # Earlier versions called these commands marginlens embeddings and marginlens vision.
    command, *words = words[1:] if words[0] == "marginlens" else words[2:]
    parser, kind = COMMANDS[command.removeprefix("experiments.")]
    typed = parser().parse_args([*words, "--out", "o"])
    assert kind.from_dict(values["settings"]) == chosen_settings(kind, typed)


def test_invalid_archives_are_refused_and_nothing_is_written(copied, tmp_path, capsys):
    encoded, folder = copied
    write_labelled(tmp_path / "other.npz", level_sequences(60, 9, 1, LAW))
    right = {"folder": folder, "name": "x", "data": encoded, "into": tmp_path}
    for argument, wrong in (
        ("data", tmp_path / "other.npz"),
        ("data", None),
        ("name", "../x"),
        ("into", tmp_path / "nowhere"),
        ("folder", tmp_path / "none"),
    ):
        with refused(argument):
            archive.archive_run(**{**right, argument: wrong})
    assert archive.main(["embeddings", str(tmp_path / "none"), "x"]) == 2
    assert "tokens.csv and run.json" in capsys.readouterr().err
    facts = json.loads((folder / "run.json").read_text())
    for change in (
        {"ending": "NOPE"},
        {"settings": [1]},
        {"history": 3},
        {"data": None},
        {"command": "a 'b"},
        {"table": "0"},
    ):
        (folder / "run.json").write_text(json.dumps({**facts, **change}))
        with pytest.raises(InputError):
            archive.archive_run(**right)
    assert not list(tmp_path.glob("embeddings-*"))


@pytest.mark.parametrize("name", PACKAGED)
def test_packaged_runs_store_columns_of_a_vocabulary_once(name):
    values = json.loads((results_folder() / name).read_text(encoding="utf-8"))
    whole = {key: value for key, value in values.items() if key != "vocabulary"}
    whole |= shared_columns(values["vocabulary"]) if "vocabulary" in values else {}
    assert archive.share_columns(whole) == values


@pytest.mark.parametrize("name", PACKAGED)
def test_packaged_runs_are_complete_small_and_without_text(name):
    place = results_folder() / name
    found = read_file(place, EmbeddingRun)
    assert len(place.read_bytes()) < 400_000
    assert int(found.statistics.count.sum()) == found.statistics.n_positions
    assert np.isfinite([found.a, found.b]).all()
    assert found.epochs[-1] == found.facts["epochs_done"] <= found.settings.epochs
    assert found.finished == (found.epochs[-1] == found.settings.epochs)
    assert len(found.facts["data"]["sha256"]) == 64
    assert " /" not in found.facts["command"]
    assert found.names is None or not any(set(token) & set(" \t\n") or len(token) > 20 for token in found.names)
    ranks = RankCorrelations(found.statistics)(found.a, found.b)
    recorded = [found.curves[curve][-1] for curve in ("correlation_v", "correlation_p")]
    within = KEPT_RANKS if found.finished else MID_EPOCH  # a stopped run's table is later than its last whole epoch
    assert np.abs(np.array(ranks) - recorded).max() < within
    description = json.loads(place.read_text(encoding="utf-8"))["data"]
    file = "levels" if "levels" in description else Path(description["file"]).stem
    assert found.source == description.get("called", file)
