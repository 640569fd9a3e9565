"""Joint paths: against a grid over both angles, first-order conditions, limits that do not bind, and bad input."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp

import marginlens as ml
from marginlens.data import figure_3a, figure_3b
from marginlens.dynamics.paths.path import Binding
from random_problems import ragged_problem
from tolerances import CONDITIONED, ROUNDING, SIX_DIGITS


def joint_path(data, r, R, **options):
    return ml.path(ml.JointRisk(data), (r, R), **options)


FAR_OUT = 1e-2  # slope left where logits of 1e12 are rounded to 1e-4, relative to its terms


def lowest_on_grid(data, r, R, n_angles=361):
    """The smallest log risk over directions of v and p in the plane, at full norms."""
    angles = np.linspace(-np.pi, np.pi, n_angles)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    v, p = np.repeat(circle, n_angles, axis=0), np.tile(circle, (n_angles, 1))
    return np.log(ml.AttentionRisk(data.repeat(len(v)), r * v).value(R * p).min())


@pytest.mark.statement("A Thm 5", "A Thm 6")
@pytest.mark.parametrize("data", [figure_3a(), figure_3b()], ids=["3a", "3b"])
def test_no_pair_on_a_grid_of_directions_is_better(data):
    path = joint_path(data, [1.0, 3.0, 20.0], [2.0, 4.0, 8.0], restarts=6)
    for log_risk, r, R in zip(path.log_excess, *path.radii.T, strict=True):
        found = lowest_on_grid(data, r, R)
        assert log_risk <= found + ROUNDING
        assert log_risk > found - 0.01  # the grid is a degree wide
    assert all(binding is Binding.BALL for binding in path.binding.ravel())
    assert "selected=[1, 1, 1]" in repr(path)


def test_random_problems_in_the_plane_match_the_grid():
    rng = np.random.default_rng(0)
    for _ in range(4):
        data, _ = ragged_problem(rng, 3, 3, 2)
        path = joint_path(data, 3.0, [5.0], restarts=8)
        assert path.log_excess[0] <= lowest_on_grid(data, 3.0, 5.0, 181) + ROUNDING
        assert path.kkt_residual().max() < CONDITIONED


@pytest.mark.statement("A Thm 5")
def test_gradients_point_along_the_weights_where_the_limits_bind():
    path = joint_path(figure_3b(), [10.0, 1e3], [10.0, 1e3], restarts=6)
    assert path.kkt_residual().max() < CONDITIONED
    for x, v, p in zip(path.points, *path.split(), strict=True):
        gradient = ml.JointRisk(figure_3b()).gradient(x)
        assert ml.correlation(-gradient.block("v").array, v) == pytest.approx(1.0, abs=CONDITIONED, rel=0.0)
        assert ml.correlation(-gradient.block("p").array, p) == pytest.approx(1.0, abs=CONDITIONED, rel=0.0)
    assert path.correlation((path.split().v[0], path.split().p[0]))[0] == pytest.approx(
        [1.0, 1.0], rel=SIX_DIGITS, abs=ROUNDING
    )
    assert path.norm == pytest.approx(path.radii, rel=SIX_DIGITS, abs=ROUNDING)
    moved = joint_path(figure_3b(), [10.0], [10.0], restarts=1)
    (v, p), state = moved._state.points[0], moved._state
    turned = replace(moved, _state=state._replace(points=(type(state.points[0])(v, p[::-1]),)))
    assert turned.kkt_residual().max() > 0.1  # the check can fail


@pytest.mark.statement("A Thm 5", "A Thm 6")
@pytest.mark.parametrize("data", [figure_3a(), figure_3b()], ids=["3a", "3b"])
def test_the_first_radius_can_be_very_large(data):
    path = joint_path(data, 1e12, 1e12, restarts=6)
    assert path.kkt_residual().max() < FAR_OUT
    assert np.linalg.norm(path.split().p[0] / 1e12 - ml.predict_limit(data).details.p_direction) < ROUNDING


@pytest.mark.parametrize(
    ("unit", "key_unit", "origin"),
    [(1e-50, 1e-50, 0.0), (1e-9, 1e-9, 0.0), (1e50, 1e50, 0.0), (1.0, 1.0, 1e5), (1.0, 1e-4, 0.0)],
)
def test_the_path_does_not_depend_on_unit_and_origin_of_tokens_and_keys(unit, key_unit, origin):
    data = ragged_problem(np.random.default_rng(6), 3, 3, 2)[0]
    parts = [(unit * data.X[i, :n], key_unit * data.K[i, :n] + origin) for i, n in enumerate(data.lengths)]
    other = ml.TokenDataset([X for X, _ in parts], data.y, K=[K for _, K in parts])
    sizes = np.array([0.5, 3.0])
    plain = joint_path(data, sizes, sizes, restarts=6)
    found = joint_path(other, sizes / unit, sizes / key_unit, restarts=6)
    assert found.kkt_residual().max() < CONDITIONED
    assert found.log_excess == pytest.approx(plain.log_excess, abs=CONDITIONED, rel=0.0)


def test_a_limit_on_the_head_need_not_bind():
    data = ml.TokenDataset(
        [[(1.0, 0.0), (0.5, 0.0)], [(0.0, 1.0), (0.0, 0.5)], [(0.9, 0.9), (0.4, 0.4)]], [1.0, 1.0, -1.0]
    )
    path = joint_path(data, [100.0], [3.0], restarts=6)
    assert path.binding[0, 0] is not Binding.BALL  # the labels cannot be separated
    assert path.kkt_residual().max() < CONDITIONED
    assert np.linalg.norm(ml.JointRisk(data).gradient(path.points[0]).block("v").value()) < CONDITIONED


def test_inputs_of_one_token_and_keys_of_another_width_are_accepted():
    rng = np.random.default_rng(0)
    data, _ = ragged_problem(rng, 3, 4, 4, d_key=3)
    path = joint_path(data, [3.0, 300.0], [3.0, 300.0], restarts=6)
    assert path.kkt_residual().max() < CONDITIONED
    assert path.log_excess[1] < path.log_excess[0]
    single = joint_path(ml.TokenDataset([[(1.0, 0.0)], [(0.0, 1.0)]], [1.0, -1.0]), [2.0], [1.0], restarts=2)
    assert single.split().v[0] == pytest.approx([2**0.5, -(2**0.5)], abs=CONDITIONED, rel=0.0)


# ---- the minimum is global, and the risk never rises with the radius

RADII = np.array([1.0, 30.0, 1000.0])
SAME_RISK = 1e-9  # relative difference of log risks that counts as none


def shifted_tokens(seed):
    """Three inputs of two tokens in the plane, moved along the first axis by their label."""
    rng, y = np.random.default_rng(seed), np.array([1.0, -1.0, 1.0])
    X = rng.normal(size=(3, 2, 2))
    X[:, :, 0] += y[:, None]
    return ml.TokenDataset(X, y)


def plain_log_risk(data, r, R):
    """log of the mean logistic loss by the textbook formula; beyond the limits the weights are shortened to them."""

    def at(z):
        v, p = (
            part * min(1.0, size / np.linalg.norm(part)) for part, size in zip(np.split(z, [2]), (r, R), strict=True)
        )
        s = np.exp(data.K @ p - (data.K @ p).max(axis=1, keepdims=True))
        margin = data.y * np.sum(s * (data.X @ v), axis=1) / s.sum(axis=1)
        loss = np.where(margin > 30.0, -margin, np.log(np.log1p(np.exp(-np.minimum(margin, 30.0)))))
        return float(logsumexp(loss) - np.log(len(margin)))

    return at


@pytest.mark.statement("A Thm 5", "A Thm 6")
def test_a_selection_optimal_only_in_large_balls_is_found():
    data = ml.TokenDataset([[[1.0, 0.0], [0.0, 3.0]], [[1.0, 0.0]]], [1.0, 1.0], K=[[[1.0], [0.0]], [[0.0]]])
    sizes = [1.0, 10.0, 100.0, 1000.0]
    path = joint_path(data, sizes, sizes, restarts=6)
    assert path.log_excess[-1] == pytest.approx(-1000.0, abs=SAME_RISK, rel=0.0)  # both inputs at (1, 0), v along it
    assert path.selected[-1].tolist() == [0, 0]
    single = [joint_path(data, size, size, restarts=6, rng=1).log_excess[0] for size in sizes]
    assert path.log_excess == pytest.approx(single, rel=SAME_RISK, abs=ROUNDING)


def test_vanishing_attention_outputs_are_accepted():
    path = joint_path(figure_3a(), [20.0, 2e4], [10.0, 1e4], restarts=2)  # the other tokens are at the origin
    assert path.selected.tolist() == [[1, 1, 1]] * 2
    assert np.all(np.diff(path.log_excess) <= 0.0)


def ragged_tokens(seed):
    """Two to four inputs of one to three tokens in two or three dimensions."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(2, 5)), int(rng.integers(2, 4))
    tokens = [rng.normal(size=(int(rng.integers(1, 4)), d)) for _ in range(n)]
    return ml.TokenDataset(tokens, np.where(rng.random(n) < 0.5, -1.0, 1.0))


@pytest.mark.parametrize("data", [shifted_tokens(3), shifted_tokens(28), ragged_tokens(0)])
def test_a_list_of_radii_equals_single_radii_with_falling_risk(data):
    path = joint_path(data, RADII, RADII, restarts=6)
    single = [joint_path(data, size, size, restarts=6, rng=1).log_excess[0] for size in RADII[1:]]
    assert path.log_excess[1:] == pytest.approx(single, rel=SAME_RISK, abs=ROUNDING)
    assert np.all(np.diff(path.log_excess) <= 0.0)


@pytest.mark.parametrize(("seed", "mixes"), [(3, True), (7, False)])
def test_a_search_without_gradients_finds_nothing_lower(seed, mixes):
    """At seed 3 the best attention mixes tokens however large the ball; turns of v and p alone stall above it."""
    data, size = shifted_tokens(seed), 30.0
    objective, rng = plain_log_risk(data, size, size), np.random.default_rng(0)
    path = joint_path(data, size, size, restarts=8)
    assert path.log_excess[0] == pytest.approx(objective(path.points[0]), rel=SAME_RISK, abs=ROUNDING)
    lowest = np.inf
    for _ in range(8):
        start = np.concatenate([size * rng.normal(size=2), rng.normal(size=2) * 10.0 ** rng.uniform(-0.5, 1.5)])
        for _ in range(2):
            found = minimize(
                objective, start, method="Nelder-Mead", options={"maxfev": 500, "xatol": 1e-8, "fatol": 1e-9}
            )
            start = found.x
        lowest = min(lowest, found.fun)
    assert path.log_excess[0] <= lowest + SAME_RISK
    assert lowest == pytest.approx(path.log_excess[0], abs=0.5, rel=0.0)  # the search came near
    assert (path.binding[0, 1] is Binding.BALL) == (not mixes)
