"""Structured rows and the methods on them: products, least squares that keeps its best iterate, independent parts."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ortho_group

import tolerances
from marginlens.data.sequence_generators import acyclic_sequences, cyclic_sequences
from marginlens.data.sequences import SequenceDataset
from marginlens.graphs import priority_graphs
from marginlens.graphs.priority import sufficient_pairs
from marginlens.svm import Status, graph, least_distance
from marginlens.svm.graph import graph_svm
from marginlens.svm.solvers import independent_parts
from marginlens.svm.solvers.augmented_lagrangian import least_squares, shifted_solution
from marginlens.svm.solvers.independent_parts import is_orthonormal
from marginlens.svm.solvers.rows import BilinearRows
from random_examples import examples


def random_rows(rng: np.random.Generator, K: int = 12, shape: tuple[int, int] = (7, 5), n: int = 40) -> BilinearRows:
    k, i = np.sort(rng.integers(K, size=n)), rng.integers(K, size=n)
    triples = np.column_stack([k, i, (i + rng.integers(1, K, size=n)) % K])
    return BilinearRows(rng.normal(size=(K, shape[0])), rng.normal(size=(K, shape[1])), triples)


def agree(a: np.ndarray, b: np.ndarray) -> None:
    assert np.abs(a - b).max() <= 10 * tolerances.ROUNDING * np.abs(b).max()


@examples(15)
@given(seed=st.integers(0, 1000), d=st.integers(1, 8), width=st.integers(1, 14))
def test_structured_rows_equal_formed_rows(seed: int, d: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    rows = random_rows(rng, shape=(d, width))
    formed = np.array([np.outer(rows.X[i] - rows.X[j], rows.Q[k]).reshape(-1) for k, i, j in rows.triples])
    agree(np.asarray(rows), formed)
    W, weights = rng.normal(size=(d, width)), rng.normal(size=40)
    agree(rows.apply(W), formed @ W.reshape(-1))
    agree(rows.combine(weights).reshape(-1), formed.T @ weights)
    agree(rows.row_norms, np.linalg.norm(formed, axis=1))
    unit, some = formed / rows.row_norms[:, None], np.sort(rng.choice(40, size=15, replace=False))
    scaled = rows.unit_rows()
    agree(scaled.take(some).row_norms, np.ones(15))
    gram = unit[some] @ unit[some].T
    agree(scaled.gram_product(weights[:15], some), gram @ weights[:15])
    same_query = rows.triples[some, 0][:, None] == rows.triples[some, 0]
    inverse = scaled.preconditioner(some, 1.5).times(weights[:15])
    blocks = np.where(same_query, gram, 0.0) + 1.5 * np.eye(15)
    assert np.abs(blocks @ inverse - weights[:15]).max() <= tolerances.FIXED_POINT * 10  # a millionth on the diagonal
    solved = shifted_solution(scaled, some, weights[:15], 0.3, tolerances.ROUNDING)
    assert np.abs(gram @ solved + 0.3 * solved - weights[:15]).max() <= tolerances.LOOP_AGREEMENT


def test_products_of_nearly_equal_tokens_keep_their_digits() -> None:
    E = np.array([[1.0, 1.0], [1.0 + 2.0**-40, 1.0], [3.0, 5.0]])
    rows = BilinearRows(E, E, np.array([[2, 1, 0]]))
    agree(rows.apply(np.eye(2) * 1e3 / 7.0), np.array([2.0**-40 * 3.0 * 1e3 / 7.0]))


# ---- least squares on dependent rows

DEPENDENT = np.array([[0, 0, 2], [0, 0, 3], [0, 1, 2], [0, 1, 3], [0, 4, 0]])  # the first four close a cycle


class OtherRoundings(BilinearRows):
    """The same products with roundings of the size that another order of additions has, drawn at random."""

    def __init__(self, E: np.ndarray, triples: np.ndarray, rng: np.random.Generator) -> None:
        super().__init__(E, E[:1], triples)
        self._rng = rng

    def _rounded(self, exact: np.ndarray) -> np.ndarray:
        return exact + 2.0**-52 * np.linalg.norm(exact) * self._rng.normal(size=exact.shape)

    def apply(self, W: np.ndarray, indices: np.ndarray | None = None) -> np.ndarray:
        return self._rounded(super().apply(W, indices))

    def combine(self, weights: np.ndarray, indices: np.ndarray | None = None) -> np.ndarray:
        return self._rounded(super().combine(weights, indices))


def assert_least_squares(rows: BilinearRows, right: np.ndarray) -> None:
    """The residual is that of a dense least-squares solution, out of reach as it is, and v explains it."""
    formed = np.asarray(rows)
    v, residual = least_squares(rows, np.arange(len(right)), right, None, 0.0)
    expected = right - formed @ np.linalg.lstsq(formed, right)[0]
    assert np.linalg.norm(expected) > tolerances.FIXED_POINT
    assert np.abs(residual - expected).max() <= tolerances.LOOP_AGREEMENT
    terms = np.linalg.norm(formed, 2) ** 2 * np.linalg.norm(v)  # v is long where rows nearly depend on each other
    explained = np.abs(right - formed @ (formed.T @ v) - residual).max()
    assert explained <= tolerances.LOOP_AGREEMENT + tolerances.ROUNDING * terms


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_least_squares_accepts_dependent_rows_in_any_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    E, right = rng.normal(size=(5, 4)), rng.normal(size=5)
    for order in map(list, permutations(range(5))):
        assert_least_squares(BilinearRows(E, E[:1], DEPENDENT[order]), right[order])


def test_least_squares_accepts_any_rounding() -> None:
    rng = np.random.default_rng(5)
    for _ in range(100):
        E, right = rng.normal(size=(5, 4)), rng.normal(size=5)
        assert_least_squares(OtherRoundings(E, DEPENDENT, rng), right)


def test_preconditioned_least_squares_never_worsens() -> None:
    rng = np.random.default_rng(6)
    for _ in range(30):
        rows = random_rows(rng, K=8, shape=(4, 4), n=30).unit_rows()  # at most 16 of the rows are independent
        unit, every = np.asarray(rows), rows.all_rows
        inverse = rows.preconditioner(every, 0.0)
        reachable = unit @ rng.normal(size=16)
        v, residual = least_squares(rows, every, reachable, inverse, 0.0)
        assert np.linalg.norm(residual) <= tolerances.LOOP_AGREEMENT * np.linalg.norm(reachable)
        assert np.abs(unit @ (unit.T @ v) - reachable).max() <= tolerances.CONDITIONED * np.abs(reachable).max()
        right = rng.normal(size=30)
        residual = least_squares(rows, every, right, inverse, 0.0)[1]
        gradient = unit.T @ inverse.times(residual)
        assert residual @ inverse.times(residual) < right @ inverse.times(right)
        assert np.linalg.norm(gradient) <= tolerances.LOOP_AGREEMENT * np.abs(inverse.times(residual)).sum()


# ---- independent parts of Graph-SVM


@pytest.mark.statement("C Graph-SVM", "C Acyc-SVM")
@pytest.mark.parametrize("draw", [acyclic_sequences, cyclic_sequences])
@pytest.mark.parametrize("seed", range(4))
def test_orthonormal_embeddings_are_solved_by_last_token(draw, seed: int) -> None:
    rng = np.random.default_rng(seed)
    graphs = priority_graphs(draw(6, 7, 14, 4, rng))
    E = np.linalg.qr(rng.standard_normal((7, 6)))[0].T
    assert is_orthonormal(E)
    assert not is_orthonormal(E + 1e-9 * rng.standard_normal((6, 7)))
    solution = graph_svm(E, graphs)
    assert solution.status is Status.OPTIMAL
    C = np.asarray(solution.equalities)
    whole = least_distance(np.asarray(solution.rows), solution.lower, equalities=C if len(C) else None)
    np.testing.assert_allclose(solution.x.reshape(-1), whole.x, rtol=0.0, atol=tolerances.CONDITIONED)


def test_orthogonal_last_tokens_are_solved_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    graphs = priority_graphs(cyclic_sequences(9, 9, 40, 4, rng))
    turned = ortho_group.rvs(9, random_state=4)
    E = rng.uniform(0.5, 2.0, size=9)[:, None] * turned  # orthogonal, not orthonormal
    apart = graph_svm(E, graphs)
    last, label = independent_parts.query_groups(apart.rows, apart.equalities)
    assert len(np.unique(label)) == len(last)
    monkeypatch.setattr(independent_parts, "_ORTHOGONAL_ATOL", -1.0)  # everything in one group
    together = graph_svm(E, graphs)
    assert apart.status is together.status is Status.OPTIMAL
    assert np.linalg.norm(apart.x - together.x) <= tolerances.SVM_ORACLE * np.linalg.norm(apart.x)


def test_wide_sparse_embeddings_use_sparse_products() -> None:
    rng = np.random.default_rng(5)
    K = 200
    sequences = rng.integers(K, size=(400, 6))
    ds = SequenceDataset(sequences, sequences.min(axis=1), np.eye(K) * rng.uniform(1.0, 2.0, size=K)[:, None])
    solution = graph_svm(ds)
    assert solution.status is Status.OPTIMAL
    assert solution.kkt_residual() <= tolerances.SVM_KKT
    agree(solution.rows.apply(solution.x)[:50], solution.rows.formed(np.arange(50)) @ solution.x.reshape(-1))


def test_implied_pairs_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    ds = acyclic_sequences(12, 12, 2000, 4, 6)
    graphs = priority_graphs(ds)
    assert sum(map(len, map(sufficient_pairs, graphs.values()))) < 0.5 * sum(len(g.strict) for g in graphs.values())
    quick = graph_svm(ds)
    monkeypatch.setattr(graph, "sufficient_pairs", lambda one: np.arange(len(one.strict)))
    full = graph_svm(ds)
    assert quick.status is full.status is Status.OPTIMAL
    assert np.linalg.norm(quick.x - full.x) <= tolerances.SVM_ORACLE * np.linalg.norm(full.x)
    assert quick.kkt_residual() <= tolerances.SVM_KKT  # over all pairs


@pytest.mark.parametrize("draw", [acyclic_sequences, cyclic_sequences])
def test_a_thousand_rows_through_products_and_through_formed_rows(draw, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = draw(40, 24, 150, 8, 7)
    formed = graph_svm(ds)
    monkeypatch.setattr(independent_parts, "MAX_NULL_SPACE_OPERATIONS", -1)
    products = graph_svm(ds)
    assert formed.status is products.status is Status.OPTIMAL
    assert len(formed.lower) > 600
    assert products.kkt_residual() <= tolerances.SVM_KKT
    assert np.linalg.norm(products.x - formed.x) <= tolerances.SVM_ORACLE * np.linalg.norm(formed.x)


def test_a_contradiction_among_many_last_tokens_or_in_one_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    several, single = acyclic_sequences(40, 6, 200, 5, 0), acyclic_sequences(30, 3, 400, 8, 0)
    monkeypatch.setattr(independent_parts, "MAX_NULL_SPACE_OPERATIONS", -1)
    together = graph_svm(several)
    monkeypatch.undo()
    monkeypatch.setattr(independent_parts, "MAX_FORMED_PART_ENTRIES", 1000)  # of one last token, not of all
    alone = graph_svm(single)
    for solution in (together, alone):
        assert solution.status is Status.INFEASIBLE
        assert solution.certificate_residual() <= tolerances.SVM_FARKAS
    assert len(np.unique(together.pairs[together.certificate > 0.0, 0])) > 1
    assert len(np.unique(alone.pairs[alone.certificate > 0.0, 0])) == 1
