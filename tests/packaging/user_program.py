"""A user's script, typed: what the main calls return is known to a type checker, which finds no `Any` in its place.

`make lint` checks it beside the sources, and `make test-wheel` with `mypy --strict` against the installed package.
"""

from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import marginlens as ml
from marginlens.data import TextTokens
from marginlens.graphs import PriorityGraph
from marginlens.probe import ProbeResult, probe_model
from marginlens.svm import GraphSolution
from marginlens.theory import Check
from marginlens_papers.report import Entry, Ledger

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def select(X: Floats, y: Integers, head: Floats) -> float:
    """Predict, train and verify one layer."""
    data = ml.TokenDataset(X, y)
    best = data.optimal(head)
    assert_type(best, Integers)
    solution = ml.att_svm(data, best)
    assert_type(solution, ml.MarginSolution)
    assert_type(solution.x, Floats)
    assert_type(solution.multipliers, Floats)
    run = ml.descend(data, head, optimizer=ml.NormalizedGD(0.1), n_steps=1000)
    assert_type(run, ml.Trajectory)
    assert_type(run.final, Floats)
    assert_type(run.selected, Integers)
    path = ml.path(data, head)
    assert_type(path, ml.Path)
    with ml.plotting.paper() as style:
        assert_type(style, ml.plotting.PlotStyle)
        run.plot()
    return float(ml.correlation(run.final, solution.x))


def predict(X: Floats, y: Integers, head: Floats) -> str:
    """What the theorems say: of one problem; `Any` stands for the list that a batch gives."""
    prediction = ml.predict_limit(ml.TokenDataset(X, y), head)
    assert_type(prediction, ml.Prediction | Any)
    assert_type(ml.predict(ml.AttentionRisk(ml.TokenDataset(X, y), head)), ml.Prediction | Any)
    assert_type(ml.theory.check_assumption_b(ml.TokenDataset(X, y), head), Check | Any)
    if isinstance(prediction, ml.Prediction):
        assert_type(prediction.direction, Floats | None)
        return prediction.why
    return "; ".join(one.why for one in prediction)


def random_problems() -> Floats:
    """Problems of the papers' experiments: a dataset and heads."""
    data, heads = ml.data.sphere_tokens(10, 6, 5, 10, 0)
    assert_type(data, ml.TokenDataset)
    assert_type(heads, Floats)
    assert_type(ml.data.gaussian_tokens(10, 6, 5, 10, 0), tuple[ml.TokenDataset, Floats])
    return heads


def claims() -> list[str]:
    """The ledger of the papers' claims."""
    ledger = ml.ledger("report")
    assert_type(ledger, Ledger)
    assert_type(ledger["A-F9"], Entry)
    return [f"{entry.id}: {entry.statement}" for entry in ledger]


def next_tokens(sequences: list[list[int]], labels: list[int], E: Floats) -> dict[int, PriorityGraph]:
    """The priorities in sequences, and the automaton that they make."""
    data = ml.SequenceDataset(sequences, labels, E)
    assert_type(ml.graph_svm(data), GraphSolution)
    assert_type(ml.NextTokenAutomaton.fit(data), ml.NextTokenAutomaton)
    graphs = ml.priority_graphs(data)
    assert_type(graphs, dict[int, PriorityGraph])
    assert_type(ml.priority_graphs([[0, 1, 0]], window=2), dict[int, PriorityGraph])
    return graphs


def probe(model: object, inputs: list[str]) -> ProbeResult:
    """What the heads of a model select."""
    found = probe_model(model, inputs)
    assert_type(found, ProbeResult)
    return found


def check_names(text: TextTokens, norm: ml.Norm, optimizer: ml.Optimizer) -> str:
    """Types that a script names in its own signatures."""
    assert_type(ml.__version__, str)
    return f"{text} {norm} {optimizer}"
