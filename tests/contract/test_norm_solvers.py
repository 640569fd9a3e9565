"""Margin problems in every norm: each solver passes one contract, against HiGHS, Clarabel and by its own bracket."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

import marginlens as ml
import tolerances
from marginlens.norms import L1, LInf, Lp, MaxRow, Norm, Nuclear, Spectral
from marginlens.svm import MarginSolution, Status, least_distance
from marginlens.svm.solvers import linear_programs, norms, power_norm
from marginlens.svm.solvers.norms import solve_in_norm
from random_examples import examples

NORMS: dict[str, Norm] = {
    "l1": L1(),
    "linf": LInf(),
    "l1.1": Lp(1.1),
    "l1.75": Lp(1.75),
    "l3": Lp(3.0),
    "l5": Lp(5.0),
}
MATRIX_NORMS: dict[str, Norm] = {"spectral": Spectral(), "nuclear": Nuclear(), "max-row": MaxRow()}
EVERY = {**NORMS, **MATRIX_NORMS}
POLYHEDRAL = ("l1", "linf")
GAPS = {
    **dict.fromkeys(NORMS, 1e-9),
    **dict.fromkeys(POLYHEDRAL, 1e-10),
    **dict.fromkeys(MATRIX_NORMS, 1e-8),
}  # promised
vector_norms = pytest.mark.parametrize("name", NORMS)
every_norm = pytest.mark.parametrize("name", EVERY)


def solve(rows: np.ndarray, lower: np.ndarray, name: str, equalities: np.ndarray | None = None) -> MarginSolution:
    """The solution in a norm; in one of matrices x has two rows where its entries allow it."""
    if name in NORMS:
        return least_distance(rows, lower, equalities=equalities, norm=NORMS[name])
    plain, d = least_distance(rows, lower, equalities=equalities), rows.shape[-1]
    shape = (2, d // 2) if d % 2 == 0 else (1, d)
    return solve_in_norm(replace(plain, x=plain.x.reshape(*plain.x.shape[:-1], *shape)), MATRIX_NORMS[name])


def feasible_rows(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Rows (*shape) that a hidden vector satisfies."""
    rows = rng.normal(size=shape)
    hidden = rng.normal(size=(*shape[:-2], shape[-1], 1))
    signs = np.sign(rows @ hidden)
    return rows * signs


def optimum(rows: np.ndarray, lower: np.ndarray, norm: Norm) -> float:
    """The smallest norm by another solver: HiGHS on the textbook programme, or Clarabel."""
    n, d = rows.shape
    if isinstance(norm, L1):
        answer = linprog(np.ones(2 * d), A_ub=np.hstack([-rows, rows]), b_ub=-lower, bounds=(0.0, None))
        return float(answer.fun)
    if isinstance(norm, LInf):
        cost, ones = np.append(np.zeros(d), 1.0), np.ones((d, 1))
        sides = np.block([[np.eye(d), -ones], [-np.eye(d), -ones], [-rows, np.zeros((n, 1))]])
        return float(linprog(cost, A_ub=sides, b_ub=np.append(np.zeros(2 * d), -lower), bounds=(None, None)).fun)
    cvxpy = pytest.importorskip("cvxpy")
    x = cvxpy.Variable(d)
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.pnorm(x, norm.p)), [rows @ x >= lower])  # type: ignore[attr-defined]
    return float(problem.solve(solver="CLARABEL"))


def check(solution: MarginSolution, gap: float) -> None:
    """What a proved solution satisfies."""
    bracket = solution.bracket()
    assert solution.status is Status.OPTIMAL, (solution, bracket.gap)
    assert abs(bracket.gap) <= gap
    x = solution.x.reshape(-1)
    assert (solution.rows @ x >= solution.lower - gap * np.abs(solution.rows) @ np.abs(x)).all()
    assert (solution.multipliers >= 0.0).all()
    assert solution.norm.value(solution.x) == pytest.approx(bracket.upper, rel=gap, abs=tolerances.ROUNDING)
    assert 1.0 / solution.margin == pytest.approx(bracket.lower, rel=gap, abs=tolerances.ROUNDING)
    combined = (solution.multipliers @ solution.rows).reshape(solution.x.shape)
    assert solution.norm.dual(combined) == pytest.approx(
        solution.norm.value(solution.x), rel=gap, abs=tolerances.ROUNDING
    )
    assert solution.kkt_residual() <= 2.0 * gap
    assert solution.norm.value(solution.direction) == pytest.approx(1.0, rel=gap, abs=tolerances.ROUNDING)


@every_norm
@pytest.mark.parametrize("shape", [(42, 100), (42, 12), (6, 3), (1, 4), (5, 1)])
def test_random_problems_are_solved_and_proved(name: str, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng([*shape, len(name)])
    for _ in range(4):
        rows = feasible_rows(rng, *shape)
        check(solve(rows, np.ones(shape[0]), name), GAPS[name])


@vector_norms
def test_another_solver_finds_the_same_optimum(name: str) -> None:
    rng = np.random.default_rng(7)
    rtol = 1e-9 if name in POLYHEDRAL else 1e-5
    for n, d in ((20, 8), (12, 30)):
        rows, lower = feasible_rows(rng, n, d), rng.uniform(0.0, 1.0, size=n)
        lower[: n // 4] = 0.0
        solution = solve(rows, lower, name)
        check(solution, GAPS[name])
        assert 1.0 / solution.margin == pytest.approx(
            optimum(rows, lower, NORMS[name]), rel=rtol, abs=tolerances.ROUNDING
        )


@every_norm
def test_a_batch_equals_its_loop_with_any_number_of_threads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    rows = feasible_rows(rng, 12, 10, 6)
    rows[3, 1] = -rows[3, 0]  # infeasible
    lower = np.ones((12, 10))
    lower[5] = 0.0  # trivial
    batch = solve(rows, lower, name)
    monkeypatch.setenv("MARGINLENS_THREADS", "1")
    assert batch == solve(rows, lower, name)
    for j in range(12):
        single = solve(rows[j], lower[j], name)
        assert single.status is batch.status[j]
        largest = np.abs(np.nan_to_num(single.x)).max()
        np.testing.assert_allclose(single.x, batch.x[j], rtol=1e-13, atol=1e-13 * largest)
        np.testing.assert_allclose(single.multipliers, batch.multipliers[j], rtol=1e-10, atol=1e-12 * largest)
    assert batch.status[3] is Status.INFEASIBLE
    assert batch.status[5] is Status.TRIVIAL


@every_norm
def test_infeasible_and_trivial_problems_keep_their_status_in_every_norm(name: str) -> None:
    rows = feasible_rows(np.random.default_rng(2), 8, 5)
    contradiction = solve(np.vstack([rows, -rows[:1]]), np.ones(9), name)
    assert contradiction.status is Status.INFEASIBLE
    assert contradiction.certificate_residual() <= tolerances.SVM_FARKAS
    assert contradiction.bracket() == (np.inf, np.inf)
    assert (contradiction.margin, contradiction.is_unique) == (0.0, None)
    trivial = solve(rows, np.zeros(8), name)
    assert trivial.status is Status.TRIVIAL
    assert (trivial.margin, trivial.bracket(), trivial.is_unique) == (np.inf, (0.0, 0.0), True)
    nothing = solve(np.zeros((0, 3)), np.zeros(0), name)
    assert nothing.status is Status.TRIVIAL


@every_norm
@examples(15)
@given(seed=st.integers(0, 10**6), exponent=st.integers(-300, 300), noise=st.floats(0.0, 1.0))
def test_any_x_and_any_multipliers_bracket_the_optimum(name: str, seed: int, exponent: int, noise: float) -> None:
    rng = np.random.default_rng(seed)
    rows, lower = feasible_rows(rng, 7, 4), rng.uniform(size=7)
    solution = solve(rows, lower, name)
    truth, slack = 1.0 / solution.margin, 1.0 + 1e-8
    other = replace(
        solution,
        x=(solution.x + noise * rng.normal(size=solution.x.shape)) * 2.0 ** (exponent // 10),
        multipliers=np.abs(solution.multipliers + noise * rng.normal(size=7)) * 2.0**exponent,
    )
    lower_bound, upper_bound = other.bracket()
    assert 0.0 <= lower_bound <= truth * slack
    assert truth <= upper_bound * slack


@every_norm
@examples(10)
@given(seed=st.integers(0, 10**6), factor=st.floats(1e-40, 1e40))
def test_optima_follow_scale_order_and_signs(name: str, seed: int, factor: float) -> None:
    rng = np.random.default_rng(seed)
    rows, lower = feasible_rows(rng, 9, 6), rng.uniform(0.1, 1.0, size=9)
    margin = solve(rows, lower, name).margin
    order, signs, columns = rng.permutation(9), rng.choice([-1.0, 1.0], size=6), rng.permutation(6)
    if name in MATRIX_NORMS:  # which depend on the order and signs of entries
        signs, columns = np.ones(6), np.arange(6)
    scales = 10.0 ** rng.uniform(-20, 20, size=9)
    for other in (
        solve(rows[order] * signs, lower[order], name),
        solve(rows[:, columns], lower, name),
        solve(rows * scales[:, None], lower * scales, name),
    ):
        assert other.status is Status.OPTIMAL
        assert other.margin == pytest.approx(margin, rel=max(1e-8, 2 * GAPS[name]), abs=tolerances.ROUNDING)
    scaled = solve(rows * factor, lower, name)
    assert scaled.status is Status.OPTIMAL
    assert scaled.margin == pytest.approx(margin * factor, rel=max(1e-8, 2 * GAPS[name]), abs=tolerances.ROUNDING)


@every_norm
def test_degenerate_rows_are_solved(name: str) -> None:
    rng = np.random.default_rng(3)
    one_hot = np.eye(6)[rng.integers(0, 6, size=30)] - np.eye(6)[rng.integers(0, 6, size=30)]
    one_hot = one_hot[one_hot.any(axis=1)]
    one_hot *= np.sign(one_hot @ np.arange(1.0, 7.0))[:, None]
    twice = np.repeat(feasible_rows(rng, 5, 4), 3, axis=0)
    padded = np.vstack([feasible_rows(rng, 5, 4), np.zeros((3, 4))])
    for rows in (one_hot, twice, padded):
        lower = rows.any(axis=1).astype(float)
        check(solve(rows, lower, name), GAPS[name])


@every_norm
def test_rows_of_very_different_sizes_are_solved_or_inaccurate(name: str) -> None:
    rng = np.random.default_rng(4)
    for _ in range(10):
        rows = feasible_rows(rng, 8, 5) * 10.0 ** rng.uniform(-50, 50, size=8)[:, None]
        solution = solve(rows, np.ones(8), name)
        assert solution.status in (Status.OPTIMAL, Status.INACCURATE)
        assert solution.bracket().gap <= max(GAPS[name], 16.0 * solution.rounding_floor())


@every_norm
def test_equalities_hold(name: str) -> None:
    rng = np.random.default_rng(5)
    rows, ties = feasible_rows(rng, 6, 10), rng.normal(size=(2, 10))
    solution = solve(rows, np.ones(6), name, ties)
    assert solution.status is Status.OPTIMAL
    np.testing.assert_allclose(ties @ solution.x.reshape(-1), 0.0, rtol=0.0, atol=1e-9 * np.abs(solution.x).sum())
    basis = np.linalg.svd(ties)[2][2:]  # of the null space
    assert solution.margin < solve(rows, np.ones(6), name).margin
    direct = least_distance(rows @ basis.T, np.ones(6))
    assert np.isfinite(direct.margin)
    assert solution.bracket().gap <= GAPS[name]
    batch = solve(np.stack([rows, rows]), np.ones((2, 6)), name, ties)
    np.testing.assert_allclose(batch.x[1], solution.x, rtol=1e-12, atol=1e-12 * np.abs(solution.x).max())
    np.testing.assert_allclose(batch.equality_multipliers[0], solution.equality_multipliers, rtol=1e-9, atol=0.0)


@every_norm
def test_many_rows_are_solved_by_a_working_set(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = feasible_rows(np.random.default_rng(6), 400, 10)
    few = solve(rows, np.ones(400), name)
    check(few, GAPS[name])
    for module in (linear_programs, power_norm):
        monkeypatch.setattr(module, "MAX_ROWS_TOGETHER", 400)
    all_rows = solve(rows, np.ones(400), name)
    check(all_rows, GAPS[name])
    assert few.margin == pytest.approx(all_rows.margin, rel=1e-8, abs=tolerances.ROUNDING)


@pytest.mark.parametrize("name", POLYHEDRAL)
def test_problems_that_pivoting_leaves_open_are_solved_by_highs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = feasible_rows(np.random.default_rng(8), 3, 10, 6)
    expected = solve(rows, np.ones((3, 10)), name)
    monkeypatch.setitem(norms.BATCH_SOLVERS, type(NORMS[name]), lambda batch, norm: None)
    second = solve(rows, np.ones((3, 10)), name)
    assert (second.status == Status.OPTIMAL).all()
    np.testing.assert_allclose(second.margin, expected.margin, rtol=1e-9, atol=0.0)


def test_unique_and_nonunique_optima_are_distinguished() -> None:
    square = least_distance([[1.0, 1.0]], [1.0], norm=L1())
    assert square.is_unique is False
    assert "not unique" in repr(square)
    assert least_distance([[1.0, 0.5]], [1.0], norm=L1()).is_unique is True
    assert least_distance([[1.0, 0.0]], [1.0], norm=LInf()).is_unique is False
    assert least_distance([[1.0, 0.5]], [1.0], norm=LInf()).is_unique is True
    corner = least_distance([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0]], [1.0, 0.0, 0.0], norm=L1())
    assert corner.is_unique is True  # the face is a segment of which two more rows leave one point
    np.testing.assert_allclose(corner.x, [0.5, 0.5], rtol=tolerances.ROUNDING, atol=0.0)
    both = least_distance(np.array([[[1.0, 1.0]], [[1.0, 0.5]]]), np.ones((2, 1)), norm=L1())
    assert both.is_unique.tolist() == [False, True]
    assert least_distance([[1.0, 1.0]], [1.0], norm=Lp(3.0)).is_unique is True


@pytest.mark.parametrize("name", POLYHEDRAL)
def test_uniqueness_agrees_with_the_face_of_optima(name: str) -> None:
    """HiGHS maximises and minimises random functions over the optimal face of small problems with whole numbers."""
    rng = np.random.default_rng(9)
    kinds = []
    for _ in range(25):
        rows = rng.integers(-2, 3, size=(4, 3)).astype(float)
        solution = solve(rows, np.ones(4), name)
        if solution.status is not Status.OPTIMAL:
            continue
        spread = face_width(rows, 1.0 / solution.margin, name, rng)
        kinds.append(solution.is_unique)
        assert solution.is_unique == (spread <= 1e-6), (rows, spread)
    assert {True, False} <= set(kinds)


def face_width(rows: np.ndarray, norm: float, name: str, rng: np.random.Generator) -> float:
    n, d = rows.shape
    widest = 0.0
    for direction in rng.normal(size=(4, d)):
        ends = []
        for sign in (1.0, -1.0):
            size = norm * (1.0 + 1e-9)
            if name == "l1":
                sides = np.vstack([np.hstack([-rows, rows]), np.ones((1, 2 * d))])
                cost = sign * np.append(direction, -direction)
                answer = linprog(cost, A_ub=sides, b_ub=np.append(-np.ones(n), size), bounds=(0.0, None))
            else:
                answer = linprog(sign * direction, A_ub=-rows, b_ub=-np.ones(n), bounds=(-size, size))
            ends.append(answer.fun)
        widest = max(widest, -ends[1] - ends[0])
    return widest


def test_attention_margins_take_a_norm() -> None:
    data, v = ml.data.sphere_tokens(4, 3, 4, 5, 0)
    selected = data.optimal(v)
    plain = ml.att_svm(data, selected)
    for norm in NORMS.values():
        solution = ml.att_svm(data, selected, norm=norm)
        assert (solution.status == plain.status).all()
        best = [norm.value(x) for x in plain.x]
        assert (1.0 / solution.margin <= np.array(best) * (1.0 + 1e-9)).all()
        relaxed = ml.relaxed_svm(data, selected, [0], norm=norm)
        assert (relaxed.margin >= solution.margin * (1.0 - 1e-9)).all()
        assert ml.label_svm(data.X[0, 0], np.ones(4), norm=norm).norm == norm
