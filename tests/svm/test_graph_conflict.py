"""An infeasible Graph-SVM in tokens: rows that contradict each other, checked against a linear programme and by leaving each out."""

import numpy as np
import pytest
from scipy.optimize import linprog

from marginlens import InputError, SequenceDataset, graph_svm, priority_graphs
from marginlens.data import acyclic_sequences, cyclic_sequences
from marginlens.nexttoken import NextTokenAutomaton
from marginlens.svm import Status, graph_conflict
from refusals import raised, refused
from tolerances import CONDITIONED, ROUNDING, SIX_DIGITS, SVM_KKT


def is_feasible(E, pairs, tied):
    """Whether some W gives every ranking a gap of one and every tie none."""
    rows = [np.outer(E[i] - E[j], E[k]).reshape(-1) for k, i, j in pairs]
    ties = [np.outer(E[i] - E[j], E[k]).reshape(-1) for k, i, j in tied]
    d = E.shape[1] ** 2
    found = linprog(
        np.zeros(d),
        A_ub=-np.array(rows).reshape(-1, d) if rows else None,
        b_ub=-np.ones(len(rows)) if rows else None,
        A_eq=np.array(ties).reshape(-1, d) if ties else None,
        b_eq=np.zeros(len(ties)) if ties else None,
        bounds=(None, None),
    )
    return found.status == 0


def infeasible_problems():
    for seed in range(60):
        made = (cyclic_sequences if seed % 2 else acyclic_sequences)(7, 3, 14, 4, seed)
        E = np.random.default_rng(seed).normal(size=(7, 2 + seed % 2))
        ds = SequenceDataset([made[i][0] for i in range(len(made))], made.labels, E)
        graphs = priority_graphs(ds)
        solution = graph_svm(E, graphs)
        if solution.status is Status.INFEASIBLE:
            yield ds, graphs, solution


@pytest.mark.statement("C Graph-SVM")
def test_the_rows_of_a_conflict_are_a_minimal_contradiction():
    seen = 0
    for ds, graphs, solution in infeasible_problems():
        conflict = graph_conflict(solution)
        strict = {(k, i, j) for k, graph in graphs.items() for i, j in graph.strict.tolist()}
        assert {tuple(row) for row in conflict.pairs.tolist()} <= strict
        for k, i, j in conflict.tied.tolist():
            assert graphs[k].component(i) == graphs[k].component(j)
        assert conflict.residual <= SVM_KKT
        assert conflict.weights.sum() == pytest.approx(1.0, rel=SIX_DIGITS, abs=ROUNDING)
        assert (conflict.weights > 0.0).all()
        assert not is_feasible(ds.E, conflict.pairs, conflict.tied)
        if len(conflict.last_tokens) == 1:
            assert len(conflict.pairs) + len(conflict.tied) <= ds.d_model + 1
            for r in range(len(conflict.pairs)):
                assert is_feasible(ds.E, np.delete(conflict.pairs, r, axis=0), conflict.tied)
            seen += 1
    assert seen >= 15


def test_a_conflict_is_described_by_tokens():
    ds = SequenceDataset([[0, 1], [1, 2, 1]], [0, 2], [[0.0], [1.0], [2.0]])
    conflict = graph_conflict(graph_svm(ds.E, priority_graphs(ds)))
    assert conflict.last_tokens == (1,)
    np.testing.assert_allclose(conflict.weights, [0.5, 0.5], rtol=0.0, atol=CONDITIONED)
    said = conflict.describe(["'a'", "'b'", "'c'"])
    assert said.startswith("After 'b', 2 rankings contradict each other")
    assert "'a' over 'b' (weight 0.5)" in said
    assert "'c' over 'b' (weight 0.5)" in said


def test_ties_without_dimension_and_zero_embeddings_are_explained():
    tied = SequenceDataset([[0, 1, 2], [0, 1, 2]], [0, 1], [[1.0], [2.0], [0.5]])
    conflict = graph_conflict(graph_svm(tied))
    assert conflict.tie_rank == 1
    assert conflict.fact().code == "conflict.ties"
    assert (conflict.fact().numbers["tokens"], conflict.fact().numbers["components"]) == (2, 1)
    zero = SequenceDataset([[0, 1, 2]], [0], [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    assert graph_conflict(graph_svm(zero)).vanishing == (2,)
    with raised(InputError, "token 2", "zero"):
        NextTokenAutomaton.fit(zero)
    narrow = SequenceDataset([[0, 1], [1, 2, 1]], [0, 2], [[0.0], [1.0], [2.0]])
    with raised(InputError, "token 0 over token 1", "d_model of at least 3"):
        NextTokenAutomaton.fit(narrow)
    with refused("solution"):
        graph_conflict(graph_svm(SequenceDataset([[0, 1]], [0], np.eye(2))))
