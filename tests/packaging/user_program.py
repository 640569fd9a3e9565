"""A user's script, typed: what the main calls return is known to a type checker, which finds no `Any` in its place.

`make lint` checks it beside the sources, and `make test-wheel` with `mypy --strict` against the installed package.
"""

from typing import assert_type

import numpy as np
import numpy.typing as npt

import marginlens as ml
from marginlens.data import TextStream
from marginlens.graphs import PriorityGraph
from marginlens.probe import ProbeResult, probe_model
from marginlens.svm import GraphSolution
from marginlens.text.explanation import TextExplanation

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


def next_tokens(sequences: list[list[int]], labels: list[int], E: Floats) -> dict[int, PriorityGraph]:
    """The priorities in sequences, and the automaton that they make."""
    data = ml.SequenceDataset(sequences, labels, E)
    assert_type(ml.graph_svm(data), GraphSolution)
    assert_type(ml.NextTokenAutomaton.fit(data), ml.NextTokenAutomaton)
    graphs = ml.priority_graphs(data)
    assert_type(graphs, dict[int, PriorityGraph])
    return graphs


def classify(texts: list[str], labels: list[str]) -> TextExplanation:
    """A text classifier with its reasons."""
    model = ml.AttentionTextClassifier().fit(texts, labels)
    assert_type(model, ml.AttentionTextClassifier)
    assert_type(model.predict_proba(texts), Floats)
    return model.explain(texts[0])


def probe(model: object, inputs: object) -> ProbeResult:
    """What the heads of a model select."""
    found = probe_model(model, inputs)
    assert_type(found, ProbeResult)
    return found


def check_names(stream: TextStream, norm: ml.Norm, optimizer: ml.Optimizer) -> str:
    """Types that a script names in its own signatures."""
    assert_type(ml.__version__, str)
    return f"{stream} {norm} {optimizer}"
