"""A margin solution checks itself: its residuals notice every way of being wrong, and refinement never makes it worse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tolerances
from marginlens.svm import MarginSolution, Status, least_distance
from marginlens.svm import solution as solutions
from marginlens.svm.bilinear import bilinear_svm
from marginlens.svm.solution import refined
from random_examples import examples


@pytest.fixture
def solved() -> MarginSolution:
    rng = np.random.default_rng(0)
    A = rng.normal(size=(12, 5))
    A *= np.sign(A @ rng.normal(size=5))[:, None]
    return least_distance(A, np.ones(12))


@pytest.fixture
def infeasible() -> MarginSolution:
    A = np.random.default_rng(1).normal(size=(40, 3))
    return least_distance(A, np.ones(40))


@pytest.mark.parametrize("size", [1e-3, 1e-8])
def test_a_perturbed_solution_increases_the_residual(solved: MarginSolution, size: float) -> None:
    assert solved.kkt_residual() <= tolerances.SVM_KKT
    norm = np.linalg.norm(solved.x)
    for r in range(12):
        for sign in (1.0, -1.0):
            multipliers = solved.multipliers + sign * size * norm * np.eye(12)[r]
            off = replace(solved, multipliers=multipliers)
            assert off.kkt_residual() >= 0.1 * size * np.linalg.norm(solved.rows[r])
    for step in np.eye(5) * norm * size:
        assert replace(solved, x=solved.x + step).kkt_residual() >= 0.99 * size


def test_each_residual_term_detects_its_violation(solved: MarginSolution) -> None:
    longer = replace(solved, x=1.01 * solved.x, multipliers=1.01 * solved.multipliers)  # duality gap
    assert longer.kkt_residual() >= 0.005
    solution = least_distance([[1.0, 0.0], [1.0, 1.0]], [1.0, 0.5])
    negative = replace(solution, x=np.array([1.0, -0.5]), multipliers=np.array([1.5, -0.5]))  # sign
    assert negative.kkt_residual() == pytest.approx(
        0.5 * np.sqrt(2.0) / np.sqrt(1.25), rel=tolerances.SIX_DIGITS, abs=tolerances.ROUNDING
    )
    solution = least_distance([[1.0, 0.0]], [1.0], equalities=[[3.0, -3.0]])
    loose = replace(solution, x=np.array([1.0, 0.0]), multipliers=np.ones(1), equality_multipliers=np.zeros(1))  # plane
    assert loose.kkt_residual() == pytest.approx(np.sqrt(0.5), rel=tolerances.SIX_DIGITS, abs=tolerances.ROUNDING)
    gap, step = 1e-3, 1e-4
    solution = least_distance([[1.0, 0.0], [-1.0, gap]], [1.0, 1.0])
    aside = replace(solution, x=solution.x + np.array([step, 0.0]))  # complementarity of large multipliers
    assert aside.kkt_residual() == pytest.approx(0.5 * step, rel=0.01, abs=tolerances.ROUNDING)
    lost = replace(solved, x=np.zeros(5), multipliers=np.zeros(12))
    assert lost.kkt_residual() == np.inf
    zero_row = {"rows": np.vstack([solved.rows, np.zeros(5)]), "lower": np.append(solved.lower, 1e-15)}
    assert replace(solved, **zero_row, multipliers=np.append(solved.multipliers, 0.0)).kkt_residual() == np.inf


@examples(20)
@given(factor=st.floats(1e-90, 1e90), seed=st.integers(0, 100))
def test_solutions_and_residuals_only_rescale_with_the_problem(factor: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    A = np.abs(rng.normal(size=(6, 4)))
    plain, scaled = least_distance(A, np.ones(6)), least_distance(A * factor, np.ones(6))
    assert scaled.status is Status.OPTIMAL
    assert scaled.kkt_residual() <= tolerances.SVM_KKT
    np.testing.assert_allclose(scaled.x * factor, plain.x, rtol=tolerances.SVM_ORACLE, atol=0.0)
    np.testing.assert_array_equal(scaled.active, plain.active)
    assert least_distance(np.vstack([A, -A[:1]]) * factor, np.ones(7)).status is Status.INFEASIBLE
    off = replace(plain, x=plain.x * (1.0 - 1e-5))
    again = replace(off, rows=off.rows * factor, x=off.x / factor, multipliers=off.multipliers / factor**2)
    assert again.kkt_residual() == pytest.approx(off.kkt_residual(), rel=tolerances.SVM_ORACLE, abs=tolerances.ROUNDING)


def test_a_false_certificate_has_a_large_residual(infeasible: MarginSolution) -> None:
    assert infeasible.status is Status.INFEASIBLE
    assert infeasible.certificate_residual() <= tolerances.SVM_FARKAS
    for r in np.flatnonzero(infeasible.certificate):
        y = infeasible.certificate * (1.0 + 1e-6 * np.eye(40)[r])
        assert replace(infeasible, certificate=y).certificate_residual() >= 1e-8
    negative = np.where(np.arange(40) == 0, -1e-30, infeasible.certificate)
    for false in (negative, np.zeros(40)):
        assert replace(infeasible, certificate=false).certificate_residual() == np.inf
    through_zero = least_distance([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], [0.0, 0.0, 1.0])
    assert replace(through_zero, certificate=np.array([1.0, 1.0, 0.0])).certificate_residual() == np.inf


def test_the_rounding_floor_grows_as_rows_cancel_until_rounding_decides() -> None:
    floors = []
    for gap in (1.0, 1e-3, 1e-6, 1e-9):
        solution = least_distance([[1.0, 0.0], [-1.0, gap]], [1.0, 1.0])
        assert solution.status is Status.OPTIMAL
        np.testing.assert_allclose(solution.x, [1.0, 2.0 / gap], rtol=tolerances.SVM_INTERIOR_POINT, atol=0.0)
        assert solution.kkt_residual() <= max(tolerances.SVM_KKT, 32 * solution.rounding_floor())
        floors.append(solution.rounding_floor())
    assert floors == sorted(floors)
    assert 1e-7 < floors[-1] < 1e-5
    tied = least_distance([[1.0, 0.0]], [1.0], equalities=[[1.0, -1e-4]])  # equalities count too
    assert tied.rounding_floor() == pytest.approx(2.0**-52 * 2.0 / 1e-4, rel=0.01, abs=0.0)
    u, w = np.random.default_rng(3).normal(size=(2, 6))
    kinds = [least_distance([u, gap * w - u], [1.0, 1.0]).status for gap in (1e-9, 1e-13, 0.0)]
    assert kinds == [Status.OPTIMAL, Status.INACCURATE, Status.INFEASIBLE]


def test_an_x_too_long_for_rounded_rows_is_infeasible_with_its_length() -> None:
    """Rows (1, 0) and (-1, gap) have the solution (1, 2/gap), whatever the gap; their last digits hold it up to 1e14."""
    assert least_distance([[1.0, 0.0], [-1.0, 3e-14]], [1.0, 1.0]).status is Status.OPTIMAL
    for gap in (1e-14, 1e-15, 1e-18):
        solution = least_distance([[1.0, 0.0], [-1.0, gap]], [1.0, 1.0])
        assert solution.status is Status.INFEASIBLE
        assert 1.0 / solution.certificate_residual() == pytest.approx(
            np.hypot(1.0, 2.0 / gap), rel=tolerances.ROUNDING, abs=tolerances.ROUNDING
        )


def test_a_solution_has_margin_direction_and_repr(solved: MarginSolution, infeasible: MarginSolution) -> None:
    np.testing.assert_allclose(
        solved.direction * np.linalg.norm(solved.x), solved.x, rtol=tolerances.ROUNDING, atol=0.0
    )
    assert solved.margin == pytest.approx(
        np.min(solved.rows @ solved.direction), rel=tolerances.SVM_ORACLE, abs=tolerances.ROUNDING
    )
    assert np.isnan(solved.certificate_residual())
    assert infeasible.margin == 0.0
    assert np.isnan(infeasible.direction).all()
    assert np.isnan(infeasible.kkt_residual())
    trivial = least_distance(np.empty((0, 2)), np.empty(0))
    np.testing.assert_array_equal(trivial.direction, [0.0, 0.0])
    assert repr(solved) == f"MarginSolution(OPTIMAL, margin={solved.margin:.6g}, 12 rows, d=5)"
    batch = least_distance(np.stack([np.eye(2), np.zeros((2, 2))]), np.ones((2, 2)))
    assert repr(batch) == "MarginSolution(2 problems: 1 OPTIMAL, 1 INFEASIBLE, 2 rows, d=2)"


def test_batches_can_be_indexed(solved: MarginSolution) -> None:
    batch = least_distance(np.stack([np.eye(2), -np.eye(2)]), np.ones((2, 2)), pairs=np.zeros((2, 2, 3), dtype=int))
    assert (len(batch), len(solved)) == (2, 1)
    np.testing.assert_array_equal(batch[-1].x, batch.x[1])
    assert batch[0].pairs.shape == (2, 3)
    assert batch[0].certificate is None
    assert solved[0] is solved
    with pytest.raises(IndexError):
        batch[2]


# ---- refinement


def rounded(solution: MarginSolution, size: float, rng: np.random.Generator) -> MarginSolution:
    """The solution whose x moved as x = Aᵀλ does when every multiplier carries a relative rounding of about `size`."""
    change = solution.multipliers * size * rng.normal(size=len(solution.multipliers)) @ np.asarray(solution.rows)
    return replace(solution, x=solution.x + change.reshape(solution.x.shape))


@pytest.mark.parametrize("n_equalities", [0, 3])
@pytest.mark.parametrize("by_products", [False, True])
def test_a_perturbed_solution_is_refined(n_equalities: int, by_products: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if by_products:
        monkeypatch.setattr(solutions, "MAX_DIRECT_OPERATIONS", -1)
    rng = np.random.default_rng(n_equalities)
    for _ in range(20):
        rows = rng.normal(size=(4, 10))
        rows[1] = -rows[0] + 1e-4 * rng.normal(size=10)
        ties = rng.normal(size=(n_equalities, 10)) if n_equalities else None
        solution = least_distance(rows, np.ones(4), equalities=ties)
        assert solution.status is Status.OPTIMAL
        moved = rounded(solution, tolerances.ROUNDING, rng)
        assert moved.kkt_residual() > 10 * tolerances.SVM_KKT
        repaired = refined(moved)
        assert repaired.kkt_residual() <= max(tolerances.ROUNDING, 16 * solution.rounding_floor())
        assert np.linalg.norm(repaired.x - solution.x) <= tolerances.SVM_KKT * np.linalg.norm(solution.x)


def test_refinement_never_worsens_a_solution() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        claimed = least_distance(rng.normal(size=(6, 4)), np.zeros(6))
        wrong = replace(claimed, lower=np.ones(6), x=rng.normal(size=4), multipliers=rng.uniform(size=6))
        assert refined(wrong).kkt_residual() <= wrong.kkt_residual()


def test_matrices_are_refined_through_their_products(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    X, Q = rng.normal(size=(12, 6)), rng.normal(size=(4, 6))
    X[3:6] = X[:3] + 1e-3 * rng.normal(size=(3, 6))  # nearly equal tokens
    solution = bilinear_svm(X, Q, [(k, k, 3 + k) for k in range(3)] + [(3, 3, 0), (3, 7, 8)])
    assert solution.status is Status.OPTIMAL
    moved = rounded(solution, tolerances.LOOP_AGREEMENT, rng)
    assert moved.kkt_residual() > tolerances.SVM_KKT
    formed = refined(moved)
    monkeypatch.setattr(solutions, "MAX_DIRECT_OPERATIONS", -1)
    for repaired in (formed, refined(moved)):
        assert repaired.kkt_residual() <= max(tolerances.ROUNDING, 16 * solution.rounding_floor())
