"""A margin solution checks itself: its residuals notice every way of being wrong, at any scale."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

import tolerances
from marginlens.svm import MarginSolution, Status, least_distance


@pytest.fixture
def solved() -> MarginSolution:
    rng = np.random.default_rng(0)
    A = rng.normal(size=(12, 5))
    A *= np.sign(A @ rng.normal(size=5))[:, None]
    return least_distance(A, np.ones(12))


@pytest.fixture
def impossible() -> MarginSolution:
    A = np.random.default_rng(1).normal(size=(40, 3))
    return least_distance(A, np.ones(40))


@pytest.mark.parametrize("size", [1e-3, 1e-6, 1e-8])
def test_a_perturbed_multiplier_shows_in_the_residual(solved: MarginSolution, size: float) -> None:
    assert solved.kkt_residual() <= tolerances.SVM_KKT
    for r in range(12):
        weights = solved.multipliers.copy()
        weights[r] += size * np.linalg.norm(solved.x)
        assert replace(solved, multipliers=weights).kkt_residual() >= 0.1 * size * np.linalg.norm(solved.rows[r])
        weights[r] -= 2 * size * np.linalg.norm(solved.x)
        assert replace(solved, multipliers=weights).kkt_residual() >= 0.1 * size * np.linalg.norm(solved.rows[r])


@pytest.mark.parametrize("size", [1e-3, 1e-6, 1e-8])
def test_a_perturbed_x_shows_in_the_residual(solved: MarginSolution, size: float) -> None:
    for step in np.eye(5) * np.linalg.norm(solved.x) * size:
        assert replace(solved, x=solved.x + step).kkt_residual() >= 0.99 * size


def test_a_longer_x_shows_in_the_duality_gap(solved: MarginSolution) -> None:
    stretched = replace(solved, x=1.01 * solved.x, multipliers=1.01 * solved.multipliers)
    assert stretched.kkt_residual() >= 0.005


def test_a_negative_multiplier_shows_where_all_else_is_in_order() -> None:
    """Both rows tight, x their combination and no gap: only the sign says that (1, 0) is shorter."""
    solution = least_distance([[1.0, 0.0], [1.0, 1.0]], [1.0, 0.5])
    pulled = replace(solution, x=np.array([1.0, -0.5]), multipliers=np.array([1.5, -0.5]))
    assert pulled.kkt_residual() == pytest.approx(0.5 * np.sqrt(2.0) / np.sqrt(1.25))


def test_a_point_off_an_equality_plane_shows_where_all_else_is_in_order() -> None:
    solution = least_distance([[1.0, 0.0]], [1.0], equalities=[[3.0, -3.0]])
    np.testing.assert_allclose(solution.x, [1.0, 1.0], atol=tolerances.ROUNDING)
    loose = replace(solution, x=np.array([1.0, 0.0]), multipliers=np.ones(1), equality_multipliers=np.zeros(1))
    assert loose.kkt_residual() == pytest.approx(np.sqrt(0.5))


def test_a_slack_row_with_a_large_multiplier_shows_more_than_the_distance() -> None:
    gap, step = 1e-3, 1e-4
    solution = least_distance([[1.0, 0.0], [-1.0, gap]], [1.0, 1.0])
    aside = replace(solution, x=solution.x + np.array([step, 0.0]))
    assert aside.kkt_residual() == pytest.approx(0.5 * step, rel=0.01)  # all else is a thousandth of complementarity


@pytest.mark.parametrize("factor", [1.0, 1e100])
def test_the_zero_vector_never_passes_for_a_solution(solved: MarginSolution, factor: float) -> None:
    lost = replace(solved, rows=solved.rows * factor, x=np.zeros(5), multipliers=np.zeros(12))
    assert lost.kkt_residual() == np.inf


def test_nothing_passes_for_a_solution_where_a_zero_row_has_a_floor(solved: MarginSolution) -> None:
    rows, floor = np.vstack([solved.rows, np.zeros(5)]), np.append(solved.floor, 1e-15)
    assert (
        replace(solved, rows=rows, floor=floor, multipliers=np.append(solved.multipliers, 0.0)).kkt_residual() == np.inf
    )


def test_residuals_do_not_depend_on_scales(solved: MarginSolution) -> None:
    off = replace(solved, x=solved.x * (1.0 - 1e-5))
    for factor in (1e-100, 1e-3, 1e5, 1e100):
        rescaled = replace(
            off,
            rows=off.rows * factor,
            floor=off.floor,
            x=off.x / factor,
            multipliers=off.multipliers / factor**2,
        )
        assert rescaled.kkt_residual() == pytest.approx(off.kkt_residual(), rel=tolerances.SVM_ORACLE, abs=0.0)
    factors = 10.0 ** np.random.default_rng(2).uniform(-3, 3, size=12)
    rows = replace(
        off, rows=off.rows * factors[:, None], floor=off.floor * factors, multipliers=off.multipliers / factors
    )
    assert rows.kkt_residual() == pytest.approx(off.kkt_residual(), rel=tolerances.SVM_ORACLE, abs=0.0)


def test_a_false_certificate_shows(impossible: MarginSolution) -> None:
    assert impossible.status is Status.INFEASIBLE
    assert impossible.certificate is not None
    assert impossible.certificate_residual() <= tolerances.SVM_FARKAS
    for r in np.flatnonzero(impossible.certificate):
        y = impossible.certificate.copy()
        y[r] *= 1.0 + 1e-6
        assert replace(impossible, certificate=y).certificate_residual() >= 1e-8
    negative = impossible.certificate.copy()
    negative[0] = -1e-30
    assert replace(impossible, certificate=negative).certificate_residual() == np.inf
    nothing = np.zeros_like(impossible.certificate)
    assert replace(impossible, certificate=nothing).certificate_residual() == np.inf


def test_a_certificate_on_floors_of_zero_proves_nothing() -> None:
    solution = least_distance([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], [0.0, 0.0, 1.0])
    assert solution.status is Status.OPTIMAL
    assert replace(solution, certificate=np.array([1.0, 1.0, 0.0])).certificate_residual() == np.inf


def test_the_rounding_floor_grows_as_rows_cancel() -> None:
    floors = []
    for gap in (1.0, 1e-3, 1e-6, 1e-9):
        solution = least_distance([[1.0, 0.0], [-1.0, gap]], [1.0, 1.0])
        assert solution.status is Status.OPTIMAL
        np.testing.assert_allclose(solution.x, [1.0, 2.0 / gap], rtol=tolerances.SVM_INTERIOR_POINT)
        assert solution.kkt_residual() <= max(tolerances.SVM_KKT, 32 * solution.rounding_floor())
        floors.append(solution.rounding_floor())
    assert floors == sorted(floors)
    assert 1e-7 < floors[-1] < 1e-5


def test_the_rounding_floor_counts_what_equalities_push() -> None:
    gap = 1e-4
    solution = least_distance([[1.0, 0.0]], [1.0], equalities=[[1.0, -gap]])
    assert solution.rounding_floor() == pytest.approx(
        2.0**-52 * 2.0 / gap, rel=0.01, abs=0.0
    )  # as much as the row, against it


def test_an_x_too_long_for_rounded_rows_counts_as_none_and_the_certificate_says_how_long() -> None:
    """Rows (1, 0) and (-1, gap) have the solution (1, 2/gap), whatever the gap; their last digits hold it up to 1e14."""
    assert least_distance([[1.0, 0.0], [-1.0, 3e-14]], [1.0, 1.0]).status is Status.OPTIMAL
    for gap in (1e-14, 1e-15, 1e-18):
        solution = least_distance([[1.0, 0.0], [-1.0, gap]], [1.0, 1.0])
        assert solution.status is Status.INFEASIBLE
        assert 1.0 / solution.certificate_residual() == pytest.approx(np.hypot(1.0, 2.0 / gap), rel=tolerances.ROUNDING)


def test_what_rounding_decides_is_called_inaccurate() -> None:
    u, w = np.random.default_rng(3).normal(size=(2, 6))
    kinds = [least_distance([u, gap * w - u], [1.0, 1.0]).status for gap in (1e-9, 1e-13, 0.0)]
    assert kinds == [Status.OPTIMAL, Status.INACCURATE, Status.INFEASIBLE]


def test_margin_and_direction(solved: MarginSolution, impossible: MarginSolution) -> None:
    np.testing.assert_allclose(solved.direction * np.linalg.norm(solved.x), solved.x, rtol=tolerances.ROUNDING)
    assert solved.margin == pytest.approx(np.min(solved.rows @ solved.direction), rel=tolerances.SVM_ORACLE)
    assert impossible.margin == 0.0
    assert np.isnan(impossible.direction).all()
    assert np.isnan(impossible.kkt_residual())
    assert np.isnan(solved.certificate_residual())
    trivial = least_distance(np.empty((0, 2)), np.empty(0))
    np.testing.assert_array_equal(trivial.direction, [0.0, 0.0])


def test_one_line_says_what_it_is(solved: MarginSolution, impossible: MarginSolution) -> None:
    assert repr(solved) == f"MarginSolution(OPTIMAL, margin={solved.margin:.6g}, 12 rows, d=5)"
    assert repr(impossible) == "MarginSolution(INFEASIBLE, margin=0, 40 rows, d=3)"
    batch = least_distance(np.stack([np.eye(2), np.zeros((2, 2))]), np.ones((2, 2)))
    assert repr(batch) == "MarginSolution(2 problems: 1 OPTIMAL, 1 INFEASIBLE, 2 rows, d=2)"
    assert repr(Status.OPTIMAL) == "Status.OPTIMAL"
    assert all(status.value.endswith(".") for status in Status)


def test_batches_are_indexed_and_single_solutions_stand_alone(solved: MarginSolution) -> None:
    batch = least_distance(np.stack([np.eye(2), -np.eye(2)]), np.ones((2, 2)), pairs=np.zeros((2, 2, 3), dtype=int))
    assert len(batch) == 2
    assert len(solved) == 1
    np.testing.assert_array_equal(batch[-1].x, batch.x[1])
    assert batch[0].pairs.shape == (2, 3)
    assert batch[0].certificate is None
    assert solved[0] is solved
    with pytest.raises(IndexError, match="index 2 of a batch of 2 problems"):
        batch[2]
    with pytest.raises(FrozenInstanceError):
        solved.x = np.zeros(5)
