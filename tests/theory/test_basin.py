"""Equations (7), (8), (32), (39), (46), (57), (58) and Theorem 3's cone: what is true inside it, and how far out it must start."""

import numpy as np
import pytest

from marginlens import CorrelationLoss, Exponential, Logistic
from marginlens.arithmetic.directions import unit
from marginlens.data import figure_1b, scored_tokens
from marginlens.risk import AttentionRisk
from marginlens.theory import basin_cone, in_cone, sample_cone, smoothness
from marginlens_papers.claims.a.gradient_conditions import gradient_ratio, local_gradient_bounds
from random_problems import cones
from refusals import refused
from tolerances import ROUNDING, SIX_DIGITS

LARGEST_NORM = 1e11  # beyond it logits of order norm·key carry rounding errors above 1e-5


def inward(data, v, cone, points, loss=None):
    """How the correlation with p^mm changes along -∇L at each point, in units of the gradient; positive is inward."""
    descent = -unit(AttentionRisk(data.repeat(len(points)), v, loss or Logistic()).gradient(points).array)
    axis, directions = unit(cone.p), unit(points)
    cosine = np.sum(axis * directions, axis=-1)
    return descent @ axis - cosine * np.sum(descent * directions, axis=-1)


@pytest.mark.statement("A Eq. (7)", "A Eq. (8)")
def test_cone_membership_changes_at_its_angle_and_norm():
    mu = 0.1
    for factor, inside in ((1 - 1e-9, True), (1 + 1e-9, False)):
        a = mu * factor
        p = np.array([1 - a, np.sqrt(a * (2 - a)), 0.0])
        assert in_cone(p, [5.0, 0.0, 0.0], mu) == inside
        assert in_cone(p, [5.0, 0.0, 0.0], 2 * mu, radius=1.0 / factor) == (not inside)
    assert not in_cone([0.0, 0.0], [1.0, 0.0], 2.0)
    assert in_cone([-1.0, 0.0], [1.0, 0.0], 2.0)
    tiny = 1e-12  # 1 - cosine far below what a computed cosine can show
    p = np.array([1.0, np.sqrt(2 * tiny)])
    assert in_cone(p, [1.0, 0.0], 1.05 * tiny + 1e-15)
    assert not in_cone(p, [1.0, 0.0], 0.95 * tiny)
    np.testing.assert_array_equal(in_cone(np.eye(2), [[1.0, 0.0], [1.0, 0.0]], 0.5, [1.0, 1.0]), [True, False])
    axes = np.random.default_rng(0).standard_normal((200, 3))
    assert in_cone(0.3 * axes, axes, 0.0).all()  # a cone of no width holds its axis, however that is rounded
    with refused("q"):
        in_cone([1.0, 0.0], [1.0, 0.0, 0.0], 0.5)


@pytest.mark.statement("A Eq. (8)")
@pytest.mark.parametrize(
    ("d", "mu", "radius"), [(2, 0.1, 3.0), (5, 1e-7, 1e9), (3, 1.5, 0.0), (40, 0.01, 1.0), (1, 0.1, 2.0)]
)
def test_samples_fill_the_cone_and_touch_its_boundary(d, mu, radius):
    q = np.random.default_rng(d).standard_normal(d)
    points = sample_cone(q, mu, radius, 400, 1)
    assert in_cone(points, q, mu, radius).all()
    norms = np.linalg.norm(points, axis=-1)
    assert norms.min() == pytest.approx(radius or 1.0, rel=ROUNDING, abs=ROUNDING)
    assert norms.max() > 2 * (radius or 1.0)
    if d > 1:
        apart = np.sum((unit(points) - unit(q)) ** 2, axis=-1) / 2
        assert np.mean(apart > 0.999 * mu) >= 0.5
        assert apart[1::2].min() < 0.9 * mu
        assert not in_cone(points, q, mu * 0.99, radius).all()
    with refused("q, mu, radius"):
        sample_cone(q, 2.5, 1.0, 3, 0)
    assert sample_cone(q, mu, radius, 0, 0).shape == (0, d)


@pytest.mark.statement("A Eq. (32)", "A Eq. (39)", "A Eq. (46)", "A Eq. (57)", "A Eq. (58)")
def test_figure_1b_has_the_constants_of_the_formulas():
    data, v = figure_1b()
    cone = basin_cone(data, v, [1])  # p^mm = (1, 0); (0, 0) is its neighbour, (-.1, 1) is not
    A = np.hypot(0.1, 1.0)
    mu = (0.05 / A) ** 2 / 8
    pi = mu / (2 - mu)
    assert (cone.theta, cone.delta, cone.A, cone.A_bar) == pytest.approx(
        (1.0, 0.05, A, np.hypot(1.1, 1.0)), rel=SIX_DIGITS, abs=ROUNDING
    )
    assert (cone.mu, cone.pi, cone.Gamma, cone.gap_min, cone.gap_max) == pytest.approx(
        (mu, pi, 1.0, 0.9, 0.9), rel=SIX_DIGITS, abs=ROUNDING
    )
    slopes = np.exp(Logistic().log_abs_derivative(np.array([0.0, 1.0])))
    assert (np.exp(cone.log_c_max), np.exp(cone.log_c_min)) == pytest.approx(
        tuple(slopes), rel=SIX_DIGITS, abs=ROUNDING
    )
    assert (np.exp(cone.log_C), np.exp(cone.log_c)) == pytest.approx(
        (2 * slopes[0] * 0.9, slopes[1] * 0.9 / 8), rel=SIX_DIGITS, abs=ROUNDING
    )
    R = 20 * np.log(64 * 3 * 1.0 * A / 0.9)
    assert cone.no_stationary_radius == pytest.approx(R, rel=SIX_DIGITS, abs=ROUNDING)
    assert cone.radius == pytest.approx(20 * np.log((64 * pi) * 3 * A / (pi * 0.9)), rel=SIX_DIGITS, abs=ROUNDING)
    C_2 = (1 - mu) * np.hypot(1.1, 1.0) ** 2 * np.exp(cone.log_C) ** 2 / np.exp(cone.log_c)
    L_p = smoothness(data, v).L_p
    assert pytest.approx(C_2, rel=SIX_DIGITS, abs=ROUNDING) == np.exp(cone.log_C_2)
    assert pytest.approx(max(64 * pi * A / 0.9, C_2 / L_p), rel=SIX_DIGITS, abs=ROUNDING) == np.exp(cone.log_C_3)
    assert cone.invariance_radius == pytest.approx(
        20 * np.log((2 - mu) * np.exp(cone.log_C_3) * 3 / mu), rel=SIX_DIGITS, abs=ROUNDING
    )
    nu = pi**2 / (64 * A**2)
    slope_ratio = slopes[0] / slopes[1]
    by_hand = max(
        20 * np.log(96 * 3 * A / (pi * 0.9)),
        np.log(8 * A * 3 / (0.9 * pi)) / nu,
        np.log(8 * A * 9 * slope_ratio / (0.9 * pi)) / (2 * nu + pi / 2),
    )
    assert cone.correlation_radius == pytest.approx(by_hand, rel=SIX_DIGITS, abs=ROUNDING)
    assert cone.radius < cone.invariance_radius < cone.proven_radius < cone.correlation_radius
    assert cone.every_input_has_neighbours


@pytest.mark.statement("A Eq. (32)")
def test_the_cone_keeps_every_margin_of_the_proof():
    rng = np.random.default_rng(0)
    for data, _, cone in cones(0):
        q = unit(cone.sample(200, rng, 1.0)) / cone.theta
        alpha = cone.optimality.selected
        margins = np.einsum("itd,md->mit", data.K[np.arange(data.n_inputs), alpha][:, None] - data.K, q)
        near = cone.optimality.neighbours
        far = data.mask & ~near & (np.arange(data.n_tokens) != alpha[:, None])
        assert margins[:, near].min() >= 0.5 - ROUNDING
        assert margins[:, near].max() <= 1.5 + ROUNDING
        assert np.min(margins[:, far], initial=np.inf) >= 1 + cone.delta - ROUNDING if far.any() else True


@pytest.mark.statement("A Eq. (39)", "A Thm 3")
def test_no_point_beyond_the_radius_is_stationary():
    rng = np.random.default_rng(1)
    turned = 0
    for data, v, cone in cones(1):
        bounds = local_gradient_bounds(data, v, cone, cone.sample(100, rng, cone.no_stationary_radius))
        assert not np.isnan(bounds.log_descent).any()
        below = local_gradient_bounds(data, v, cone, cone.sample(100, rng, 0.01 * cone.no_stationary_radius))
        turned += np.isnan(below.log_descent).any()
    assert turned > 3


@pytest.mark.statement("A Eq. (39)", "A Thm 3")
def test_the_papers_radius_fails_for_an_input_without_neighbours():
    # the second input selects its lower score
    keys, scores = ([[[1.0], [0.0]], [[1.2], [0.0]]], [[10.0, 9.0], [-10.0, -9.0]])
    data, v = scored_tokens(keys, scores)
    loss = Exponential()
    cone = basin_cone(data, v, [0, 0], loss=loss)
    assert not cone.every_input_has_neighbours
    norms = np.linspace(cone.no_stationary_radius, cone.proven_radius, 2001)
    slope = AttentionRisk(data.repeat(2001), v, loss).gradient(norms[:, None]).array[:, 0]
    turn = norms[np.flatnonzero(np.diff(np.sign(slope)))]
    assert turn == pytest.approx([100.0], abs=5.0, rel=0.0)  # where e^(-10 - R) meets e^(10 - 1.2 R)
    assert turn > 1.5 * cone.no_stationary_radius
    assert (slope[norms > 120.0] < 0).all()
    closer, v = scored_tokens([[[1.0], [0.0]], [[1.02], [0.0]]], scores)  # now they meet at 1000
    cone = basin_cone(closer, v, [0, 0], loss=loss)
    R = cone.explicit_radius(1.0, 1.0 / (64.0 * cone.A**2))
    far = AttentionRisk(closer.repeat(100), v, loss).gradient(np.geomspace(R, 100 * R, 100)[:, None]).array[:, 0]
    assert (far < 0).all()


@pytest.mark.statement("A Lemma 7", "A Thm 3")
@pytest.mark.parametrize("loss", [Logistic(), Exponential(), CorrelationLoss()])
def test_the_explicit_radius_bounds_the_gradient_ratio(loss):
    rng = np.random.default_rng(2)
    n_checked, loose = 0, 0
    for data, v, cone in cones(2, 20, loss):
        alpha, many = cone.optimality.selected, data.repeat(100)
        for pi in (1.0, 0.1, cone.pi):
            R = cone.explicit_radius(pi, pi**2 / (64 * cone.A**2))
            if R < LARGEST_NORM:
                n_checked += 1
                assert gradient_ratio(many, v, cone.sample(100, rng, R), alpha, loss).max() <= 1 + pi
        loose += gradient_ratio(many, v, cone.sample(100, rng, cone.radius), alpha, loss).max() > 1 + cone.pi
    assert n_checked > 40
    assert loose > 3  # C_0 = 64 π is not enough for L3: the paper's radius alone leaves the ratio above 1 + π


@pytest.mark.statement("A Thm 3", "A Eq. (57)", "A Eq. (58)")
def test_descent_beyond_the_proven_radius_points_into_the_cone():
    rng = np.random.default_rng(3)
    out = 0
    for data, v, cone in cones(3, 40):
        boundary = cone.sample(200, rng, cone.proven_radius)[::2]
        assert (inward(data, v, cone, boundary) > 0).all()
        out += (inward(data, v, cone, cone.sample(200, rng, cone.invariance_radius)[::2]) < 0).any()
    assert out > 3


@pytest.mark.statement("A Thm 3")
def test_proven_radius_follows_from_checked_steps():
    rng = np.random.default_rng(4)
    for data, v, cone in cones(4, 10):
        p = cone.sample(60, rng, cone.proven_radius)
        gradient = AttentionRisk(data.repeat(60), v).gradient(p)
        log_step = gradient.log_norm - cone.log_L_p  # of a step of size 1/L_p
        assert (np.exp(log_step - np.log(np.linalg.norm(p, axis=-1))) < 0.2 * np.sqrt(cone.mu)).all()


@pytest.mark.statement("A Lemma 7", "A Thm 3", "A Eq. (57)", "A Eq. (58)")
def test_underflowing_slopes_do_not_change_the_cone():
    """From 40 on the logistic loss is e^-u to rounding, so that higher scores scale the risk and change no radius."""
    keys, scores = [[(-0.1, 1.0), (1.0, 0.0), (0.0, 0.0)]], np.array([[1.0, 0.5, 0.4]])
    near, far = (basin_cone(*scored_tokens(keys, scores + shift), [0]) for shift in (40.0, 4000.0))
    assert max(far.log_c_max, far.log_L_p, far.log_C) < -3000.0
    for name in ("mu", "radius", "correlation_radius"):
        assert getattr(far, name) == pytest.approx(getattr(near, name), rel=1e-12, abs=ROUNDING)
    assert near.log_C - far.log_C == pytest.approx(3960.0, rel=ROUNDING, abs=ROUNDING)
    assert near.log_c - far.log_c == pytest.approx(3960.0, rel=ROUNDING, abs=ROUNDING)
    assert 0.0 < far.invariance_radius < np.inf  # which L_p enters, and that grows with the scores
    assert 0.0 < far.proven_radius < np.inf
    steep = basin_cone(*scored_tokens(keys, scores - 4000.0), [0], loss=Exponential())
    assert steep.log_C_2 > 700.0
    assert "proven_radius" in repr(steep)
    assert "inf" not in repr(steep)
    data, v = scored_tokens(keys, scores + 4000.0)
    bounds = local_gradient_bounds(data, v, far, far.sample(50, 0, far.no_stationary_radius))
    assert bounds.hold.all()
