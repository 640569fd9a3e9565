"""Graph-SVM falls apart by last token where embeddings are orthonormal."""

from __future__ import annotations

import numpy as np
import pytest

from marginlens.data.random_sequences import acyclic_sequences, cyclic_sequences
from marginlens.data.sequences import SequenceDataset
from marginlens.graphs import priority_graphs
from marginlens.svm import Status
from marginlens.svm.graph import graph_svm, graph_triples
from marginlens.svm.solvers.independent_parts import is_orthonormal, solve_columns
from marginlens.svm.solvers.least_distance import least_distance
from marginlens.svm.solvers.rows import GraphRows
from tolerances import CONDITIONED


def embeddings(K, d, rng):
    return np.linalg.qr(rng.standard_normal((d, K)))[0].T


@pytest.mark.statement("C Graph-SVM", "C Acyc-SVM")
@pytest.mark.parametrize("make", [acyclic_sequences, cyclic_sequences])
@pytest.mark.parametrize("seed", range(6))
def test_columns_solve_the_whole_problem(make, seed):
    rng = np.random.default_rng(seed)
    ds = make(6, 7, 14, 4, rng)
    E = embeddings(6, 7, rng)
    graphs = priority_graphs(SequenceDataset(ds.tokens.reshape(-1, 4), ds.labels, E))
    strict, tied = graph_triples(graphs, 6)
    W, weights, ties = solve_columns(E, graphs, strict, tied)
    rows, equalities = np.asarray(GraphRows(E, strict)), np.asarray(GraphRows(E, tied))
    whole = least_distance(rows, np.ones(len(rows)), equalities=equalities if len(tied) else None)
    np.testing.assert_allclose(W.reshape(-1), whole.x, atol=CONDITIONED)
    assert weights.min() >= 0.0  # the certificate: W is the weighted sum of its rows
    combined = rows.T @ weights + (equalities.T @ ties if len(tied) else 0.0)
    np.testing.assert_allclose(combined, W.reshape(-1), atol=CONDITIONED)
    gaps = rows @ W.reshape(-1)
    assert gaps.min() >= 1.0 - CONDITIONED
    np.testing.assert_allclose(gaps[weights > 0.0], 1.0, atol=CONDITIONED)


def test_orthonormal_rows_are_told_from_others():
    rng = np.random.default_rng(0)
    assert is_orthonormal(np.eye(5))
    assert is_orthonormal(embeddings(4, 9, rng))
    nearly = embeddings(6, 9, rng) + 1e-9 * rng.standard_normal((6, 9))
    assert not is_orthonormal(nearly)
    assert graph_svm(nearly, priority_graphs(cyclic_sequences(6, 9, 14, 4, rng))).status is Status.OPTIMAL
    assert not is_orthonormal(2.0 * np.eye(3))
    assert not is_orthonormal(np.eye(4)[:, :3])
    assert not is_orthonormal(acyclic_sequences(4, 9, 3, 3, rng).E)


def test_nothing_strict_gives_zero():
    ds = SequenceDataset([[0, 1], [0, 1]], [0, 1], np.eye(2))
    graphs = priority_graphs(ds)
    W, weights, ties = solve_columns(ds.E, graphs, *graph_triples(graphs, 2))
    assert not W.any()
    assert weights.shape == (0,)
    assert ties.tolist() == [0.0]
