"""The regularisation path of the factors of W = Q Kᵀ: the nuclear-norm ball, its limit and its rank."""

from __future__ import annotations

import numpy as np
import pytest

import marginlens as ml
import tolerances
from marginlens.risk import FactorRisk
from refusals import refused

NUCLEAR_RADII = np.array([3.0, 30.0, 300.0])
FACTOR_KKT = 1e-5  # what L-BFGS leaves of the gradient along the sphere, relative to all of it


@pytest.fixture(scope="module")
def followed() -> tuple[FactorRisk, ml.Path, ml.MarginSolution]:
    rng = np.random.default_rng(0)
    data = ml.TokenDataset(rng.standard_normal((3, 3, 4)), rng.choice([-1.0, 1.0], 3))
    head, z = rng.standard_normal(4), rng.standard_normal((3, 4))
    risk = ml.AttentionRisk(data, head, ml.Logistic()).as_factors(z, 3)
    solution = ml.att_svm(data, data.optimal(head), norm=ml.Nuclear(), query=z)
    return risk, ml.path(risk, np.sqrt(2.0 * NUCLEAR_RADII), restarts=4), solution


@pytest.mark.statement("D regularisation path of (K, Q)")
def test_the_direction_tends_to_the_nuclear_norm_solution(
    followed: tuple[FactorRisk, ml.Path, ml.MarginSolution],
) -> None:
    """Its share of the nuclear margin misses one by about 1/R, and W has the rank of the limit."""
    risk, found, solution = followed
    W = risk.matrix(found.points)
    singular = np.linalg.svd(W, compute_uv=False)
    np.testing.assert_allclose(singular.sum(axis=1), NUCLEAR_RADII, rtol=tolerances.FIXED_POINT, atol=0.0)
    shares = (W.reshape(3, -1) @ solution.rows.T).min(axis=1) / NUCLEAR_RADII * solution.bracket().lower
    missing = 1.0 - shares[1:]
    assert 5.0 < missing[0] / missing[1] < 20.0
    assert missing[1] < 0.05
    assert ml.correlation(W[-1].ravel(), solution.x.ravel()) > tolerances.DIRECTION_ON_RANDOM_DATA
    assert np.sum(singular[-1] > 1e-6 * singular[-1, 0]) == solution.rank()
    np.testing.assert_array_equal(found.selected[-1], risk.of_p.data.optimal(risk.of_p.head))


def test_path_factors_are_balanced_and_stationary(
    followed: tuple[FactorRisk, ml.Path, ml.MarginSolution],
) -> None:
    """At a minimum over the ball QᵀQ = KᵀK, and the gradient has no part along the sphere."""
    _, found, _ = followed
    assert (found.kkt_residual() <= FACTOR_KKT).all()
    Q, K = found.split()
    for k, R in enumerate(NUCLEAR_RADII):
        np.testing.assert_allclose(Q[k].T @ Q[k], K[k].T @ K[k], rtol=0.0, atol=1e-4 * R)
    assert (np.diff(found.log_excess) < 0.0).all()


def test_a_factor_path_resumes_and_refuses_a_region(followed: tuple[FactorRisk, ml.Path, ml.MarginSolution]) -> None:
    risk, found, _ = followed
    begun = ml.path(risk, np.sqrt(2.0 * NUCLEAR_RADII[:1]), restarts=4).resume(np.sqrt(2.0 * NUCLEAR_RADII[1:2]))
    np.testing.assert_array_equal(begun.points, found.points[:2])
    with refused("region"):
        ml.path(risk, [1.0], region=0.5)
