"""The W-form of ATT-SVM against exact solvers on formed rows: the same W, the same verdicts, and certificates that bracket."""

from __future__ import annotations

import numpy as np
import pytest

import tolerances
from margin_oracles import by_quadprog
from marginlens.svm import Status, least_distance
from marginlens.svm.bilinear import BilinearSolution, bilinear_svm
from marginlens.svm.solvers import independent_parts


@pytest.fixture(params=["working set", "formed"])
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test through working sets and, where rows are few, through formed rows."""
    if request.param == "working set":
        monkeypatch.setattr(independent_parts, "MAX_FORMED_PART_ENTRIES", 0)
    return request.param


pytestmark = pytest.mark.usefixtures("method")
SAME_POINT = 1e-8  # two exact solvers whose rows differ in the order of roundings, relative to the solution
Problem = tuple[np.ndarray, np.ndarray, np.ndarray]


def random_problem(rng: np.random.Generator, n_queries: int, shape: tuple[int, int], feasible: bool) -> Problem:
    """Queries that each rank one of a few tokens above the others, by one common W or at random."""
    n_tokens = int(rng.integers(2, 8))
    X = rng.normal(size=(n_queries * n_tokens, shape[0])) + 0.5 * rng.normal(size=shape[0])
    Q = rng.normal(size=(n_queries, shape[1])) + 0.5 * rng.normal(size=shape[1])
    places = np.arange(n_queries * n_tokens).reshape(n_queries, n_tokens)
    logits = np.einsum("qtd,qd->qt", X[places], Q @ rng.normal(size=shape).T)
    selected = logits.argmax(axis=1) if feasible else rng.integers(n_tokens, size=n_queries)
    triples = [
        (q, places[q, selected[q]], t) for q in range(n_queries) for t in places[q] if t != places[q, selected[q]]
    ]
    return X, Q, np.array(triples)


def all_rows(X: np.ndarray, Q: np.ndarray, triples: np.ndarray) -> np.ndarray:
    """The rows straight from the definition."""
    return np.array([np.outer(X[i] - X[j], Q[k]).reshape(-1) for k, i, j in triples])


def check(solution: BilinearSolution) -> None:
    """What every optimal solution promises, from its own numbers."""
    assert solution.status is Status.OPTIMAL
    assert solution.kkt_residual() <= tolerances.SVM_KKT
    lower, upper = 1.0 / np.array(solution.bracket())[::-1]
    assert lower <= solution.margin * (1 + tolerances.SVM_KKT)
    assert solution.margin <= upper * (1 + tolerances.SVM_KKT)
    # a row of norm s missed by a distance r ‖W‖ lowers the margin by r s
    longest = float(solution.rows.row_norms.max())
    assert upper - lower <= tolerances.SVM_KKT * max(upper, longest)
    assert solution.active[solution.multipliers > 0.0].all()


@pytest.mark.parametrize("seed", range(8))
def test_working_sets_agree_with_two_exact_solvers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(2, 9)), int(rng.integers(2, 9)))
    X, Q, triples = random_problem(rng, int(rng.integers(1, 25)), shape, feasible=True)
    solution = bilinear_svm(X, Q, triples)
    check(solution)
    rows = all_rows(X, Q, triples)
    house = least_distance(rows, np.ones(len(rows)))
    for W in (house.x, by_quadprog(rows, np.ones(len(rows)))):
        assert np.linalg.norm(solution.x.reshape(-1) - W) <= SAME_POINT * np.linalg.norm(W)


def test_random_selections_have_the_verdicts_of_formed_rows() -> None:
    statuses = set()
    for seed in range(8):
        X, Q, triples = random_problem(np.random.default_rng([seed, 1]), 12, (3, 3), feasible=False)
        solution = bilinear_svm(X, Q, triples)
        statuses.add(solution.status)
        house = least_distance(all_rows(X, Q, triples), np.ones(len(triples)))
        assert solution.status is house.status
        if house.status is Status.INFEASIBLE:
            assert solution.certificate_residual() <= tolerances.SVM_FARKAS
            assert solution.margin == 0.0
            assert solution.bracket() == (np.inf, np.inf)
        else:
            check(solution)
    assert {Status.OPTIMAL, Status.INFEASIBLE} <= statuses


def test_verdicts_with_many_similar_tokens_are_right() -> None:
    n_solved = 0
    for seed in range(25):
        rng = np.random.default_rng([seed, 2])
        n_queries, n_tokens, d = (int(rng.integers(low, high)) for low, high in ((1, 20), (2, 7), (1, 6)))
        X, Q = (rng.integers(-2, 3, size=(n, d)).astype(float) for n in (n_queries * n_tokens, n_queries))
        places = np.arange(len(X)).reshape(n_queries, n_tokens)
        triples = np.array([(q, row[0], t) for q, row in enumerate(places) for t in row[1:]])
        rows = all_rows(X, Q, triples)
        kept = rows.any(axis=1)
        house = least_distance(rows[kept], np.ones(int(kept.sum())))
        solution = bilinear_svm(X, Q, triples[kept])
        assert solution.status is house.status
        if house.status is Status.OPTIMAL:
            check(solution)
            assert solution.margin == pytest.approx(house.margin, rel=SAME_POINT, abs=tolerances.ROUNDING)
            n_solved += 1
        else:
            assert solution.certificate_residual() <= tolerances.SVM_FARKAS
    assert 8 <= n_solved <= 17  # both verdicts are common


def test_more_rows_than_unknowns_and_many_unknowns_are_solved_exactly() -> None:
    rng = np.random.default_rng(5)
    for n_queries, shape in ((150, (8, 9)), (60, (60, 61))):
        check(bilinear_svm(*random_problem(rng, n_queries, shape, feasible=True)))


def test_order_of_rows_queries_and_tokens_does_not_matter() -> None:
    rng = np.random.default_rng(2)
    X, Q, triples = random_problem(rng, 20, (6, 7), feasible=True)
    tokens, queries = rng.permutation(len(X)), rng.permutation(len(Q))
    moved = np.column_stack([np.argsort(queries)[triples[:, 0]], np.argsort(tokens)[triples[:, 1:]]])
    first = bilinear_svm(X, Q, triples)
    second = bilinear_svm(X[tokens], Q[queries], rng.permutation(moved))
    np.testing.assert_allclose(second.x, first.x, rtol=0, atol=SAME_POINT * np.linalg.norm(first.x))
    assert (np.diff(second.pairs[:, 0]) >= 0).all()


def test_an_unfinished_problem_is_bracketed_not_optimal(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    X, Q, triples = random_problem(rng, 40, (10, 11), feasible=True)
    best = bilinear_svm(X, Q, triples).margin
    monkeypatch.setattr("marginlens.svm.solvers.working_set.MAX_FACTORS", 3)
    monkeypatch.setattr("marginlens.svm.bilinear.MAX_OPEN_ENTRIES", 0)
    monkeypatch.setattr(independent_parts, "MAX_FORMED_PART_ENTRIES", 0)
    stopped = bilinear_svm(X, Q, triples)
    lower, upper = stopped.bracket()
    assert stopped.status is Status.INACCURATE
    assert 0.0 < lower <= 1.0 / best <= upper
    assert stopped.kkt_residual() > tolerances.SVM_KKT


def test_equal_tokens_are_infeasible_and_no_rows_are_trivial() -> None:
    X, Q = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), np.eye(2)
    for tokens, queries in ((X, Q), (np.eye(3)[:, :2], np.zeros((2, 2)))):
        alike = bilinear_svm(tokens, queries, [[0, 2, 1], [1, 0, 1]])
        assert alike.status is Status.INFEASIBLE
        assert alike.certificate_residual() == 0.0
        assert alike.certificate.sum() == 1.0
    assert bilinear_svm(X, Q, np.empty((0, 3), dtype=int)).status is Status.TRIVIAL


def test_a_single_row_has_the_closed_form_solution() -> None:
    X, Q = np.array([[2.0, 0.0], [0.0, 0.0]]), np.array([[0.0, 0.5]])
    np.testing.assert_allclose(bilinear_svm(X, Q, [[0, 0, 1]]).x, [[0.0, 1.0], [0.0, 0.0]], rtol=0.0, atol=1e-15)
    twice = bilinear_svm(X, Q, [[0, 0, 1], [0, 0, 1]])
    assert twice.active.tolist() == [True, True]  # one multiplier will do
