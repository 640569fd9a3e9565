"""Archived training runs: what goes into a file and comes back, what is refused, and the runs that come with the package."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command

from marginlens.cli import app as cli
from marginlens.data.files import write_labelled
from marginlens.data.sequence_generators import Levels, level_sequences
from marginlens.embeddings.statistics import token_statistics
from marginlens.errors import InputError
from marginlens_papers import archive
from marginlens_papers.claims.a.scale_runs import SCALE_RUNS_FORM, read_scale_runs
from marginlens_papers.claims.ours.norm_runs import NORM_RUNS_FORM, read_norm_runs
from marginlens_papers.claims.ours.proof_runs import PROOF_RUNS_FORM, read_proof_runs
from marginlens_papers.embeddings import RankCorrelations, TrainingSettings
from marginlens_papers.vision import VisionSettings
from marginlens_papers.vision.results import VISION_FORM
from one_command import exit_code_of
from refusals import refused
from tolerances import KEPT_RANKS

LAW = Levels(deltas=(0.2,), sizes=(4,), n_irrelevant=6, share=0.5)
SMALL = json.dumps({"d_model": 8, "epochs": 30, "batch": 16, "seed": 5})
MID_EPOCH = 0.05  # how far a correlation may move in part of an epoch
train = exit_code_of("embeddings")
PACKAGED = sorted(path.name for path in archive.results_folder().glob("embeddings-*.json"))


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


def test_an_archived_run_has_what_its_figure_shows(trained, tmp_path):
    encoded, folder = trained
    found = archive.read_run(archive.archive_run(folder, "tiny-1", data=encoded, into=tmp_path))
    data = level_sequences(60, 9, 0, LAW)
    facts = json.loads((folder / "run.json").read_text())
    table = np.genfromtxt(folder / "tokens.csv", delimiter=",", skip_header=1, usecols=(2, 3))
    assert (found.name, found.source, found.finished) == ("tiny-1", "tiny", True)
    assert found.settings == TrainingSettings(d_model=8, epochs=30, batch=16, seed=5)
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


def test_a_stopped_run_without_a_loss_says_so(copied, tmp_path):
    encoded, folder = copied
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**facts, "ending": "DIVERGED", "loss": None}))
    found = archive.read_run(archive.archive_run(folder, "tiny", data=encoded, into=tmp_path))
    assert not found.finished
    assert "then stopped" in repr(found)
    assert np.isnan(found.loss)


def test_runs_on_a_split_and_on_levels_are_archived_with_their_counts(tmp_path, capsys):
    data, parts = level_sequences(60, 9, 0, LAW), np.where(np.arange(60) % 3 == 0, "test", "train")
    write_labelled(tmp_path / "tiny.npz", data, split=parts)
    common = ["--settings", '{"d_model": 4, "epochs": 1}', "--out", str(tmp_path / "run")]
    assert train([str(tmp_path / "tiny.npz"), "--split", "train", *common]) == 0
    found = archive.read_run(archive.archive_run(tmp_path / "run", "part", data=tmp_path / "tiny.npz", into=tmp_path))
    assert np.array_equal(found.statistics.count, token_statistics(data[parts == "train"]).count)
    assert train(["--levels", "40", "--length", "12", *common]) == 0
    capsys.readouterr()
    assert archive.main(["embeddings", str(tmp_path / "run"), "small", "--into", str(tmp_path)]) == 0
    assert "ArchivedRun(small: levels, one layer, rate 0.01, 1 epochs)" in capsys.readouterr().out
    found = archive.read_run(tmp_path / "embeddings-small.json")
    assert found.names is None
    assert np.array_equal(found.statistics.count, token_statistics(level_sequences(40, 12, 0)).count)


def test_the_data_are_called_as_asked_and_runs_of_one_rate_come_by_name(trained, tmp_path, monkeypatch):
    encoded, folder = trained
    for name in ("b", "a"):
        arguments = ["embeddings", str(folder), name, "--data", str(encoded), "--into", str(tmp_path)]
        assert archive.main([*arguments, "--source", "tiny-3"]) == 0
    monkeypatch.setattr(archive, "results_folder", lambda: tmp_path)
    assert [found.name for found in archive.archived_runs("tiny-3", 1)] == ["a", "b"]


@pytest.mark.parametrize(
    "name", [*PACKAGED, *sorted(path.name for path in archive.results_folder().glob("vision-*.json"))]
)
def test_the_command_of_an_archived_training_run_can_be_typed_today(name):
    values = json.loads((archive.results_folder() / name).read_text(encoding="utf-8"))
    words = shlex.split(values.get("command", ""))[1:]
    command = get_command(cli.app).get_command(None, words[0])
    typed = command.make_context(words[0], [*words[1:], "--out", "o"]).params
    kind = TrainingSettings if words[0] == "embeddings" else VisionSettings
    assert kind.from_dict(values["settings"]) == kind.from_dict(json.loads(typed["settings"]))


def test_other_data_names_folders_and_contents_are_refused_and_nothing_is_written(copied, tmp_path, capsys):
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
    assert "must be a folder with tokens.csv and run.json" in capsys.readouterr().err
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


@pytest.mark.parametrize(
    "read", [archive.read_run, archive.read_vision_run, read_norm_runs, read_proof_runs, read_scale_runs]
)
def test_a_file_of_other_contents_is_refused_by_whoever_reads_an_archive(tmp_path, read):
    forms = (archive.EMBEDDINGS_FORM, VISION_FORM, NORM_RUNS_FORM, PROOF_RUNS_FORM, SCALE_RUNS_FORM)
    for content in ("", "{", "[]", "{}", "[" * 100_000, *(json.dumps({"form": form}) for form in forms)):
        (tmp_path / "runs.json").write_text(content)
        with refused("path"):
            read(tmp_path / "runs.json")


@pytest.mark.parametrize("name", PACKAGED)
def test_packaged_runs_are_whole_small_and_free_of_text(name):
    place = archive.results_folder() / name
    found = archive.read_run(place)
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


def test_packaged_runs_are_found_by_data_and_depth():
    for source, layers in (("imdb", 1), ("imdb", 2), ("yelp", 1), ("yelp", 2), ("levels", 1)):
        found = archive.archived_runs(source, layers)
        assert {(run.source, run.settings.layers) for run in found} == {(source, layers)}
        rates = [run.settings.learning_rate for run in found]
        assert rates == sorted(rates, reverse=True)
    assert archive.archived_runs("imdb", 3) == ()
