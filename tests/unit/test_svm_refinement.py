"""Refinement of a solution by its tight rows: it repairs what rounding took, and never makes a solution worse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tolerances
from marginlens.svm import MarginSolution, Status, least_distance
from marginlens.svm import solution as refinement
from marginlens.svm.bilinear import bilinear_svm


def nearly_opposite(rng: np.random.Generator, n_equalities: int = 0) -> MarginSolution:
    """A problem in ten dimensions whose rows nearly cancel, so that multipliers are thousands of times longer than x."""
    rows = rng.normal(size=(4, 10))
    rows[1] = -rows[0] + 1e-4 * rng.normal(size=10)
    ties = rng.normal(size=(n_equalities, 10)) if n_equalities else None
    return least_distance(rows, np.ones(4), equalities=ties)


def of_rounded_multipliers(solution: MarginSolution, size: float, rng: np.random.Generator) -> np.ndarray:
    """(d,) how x = Aᵀλ moves when every multiplier carries a relative rounding of about `size`."""
    return solution.multipliers * size * rng.normal(size=len(solution.multipliers)) @ np.asarray(solution.rows)


@pytest.mark.parametrize("n_equalities", [0, 3])
@pytest.mark.parametrize("by_products", [False, True])
def test_a_perturbed_solution_finds_back(n_equalities: int, by_products: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if by_products:
        monkeypatch.setattr(refinement, "DIRECT", -1)
    rng = np.random.default_rng(n_equalities)
    for _ in range(20):
        solution = nearly_opposite(rng, n_equalities)
        assert solution.status is Status.OPTIMAL
        rounded = replace(solution, x=solution.x + of_rounded_multipliers(solution, tolerances.ROUNDING, rng))
        assert rounded.kkt_residual() > 10 * tolerances.SVM_KKT
        repaired = refinement.refined(rounded)
        assert repaired.kkt_residual() <= max(tolerances.ROUNDING, 16 * solution.rounding_floor())
        assert np.linalg.norm(repaired.x - solution.x) <= tolerances.SVM_KKT * np.linalg.norm(solution.x)


def test_a_solution_never_gets_worse() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        rows = rng.normal(size=(6, 4))
        claimed = least_distance(rows, np.zeros(6))
        wrong = replace(claimed, floor=np.ones(6), x=rng.normal(size=4), multipliers=rng.uniform(size=6))
        assert refinement.refined(wrong).kkt_residual() <= wrong.kkt_residual()


def test_matrices_are_refined_through_their_products(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    X, Q = rng.normal(size=(12, 6)), rng.normal(size=(4, 6))
    X[3:6] = X[:3] + 1e-3 * rng.normal(size=(3, 6))  # nearly equal tokens
    triples = np.array([(k, k, 3 + k) for k in range(3)] + [(3, 3, 0), (3, 7, 8)])
    solution = bilinear_svm(X, Q, triples)
    assert solution.status is Status.OPTIMAL
    away = of_rounded_multipliers(solution, tolerances.LOOP_AGREEMENT, rng)
    moved = replace(solution, x=solution.x + away.reshape(6, 6))
    assert moved.kkt_residual() > tolerances.SVM_KKT
    formed = refinement.refined(moved)
    monkeypatch.setattr(refinement, "DIRECT", -1)
    through_products = refinement.refined(moved)
    for repaired in (formed, through_products):
        assert repaired.kkt_residual() <= max(tolerances.ROUNDING, 16 * solution.rounding_floor())


@pytest.mark.parametrize("scale", [1e-300, 1e-308, 1e-312, 5e-324])
def test_rows_too_short_for_any_solution_to_be_a_number_are_said_to_be_so(scale):
    """The shortest p has norm 1/scale, beyond double precision: a status, not an error."""
    solution = least_distance(scale * np.array([[1.0, 2.0], [2.0, 1.0]]), np.ones(2))
    assert solution.status is Status.INACCURATE or np.isfinite(solution.x).all()
