"""Sweeps run and resumed: what they record, and that it depends on nothing but the plan."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.data.counter_based import sphere_problems
from marginlens.data.sequence_generators import acyclic_sequences
from refusals import refused

KEYS = {
    "n_inputs": 3,
    "n_tokens": 4,
    "d": [2, 6],
    "loss": ["logistic", "correlation-loss"],
    "n_steps": 60,
    "n_problems": 30,
    "chunk": 8,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return ml.sweep(KEYS, tmp_path_factory.mktemp("sweep") / "made")


def test_the_table_equals_a_loop_over_cells(made):
    table = made.table().to_pandas()
    assert list(table.columns[:4]) == ["cell", "problem", "d", "loss"]
    assert len(table) == 4 * 30
    for cell, (d, loss) in enumerate(
        [(2, ml.Logistic()), (2, ml.CorrelationLoss()), (6, ml.Logistic()), (6, ml.CorrelationLoss())]
    ):
        rows = table[table["cell"] == cell]
        assert rows["problem"].tolist() == list(range(30))
        data, head = sphere_problems(0, 30, 3, 4, d, 0, cell // 2)
        run = ml.descend(data, head, loss=loss, n_steps=60)
        found = ml.token_optimality(data, head, run.selected)
        np.testing.assert_array_equal(np.stack(rows["selection"]), run.selected)
        np.testing.assert_allclose(rows["norm"], run.norm, rtol=1e-12, atol=0.0)
        np.testing.assert_allclose(rows["margin"], found.margin, rtol=1e-9, atol=0.0)
        np.testing.assert_allclose(rows["score_gap"], found.score_gap, rtol=1e-9, atol=0.0)
        cosines = ml.correlation(run.final, found.solution.x)
        np.testing.assert_allclose(rows["correlation"], cosines, rtol=1e-9, atol=0.0)
        assert (rows["optimality"] == "global").tolist() == found.is_globally_optimal.tolist()
        assert rows["status"].tolist() == [status.name for status in run.status]


def test_a_finished_sweep_computes_nothing_again(made, monkeypatch):
    before = {file.name: file.read_bytes() for file in (made.folder / "chunks").iterdir()}
    monkeypatch.setattr("marginlens.sweeps.chunk.measured", pytest.fail)
    again = ml.sweep(KEYS, made.folder)
    assert {file.name: file.read_bytes() for file in (made.folder / "chunks").iterdir()} == before
    assert again.digest() == made.digest()


@pytest.mark.parametrize("change", [{"chunk": 30}, {"chunk": 7}])
def test_chunk_size_does_not_change_problems(made, tmp_path, change):
    other = ml.sweep({**KEYS, **change, "record": ["selection", "score_gap", "optimality"]}, tmp_path / "other")
    wanted = ["selection", "optimality"]
    assert other.table(wanted).equals(made.table(wanted))


def test_progress_counts_problems_of_earlier_runs(made, tmp_path):
    calls = []
    ml.sweep(KEYS, made.folder, progress=lambda *call: calls.append(call))
    assert calls == [(120, 120)]
    small = {"n_inputs": 2, "n_tokens": 2, "d": 2, "n_problems": 5, "chunk": 2, "n_steps": 1}
    ml.sweep(small, tmp_path / "new", progress=lambda *call: calls.append(call))
    assert calls[1:] == [(0, 5), (2, 5), (4, 5), (5, 5)]


def test_problem_returns_the_data_of_a_row(made):
    data, head = sphere_problems(0, 30, 3, 4, 6, 0, 1)
    problem = made.problem(2 * 30 + 17)
    assert problem.data == data[17]
    np.testing.assert_array_equal(problem.head, head[17])
    assert problem.cell["d"] == 6
    with refused("index"):
        made.problem(120)


# ---- data and measures of one's own


def shifted(rng, n_problems, cell):
    X = rng.standard_normal((n_problems, 2, 3, 4)) + cell["shift"]
    return ml.TokenDataset(X, np.ones((n_problems, 2))), rng.standard_normal((n_problems, 4))


def first_weight(run):
    return run.trajectory.final[:, 0]


def growth(run):
    return np.linalg.norm(run.trajectory.saved["x"], axis=-1)  # (n_problems, n_saved)


def is_sure(run):
    return run.probabilities.min(axis=-1) > 0.5


def test_user_generators_and_measures_are_called(tmp_path, monkeypatch):
    keys = {
        "data": shifted,
        "parameters": {"shift": [0.0, 1.0]},
        "n_problems": 9,
        "chunk": 4,
        "n_steps": 20,
        "start": "normal:0.1",
        "saved_steps": [0, 10, 20],
        "record": ["norm"],
        "measures": {"first_weight": first_weight, "growth": growth, "is_sure": is_sure},
    }
    made = ml.sweep(keys, tmp_path / "own")
    table = made.table().to_pandas()
    assert table["shift"].tolist() == [0.0] * 9 + [1.0] * 9
    steps = np.stack(table["growth"])
    np.testing.assert_allclose(steps[:, -1], table["norm"], rtol=1e-12, atol=0.0)
    assert (np.abs(steps[:, 0]) > 0).all()  # random starts
    assert table["is_sure"].dtype == bool
    monkeypatch.setenv("MARGINLENS_THREADS", "2")
    assert ml.sweep(keys, tmp_path / "processes").digest() == made.digest()
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(0, spawn_key=(1, 1))))
    data, _ = shifted(rng, 4, {"shift": 1.0})
    assert made.problem(9 + 6, data=shifted).data == data[2]
    for other in (first_weight, None):
        with refused("data"):
            made.problem(0, data=other)


def returns(make):
    """A generator whose data and heads are changed."""
    return lambda rng, n_problems, cell: make(*shifted(rng, n_problems, {"shift": 0.0}))


@pytest.mark.parametrize(
    "keys",
    [
        {"data": returns(lambda data, v: data)},
        {"data": returns(lambda data, v: (data[:2], v))},
        {"data": returns(lambda data, v: (data.X, v))},
        {"n_inputs": 2, "n_tokens": 2, "d": 2, "measures": {"size": lambda run: run.data.X[:, 0]}},
    ],
)
def test_invalid_results_of_generators_and_measures_are_refused(tmp_path, keys):
    with pytest.raises(ml.InputError) as refused:
        ml.sweep({"n_problems": 5, "n_steps": 1, **keys}, tmp_path / "wrong")
    assert "\n" not in str(refused.value)


def sequences(rng, n_problems, cell):
    return [acyclic_sequences(4, 5, 3, 3, rng) for _ in range(n_problems)], None


def test_next_token_problems_can_be_swept(tmp_path):
    keys = {"problem": "next-token", "data": sequences, "n_problems": 5, "chunk": 3, "n_steps": 300}
    made = ml.sweep(keys, tmp_path / "next")
    table = made.table().to_pandas()
    assert (table["correlation"].dropna() > 0.5).all()
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(0, spawn_key=(0, 1))))
    data = [acyclic_sequences(4, 5, 3, 3, rng) for _ in range(2)]
    run = ml.descend(data, n_steps=300)
    np.testing.assert_allclose(table["norm"][3:], run.norm, rtol=1e-9, atol=0.0)
