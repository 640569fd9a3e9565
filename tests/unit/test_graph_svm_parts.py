"""The pieces of Graph-SVM: rows that are never formed, groups, redundant pairs, and the method for many rows."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from scipy.stats import ortho_group

import tolerances
from marginlens.data.random_sequences import acyclic_sequences, cyclic_sequences
from marginlens.data.sequences import SequenceDataset
from marginlens.graphs import priority_graphs
from marginlens.svm import Status
from marginlens.svm.graph import _blank, _by_groups, graph_svm, graph_triples, sufficient
from marginlens.svm.solvers import augmented_lagrangian as graph_large
from marginlens.svm.solvers import independent_parts as graph_groups
from marginlens.svm.solvers import rows as graph_rows
from marginlens.svm.solvers.augmented_lagrangian import least_squares, shifted_solution
from marginlens.svm.solvers.rows import GraphProducts, GraphRows


def some_rows(rng: np.random.Generator, K: int = 12, d: int = 7, n: int = 40) -> GraphRows:
    E = rng.normal(size=(K, d))
    k, i = np.sort(rng.integers(K, size=n)), rng.integers(K, size=n)
    return GraphRows(E, np.column_stack([k, i, (i + rng.integers(1, K, size=n)) % K]))


def agree(a: np.ndarray, b: np.ndarray) -> None:
    assert np.abs(a - b).max() <= tolerances.ROUNDING * np.abs(b).max()


@pytest.mark.parametrize("kept_as", ["dense", "in chunks", "sparse"])
def test_rows_do_what_formed_rows_do(kept_as: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kept_as == "in chunks":
        monkeypatch.setattr(graph_rows, "_CHUNK", 30)
    if kept_as == "sparse":
        monkeypatch.setattr(graph_rows, "_WIDE", 1)
        monkeypatch.setattr(graph_rows, "_THIN", 1.0)
    rng = np.random.default_rng(0)
    rows = some_rows(rng)
    assert (rows.thin is not None) == (kept_as == "sparse")
    formed = np.asarray(rows)
    assert formed.shape == rows.shape == (40, 49)
    for r in (0, 17):
        k, i, j = rows.triples[r]
        agree(formed[r], np.outer(rows.E[i] - rows.E[j], rows.E[k]).reshape(-1))
    x, weights = rng.normal(size=49), rng.normal(size=40)
    agree(rows.apply(x), formed @ x)
    agree(rows.combine(weights), formed.T @ weights)
    agree(rows.sizes, np.linalg.norm(formed, axis=1))


def test_gaps_of_nearly_equal_tokens_keep_their_digits() -> None:
    E = np.array([[1.0, 1.0], [1.0 + 2.0**-40, 1.0], [3.0, 5.0]])
    rows = GraphRows(E, np.array([[2, 1, 0]]))
    agree(rows.apply(np.eye(2) * 1e3 / 7.0), np.array([2.0**-40 * 3.0 * 1e3 / 7.0]))


def test_products_with_some_rows() -> None:
    rng = np.random.default_rng(1)
    rows = some_rows(rng)
    last = np.searchsorted(rows.last, rows.triples[:, 0])
    products = GraphProducts(rows.E, rows.E[rows.last], np.column_stack([last, rows.triples[:, 1:]]), rows.sizes)
    unit = np.asarray(rows) / rows.sizes[:, None]
    some = np.sort(rng.choice(40, size=15, replace=False))
    W, weights = rng.normal(size=(7, 7)), rng.normal(size=15)
    agree(products.apply(W), unit @ W.reshape(-1))
    agree(products.apply(W, some), unit[some] @ W.reshape(-1))
    agree(products.combine(weights, some).reshape(-1), unit[some].T @ weights)
    agree(products.formed(some), unit[some])
    gram = unit[some] @ unit[some].T
    agree(products.gram(weights, some), gram @ weights)
    same = rows.triples[some, 0][:, None] == rows.triples[some, 0]
    blocks = np.where(same, gram, 0.0) + 1.5 * np.eye(15)
    inverse = products.preconditioner(some, 1.5).times(weights)
    assert (
        np.abs(blocks @ inverse - weights).max() <= tolerances.FIXED_POINT * 10
    )  # a millionth is added to the diagonal
    solved = shifted_solution(products, some, weights, 0.3, tolerances.ROUNDING)
    assert np.abs(gram @ solved + 0.3 * solved - weights).max() <= tolerances.LOOP_AGREEMENT


DEPENDENT = np.array([[0, 0, 2], [0, 0, 3], [0, 1, 2], [0, 1, 3], [0, 4, 0]])  # the first four close a cycle


class OtherRoundings(GraphProducts):
    """The same products with roundings of the size that another order of additions has, drawn at random."""

    def __init__(self, E: np.ndarray, triples: np.ndarray, rng: np.random.Generator) -> None:
        super().__init__(E, E[:1], triples, np.ones(len(triples)))
        self._rng = rng

    def _rounded(self, exact: np.ndarray) -> np.ndarray:
        return exact + 2.0**-52 * np.linalg.norm(exact) * self._rng.normal(size=exact.shape)

    def apply(self, W: np.ndarray, some: np.ndarray | None = None) -> np.ndarray:
        return self._rounded(super().apply(W, some))

    def combine(self, weights: np.ndarray, some: np.ndarray) -> np.ndarray:
        return self._rounded(super().combine(weights, some))


def assert_least_squares(products: GraphProducts, formed: np.ndarray, right: np.ndarray) -> None:
    """The residual is that of a dense least-squares solution, out of reach as it is, and v explains it."""
    v, residual = least_squares(products, np.arange(len(right)), right, None, 0.0)
    expected = right - formed @ np.linalg.lstsq(formed, right)[0]
    assert np.linalg.norm(expected) > tolerances.FIXED_POINT
    assert np.abs(residual - expected).max() <= tolerances.LOOP_AGREEMENT
    terms = np.linalg.norm(formed, 2) ** 2 * np.linalg.norm(v)  # v is long where rows nearly depend on each other
    explained = np.abs(right - formed @ (formed.T @ v) - residual).max()
    assert explained <= tolerances.LOOP_AGREEMENT + tolerances.ROUNDING * terms


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_least_squares_bears_dependent_rows_in_every_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    E, right = rng.normal(size=(5, 4)), rng.normal(size=5)
    for order in map(list, permutations(range(5))):
        triples = DEPENDENT[order]
        products = GraphProducts(E, E[:1], triples, np.ones(5))
        assert_least_squares(products, np.asarray(GraphRows(E, triples)), right[order])


def test_least_squares_bears_any_rounding() -> None:
    rng = np.random.default_rng(5)
    for _ in range(100):
        E, right = rng.normal(size=(5, 4)), rng.normal(size=5)
        assert_least_squares(OtherRoundings(E, DEPENDENT, rng), np.asarray(GraphRows(E, DEPENDENT)), right)


def test_weighted_least_squares_reaches_what_can_be_reached_and_never_goes_back() -> None:
    rng = np.random.default_rng(6)
    for _ in range(30):
        rows = some_rows(rng, K=8, d=4, n=30)  # at most 16 of the rows are independent
        last = np.searchsorted(rows.last, rows.triples[:, 0])
        products = GraphProducts(rows.E, rows.E[rows.last], np.column_stack([last, rows.triples[:, 1:]]), rows.sizes)
        everyone, unit = np.arange(30), np.asarray(rows) / rows.sizes[:, None]
        weigh = products.preconditioner(everyone, 0.0)
        reachable = unit @ rng.normal(size=16)
        v, residual = least_squares(products, everyone, reachable, weigh, 0.0)
        assert np.linalg.norm(residual) <= tolerances.LOOP_AGREEMENT * np.linalg.norm(reachable)
        assert np.abs(unit @ (unit.T @ v) - reachable).max() <= tolerances.CONDITIONED * np.abs(reachable).max()
        right = rng.normal(size=30)
        residual = least_squares(products, everyone, right, weigh, 0.0)[1]
        gradient = unit.T @ weigh.times(residual)
        assert residual @ weigh.times(residual) < right @ weigh.times(right)
        assert np.linalg.norm(gradient) <= tolerances.LOOP_AGREEMENT * np.abs(weigh.times(residual)).sum()


def test_orthogonal_last_tokens_are_solved_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    ds = cyclic_sequences(9, 9, 40, 4, rng)
    graphs = priority_graphs(ds)
    one_hot = graph_svm(np.eye(9), graphs)
    turned = ortho_group.rvs(9, random_state=4)
    lengths = rng.uniform(0.5, 2.0, size=9)
    E = lengths[:, None] * turned  # orthogonal, not orthonormal
    last, label = graph_groups.group_labels(GraphRows(E, one_hot.pairs), GraphRows(E, one_hot.tied))
    assert len(np.unique(label)) == len(last)
    apart = graph_svm(E, graphs)
    monkeypatch.setattr(graph_groups, "_ORTHOGONAL", -1.0)  # everything in one group
    together = graph_svm(E, graphs)
    assert apart.status is together.status is one_hot.status is Status.OPTIMAL
    assert np.linalg.norm(apart.x - together.x) <= tolerances.SVM_ORACLE * np.linalg.norm(apart.x)
    rotated = graph_svm(turned, graphs)
    assert np.linalg.norm(turned @ rotated.x @ turned.T - one_hot.x) <= tolerances.SVM_ORACLE * np.linalg.norm(
        one_hot.x
    )


def test_many_thin_embeddings() -> None:
    rng = np.random.default_rng(5)
    K = 200
    sequences = rng.integers(K, size=(400, 6))
    ds = SequenceDataset(sequences, sequences.min(axis=1), np.eye(K) * rng.uniform(1.0, 2.0, size=K)[:, None])
    solution = graph_svm(ds.E, priority_graphs(ds))
    assert solution.rows.thin is not None
    assert solution.status is Status.OPTIMAL
    assert solution.kkt_residual() <= tolerances.SVM_KKT
    dense = np.asarray(solution.rows)[:50] @ solution.x.reshape(-1)
    agree(solution.rows.apply(solution.x)[:50], dense)


def test_pairs_that_others_imply_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    ds = acyclic_sequences(12, 12, 2000, 4, 6)
    graphs = priority_graphs(ds)
    strict, _ = graph_triples(graphs, 12)
    kept = sufficient(graphs)
    assert len(kept) < 0.5 * len(strict)
    quick = graph_svm(ds.E, graphs)
    monkeypatch.setattr("marginlens.svm.graph.MANY_PAIRS", 10**9)
    assert len(sufficient(graphs)) == len(strict)
    full = graph_svm(ds.E, graphs)
    assert quick.status is full.status is Status.OPTIMAL
    assert np.linalg.norm(quick.x - full.x) <= tolerances.SVM_ORACLE * np.linalg.norm(full.x)
    assert quick.kkt_residual() <= tolerances.SVM_KKT  # over all pairs


@pytest.mark.parametrize("draw", [acyclic_sequences, cyclic_sequences])
def test_a_thousand_rows_through_products_and_through_formed_rows(
    draw: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = draw(40, 24, 150, 8, 7)  # type: ignore[operator]
    graphs = priority_graphs(ds)
    exact = graph_svm(ds.E, graphs)
    calls = []
    solve = graph_groups.solve_large
    monkeypatch.setattr(graph_groups, "solve_large", lambda *given: calls.append(1) or solve(*given))
    monkeypatch.setattr("marginlens.svm.solvers.independent_parts.DECOMPOSED", -1)
    other = graph_svm(ds.E, graphs)
    assert calls == [1]
    assert exact.status is other.status is Status.OPTIMAL
    assert len(exact.floor) > 600
    assert other.kkt_residual() <= tolerances.SVM_KKT
    assert np.linalg.norm(other.x - exact.x) <= tolerances.SVM_ORACLE * np.linalg.norm(exact.x)
    assert (other.multipliers >= 0.0).all()


def test_a_contradiction_among_many_last_tokens_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    ds = acyclic_sequences(40, 6, 200, 5, 0)
    graphs = priority_graphs(ds)
    exact = graph_svm(ds.E, graphs)
    monkeypatch.setattr("marginlens.svm.solvers.independent_parts.DECOMPOSED", -1)
    other = graph_svm(ds.E, graphs)
    for solution in (exact, other):
        assert solution.status is Status.INFEASIBLE
        assert solution.certificate_residual() <= tolerances.SVM_FARKAS
        assert (solution.certificate >= 0.0).all()
    assert len(np.unique(other.pairs[other.certificate > 0.0, 0])) > 1  # no last token is to blame alone


def test_one_hopeless_last_token_settles_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the whole problem was solved")

    ds = acyclic_sequences(30, 3, 400, 8, 0)
    monkeypatch.setattr(graph_groups, "solve_large", never)
    graphs = priority_graphs(ds)
    strict, tied = graph_triples(graphs, 30)
    blank = _blank(GraphRows(ds.E, strict), GraphRows(ds.E, tied))
    solution = _by_groups(blank, sufficient(graphs), 1)  # not even two entries may be formed for the whole
    assert solution.status is Status.INFEASIBLE
    assert solution.certificate_residual() <= tolerances.SVM_FARKAS
    assert len(np.unique(solution.pairs[solution.certificate > 0.0, 0])) == 1


def large_problem(seed: int) -> tuple[graph_large._Problem, np.ndarray]:
    """The rows of a small acyclic problem as the method for many rows sees them, and their exact multipliers."""
    ds = acyclic_sequences(8, 8, 6, 5, seed)
    exact = graph_svm(ds.E, priority_graphs(ds))
    rows = GraphRows(ds.E, exact.pairs)
    last = np.searchsorted(rows.last, rows.triples[:, 0])
    products = GraphProducts(rows.E, rows.E[rows.last], np.column_stack([last, rows.triples[:, 1:]]), rows.sizes)
    problem = graph_large._Problem(products, 1.0 / rows.sizes, np.zeros(len(rows), dtype=bool))
    return problem, exact.multipliers * rows.sizes


def test_a_round_of_polishing_that_fails_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, weights = large_problem(3)
    rng = np.random.default_rng(0)
    start = weights.copy()
    start[np.flatnonzero(weights)[0]] = 0.0  # a row is missing, so there is a second round
    first = problem._tightened(start[start > 0.0], np.flatnonzero(start))
    expected = np.zeros_like(start)
    expected[start > 0.0] = np.maximum(first, 0.0)
    answers = iter([first])
    monkeypatch.setattr(problem, "_tightened", lambda u, some: next(answers, 100.0 * rng.normal(size=len(some))))
    assert problem.residual(problem.polished(start)) == problem.residual(expected)


@pytest.mark.parametrize("direct", [True, False])
def test_a_correction_that_misses_more_is_not_taken(direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, weights = large_problem(3)
    some = np.flatnonzero(weights)
    if direct:
        monkeypatch.setattr(graph_large.np.linalg, "lstsq", lambda A, b: (np.full(A.shape[1], 1.0),))
    else:
        monkeypatch.setattr(graph_large, "DIRECT", -1)
        monkeypatch.setattr(graph_large, "least_squares", lambda *given: (np.ones(len(some)), given[2]))
    start = weights[some] * (1.0 + tolerances.CONDITIONED)
    np.testing.assert_array_equal(problem._tightened(start, some), start)


def test_a_newton_step_without_descent_is_not_taken() -> None:
    problem, weights = large_problem(3)
    rng = np.random.default_rng(1)
    W = rng.normal(size=(8, 8))
    state = graph_large._State(W, problem._products.apply(W), np.zeros_like(weights), 10.0)
    slope = W - problem._products.combine(*reversed(problem._pushes(state.weights, state)))
    assert not problem._move(state.weights, state, slope, slope)  # uphill
    np.testing.assert_array_equal(state.W, W)
    assert problem._move(state.weights, state, slope, -1e-3 * slope)
    assert not np.array_equal(state.W, W)
