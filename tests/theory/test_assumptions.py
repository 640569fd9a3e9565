"""The theorems' assumptions: each check holds on one side of its threshold and fails on the other."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest

import marginlens as ml
from marginlens import Exponential, GradientDescent, Logistic, NormalizedGD, TokenDataset
from marginlens.data import figure_1a, figure_1b, scored_tokens
from marginlens.losses import Loss
from marginlens_papers.claims.a.general_position import check_distinct_scores
from plain_losses import Squared
from refusals import refused
from tolerances import ROUNDING, SIX_DIGITS

KEYS = [[(1.0, 0.0), (0.0, 1.0), (0.0, 0.0)], [(0.0, 2.0), (1.0, 1.0), (0.0, 0.0)]]


@dataclass(frozen=True)
class FlatSpot(Loss):
    """-u³: it strictly decreases, but its slope is zero at zero."""

    def value(self, u):
        return -(np.asarray(u, dtype=float) ** 3)

    def log_abs_derivative(self, u):
        with np.errstate(divide="ignore"):
            return np.log(3.0 * np.asarray(u, dtype=float) ** 2)


@pytest.mark.statement("A Assumption A")
def test_assumption_a_uses_the_loss_on_the_problems_scores():
    data, v = scored_tokens(KEYS, [[0.5, 0.0, -2.0], [0.9, 0.1, 0.2]])
    found = ml.theory.check_assumption_a(data, v, Exponential())
    assert found
    assert found.numbers["low"] == -2.0
    assert found.numbers["high"] == 0.9
    assert found.numbers["M0"] == found.numbers["M1"] == pytest.approx(np.exp(2.0), rel=SIX_DIGITS, abs=ROUNDING)
    assert found.numbers["smallest_slope"] == pytest.approx(np.exp(-0.9), rel=SIX_DIGITS, abs=ROUNDING)
    assert ml.theory.check_assumption_a(data, v, Squared())
    beyond, head = scored_tokens(KEYS, [[1.5, 0.0, -2.0], [0.9, 0.1, 0.2]])
    assert not ml.theory.check_assumption_a(beyond, head, Squared())
    assert ml.theory.check_assumption_a(beyond, head, Logistic())


@pytest.mark.statement("A Assumption A")
def test_underflowing_slopes_are_accepted():
    data, v = scored_tokens([[(-0.1, 1.0), (1.0, 0.0), (0.0, 0.0)]], [[1000.0, 900.0, 900.0]])
    found = ml.theory.check_assumption_a(data, v)
    assert found
    assert (found.numbers["M1"], found.numbers["log_M1"]) == (0.0, -900.0)
    assert [found.numbers[f"log_{name}"] for name in ("smallest_slope", "M1", "M0")] == [-1000.0, -900.0, -900.0]
    assert "slopes from e^-1000 to e^-900" in found.sentence
    gamma, width = np.linalg.norm([1000.0, 900.0, 900.0]), np.linalg.norm(data.K[0], ord=2)
    log_L_p = np.log((gamma**2 + 3.0 * gamma) * width**2) - 900.0
    assert ml.theory.smoothness(data, v).log_L_p == pytest.approx(log_L_p, rel=ROUNDING, abs=ROUNDING)
    step = ml.theory.check_step(data, v, GradientDescent(1.0))
    assert step.numbers["log_largest_step"] == pytest.approx(-log_L_p, rel=ROUNDING, abs=ROUNDING)
    assert ml.theory.smoothness(data, v).L_p == 0.0
    steep, v = scored_tokens([[(-0.1, 1.0), (1.0, 0.0), (0.0, 0.0)]], [[-900.0, -1000.0, -1000.0]])
    assert ml.theory.check_assumption_a(steep, v, Exponential())
    assert not ml.theory.check_step(steep, v, GradientDescent(1e-300), Exponential())


@pytest.mark.statement("A Assumption A")
def test_a_reachable_flat_slope_fails_assumption_a():
    at_zero, v = scored_tokens([[(1.0, 0.0), (0.0, 0.0)]], [[0.0, 0.0]])
    assert not ml.theory.check_assumption_a(at_zero, v, FlatSpot())
    across, v = scored_tokens([[(1.0, 0.0), (0.0, 0.0)]], [[1.0, -1.0]])  # it strictly decreases from 1 to -1, and yet
    assert not ml.theory.check_assumption_a(across, v, FlatSpot())
    away, v = scored_tokens([[(1.0, 0.0), (0.0, 0.0)]], [[2.0, 1.0]])
    assert ml.theory.check_assumption_a(away, v, FlatSpot())


@pytest.mark.statement("A Assumption B")
def test_assumption_b_asks_for_equal_scores_below_the_optimum():
    equal, v = scored_tokens(KEYS, [[1.0, 0.2, 0.2], [-0.5, 0.3, -0.5]])
    found = ml.theory.check_assumption_b(equal, v)
    assert found
    assert found.numbers["spread"] == 0.0
    assert found.numbers["smallest_gap"] == pytest.approx(0.8, rel=SIX_DIGITS, abs=ROUNDING)
    for scores, spread in ([[1.0, 0.2, 0.3], [0.5, 0.3, 0.3]], 0.1), ([[1.0, 0.2, 0.2 + 1e-9], [0.5, 0.3, 0.3]], 1e-9):
        unequal, v = scored_tokens(KEYS, scores)
        assert not ml.theory.check_assumption_b(unequal, v)
        assert ml.theory.check_assumption_b(unequal, v).numbers["spread"] == pytest.approx(spread, rel=1e-6, abs=0.0)
    for tied in ([1.0, 1.0, 0.2], [1.0, 1.0, 1.0]):
        tie, v = scored_tokens(KEYS, [tied, [0.5, 0.3, 0.3]])
        assert not ml.theory.check_assumption_b(tie, v)
    assert ml.theory.check_assumption_b(*figure_1a())
    assert not ml.theory.check_assumption_b(*figure_1b())


@pytest.mark.statement("A Assumption B", "A Thm 4")
def test_ties_agree_with_exact_arithmetic_beyond_rounding():
    """Integer tokens and heads times powers of two: scores are compared as fractions, per token, at scales of their own."""
    rng = np.random.default_rng(0)
    seen = {True: 0, False: 0}
    for _ in range(300):
        X = rng.integers(-2, 3, size=(1, 3, 3)) * 2.0 ** rng.integers(-40, 41, size=(1, 1, 3))
        v = rng.integers(-1, 2, size=3) * 2.0 ** rng.integers(-20, 21, size=3)
        exact = [sum(Fraction(a) * Fraction(b) for a, b in zip(x, v, strict=True)) for x in X[0]]
        summed = [sum(abs(Fraction(a) * Fraction(b)) for a, b in zip(x, v, strict=True)) for x in X[0]]
        pairs = [(a, b) for a in range(3) for b in range(a)]
        apart = [abs(exact[a] - exact[b]) > Fraction(1, 10**9) * (summed[a] + summed[b]) for a, b in pairs]
        tied = [exact[a] == exact[b] for a, b in pairs]
        if not all(x or y for x, y in zip(apart, tied, strict=True)):
            continue  # a difference below what the largest terms leave of it in double precision
        seen[all(apart)] += 1
        assert bool(check_distinct_scores(TokenDataset(X, [1]), v)) == all(apart)
    assert min(seen.values()) > 50


@pytest.mark.statement("A Thm 1", "A Thm 4")
def test_strict_optimum_and_distinct_scores_bracket_ties():
    data, v = scored_tokens(KEYS, [[1.0, 0.2, 0.2], [0.5, 0.3, 0.1]])
    assert ml.theory.check_strict_optimum(data, v).numbers["smallest_gap"] == pytest.approx(
        0.2, rel=SIX_DIGITS, abs=ROUNDING
    )
    assert ml.theory.check_strict_optimum(data, v)
    assert not check_distinct_scores(data, v)
    tie, v = scored_tokens(KEYS, [[1.0, 0.2, 0.1], [0.5, 0.5, 0.1]])
    assert not ml.theory.check_strict_optimum(tie, v)
    near, v = scored_tokens(KEYS, [[1.0, 0.2, 0.1], [0.5, 0.5 - 1e-9, 0.1]])
    assert ml.theory.check_strict_optimum(near, v)
    assert check_distinct_scores(near, v).numbers["smallest_gap"] == pytest.approx(1e-9, rel=1e-6, abs=0.0)


@pytest.mark.statement("A Def 1")
def test_separability_needs_one_direction_for_every_input():
    one, v = scored_tokens([[[1.0], [0.0]], [[2.0], [0.0]]], [[1.0, 0.0], [1.0, 0.0]])
    assert ml.theory.check_separable(one, v).numbers["margin"] == pytest.approx(1.0, rel=SIX_DIGITS, abs=ROUNDING)
    against, v = scored_tokens([[[1.0], [0.0]], [[2.0], [0.0]]], [[1.0, 0.0], [0.0, 1.0]])
    found = ml.theory.check_separable(against, v)
    assert not found
    assert found.numbers["margin"] == 0.0
    assert not ml.theory.check_separable(TokenDataset(np.ones((1, 1, 2)), [1]), np.ones(2))


@pytest.mark.statement("A Lemma 6")
def test_the_step_must_be_plain_and_at_most_the_inverse_smoothness():
    data, v = figure_1a()
    largest = ml.theory.smoothness(data, v).largest_step
    assert ml.theory.check_step(data, v, GradientDescent(largest))
    assert not ml.theory.check_step(data, v, GradientDescent(largest * 1.01))
    normal = ml.theory.check_step(data, v, NormalizedGD(0.1))
    assert not normal
    assert normal.numbers["case"] == "normalized_gd"
    with refused("optimizer"):
        ml.theory.check_step(data, v, 0.1)
