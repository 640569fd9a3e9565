"""Lemmas 3, 4, 5 and 7: what the gradient obeys, at norms where it has long underflowed."""

import numpy as np
import pytest
from scipy.special import log_softmax

from decimal_oracle import gradient as decimal_gradient
from marginlens import CorrelationLoss, Exponential, Logistic
from marginlens.data import figure_1a, figure_1b, scored_tokens
from marginlens.risk import AttentionRisk, softmax
from marginlens.theory import basin_cone, globally_optimal_direction, locally_optimal_directions
from marginlens_papers.lemmas.gradient_conditions import (
    descent_correlation,
    gradient_ratio,
    gradient_ratio_radius,
    key_inequality,
    local_gradient_bounds,
)
from random_problems import problem, ragged_problem, two_level_scores
from refusals import refused
from tolerances import CONDITIONED, HIGH_PRECISION, ROUNDING

LOSSES = [Logistic(), Exponential(), CorrelationLoss()]


@pytest.mark.statement("A Lemma 3")
@pytest.mark.parametrize("n_tokens", [1, 2, 3, 7])
def test_the_key_inequality_holds_and_its_left_side_is_what_it_says(n_tokens):
    rng = np.random.default_rng(n_tokens)
    log_s = log_softmax(3 * rng.standard_normal((5000, n_tokens)), axis=-1)
    gamma, a = rng.standard_normal((2, 5000, n_tokens))
    found = key_inequality(log_s, gamma, a)
    assert (found.log_left <= found.log_bound + ROUNDING).all()
    s = np.exp(log_s)
    covariance = np.sum(a * s * gamma, axis=-1) - np.sum(a * s, axis=-1) * np.sum(s * gamma, axis=-1)
    first_order = np.sum((a[:, :1] - a) * s * (gamma[:, :1] - gamma), axis=-1)
    np.testing.assert_allclose(np.exp(found.log_left), np.abs(covariance - first_order), atol=ROUNDING)


@pytest.mark.statement("A Lemma 3")
def test_the_factor_two_is_tight_and_the_inequality_survives_underflow():
    for distance in (1.0, 50.0, 5e4):
        log_s = np.array([-np.exp(-distance) if distance < 40 else 0.0, -distance])
        found = key_inequality(log_s, [1.0, 0.0], [1.0, -1.0])
        assert found.log_left == pytest.approx(found.log_bound, rel=ROUNDING)  # both 2 Γ A (1 - s)², however small
        assert found.log_bound == pytest.approx(np.log(2.0) - 2 * distance, rel=ROUNDING)
    padded = key_inequality([0.0, -3.0, -np.inf], [5.0, 4.0, 7.0], [1.0, -1.0, 9.0])
    assert padded.log_left == pytest.approx(np.log(2.0) - 6.0)
    assert padded.log_bound == pytest.approx(np.log(2.0) - 6.0)
    with refused("log_s"):
        key_inequality([0.0, np.nan], [1.0, 0.0], [1.0, 0.0])


@pytest.mark.statement("A Lemma 4")
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("seed", range(5))
def test_under_assumption_b_the_optimum_is_always_a_direction_of_descent(loss, seed):
    rng = np.random.default_rng(seed)
    data, v = scored_tokens(*two_level_scores(rng, 3, 4, 6))
    assert globally_optimal_direction(data, v).is_feasible
    for norm in (0.0, 0.1, 3.0, 100.0, 1e4):
        p = norm * rng.standard_normal((200, 6))
        assert (descent_correlation(data.repeat(200), v, p, loss) > 0).all()


@pytest.mark.statement("A Lemma 4")
def test_without_assumption_b_it_can_be_a_direction_of_ascent():
    data, v = figure_1b()  # the score of (0, 0) is lowered
    p = np.array([[3.0, -2.0], [30.0, -20.0]])
    assert (descent_correlation(data.repeat(2), v, p) < 0).all()
    before, head = figure_1a()
    assert (descent_correlation(before.repeat(2), head, p) > 0).all()
    against, head = scored_tokens([[[1.0], [0.0]], [[2.0], [0.0]]], [[1.0, 0.0], [0.0, 1.0]])  # no such direction
    assert np.isnan(descent_correlation(against, head, [1.0]))


@pytest.mark.statement("A Lemma 4", "A Lemma 5")
@pytest.mark.parametrize("norm", [1.0, 300.0])
def test_correlation_and_ratio_agree_with_sixty_digits(norm):
    rng = np.random.default_rng(9)
    data, v = ragged_problem(rng, 2, 3, 4)
    gmm = globally_optimal_direction(data, v)
    assert gmm.is_feasible
    p = norm * rng.standard_normal(4)
    exact, _ = decimal_gradient(data, v, p, "Logistic")
    assert descent_correlation(data, v, p) == pytest.approx(float(-exact @ gmm.direction), abs=HIGH_PRECISION * norm)
    ratio = (exact @ p / np.linalg.norm(p)) / (exact @ gmm.direction)
    assert gradient_ratio(data, v, p, gmm.selected) == pytest.approx(ratio, rel=HIGH_PRECISION * norm)


@pytest.mark.statement("A Lemma 5")
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("pi", [1.0, 0.2, 0.02])
def test_with_one_input_the_ratio_is_bounded_everywhere_beyond_the_radius(loss, pi):
    rng = np.random.default_rng(11)
    below = []
    for _ in range(12):
        data, v = scored_tokens(*two_level_scores(rng, 1, 4, 3))
        gmm = globally_optimal_direction(data, v)
        R = gradient_ratio_radius(data, v, pi)
        if not gmm.is_feasible:
            assert np.inf == R
            continue
        p = rng.standard_normal((300, 3))
        p *= R * 10 ** rng.uniform(0, 1, (300, 1)) / np.linalg.norm(p, axis=-1, keepdims=True)
        assert gradient_ratio(data.repeat(300), v, p, gmm.selected, loss).max() <= 1 + pi
        below.append(
            gradient_ratio(
                data.repeat(300), v, p * 1e-3 / np.linalg.norm(p, axis=-1, keepdims=True), gmm.selected, loss
            ).max()
        )
    assert len(below) > 4
    assert max(below) > 1 + min(pi, 0.2)  # at small norms some direction is better than the bound allows


@pytest.mark.statement("A Lemma 7", "A Eq. (31a)", "A Eq. (31b)", "A Eq. (31c)")
@pytest.mark.parametrize("loss", LOSSES)
def test_local_bounds_hold_in_the_cone_and_not_far_below_its_radius(loss):
    rng = np.random.default_rng(5)
    broken, n_cones = 0, 0
    for k in range(12):
        make = ragged_problem if k % 2 else problem
        data, v = make(rng, int(rng.integers(1, 4)), int(rng.integers(3, 6)), int(rng.integers(2, 5)))
        for selection in locally_optimal_directions(data, v).selections[:2]:
            cone = basin_cone(data, v, selection, loss=loss)
            R = cone.no_stationary_radius if cone.every_input_has_neighbours else cone.proven_radius
            p, q = cone.sample(100, rng, R), cone.sample(100, rng, 1.0)
            found = local_gradient_bounds(data, v, cone, p, q, loss)
            assert found.hold.all(), repr(found)
            assert local_gradient_bounds(data, v, cone, p, cone.p, loss).hold.all()
            low = cone.sample(100, rng, 0.01 * cone.no_stationary_radius)
            broken += not local_gradient_bounds(data, v, cone, low, q, loss).hold.all()
            n_cones += 1
    assert n_cones > 10
    assert broken > 1


@pytest.mark.statement("A Eq. (31a)", "A Eq. (31b)", "A Eq. (31c)")
def test_local_bounds_of_several_inputs_are_means_in_units_of_the_margin():
    rng = np.random.default_rng(3)
    data, v = ragged_problem(rng, 3, 4, 3)
    alpha = locally_optimal_directions(data, v).selections[0]
    cone = basin_cone(data, v, alpha)
    assert abs(cone.theta - 1.0) > 0.1
    p = rng.standard_normal((6, 3))
    found = local_gradient_bounds(data, v, cone, p, 7.0 * cone.p)
    missing = np.mean(1.0 - softmax(data.repeat(6), p)[:, np.arange(3), alpha], axis=-1)
    descent = -AttentionRisk(data.repeat(6), v).gradient(p).value() @ cone.p / np.linalg.norm(cone.p) / cone.theta
    np.testing.assert_allclose(np.exp(found.log_upper), np.exp(cone.log_C) * missing, rtol=CONDITIONED)
    np.testing.assert_allclose(np.exp(found.log_lower), np.exp(cone.log_c) * missing, rtol=CONDITIONED)
    np.testing.assert_allclose(np.exp(found.log_descent), np.where(descent > 0.0, descent, np.nan), rtol=CONDITIONED)
    np.testing.assert_allclose(
        np.exp(found.log_norm_bound), cone.A_bar * np.exp(cone.log_C) * missing, rtol=CONDITIONED
    )
    decay = cone.A_bar * np.exp(cone.log_C) * data.n_tokens * np.exp(-np.linalg.norm(p, axis=-1) * cone.theta / 2)
    np.testing.assert_allclose(np.exp(found.log_decay), decay, rtol=CONDITIONED)
    assert found.cosine_bound == pytest.approx(
        np.exp(cone.log_c) * cone.theta / (cone.A_bar * np.exp(cone.log_C)), rel=ROUNDING
    )
