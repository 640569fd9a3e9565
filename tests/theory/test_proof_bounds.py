"""Inequalities of paper A's lemmas and proofs, each against direct computation, at norms where gradients have long underflowed."""

import numpy as np
import pytest
from scipy.special import log_softmax

from decimal_oracle import gradient as decimal_gradient
from marginlens import CorrelationLoss, Exponential, Logistic, TokenDataset, att_svm, correlation, relaxed_svm
from marginlens.data import figure_1a, figure_1b, figure_3a, figure_3b, scored_tokens
from marginlens.dynamics import Record, descend
from marginlens.optimizers import GradientDescent
from marginlens.risk import AttentionRisk, softmax
from marginlens.svm import set_svm
from marginlens.theory import (
    basin_cone,
    globally_optimal_direction,
    label_margin,
    locally_optimal_directions,
    smoothness,
)
from marginlens_papers.claims.a.gradient_conditions import (
    correlation_floor,
    descent_correlation,
    gradient_budget,
    gradient_ratio,
    gradient_ratio_radius,
    key_inequality,
    local_gradient_bounds,
)
from marginlens_papers.claims.a.joint import joint_risk_bounds, selection_quadrant
from marginlens_papers.claims.a.mixing import log_nonoptimality, nonoptimality_bounds
from random_problems import cones, problem, ragged_problem, two_level_scores
from refusals import refused
from tolerances import CONDITIONED, HIGH_PRECISION, ROUNDING, SIX_DIGITS

CHOSEN = [1, 1, 1]  # the second token of every input in Figure 3
CLIMB = 1e-14  # rounding of a risk of order one


@pytest.mark.statement("A Lemma 12", "A Eq. (77)")
def test_tokens_with_more_than_half_of_the_attention_have_the_largest_logit():
    rng, seen = np.random.default_rng(0), [0, 0]
    for _ in range(60):
        data, _ = ragged_problem(rng, 3, 4, 3)
        alpha = [int(rng.integers(length)) for length in data.lengths]
        p = rng.standard_normal(3) * 5.0
        found = selection_quadrant(data, p, alpha)
        shares = softmax(data, p)[np.arange(3), alpha]
        margins = [
            data.K[i, alpha[i]] @ p - data.K[i, t] @ p
            for i in range(3)
            for t in range(data.lengths[i])
            if t != alpha[i]
        ]
        assert found.share == pytest.approx(shares.min(), abs=ROUNDING, rel=0.0)
        assert found.margin == pytest.approx(min(margins, default=np.inf), abs=CONDITIONED, rel=0.0)
        seen[0] += shares.min() > 0.5
        assert found.holds or not shares.min() > 0.5
        seen[1] += not found.holds
    assert min(seen) >= 1
    many = selection_quadrant(figure_3b(), [[1.0, 0.0], [-1.0, 0.0]], CHOSEN)
    assert many.holds.tolist() == [True, False]


@pytest.mark.statement("A Eq. (78)")
def test_a_margin_asked_for_outside_the_support_costs_in_proportion():
    rng, seen = np.random.default_rng(1), 0
    for _ in range(20):
        data, _ = problem(rng, 3, 3, 5)
        alpha = rng.integers(3, size=3)
        strict, relaxed = att_svm(data, alpha), relaxed_svm(data, alpha, [0])
        if not np.isfinite(strict.x).all():
            continue
        seen += 1
        for epsilon in (1e-3, 0.1, 0.5):
            found = relaxed_svm(data, alpha, [0], outside=epsilon)
            logits = found.rows @ found.x
            floors = np.where(found.pairs[:, 0] == 0, 1.0, epsilon)
            assert np.all(logits >= floors - CONDITIONED)
            assert found.kkt_residual() < CONDITIONED
            xi, delta = relaxed.margin, strict.margin
            # the paper's competitor
            assert found.margin >= delta * xi / (delta + epsilon * (xi - delta)) * (1.0 - CONDITIONED)
            assert delta * (1.0 - CONDITIONED) <= found.margin <= xi * (1.0 + CONDITIONED)
        np.testing.assert_allclose(relaxed_svm(data, alpha, [0], outside=1.0).x, strict.x, rtol=0.0, atol=CONDITIONED)
    assert seen >= 8
    with refused("outside"):
        relaxed_svm(figure_3b(), CHOSEN, [0], outside=2.0)


def log_risk(data, v, p):
    return float(np.log(AttentionRisk(data, v).value(p)))


@pytest.mark.statement("A Lemma 13")
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_risks_lie_on_their_side_of_the_bounds(epsilon):
    data, rng, r, gamma = figure_3b(), np.random.default_rng(2), 8.0, 0.3
    assert joint_risk_bounds(data, CHOSEN, r, 1.0, gamma=gamma, epsilon=epsilon).proved
    start = joint_risk_bounds(data, CHOSEN, r, 1.0, gamma=gamma, epsilon=epsilon).selects_from
    head, tried = label_margin(data, CHOSEN), 0
    inside = head.support
    for R in (max(start, 1.0), 1.5 * start + 3.0, 4.0 * start + 6.0):
        found = joint_risk_bounds(data, CHOSEN, r, R, gamma=gamma, epsilon=epsilon)
        assert np.linalg.norm(found.competitor) == pytest.approx(R, rel=CONDITIONED, abs=ROUNDING)
        assert log_risk(data, found.head, found.competitor) <= found.log_upper + ROUNDING
        mixed = np.log(softmax(data, found.competitor)[inside, 0].max())
        low, high = found.log_q_competitor
        assert low - 1e-6 <= mixed <= high + 1e-6
        for _ in range(400):
            p = rng.standard_normal(2)
            p *= R * rng.random() / np.linalg.norm(p)
            logits = (data.X[:, 1] - data.X[:, 0]) @ p
            if logits.min() < 0.0 or logits[inside].min() > (1.0 - gamma) * found.margin * R:
                continue
            tried += 1
            others = np.log(softmax(data, p)[inside, 0].max())
            assert others >= found.log_q_other
            for v in (found.head, r * np.array([np.sin(0.1), np.cos(0.1)])):
                assert log_risk(data, v, p) >= found.log_lower
    assert tried >= 20


@pytest.mark.statement("A Lemma 13")
def test_the_contradiction_needs_an_exponentially_large_head():
    data = figure_3a()
    needed = []
    for R in (20.0, 40.0, 60.0):
        found = joint_risk_bounds(data, CHOSEN, 2.0 * R, R, gamma=0.5, support=[0, 1, 2])
        assert found.selects_from == 0.0
        assert not found.competitor_wins  # r = 2R is not enough for the paper's bounds
        needed.append(found.r_needed)
        assert joint_risk_bounds(data, CHOSEN, 1.01 * found.r_needed, R, gamma=0.5, support=[0, 1, 2]).competitor_wins
        assert not joint_risk_bounds(
            data, CHOSEN, 0.99 * found.r_needed, R, gamma=0.5, support=[0, 1, 2]
        ).competitor_wins
    slope = np.diff(np.log(needed)) / np.diff([20.0, 40.0, 60.0])
    assert slope == pytest.approx(0.5 * found.margin, rel=0.05, abs=ROUNDING)  # (1 - γ)Ξ
    with refused("gamma"):
        joint_risk_bounds(data, CHOSEN, 1.0, 1.0, gamma=2.0)
    with refused("selected"):
        joint_risk_bounds(data, [0, 0, 0], 1.0, 1.0, gamma=0.5)


@pytest.mark.statement("A Eq. (84)")
def test_attention_outside_the_optimal_sets_lies_between_its_bounds():
    rng = np.random.default_rng(3)
    for _ in range(10):
        data, _ = problem(rng, 2, 4, 3)
        sets = [[0, 1], [2]]
        points = rng.standard_normal((30, 3)) * 10.0 ** rng.uniform(-1, 3, (30, 1))
        low, high = nonoptimality_bounds(data, points, sets)
        exact = log_nonoptimality(data, points, sets)
        assert np.all(low <= exact + ROUNDING * np.abs(exact))
        assert np.all(exact <= high + ROUNDING * np.abs(exact))
        best = set_svm(data, sets)
        assert len(best.points) > 0
        p, R = best.points[0], 50.0
        margin = 1.0 / np.linalg.norm(p)  # Ξ
        low, high = nonoptimality_bounds(data, R * margin * p, sets)
        assert low == pytest.approx(-margin * R - np.log(4.0), abs=CONDITIONED, rel=0.0)
        assert high == pytest.approx(-margin * R + np.log(4.0), abs=CONDITIONED, rel=0.0)


@pytest.mark.statement("A Eq. (25)", "A Eq. (26)", "A Eq. (30)")
@pytest.mark.parametrize("loss", [Logistic(), Exponential()], ids=["Logistic", "Exponential"])
def test_squared_gradients_stay_within_their_budget_and_fade(loss):
    rng = np.random.default_rng(4)
    for _ in range(4):
        data, v = ragged_problem(rng, 3, 4, 3)
        assert data.lengths.max() > 1
        sharp = 1.0 / smoothness(data, v, loss).from_keys
        found = gradient_budget(data, v, start=rng.standard_normal(3), n_steps=300, loss=loss, step=sharp)
        assert found.spent <= found.allowed
        assert found.largest_climb <= CLIMB
        longer = gradient_budget(data, v, start=rng.standard_normal(3), n_steps=3000, loss=loss, step=sharp)
        assert longer.last < 0.5 * max(longer.spent, 1e-300)
    given = gradient_budget(data, v, n_steps=10, loss=loss)
    assert given.guaranteed
    assert given.step == smoothness(data, v, loss).largest_step
    assert not gradient_budget(data, v, n_steps=1, loss=loss, step=1e9).guaranteed


@pytest.mark.statement("A Eq. (25)")
def test_steps_that_are_too_long_can_climb():
    data = TokenDataset([[(4.0, 1.0), (0.0, 0.0), (-3.0, 2.0)]], [1.0])
    assert gradient_budget(data, [0.0, 3.0], step=200.0, n_steps=30, start=[0.3, -0.2]).largest_climb > CLIMB


@pytest.mark.statement("A Eq. (52)")
def test_descent_is_at_least_as_aligned_as_its_gradients_guarantee():
    data, v = scored_tokens([[(-0.1, 1.0), (1.0, 0.0), (0.0, 0.0)]], [[1.0, 0.0, 0.0]])
    step = float(smoothness(data, v).largest_step)
    run = descend(data, v, optimizer=GradientDescent(step), n_steps=20_000, start=[0.6, 0.3], record=Record(100))
    points, alpha = run.saved["x"], [0]
    ratio = gradient_ratio(data.repeat(len(points)), v, points, np.zeros((len(points), 1), dtype=int))
    epsilon = float(np.clip(1.0 - 1.0 / ratio.max(), 1e-3, None))
    floor = correlation_floor(data, v, points, alpha, step=step, epsilon=epsilon)
    reached = correlation(points, att_svm(data, alpha).x)
    assert np.all(reached >= floor - ROUNDING)
    assert np.linalg.norm(points, axis=-1).min() >= 0.5
    assert floor[-1] > floor[0]
    with refused("epsilon"):
        correlation_floor(data, v, points, alpha, step=step, epsilon=1.5)


# ---- Lemmas 3, 4, 5 and 7


LOSSES = [Logistic(), Exponential(), CorrelationLoss()]


@pytest.mark.statement("A Lemma 3")
@pytest.mark.parametrize("n_tokens", [1, 2, 3, 7])
def test_the_key_inequality_holds_with_its_left_side(n_tokens):
    rng = np.random.default_rng(n_tokens)
    log_s = log_softmax(3 * rng.standard_normal((5000, n_tokens)), axis=-1)
    gamma, a = rng.standard_normal((2, 5000, n_tokens))
    found = key_inequality(log_s, gamma, a)
    assert (found.log_left <= found.log_bound + ROUNDING).all()
    s = np.exp(log_s)
    covariance = np.sum(a * s * gamma, axis=-1) - np.sum(a * s, axis=-1) * np.sum(s * gamma, axis=-1)
    first_order = np.sum((a[:, :1] - a) * s * (gamma[:, :1] - gamma), axis=-1)
    np.testing.assert_allclose(np.exp(found.log_left), np.abs(covariance - first_order), rtol=0.0, atol=ROUNDING)


@pytest.mark.statement("A Lemma 3")
def test_the_factor_two_is_tight_and_the_inequality_survives_underflow():
    for distance in (1.0, 50.0, 5e4):
        log_s = np.array([-np.exp(-distance) if distance < 40 else 0.0, -distance])
        found = key_inequality(log_s, [1.0, 0.0], [1.0, -1.0])
        assert found.log_left == pytest.approx(
            found.log_bound, rel=ROUNDING, abs=ROUNDING
        )  # both 2 Γ A (1 - s)², however small
        assert found.log_bound == pytest.approx(np.log(2.0) - 2 * distance, rel=ROUNDING, abs=ROUNDING)
    padded = key_inequality([0.0, -3.0, -np.inf], [5.0, 4.0, 7.0], [1.0, -1.0, 9.0])
    assert padded.log_left == pytest.approx(np.log(2.0) - 6.0, rel=SIX_DIGITS, abs=ROUNDING)
    assert padded.log_bound == pytest.approx(np.log(2.0) - 6.0, rel=SIX_DIGITS, abs=ROUNDING)
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
def test_without_assumption_b_the_optimum_can_be_an_ascent_direction():
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
    assert descent_correlation(data, v, p) == pytest.approx(
        float(-exact @ gmm.direction), abs=HIGH_PRECISION * norm, rel=0.0
    )
    ratio = (exact @ p / np.linalg.norm(p)) / (exact @ gmm.direction)
    assert gradient_ratio(data, v, p, gmm.selected) == pytest.approx(ratio, rel=HIGH_PRECISION * norm, abs=ROUNDING)


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
    for data, v, cone in cones(5, 12, loss):
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
    np.testing.assert_allclose(np.exp(found.log_upper), np.exp(cone.log_C) * missing, rtol=CONDITIONED, atol=0.0)
    np.testing.assert_allclose(np.exp(found.log_lower), np.exp(cone.log_c) * missing, rtol=CONDITIONED, atol=0.0)
    np.testing.assert_allclose(
        np.exp(found.log_descent), np.where(descent > 0.0, descent, np.nan), rtol=CONDITIONED, atol=0.0
    )
    np.testing.assert_allclose(
        np.exp(found.log_norm_bound), cone.A_bar * np.exp(cone.log_C) * missing, rtol=CONDITIONED, atol=0.0
    )
    decay = cone.A_bar * np.exp(cone.log_C) * data.n_tokens * np.exp(-np.linalg.norm(p, axis=-1) * cone.theta / 2)
    np.testing.assert_allclose(np.exp(found.log_decay), decay, rtol=CONDITIONED, atol=0.0)
    assert found.cosine_bound == pytest.approx(
        np.exp(cone.log_c) * cone.theta / (cone.A_bar * np.exp(cone.log_C)), rel=ROUNDING, abs=ROUNDING
    )
