"""What every next-token loss promises: derivatives that match its value, and the shape that Assumption 1 asks for."""

import numpy as np
import pytest

from marginlens import CrossEntropy, LogLoss, SquaredLoss
from marginlens.losses import SquaredProbability
from marginlens.losses.next_token import LabelLoss
from tolerances import ROUNDING, SIX_DIGITS

LOSSES = (LogLoss(), SquaredLoss(), CrossEntropy(), SquaredProbability())
STEP = 1e-6
BY_DIFFERENCES = 1e-6  # central differences with that step: its square, and roundings over it


@pytest.fixture
def outputs():
    rng = np.random.default_rng(0)
    return 0.1 + 0.8 * rng.random((40, 5)), rng.integers(0, 5, 40)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda one: type(one).__name__)
def test_derivatives_match_differences(loss, outputs):
    u, y = outputs
    slope, bend = loss.derivative(u, y), loss.second(u, y)
    for c in range(u.shape[1]):
        step = STEP * (np.arange(u.shape[1]) == c)
        value = (loss.value(u + step, y) - loss.value(u - step, y)) / (2 * STEP)
        np.testing.assert_allclose(slope[:, c], value, rtol=BY_DIFFERENCES, atol=BY_DIFFERENCES)
        change = (loss.derivative(u + step, y) - loss.derivative(u - step, y)) / (2 * STEP)
        np.testing.assert_allclose(bend[:, :, c], change, rtol=BY_DIFFERENCES, atol=BY_DIFFERENCES)
    np.testing.assert_allclose(bend, np.swapaxes(bend, 1, 2), rtol=0.0, atol=ROUNDING)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda one: type(one).__name__)
def test_a_larger_output_at_the_label_is_better(loss, outputs):
    u, y = outputs
    raised = u.copy()
    raised[np.arange(len(y)), y] += 0.05
    assert (loss.value(raised, y) < loss.value(u, y)).all()


@pytest.mark.statement("C Assumption 1")
def test_assumption_1_holds_for_losses_of_the_label_alone(outputs):
    u, y = outputs
    others = u + np.where(np.arange(5) == y[:, None], 0.0, 0.3)
    for loss in LOSSES:
        same = np.array_equal(loss.value(u, y), loss.value(others, y))
        assert same == isinstance(loss, LabelLoss)
    inside = np.linspace(0.05, 1.0, 50)
    for loss in (LogLoss(), SquaredLoss()):
        value, slope, _ = loss.scalar(inside)
        assert (np.diff(value) < 0).all()
        assert np.isfinite(slope).all()
        assert (slope[:-1] < 0).all()
    assert SquaredLoss().scalar(np.array([1.0]))[1] == 0.0  # where the proofs divide by the slope, it has none
    assert LogLoss().scalar(np.array([1.0]))[1] == -1.0


def test_extreme_outputs_neither_warn_nor_lose_the_sign():
    value, slope, bend = LogLoss().scalar(np.array([1e-200, 0.0, -1.0]))
    assert value[0] == pytest.approx(200 * np.log(10), rel=SIX_DIGITS, abs=ROUNDING)
    assert np.isinf(value[1:]).all()
    assert slope[0] == -1e200
    assert np.isinf(bend[0])
    y = np.array([0])
    large = np.array([[800.0, 0.0]])
    assert CrossEntropy().derivative(large, y)[0, 0] == 0.0
    assert CrossEntropy().value(-large, y)[0] == 800.0
    assert CrossEntropy().derivative(np.array([[40.0, 0.0]]), y)[0, 0] == pytest.approx(
        -np.exp(-40.0), rel=1e-6, abs=0.0
    )
