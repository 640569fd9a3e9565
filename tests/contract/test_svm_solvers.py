"""The least-distance solver against independent ones: the same answer, for one problem, batches, ragged data and equalities."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import linprog

import tolerances
from fractions_solve import solved_over_fractions
from margin_oracles import by_nnls, by_quadprog
from marginlens.arithmetic.directions import unit
from marginlens.arithmetic.rounding import exact_products
from marginlens.svm import MarginSolution, Status, least_distance
from marginlens.svm.solvers.least_distance import solve_equalities_exactly

Oracle = Callable[[np.ndarray, np.ndarray], np.ndarray | None]


def random_problem(rng: np.random.Generator, feasible: bool) -> tuple[np.ndarray, np.ndarray]:
    """Rows of any shape with m below, at and above d, some floors zero; feasible along a random direction or by chance."""
    m, d = int(rng.integers(1, 90)), int(rng.integers(1, 60))
    A = rng.normal(size=(m, d))
    if feasible:
        A *= np.where(A @ rng.normal(size=d) < 0.0, -1.0, 1.0)[:, None]
    b = rng.uniform(0.1, 2.0, size=m) * (rng.random(m) < 0.8)
    b[0] = 1.0
    return A, b


def assert_solved(solution: MarginSolution) -> None:
    assert solution.status is Status.OPTIMAL
    assert solution.kkt_residual() <= max(tolerances.SVM_KKT, 32 * solution.rounding_floor())
    assert (solution.multipliers >= 0.0).all()
    assert (solution.active | (solution.multipliers == 0.0)).all()
    assert solution.margin == pytest.approx(
        1.0 / np.linalg.norm(solution.x), rel=tolerances.SIX_DIGITS, abs=tolerances.ROUNDING
    )


@pytest.mark.parametrize("oracle", [by_nnls, by_quadprog], ids=["nnls", "quadprog"])
@pytest.mark.parametrize("feasible", [True, False])
def test_agrees_with_an_independent_solver(oracle: Oracle, feasible: bool) -> None:
    rng = np.random.default_rng(11)
    outcomes = set()
    for _ in range(60):
        A, b = random_problem(rng, feasible)
        solution, expected = least_distance(A, b), oracle(A, b)
        outcomes.add(solution.status)
        if expected is None:
            assert solution.status is Status.INFEASIBLE
            assert solution.certificate_residual() <= tolerances.SVM_FARKAS
        else:
            assert_solved(solution)
            assert np.linalg.norm(solution.x - expected) <= tolerances.SVM_ORACLE * np.linalg.norm(expected)
    assert outcomes == ({Status.OPTIMAL} if feasible else {Status.OPTIMAL, Status.INFEASIBLE})


@pytest.mark.parametrize(
    ("m", "d"),
    [(1, 1), (3, 1), (20, 10), (20, 40), (20, 500), (63, 64), (64, 31), (65, 31), (65, 33), (130, 64), (380, 200)],
)
def test_every_kernel_method_is_certified(m: int, d: int) -> None:
    rng = np.random.default_rng(m * d)
    A = rng.normal(size=(3, m, d))
    A *= np.where(np.einsum("bmd,bd->bm", A, rng.normal(size=(3, d))) < 0.0, -1.0, 1.0)[..., None]
    solutions = least_distance(A, np.ones((3, m)))
    for solution in (solutions[j] for j in range(3)):
        assert_solved(solution)
        assert np.linalg.norm(solution.x - by_nnls(solution.rows, solution.lower)) <= tolerances.SVM_ORACLE


@pytest.mark.parametrize("threads", ["1", "3"])
def test_a_batch_is_the_loop_over_its_problems(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARGINLENS_THREADS", threads)
    rng = np.random.default_rng(3)
    for m, d in ((20, 10), (20, 100), (90, 40), (5, 3)):
        A, b = rng.normal(size=(40, m, d)), rng.uniform(0.5, 1.5, size=(40, m))
        A[::3] *= np.where(A[::3] @ rng.normal(size=d) < 0.0, -1.0, 1.0)[..., None]
        b[1], A[2, 0] = 0.0, 0.0
        batch = least_distance(A, b)
        assert batch.status.shape == (40,)
        assert batch.status[1] is Status.TRIVIAL
        assert batch.status[2] is Status.INFEASIBLE
        for j in range(40):
            one = least_distance(A[j], b[j])
            assert one.status is batch.status[j] is batch[j].status
            for name in ("x", "multipliers", "active"):
                np.testing.assert_array_equal(getattr(one, name), getattr(batch, name)[j])
            if one.status is Status.INFEASIBLE:
                np.testing.assert_array_equal(one.certificate, batch.certificate[j])


BY_HAND = {
    "zero rows without a bound": (np.zeros((2, 3)), [0.0, 0.0], np.zeros(3)),
    "a zero row with a bound": (np.zeros((2, 3)), [0.0, 2.0], None),
    "no rows": (np.empty((0, 3)), np.empty(0), np.zeros(3)),
    "a halfspace through zero": ([[1.0, 0.0], [-1.0, 1.0]], [1.0, 0.0], [1.0, 1.0]),
    "a halfspace and its opposite": ([[1.0, 0.0], [-1.0, 0.0]], [1.0, 0.0], None),
    "two opposites through zero": ([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], [0.0, 0.0, 1.0], [0.0, 1.0]),
    "a row twice": ([[2.0, 0.0], [2.0, 0.0], [4.0, 1.0], [1.0, 5.0]], [1.0, 1.0, 1.0, 0.1], [0.5, 0.0]),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_small_problems_have_their_drawn_solutions(case: str) -> None:
    rows, lower, x = BY_HAND[case]
    solution = least_distance(rows, lower)
    if x is None:
        assert solution.status is Status.INFEASIBLE
        assert solution.certificate_residual() == 0.0
    else:
        assert solution.status is (Status.OPTIMAL if np.any(x) else Status.TRIVIAL)
        np.testing.assert_allclose(solution.x, x, rtol=0.0, atol=tolerances.ROUNDING)
        np.testing.assert_array_equal(solution.active, np.asarray(rows) @ x == lower if np.any(x) else False)


@pytest.mark.parametrize(("excess", "tight"), [(1e-10, True), (1e-8, False)])
@pytest.mark.parametrize("n_rows", [2, 70])  # through each quick method
def test_a_row_is_active_up_to_a_slack_of_a_billionth(excess: float, tight: bool, n_rows: int) -> None:
    rows = np.repeat([[1.0 + excess, 0.0]], n_rows, axis=0)
    rows[0, 0] = 1.0
    assert least_distance(rows, np.ones(n_rows)).active.tolist() == [True] + [tight] * (n_rows - 1)


def test_optimal_status_with_nearly_cancelling_rows_is_verified() -> None:
    optimal = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        A = rng.normal(size=(5, 6))
        A[1] = -A[0] + 3e-12 * rng.normal(size=6)
        solution = least_distance(A, np.ones(5))
        optimal += solution.status is Status.OPTIMAL
        assert solution.status is Status.INACCURATE or solution.is_verified()
    assert optimal >= 30


def test_equalities_confine_x_to_their_null_space() -> None:
    rng = np.random.default_rng(6)
    for _ in range(60):
        d, k = int(rng.integers(2, 12)), int(rng.integers(1, 6))
        A, C = rng.normal(size=(int(rng.integers(1, 15)), d)), rng.normal(size=(k, d))
        C[-1] = C[0] * 3.0
        solution = least_distance(A, np.ones(len(A)), equalities=C)
        expected = by_nnls(A, np.ones(len(A)), C)
        if expected is None:
            assert solution.status is Status.INFEASIBLE
            assert solution.certificate_residual() <= tolerances.SVM_FARKAS * 10
        else:
            assert_solved(solution)
            np.testing.assert_allclose(
                solution.x, expected, rtol=0.0, atol=tolerances.SVM_ORACLE * np.linalg.norm(expected)
            )


def test_a_problem_blurred_by_equalities_is_not_proved() -> None:
    """Rows nearly inside the span of nearly parallel equalities lose digits; a status then needs the residual of the rows as given."""
    rng = np.random.default_rng(0)
    proved = 0
    for size in np.repeat([1e-4, 1e-6, 1e-8], 40):
        C = rng.normal(size=(2, 6))
        C[1] = C[0] + size * C[1]
        A = rng.normal(size=(5, 2)) @ C + size ** rng.integers(0, 3) * rng.normal(size=(5, 6))
        solution = least_distance(A, np.ones(5), equalities=C)
        if solution.status is Status.OPTIMAL:
            proved += 1
            assert solution.kkt_residual() <= min(max(tolerances.SVM_KKT, 16 * solution.rounding_floor()), 1e-4)
        elif solution.status is Status.INFEASIBLE:
            assert solution.certificate_residual() <= 10 * tolerances.SVM_FARKAS
    assert proved >= 40


def test_equalities_in_a_batch_may_be_shared_or_differ() -> None:
    rng = np.random.default_rng(7)
    A, C = rng.normal(size=(5, 4, 9)), rng.normal(size=(5, 2, 9))
    batch = least_distance(A, np.ones((5, 4)), equalities=C)
    shared = least_distance(A, np.ones((5, 4)), equalities=C[0])
    assert (batch.kkt_residual() <= tolerances.SVM_KKT).all()
    for j in range(5):
        one = least_distance(A[j], np.ones(4), equalities=C[j])
        np.testing.assert_allclose(batch[j].x, one.x, rtol=tolerances.SVM_ORACLE, atol=0.0)
        np.testing.assert_allclose(
            batch[j].equality_multipliers, one.equality_multipliers, rtol=tolerances.SVM_ORACLE, atol=0.0
        )
        np.testing.assert_allclose(shared.x[j] @ C[0].T, 0.0, rtol=0.0, atol=tolerances.SVM_KKT)


def feasible_by_linprog(A: np.ndarray, b: np.ndarray, C: np.ndarray | None) -> bool:
    flat = None if C is None else np.zeros(len(C))
    found = linprog(np.zeros(A.shape[1]), A_ub=-A, b_ub=-b, A_eq=C, b_eq=flat, bounds=(None, None))
    return bool(found.status == 0)


@pytest.mark.parametrize("kind", ["differences", "ordered differences", "signs", "copies", "tied coordinates"])
def test_degenerate_rows_have_the_status_of_linear_programming(kind: str) -> None:
    """Rows with small whole entries: many dependent, parallel and opposite ones, and ties everywhere."""
    rng = np.random.default_rng(13)
    for _ in range(25):
        n, m = int(rng.integers(3, 20)), int(rng.integers(1, 90))
        first, second = rng.integers(0, n, m), rng.integers(1, n, m)
        A, C = np.zeros((m, n)), None
        A[np.arange(m), first], A[np.arange(m), (first + second) % n] = 1.0, -1.0
        if kind in ("ordered differences", "tied coordinates"):
            A *= np.sign(A @ np.arange(n))[:, None]
        if kind == "tied coordinates":
            C = np.zeros((2, n))
            C[:, 0], C[0, 1], C[1, 2] = 1.0, -1.0, -1.0
        if kind == "signs":
            A = rng.choice([-1.0, 1.0], size=(m, n))
        if kind == "copies":
            A = np.repeat(A, 3, axis=0) * np.tile([1.0, 2.0, 1e-3], m)[:, None]
        b = rng.choice([0.0, 0.5, 1.0], size=len(A))
        b[0] = 1.0
        solution = least_distance(A, b, equalities=C)
        if feasible_by_linprog(A, b, C):
            assert_solved(solution)
        else:
            assert solution.status is Status.INFEASIBLE
            assert solution.certificate_residual() <= tolerances.SVM_FARKAS


def test_a_row_nearly_in_an_equality_does_not_depend_on_addition_order() -> None:
    """Token 1 beats 0, which ties with 3, which beats 1: a contradiction in every order of the coordinates, however close 0 and 1 are."""
    statuses = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        E = rng.normal(size=(4, 7))
        E[1] = E[0] + 10.0 ** rng.uniform(-9.0, -2.0) * rng.normal(size=7)
        rows = np.array([E[0] - E[2], E[1] - E[0], E[3] - E[1]])
        tie = np.array([E[0] - E[3]])
        for change in range(4):
            order = np.random.default_rng([seed, change]).permutation(7)
            solution = least_distance(rows[:, order], np.ones(3), equalities=tie[:, order])
            statuses.append(solution.status)
            assert solution.certificate_residual() <= tolerances.SVM_FARKAS
        both = least_distance(np.stack([rows, rows]), np.ones((2, 3)), equalities=tie)  # a batch says the same
        assert list(both.status) == [Status.INFEASIBLE] * 2
        assert (both.certificate_residual() <= tolerances.SVM_FARKAS).all()
    assert set(statuses) == {Status.INFEASIBLE}


def nearly_impossible(rng: np.random.Generator, n_problems: int) -> Iterator[np.ndarray]:
    """Rows that a direction separates by 1e-14 to 1e-11 of their length: their multipliers amplify rounding a trillion times."""
    for _ in range(n_problems):
        m, d = int(rng.integers(6, 30)), int(rng.integers(2, 7))
        axis = unit(rng.standard_normal(d))
        flat = rng.standard_normal((m, d))
        near = rng.random(m) < rng.choice([0.3, 0.6, 1.0])
        height = np.where(near, 10.0 ** rng.uniform(-14, -11) * rng.uniform(1, 3, size=m), rng.uniform(0, 1, size=m))
        yield flat - np.outer(flat @ axis, axis) + np.outer(height, axis)


def test_status_does_not_depend_on_the_order_of_rows() -> None:
    rng = np.random.default_rng(6)
    seen = {Status.OPTIMAL: 0, Status.INACCURATE: 0}
    for A in nearly_impossible(rng, 50):
        orders = np.array([np.arange(len(A)), *(rng.permutation(len(A)) for _ in range(3))])
        solution = least_distance(A[orders], np.ones(orders.shape))
        assert len(set(solution.status)) == 1
        if solution.status[0] is Status.INFEASIBLE:
            continue
        seen[solution.status[0]] += 1
        assert solution.is_verified().all() == (solution.status[0] is Status.OPTIMAL)
        np.testing.assert_allclose(
            solution.x, np.tile(solution.x[0], (len(orders), 1)), rtol=tolerances.ROUNDING, atol=0.0
        )
    assert min(seen.values()) > 8


def test_tight_rows_are_solved_to_the_nearest_double() -> None:
    """Against the fractions that the doubles stand for, where the normal equations have lost all digits."""
    rng = np.random.default_rng(8)
    for _ in range(20):
        d = int(rng.integers(2, 5))
        A = rng.standard_normal((int(rng.integers(2, d + 1)), d))
        A[-1] = -A[:-1].sum(axis=0) + 10.0 ** rng.uniform(-12, -9) * rng.standard_normal(d)
        exact_rows = [[Fraction(value) for value in row] for row in A.tolist()]
        gram = [[sum(a * b for a, b in zip(one, other, strict=True)) for other in exact_rows] for one in exact_rows]
        multipliers = solved_over_fractions(gram)
        x = [
            sum(multiplier * row[i] for multiplier, row in zip(multipliers, exact_rows, strict=True)) for i in range(d)
        ]
        found = solve_equalities_exactly(A, np.ones(len(A)), np.ones(len(A), dtype=bool))
        assert found is not None
        assert found.multipliers.tolist() == [float(multiplier) for multiplier in multipliers]
        assert found.x.tolist() == [float(value) for value in x]
        missed = [
            sum(a * Fraction(value) for a, value in zip(row, found.x.tolist(), strict=True)) - 1 for row in exact_rows
        ]
        assert exact_products(A, found.x, np.ones(len(A))).tolist() == [float(value) for value in missed]
