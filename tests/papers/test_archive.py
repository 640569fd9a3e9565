"""Files of a training run, number by number: what is written under each name, and what of it is kept."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from marginlens.data.labelled import LabelledSequences
from marginlens.data.random_sequences import Levels, level_sequences
from marginlens.embeddings.models import Parameters
from marginlens.embeddings.sequence_file import write_labelled
from marginlens.embeddings.statistics import TokenStatistics, token_statistics
from marginlens.embeddings.train import EpochRecord, RankCorrelations, TrainingRun, TrainingSettings
from marginlens.errors import InputError
from marginlens.training.loop import Ending
from marginlens_papers.archive import archive_run, archived_runs, read_run, results_folder
from marginlens_papers.archive import embeddings as keeping
from marginlens_papers.archive import keep_embeddings as keep

DATA = LabelledSequences([[0, 0, 1], [1, 2], [0, 2, 2]], [1, -1, 1], 4)  # token 3 never occurs
NINE_DIGITS = 1e-8  # relative, of what a table holds
FIVE_DIGITS = 1e-4  # relative, of what is kept


def record(k):
    return EpochRecord(k, 1.0 / k, 0.5 + 0.1 / k, 0.2 + 0.1 / k, 3.0 * k, 2.0 / k, 1.0 - 0.5 / k)


def written(folder, data=DATA, source=None, n_epochs=3, history=None, **settings):
    """The folder of a made-up run on these data, stopped after some epochs."""
    rng, S = np.random.default_rng(0), data.n_vocabulary
    a, b = rng.standard_normal((2, S))
    records = tuple(record(k + 1) for k in range(n_epochs)) if history is None else history
    chosen = TrainingSettings(d_model=2, **{"epochs": 2000, **settings})
    empty = Parameters(np.zeros((S, 2)), np.zeros(2), np.zeros(2))
    run = TrainingRun(chosen, token_statistics(data), empty, a, b, records, 0.25, 0.75, Ending.TIME_LIMIT)
    facts = {"data": source or {"file": "tiny.npz", "split": None}, "command": "python -m x", "versions": {}}
    run.write(folder, facts=facts)
    return run


@pytest.fixture
def encoded(tmp_path):
    write_labelled(tmp_path / "tiny.npz", DATA)
    return tmp_path / "tiny.npz"


def test_the_table_and_the_facts_have_every_number_under_its_own_name(tmp_path):
    run = written(tmp_path)
    with (tmp_path / "tokens.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    for name, expected in run.columns().items():
        assert [float(row[name]) for row in rows] == pytest.approx(expected, rel=NINE_DIGITS, abs=0.0, nan_ok=True)
    assert run.columns()["alpha"].tolist() == [3 / 8, 0.0, 1 / 8, 0.0]
    assert run.columns()["posterior_difference"][:3].tolist() == [1.0, 0.0, 1 / 3]
    facts = json.loads((tmp_path / "run.json").read_text())
    found = {name: facts[name] for name in ("ending", "epochs_done", "loss", "accuracy", "positions")}
    assert found == {"ending": "TIME_LIMIT", "epochs_done": 3, "loss": 0.25, "accuracy": 0.75, "positions": 8}
    for name, values in facts["history"].items():
        assert values == [getattr(one, name) for one in run.history]


def test_a_number_that_is_none_is_written_as_null(tmp_path):
    written(tmp_path, history=(EpochRecord(1, 0.5, float("nan"), float("inf"), 1.0),))

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    history = json.loads((tmp_path / "run.json").read_text(), parse_constant=refuse)["history"]
    assert (history["correlation_v"], history["correlation_p"], history["loss"]) == ([None], [None], [0.5])


def test_tokens_are_ranked_from_the_count_that_is_asked_for():
    known = TokenStatistics(np.array([199, 200, 100, 0]), np.array([0, 0, 101, 1]), 601)
    assert RankCorrelations(known).tokens.tolist() == [1, 2]
    assert RankCorrelations(known, 1).tokens.tolist() == [0, 1, 2, 3]


def test_each_curve_is_kept_under_its_name_and_every_decade_alike(encoded, tmp_path):
    written(tmp_path / "run", n_epochs=1000)
    found = read_run(archive_run(tmp_path / "run", "x", data=encoded, into=tmp_path))
    assert found.told == "tiny, one layer, rate 0.01, 1000 epochs of 2000, then stopped"
    assert found.facts["sequences"] == 3
    for name, values in found.curves.items():
        expected = [getattr(record(int(k)), name) for k in found.epochs]
        assert values == pytest.approx(expected, rel=FIVE_DIGITS, abs=0.0)
    assert abs(np.count_nonzero(found.epochs > 100) - 40) <= 1


def test_data_with_the_same_tokens_and_other_labels_are_refused(encoded, tmp_path):
    written(tmp_path / "run")
    other = LabelledSequences([DATA[i][0] for i in range(3)], -DATA.y, 4)
    write_labelled(encoded, other)
    with pytest.raises(InputError, match="3 occurrences of token 0 where the run has 3, or labels"):
        archive_run(tmp_path / "run", "x", data=encoded, into=tmp_path)


def test_k_level_sequences_are_drawn_again_from_their_seed_and_by_the_same_law_only(tmp_path):
    source = {"levels": repr(Levels()), "sequences": 20, "length": 6, "seed": 7}
    data = level_sequences(20, 6, 7)
    written(tmp_path / "run", data, source)
    found = read_run(archive_run(tmp_path / "run", "x", into=tmp_path))
    assert np.array_equal(found.statistics.in_positive, token_statistics(data).in_positive)
    written(tmp_path / "run", data, {**source, "levels": repr(Levels(n_irrelevant=5))})
    with pytest.raises(InputError, match=r"'folder' argument must be a run on Levels\(.*; got .* 5 irrelevant"):
        archive_run(tmp_path / "run", "x", into=tmp_path)


def test_a_kept_file_with_columns_of_different_lengths_is_refused(encoded, tmp_path):
    written(tmp_path / "run")
    file = archive_run(tmp_path / "run", "x", data=encoded, into=tmp_path)
    told = json.loads(file.read_text())
    file.write_text(json.dumps({**told, "a": told["a"][:-1]}))
    with pytest.raises(InputError, match=r"columns of one length; got lengths \[3, 4\]"):
        read_run(file)


def test_kept_runs_of_one_rate_come_by_their_spread_and_then_by_name(encoded, tmp_path, monkeypatch):
    for name, rate, spread in (("c", 0.1, 1.0), ("d", 0.1, 0.5), ("b", 0.1, 1.0), ("a", 0.01, 0.1)):
        written(tmp_path / "run", learning_rate=rate, spread=spread)
        archive_run(tmp_path / "run", name, data=encoded, into=tmp_path)
    monkeypatch.setattr(keeping, "results_folder", lambda: tmp_path)
    assert [one.name for one in archived_runs("tiny", 1)] == ["d", "b", "c", "a"]


def test_the_data_are_called_as_asked_and_by_their_file_otherwise(encoded, tmp_path, monkeypatch, capsys):
    written(tmp_path / "run")
    arguments = [str(tmp_path / "run"), "x", "--data", str(encoded), "--into", str(tmp_path)]
    assert keep.main([*arguments, "--source", "tiny-3"]) == 0
    found = read_run(tmp_path / "embeddings-x.json")
    assert (found.source, found.facts["data"]["called"]) == ("tiny-3", "tiny-3")
    monkeypatch.setattr(keeping, "results_folder", lambda: tmp_path)
    assert [one.name for one in archived_runs("tiny-3", 1)] == ["x"]
    assert keep.main(arguments) == 0
    assert read_run(tmp_path / "embeddings-x.json").source == "tiny"
    assert keep.main([*arguments, "--source", "two words"]) == 2
    assert "The 'source' argument must be letters, digits, dots and dashes; got 'two words'" in capsys.readouterr().err


def test_no_kept_result_of_the_package_is_called_otherwise_than_its_command_did():
    for place in results_folder().glob("embeddings-*.json"):
        told = json.loads(place.read_text(encoding="utf-8"))
        given = told["data"].get("called")
        file = "levels" if "levels" in told["data"] else Path(told["data"]["file"]).stem
        assert told["source"] == (given or file), place.name
