"""Paths in balls of any norm: the Euclidean one agrees with its own search, SciPy finds nothing better, and decayed steps go there."""

import numpy as np
import pytest
from scipy.optimize import minimize

import marginlens as ml
from marginlens.dynamics.paths.general import PROJECTIONS, GeneralSearch
from marginlens.losses.margin import Loss
from marginlens.optimizers import PowerDecay
from plain_norms import Weighted
from refusals import refused
from tolerances import ROUNDING

EUCLIDEAN_RTOL = 1e-8  # of the radius
GAP = 1e-9  # of Frank and Wolfe, relative to R ‖∇L‖_*
SAME_HEIGHT = 1e-6  # SciPy's own accuracy in the logarithm of the excess risk


def problem(seed=1):
    data, v = ml.data.sphere_tokens(2, 3, 4, 5, seed)
    return ml.AttentionRisk(data[0], v[0])


def test_euclidean_balls_agree_with_the_euclidean_path():
    risk, radii = problem(), np.array([0.5, 4.0, 40.0])
    search = GeneralSearch(risk, 4, ml.L2())
    state = search.begin(np.random.default_rng(0))
    for radius in radii:
        state = search.follow(state, radius)
    apart = np.abs(np.stack(state.points) - ml.path(risk, radii).points).max(axis=1)
    assert np.all(apart <= EUCLIDEAN_RTOL * radii)


@pytest.mark.parametrize("norm", [ml.L1(), ml.LInf(), ml.Lp(3), ml.Lp(1.5)], ids=repr)
def test_scipy_finds_no_lower_point_on_p(norm):
    risk, radius = problem(), 6.0
    path = ml.path(risk, [1.0, radius], norm=norm, restarts=1)
    assert np.all(path.kkt_residual() < GAP)
    assert np.all(path.norm <= path.radii * (1.0 + 1e-12))
    best = risk.best_tokens()

    def height(z):
        """On the ball by division: no constraint, no projection, and differences for derivatives."""
        return float(risk.excess(radius * z / max(norm.value(z), 1.0), best).log)

    rng = np.random.default_rng(0)
    starts = [path.points[-1] / radius, *rng.normal(size=(1, 5))]
    lowest = min(
        minimize(height, z, method="Nelder-Mead", options={"maxiter": 500, "xatol": 1e-10}).fun for z in starts
    )
    assert float(risk.excess(path.points[-1], best).log) <= lowest + SAME_HEIGHT


def test_frank_wolfe_steps_agree_with_a_linear_program():
    """At a stationary point of the ℓ1 and ℓ∞ ball the gradient's linear programme over the ball is solved by the point itself."""
    linprog = pytest.importorskip("scipy.optimize").linprog
    risk, radius = problem(3), 5.0
    for norm in (ml.L1(), ml.LInf()):
        x = ml.path(risk, [radius], norm=norm, restarts=3).points[0]
        g = risk.gradient(x).direction()
        if isinstance(norm, ml.LInf):
            least = linprog(g, bounds=[(-radius, radius)] * 5).fun
        else:
            least = linprog(np.concatenate([g, -g]), A_ub=np.ones((1, 10)), b_ub=[radius]).fun
        assert g @ x == pytest.approx(least, rel=1e-8, abs=ROUNDING)


@pytest.mark.parametrize("norm", [ml.Spectral(), ml.Nuclear(), ml.MaxRow(), ml.L1()], ids=repr)
def test_matrices_are_stationary_in_the_balls_of_their_norms(norm):
    risk = problem().as_matrix(np.random.default_rng(0).normal(size=(3, 3)))
    path = ml.path(risk, [1.0, 8.0], norm=norm, restarts=0)
    assert np.all(path.kkt_residual() < GAP)
    assert np.all(np.diff([float(risk.excess(x, risk.best_tokens()).log) for x in path.points]) < 0.0)
    longer = path.resume([20.0])
    np.testing.assert_array_equal(longer.points[:2], path.points)


def test_the_nuclear_ball_is_that_of_the_factors():
    risk = problem().as_matrix(np.random.default_rng(0).normal(size=(3, 3)))
    radius = 4.0
    nuclear = ml.path(risk, [radius], norm=ml.Nuclear(), restarts=2)
    factors = problem().as_factors(risk.query, 3)
    by_factors = ml.path(factors, [np.sqrt(2.0 * radius)])
    tokens = risk.best_tokens()
    heights = [float(risk.excess(W, tokens).log) for W in (nuclear.points[0], factors.matrix(by_factors.points[0]))]
    assert heights[0] <= heights[1] + SAME_HEIGHT


@pytest.mark.parametrize("kind", PROJECTIONS)
def test_projections_are_the_nearest_points_of_their_balls(kind):
    norm, rng = kind(), np.random.default_rng(2)
    for _ in range(20):
        x, radius = 3.0 * rng.normal(size=(3, 4)), 2.0
        near = PROJECTIONS[kind](x, radius)
        assert norm.value(near) <= radius * (1.0 + 1e-12)
        for _ in range(20):
            other = rng.normal(size=(3, 4))
            other *= radius / norm.value(other)
            assert np.sum((x - near) * (other - near)) <= 1e-9  # what makes a point of a convex set the nearest
        inside = 0.5 * radius * x / norm.value(x)
        np.testing.assert_allclose(PROJECTIONS[kind](inside, radius), inside, rtol=0.0, atol=1e-14)


@pytest.mark.parametrize("norm", [ml.L2(), ml.LInf()], ids=repr)
def test_decayed_steps_go_to_the_point_of_the_path(norm):
    risk, radius = problem(), 5.0
    point = ml.path(risk, [radius], norm=norm, restarts=3).points[0]
    rule = ml.SteepestDescent(norm, PowerDecay(2.0, 0.9), weight_decay=1.0 / radius)
    run = ml.descend(risk, optimizer=rule, n_steps=20_000)
    tokens = risk.best_tokens()
    assert float(risk.excess(run.final, tokens).log) == pytest.approx(
        float(risk.excess(point, tokens).log), abs=0.01, rel=0.0
    )
    free = ml.descend(risk, optimizer=ml.SteepestDescent(norm, PowerDecay(2.0, 0.9)), n_steps=20_000)
    assert norm.value(free.final) > radius


def test_a_user_norm_is_taken_and_unsupported_norms_refused():
    path = ml.path(problem(), [1.0], norm=Weighted(np.arange(1.0, 6.0)), restarts=1)
    assert path.kkt_residual()[0] < 1e-3
    assert path.norm[0] == pytest.approx(1.0, rel=1e-3, abs=ROUNDING)
    with refused("norm"):
        ml.path(ml.JointRisk(problem().data), [1.0], norm=ml.L1())
    with refused("norm"):
        ml.path(problem(), [1.0], norm=ml.Spectral())
    with refused("region"):
        ml.path(problem(), [1.0], norm=ml.L1(), region=ml.Cone(np.ones(5), 0.5, 0.1))


class Between(Loss):
    """(u - .1)², whose least value lies between the scores of tokens."""

    def value(self, u):
        return (np.asarray(u, dtype=float) - 0.1) ** 2

    def derivative(self, u):
        return 2.0 * (np.asarray(u, dtype=float) - 0.1)

    def log_abs_derivative(self, u):
        with np.errstate(divide="ignore"):
            return np.log(2.0 * np.abs(np.asarray(u, dtype=float) - 0.1))


@pytest.mark.parametrize("norm", [ml.L1(), ml.LInf()], ids=repr)
def test_a_path_to_a_mixture_has_the_least_risk(norm):
    rng = np.random.default_rng(41)
    risk = ml.AttentionRisk(
        ml.TokenDataset(rng.normal(size=(3, 3, 4)), [1.0, -1.0, 1.0]), rng.normal(size=4), Between()
    )
    radius = 0.3
    path = ml.path(risk, [radius], norm=norm, restarts=1)
    assert path.trusted.all()
    assert float(risk.excess(path.points[0], risk.best_tokens()).sign) < 0.0

    def height(z):
        return float(risk.value(radius * z / max(norm.value(z), 1.0)))

    own = min(minimize(height, z, method="Nelder-Mead", options={"xatol": 1e-9}).fun for z in rng.normal(size=(3, 4)))
    assert float(risk.value(path.points[0])) <= own + SAME_HEIGHT
