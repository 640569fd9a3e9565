"""Bounds inside the proofs of paper A: Lemmas 12 and 13, Eqs (25), (26), (30), (78) and (84), each against direct computation."""

import numpy as np
import pytest

from marginlens import Exponential, Logistic, TokenDataset, att_svm, correlation, relaxed_svm
from marginlens.data import figure_3a, figure_3b, scored_tokens
from marginlens.dynamics import Record, descend
from marginlens.optimizers import GradientDescent
from marginlens.risk import AttentionRisk, softmax
from marginlens.svm import set_svm
from marginlens.theory import label_margin, smoothness
from marginlens_papers.lemmas.gradient_conditions import correlation_floor, gradient_budget, gradient_ratio
from marginlens_papers.lemmas.joint_risk import joint_risk_bounds, selection_quadrant
from marginlens_papers.lemmas.mixing import log_nonoptimality, nonoptimality_bounds
from random_problems import problem, ragged_problem
from refusals import refused
from tolerances import CONDITIONED, ROUNDING

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
        assert found.share == pytest.approx(shares.min(), abs=ROUNDING)
        assert found.margin == pytest.approx(min(margins, default=np.inf), abs=CONDITIONED)
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
        np.testing.assert_allclose(relaxed_svm(data, alpha, [0], outside=1.0).x, strict.x, atol=CONDITIONED)
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
        assert np.linalg.norm(found.competitor) == pytest.approx(R, rel=CONDITIONED)
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
    assert slope == pytest.approx(0.5 * found.margin, rel=0.05)  # (1 - γ)Ξ
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
        if not len(best.points):
            continue
        p, R = best.points[0], 50.0
        margin = 1.0 / np.linalg.norm(p)  # Ξ
        low, high = nonoptimality_bounds(data, R * margin * p, sets)
        assert low == pytest.approx(-margin * R - np.log(4.0), abs=CONDITIONED)
        assert high == pytest.approx(-margin * R + np.log(4.0), abs=CONDITIONED)


@pytest.mark.statement("A Eq. (25)", "A Eq. (26)", "A Eq. (30)")
@pytest.mark.parametrize("loss", [Logistic(), Exponential()], ids=["Logistic", "Exponential"])
def test_squared_gradients_stay_within_their_budget_and_fade(loss):
    rng = np.random.default_rng(4)
    for _ in range(4):
        data, v = ragged_problem(rng, 3, 4, 3)
        if data.lengths.max() == 1:
            continue
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
