"""What every loss must satisfy, built in or a user's own."""

import mpmath
import numpy as np
import pytest

import marginlens as ml
from marginlens.losses.margin import LossConstants
from plain_losses import OwnLogistic
from tolerances import ROUNDING


class Hinged(ml.losses.Loss):
    """A user's loss: smooth, decreasing, not convex."""

    def value(self, u):
        return -np.arctan(np.asarray(u, dtype=float))

    def log_abs_derivative(self, u):
        return -np.log1p(np.asarray(u, dtype=float) ** 2)


LOSSES = [ml.Logistic(), ml.Exponential(), ml.CorrelationLoss(), Hinged()]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda one: type(one).__name__)
def test_derivative_is_the_slope_of_the_value(loss):
    u = np.linspace(-4, 4, 81)
    h = 1e-6
    slope = (loss.value(u + h) - loss.value(u - h)) / (2 * h)
    assert np.max(np.abs(slope - loss.derivative(u)) / np.abs(slope)) < 1e-7
    assert np.all(loss.derivative(u) < 0)
    assert np.allclose(np.log(-loss.derivative(u)), loss.log_abs_derivative(u), rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda one: type(one).__name__)
def test_log_derivative_is_finite_far_out(loss):
    assert np.isfinite(loss.log_abs_derivative(np.array([-1e6, -1e3, 0.0, 1e3, 1e6]))).all()


def test_logistic_values_at_both_ends():
    loss = ml.Logistic()
    assert loss.value(1e6) == 0.0
    assert loss.value(-1e6) == 1e6
    assert loss.log_abs_derivative(1e6) == -1e6
    assert loss.log_abs_derivative(-1e6) == 0.0


@pytest.mark.statement("A Assumption A")
@pytest.mark.parametrize("loss", LOSSES, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize(("low", "high"), [(-2.0, 3.0), (0.5, 4.0), (-3.0, -1.0)])
def test_constants_bracket_the_slopes(loss, low, high):
    """M₁ and M₀ hold on the interval and are attained: 1% less would be violated."""
    found = loss.constants(low, high)
    u = np.linspace(low, high, 4001)
    slope = loss.derivative(u)
    steepness = np.abs(np.diff(slope)) / np.diff(u)
    assert np.all(np.abs(slope) <= found.bound * (1 + ROUNDING))
    assert np.all(np.abs(slope) >= found.smallest * (1 - ROUNDING))
    assert np.all(steepness <= found.lipschitz * (1 + 1e-6) + ROUNDING)
    assert np.abs(slope).max() >= 0.99 * found.bound
    assert steepness.max() >= 0.99 * found.lipschitz
    assert found.decreasing


@pytest.mark.statement("A Assumption A")
def test_check_of_constants_detects_a_loss_that_increases():
    class Rising(ml.losses.Loss):
        def value(self, u):
            return np.asarray(u, dtype=float) ** 2

        def log_abs_derivative(self, u):
            return np.log(2 * np.abs(np.asarray(u, dtype=float)) + 1e-300)

    assert not Rising().constants(-1.0, 1.0).decreasing


@pytest.mark.statement("A Assumption A")
@pytest.mark.parametrize(("low", "high"), [(900.0, 1000.0), (-1e4, 1e4), (2e5, 2e5), (-800.0, -790.0), (-3.0, 2.0)])
def test_constants_of_slopes_beyond_the_range_are_exact_logarithms(low, high):
    found, sampled = ml.Logistic().constants(low, high), OwnLogistic().constants(low, high)
    nearest = min(max(0.0, low), high)
    curvature = -abs(nearest) - 2.0 * np.log1p(np.exp(-abs(nearest)))  # of ℓ'' = e^u/(1 + e^u)²
    assert found.log_bound == pytest.approx(-np.logaddexp(0.0, low), abs=ROUNDING, rel=0.0)
    assert found.log_smallest == pytest.approx(-np.logaddexp(0.0, high), abs=ROUNDING, rel=0.0)
    assert found.log_lipschitz == pytest.approx(curvature, abs=ROUNDING, rel=0.0)
    assert sampled.decreasing
    assert (sampled.log_bound, sampled.log_smallest) == pytest.approx(
        (found.log_bound, found.log_smallest), abs=ROUNDING, rel=0.0
    )
    if high > max(low, 0.0):  # below, slopes of one differ by less than rounding
        assert sampled.log_lipschitz == pytest.approx(curvature, abs=0.3, rel=0.0)
    assert ml.Exponential().constants(-2000.0, -1000.0) == LossConstants(2000.0, 2000.0, 1000.0, True)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda one: type(one).__name__)
def test_rise_is_exact_where_the_difference_cancels(loss):
    u = np.array([-1.0, 0.3, 2.0])
    for delta in (0.7, 2.5, -0.4):
        assert np.allclose(loss.rise(u, delta), loss.value(u - delta) - loss.value(u), rtol=1e-11, atol=1e-13)
    tiny = 1e-12
    assert np.allclose(loss.rise(u, tiny) / tiny, -loss.derivative(u), rtol=1e-10, atol=0.0)
    assert np.allclose(
        loss.signed_log_rise(u, -2000.0, 1.0).log, loss.log_abs_derivative(u) - 2000.0, rtol=1e-14, atol=0.0
    )
    for log_delta in (-36.9, -37.1):  # both sides of the first-order switch
        expected = loss.log_abs_derivative(u) + log_delta
        assert np.allclose(loss.signed_log_rise(u, log_delta, -1.0).log, expected, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("loss", [ml.Logistic(), ml.Exponential()])
@pytest.mark.parametrize("u", [745.0, 800.0, 1e4])
@pytest.mark.parametrize("delta", [1e-3, 0.5, 5.0, 100.0, 700.0])
def test_rises_of_values_that_underflow_keep_their_logarithm(loss, u, delta):
    # from 45 on the logistic loss equals e^-u to rounding, so that the rise is e^-u (e^δ - 1), and its fall e^-u (1 - e^-δ)
    rise, fall = delta - u + np.log(-np.expm1(-delta)), np.log(-np.expm1(-delta)) - u
    assert loss.signed_log_rise(u, np.log(delta), 1.0).log == pytest.approx(rise, rel=1e-12, abs=ROUNDING)
    assert loss.signed_log_rise(u, np.log(delta), -1.0).log == pytest.approx(fall, rel=1e-12, abs=ROUNDING)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_logistic_rise_is_accurate_at_any_margin_and_distance(sign):
    rng = np.random.default_rng(7)
    u, log_delta = rng.normal(size=200) * 10.0 ** rng.uniform(-1.0, 2.5, size=200), rng.uniform(-60.0, 6.0, size=200)
    found = ml.Logistic().signed_log_rise(u, log_delta, sign)
    with mpmath.workdps(700):
        exact = [
            float(mpmath.log(abs(mpmath.log1p(mpmath.exp(sign * mpmath.exp(b) - a)) - mpmath.log1p(mpmath.exp(-a)))))
            for a, b in zip(map(mpmath.mpf, u), map(mpmath.mpf, log_delta), strict=True)
        ]
    assert found.log == pytest.approx(exact, rel=1e-15, abs=1e-15)
    assert np.all(found.sign == sign)


def test_an_exponential_rise_that_overflows_keeps_its_logarithm():
    with np.errstate(all="raise"):
        assert ml.Exponential().signed_log_rise(-800.0, np.log(3.0), 1.0).log == pytest.approx(
            803.0 + np.log(-np.expm1(-3.0)), rel=1e-12, abs=ROUNDING
        )
