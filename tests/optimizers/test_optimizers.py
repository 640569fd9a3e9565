"""Optimizers: contracts, momentum and means in the log domain, schedules, refusals, and steps against plain formulas."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.optimizers import PowerDecay
from marginlens.risk import LogScaled
from marginlens.testing import check_optimizer
from refusals import refused
from tolerances import ROUNDING, SIX_DIGITS

OPTIMIZERS = {
    "steepest l3": ml.SteepestDescent(ml.Lp(3.0), 0.2),
    "steepest l1.75, heavy ball": ml.SteepestDescent(ml.Lp(1.75), 0.2, momentum=0.8),
    "sign": ml.SignDescent(0.1),
    "Signum, falling steps": ml.SignDescent(PowerDecay(0.3, 0.5), momentum=0.9),
    "sign, Nesterov": ml.SignDescent(0.1, 0.9, nesterov=True),
    "coordinate": ml.CoordinateDescent(0.1),
    "Adam": ml.Adam(0.05),
    "Adam, eps": ml.Adam(PowerDecay(0.05), (0.8, 0.95), 1e-60),
    "mirror": ml.MirrorDescent(1.75, 0.5),
    "normalised mirror": ml.MirrorDescent(3.0, 0.1, normalized=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_keep_their_contract(name):
    check_optimizer(OPTIMIZERS[name])
    check_optimizer(OPTIMIZERS[name], (3, 2))


def gradient(values, log_scale):
    return LogScaled(np.array([values]), np.array([float(log_scale)]))


def steps(optimizer, gradients, x0):
    state, moves = optimizer.init(np.array([x0])), []
    for each in gradients:
        move, state = optimizer.update(each, state)
        moves.append(move[0])
    return np.array(moves)


VALUES = np.random.default_rng(5).normal(size=(6, 3))


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "mirror"])
def test_steps_do_not_depend_on_the_common_scale_of_gradients(name):
    """Gradients times e^-9000 give the same steps: all of these, Adam without ε among them, are scale-free."""
    optimizer = OPTIMIZERS[name]
    if name == "Adam, eps":
        optimizer = ml.Adam(optimizer.size, optimizer.betas, 0.0)
    plain = steps(optimizer, [gradient(g, 0.0) for g in VALUES], np.ones(3))
    tiny = steps(optimizer, [gradient(g, -9000.0) for g in VALUES], np.ones(3))
    assert np.allclose(plain, tiny, rtol=1e-10, atol=1e-12)


def test_steps_equal_the_plain_formulas():
    """Adam with ε, heavy ball, Nesterov and mirror descent at gradients of ordinary size, as every textbook writes them."""
    given = [gradient(g, 0.7) for g in VALUES]
    values = [g.value()[0] for g in given]
    m, v, adam = np.zeros(3), np.zeros(3), []
    ball, heavy, ahead = np.zeros(3), [], []
    x, mirror = np.array([0.5, -0.2, 0.0]), []
    for t, g in enumerate(values):
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        adam.append(-0.3 * (m / (1 - 0.9 ** (t + 1))) / (np.sqrt(v / (1 - 0.99 ** (t + 1))) + 1e-2))
        ball = 0.8 * ball + g
        heavy.append(-np.sign(ball))
        ahead.append(-(g + 0.8 * ball) / np.linalg.norm(g + 0.8 * ball))
        image = np.sign(x) * np.abs(x) ** 0.75 - 0.1 * g
        following = np.sign(image) * np.abs(image) ** (1 / 0.75)
        mirror.append(following - x)
        x = following
    assert np.allclose(steps(ml.Adam(0.3, (0.9, 0.99), 1e-2), given, np.zeros(3)), adam, rtol=1e-12, atol=0.0)
    assert np.allclose(steps(ml.SignDescent(1.0, 0.8), given, np.zeros(3)), heavy, rtol=ROUNDING, atol=0.0)
    nesterov = ml.SteepestDescent(ml.L2(), 1.0, 0.8, nesterov=True)
    assert np.allclose(steps(nesterov, given, np.zeros(3)), ahead, rtol=1e-12, atol=0.0)
    assert np.allclose(steps(ml.MirrorDescent(1.75, 0.1), given, [0.5, -0.2, 0.0]), mirror, rtol=1e-11, atol=1e-13)


def test_adam_is_sign_descent_above_epsilon_and_plain_descent_below():
    """Above ε Adam moves like sign descent, below like gradient descent of size η/ε."""
    g = np.array([1.0, -2.0, 0.5])
    above = steps(ml.Adam(0.1, eps=1e-60), [gradient(g, -100.0)], np.zeros(3))[0]
    below = steps(ml.Adam(0.1, eps=1e-60), [gradient(g, -200.0)], np.zeros(3))[0]
    assert np.allclose(above, -0.1 * np.sign(g), rtol=1e-10, atol=0.0)
    assert np.allclose(below, -0.1 * g * np.exp(-200.0 + 60.0 * np.log(10.0)), rtol=1e-10, atol=0.0)
    idle = steps(ml.Adam(0.1), [gradient([0.0, 1.0, 0.0], -3.0)], np.zeros(3))[0]
    assert np.allclose(idle, [0.0, -0.1, 0.0], rtol=1e-14, atol=0)


def test_an_old_large_gradient_keeps_its_weight():
    """Gradients that fall faster than the momentum forgets leave the first one in charge; entries that it lacks are the new ones'."""
    first, later = gradient([1.0, 0.0, -1.0], 0.0), gradient([-1.0, -1.0, 1.0], -2000.0)
    moves = steps(ml.SignDescent(1.0, 0.9), [first, later, later], np.zeros(3))
    assert np.array_equal(moves, [[-1.0, 0.0, 1.0], [-1.0, 1.0, 1.0], [-1.0, 1.0, 1.0]])


@pytest.mark.parametrize("norm", [ml.L2(), ml.LInf(), ml.Lp(3.0)], ids=repr)
def test_descent_in_a_norm_gains_its_margin(norm):
    """On one small problem the margin per norm of the weights grows in the norm of the descent."""
    data, v = ml.data.sphere_tokens(1, 3, 4, 6, 4)
    data, v = data[0], v[0]
    run = ml.descend(data, v, optimizer=ml.SteepestDescent(norm, 0.05), n_steps=1500)
    rows = ml.AttentionRisk(data, v).margin_rows(run.selected).rows
    share = np.min(rows @ run.final) / norm.value(run.final)
    others = [
        ml.descend(data, v, optimizer=ml.SteepestDescent(other, 0.05), n_steps=1500).final for other in (ml.L1(),)
    ]
    assert share > max(np.min(rows @ x) / norm.value(x) for x in others)


def test_schedules_have_their_step_sizes():
    assert PowerDecay(2.0, 0.5)(3) == pytest.approx(1.0, rel=SIX_DIGITS, abs=ROUNDING)
    g = [gradient([1.0, 1.0, 1.0], 0.0)] * 3
    assert np.allclose(
        steps(ml.SignDescent(lambda t: 1.0 / (t + 1)), g, np.zeros(3))[:, 0],
        [-1.0, -0.5, -1.0 / 3.0],
        rtol=ROUNDING,
        atol=0.0,
    )


@pytest.mark.parametrize("schedule", [lambda t: 1.0 - t, lambda t: float("nan"), lambda t: -1.0, lambda t: "a"])
def test_a_schedule_that_ends_is_refused_at_that_step(schedule):
    data, v = ml.data.sphere_tokens(1, 2, 3, 4, 0)
    for optimizer in (ml.SignDescent(schedule), ml.Adam(schedule), ml.MirrorDescent(3.0, schedule)):
        with refused("size"):
            ml.descend(data, v, optimizer=optimizer, n_steps=3)
