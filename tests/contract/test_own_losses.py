"""Losses of a user's own, decreasing or not: every gradient, descent and path follows the sign of their slope."""

import dataclasses

import numpy as np
import pytest

import marginlens as ml
from marginlens.losses.next_token import LabelLoss, NextTokenLoss
from marginlens.risk import logits
from marginlens.testing import check_loss
from marginlens_papers.claims.a.direction_cases import dominance
from plain_losses import Squared
from refusals import refused
from tolerances import ROUNDING, SIX_DIGITS

STEP = 1e-6  # of central differences of the risk
BY_DIFFERENCES = 2e-8  # of a risk of order one: the step's square, and roundings over it


class Wavy(ml.losses.Loss):
    """A random slope and bowl with two waves on it."""

    def __init__(self, seed, bowl=True):
        rng = np.random.default_rng(seed)
        self.a, self.c = rng.normal(size=2), rng.uniform(0.5, 3.0, size=2)
        self.linear, self.bowl = rng.normal(), rng.normal() if bowl else 0.0

    def value(self, u):
        waves = sum(a * np.sin(c * u) for a, c in zip(self.a, self.c, strict=True))
        return waves + self.linear * u + self.bowl * u**2

    def slope(self, u):
        waves = sum(a * c * np.cos(c * u) for a, c in zip(self.a, self.c, strict=True))
        return waves + self.linear + 2.0 * self.bowl * u


class WavyByDerivative(Wavy):
    def derivative(self, u):
        return self.slope(u)


class WavyByLogarithm(Wavy):
    def log_abs_derivative(self, u):
        return np.log(np.abs(self.slope(u)))


class WavyByBoth(WavyByDerivative, WavyByLogarithm):
    pass


class Rising(ml.losses.Loss):
    """e^u: increasing everywhere."""

    def value(self, u):
        return np.exp(u)

    def log_abs_derivative(self, u):
        return np.asarray(u, dtype=float)


OWN = [Squared(), Rising()]
OWN += [family(seed) for seed in range(4) for family in (WavyByDerivative, WavyByLogarithm, WavyByBoth)]


def names(loss):
    return type(loss).__name__


def differences(function, point):
    """The gradient of a function of one array, by central differences of step `STEP`."""
    found = np.empty(point.size)
    for k in range(point.size):
        step = STEP * (np.arange(point.size) == k).reshape(point.shape)
        found[k] = (function(point + step) - function(point - step)) / (2.0 * STEP)
    return found.reshape(point.shape)


def agrees(found, expected):
    return np.max(np.abs(found - expected)) < BY_DIFFERENCES * (1.0 + np.max(np.abs(expected)))


def problem(seed):
    data, v = ml.data.gaussian_tokens(1, 3, 4, 3, seed)
    return data[0], v[0], np.random.default_rng([seed, 1]).normal(size=3)


@pytest.mark.statement("A Eq. (15a)")
def test_squared_loss_pulls_a_margin_of_three_back_to_one():
    data, v = ml.data.scored_tokens([[(1.0, 0.0), (0.0, 0.0)]], [[3.0, 0.0]])
    assert ml.AttentionRisk(data, v, Squared()).gradient([2.0, 0.0]).value() == pytest.approx(
        [1.03464327, 0.0], rel=SIX_DIGITS, abs=ROUNDING
    )
    record = ml.Record(steps=10, keep=("risk",))
    step = ml.NormalizedGD(0.01)
    run = ml.descend(data, v, loss=Squared(), start=[2.0, 0.0], optimizer=step, n_steps=400, record=record)
    risk = run.saved["risk"]
    assert np.all(np.diff(risk[risk > 1e-3]) < 0.0)
    assert risk[-1] < 1e-4  # the output is one, where the loss is smallest


@pytest.mark.parametrize("loss", OWN, ids=names)
@pytest.mark.parametrize("seed", range(3))
def test_gradients_agree_with_differences_of_the_risk(loss, seed):
    data, v, p = problem(seed)
    assert agrees(
        ml.AttentionRisk(data, v, loss).gradient(p).value(),
        differences(lambda x: float(ml.AttentionRisk(data, v, loss).value(x)), p),
    )
    joint = ml.JointRisk(data, loss).gradient(np.concatenate([v, p]))
    by_v, by_p = joint.block("v"), joint.block("p")
    assert agrees(by_v.value(), differences(lambda x: float(ml.AttentionRisk(data, x, loss).value(p)), v))
    assert agrees(by_p.value(), ml.AttentionRisk(data, v, loss).gradient(p).value())


@pytest.mark.parametrize("loss", OWN[:8], ids=names)
def test_every_descent_takes_its_first_step_down_the_slope(loss):
    data, v, p = problem(3)
    rate = ml.GradientDescent(1e-3)
    slope = differences(lambda x: float(ml.AttentionRisk(data, v, loss).value(x)), p)
    run = ml.descend(data, v, loss=loss, optimizer=rate, n_steps=1, start=p)
    assert agrees((p - run.final) / rate.size, slope)
    tokens = ml.TokenDataset(data.X, data.y)  # their own keys
    slope = differences(lambda x: float(ml.AttentionRisk(tokens, v, loss).value(x)), p)
    u = np.array([0.6, 0.8])
    W = ml.risk.matrix_from_vector(p, u)
    run = ml.descend(ml.AttentionRisk(tokens, v, loss).as_matrix(u), optimizer=rate, n_steps=1, start=W)
    assert agrees((W - run.final) / rate.size, np.outer(u, slope))
    joint = ml.descend(ml.JointRisk(tokens, loss), optimizer=rate, n_steps=1, start=(v, p)).split()
    assert agrees((p - joint.p) / rate.size, slope)
    assert agrees(
        (v - joint.v) / rate.size, differences(lambda x: float(ml.AttentionRisk(tokens, x, loss).value(p)), v)
    )


@pytest.mark.statement("A Eq. (63)")
@pytest.mark.parametrize("loss", OWN, ids=names)
def test_excess_risks_have_their_own_sign(loss):
    data, v, p = problem(5)
    for size in (0.5, 5.0):
        found = ml.AttentionRisk(data, v, loss).excess(size * p)
        alpha = np.argmax(logits(data, size * p), axis=-1)
        base = np.mean(loss.value(data.scores(v)[np.arange(3), alpha]))
        expected = float(ml.AttentionRisk(data, v, loss).value(size * p)) - base
        assert found.sign * np.exp(found.log) == pytest.approx(expected, rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("loss", [Squared(), Rising(), WavyByDerivative(1), WavyByLogarithm(7)], ids=names)
def test_paths_find_the_smallest_risk_of_any_loss(loss):
    """Against all of a fine grid in the plane."""
    data, v = ml.data.gaussian_tokens(1, 2, 3, 2, 6)
    data, v, radii = data[0], 2.0 * v[0], np.array([2.0, 20.0])
    path = ml.path(data, radii, head=v, loss=loss)
    turns = np.linspace(0.0, 2.0 * np.pi, 121)
    disc = (np.geomspace(1e-2, 1.0, 40)[:, None, None] * np.stack([np.cos(turns), np.sin(turns)], axis=-1)).reshape(
        -1, 2
    )
    for radius, point in zip(radii, path.points, strict=True):
        best = np.min(ml.AttentionRisk(data.repeat(len(disc)), v, loss).value(radius * disc))
        assert ml.AttentionRisk(data, v, loss).value(point) <= best + 1e-12 * (1.0 + abs(best))
        assert np.linalg.norm(point) <= radius * (1.0 + 1e-12)


@pytest.mark.parametrize("family", [WavyByLogarithm, WavyByBoth])
def test_signs_are_right_on_both_sides_of_a_zero_of_the_slope(family):
    for seed in range(6):
        loss = family(seed)
        u = np.linspace(-5.0, 5.0, 4001)
        assert np.array_equal(loss.derivative_sign(u), np.sign(loss.slope(u)))
        for k in np.flatnonzero(np.diff(np.sign(loss.slope(u))))[:3]:
            low, high = u[k], u[k + 1]
            for _ in range(60):
                middle = 0.5 * (low + high)
                low, high = (middle, high) if np.sign(loss.slope(middle)) == np.sign(loss.slope(low)) else (low, middle)
            beside = 0.5 * (low + high) + np.array([-1e-6, -1e-9, -1e-12, 1e-12, 1e-9, 1e-6])
            assert np.array_equal(loss.derivative_sign(beside), np.sign(loss.slope(beside)))


def test_a_user_defined_derivative_is_used():
    """Also below a built-in loss, whose compiled loop knows nothing of it."""

    class Doubled(ml.Logistic):
        def value(self, u):
            return 2.0 * super().value(u)

        def log_abs_derivative(self, u):
            return super().log_abs_derivative(u) + np.log(2.0)

    data, v, p = problem(0)
    step = ml.GradientDescent(0.1)
    doubled = ml.descend(data, v, loss=Doubled(), optimizer=step, n_steps=20, start=p)
    plain = ml.descend(data, v, optimizer=ml.GradientDescent(0.2), n_steps=20, start=p)
    assert np.allclose(doubled.final, plain.final, rtol=1e-12, atol=0.0)
    head = ml.descend(ml.JointRisk(data, Doubled()), optimizer=step, n_steps=20, start=(v, p)).split()
    other = ml.descend(ml.JointRisk(data), optimizer=ml.GradientDescent(0.2), n_steps=20, start=(v, p)).split()
    assert np.allclose(head.p, other.p, rtol=1e-12, atol=0.0)


def test_theorems_that_need_a_decreasing_loss_do_not_apply():
    data, v = ml.data.figure_1a()
    best = data.optimal(v)
    for question in (
        lambda: ml.basin_cone(data, v, best, loss=Rising()),
        lambda: ml.theory.residual_law(data, v, best, loss=Rising()),
        lambda: dominance(data, v, [1.0, 0.0], [0.0, 1.0], Rising()),
    ):
        with refused("loss"):
            question()
    said = ml.predict_limit(data, v, loss=Rising(), start=[3.0, 1.0])
    assert said.direction is None
    slopes = next(check for check in said.verdicts[0].conditions if check.code == "condition.assumption_a")
    assert (slopes.holds, slopes.numbers["case"]) == (False, "rising")


# ---- losses that are none


class Broken(ml.losses.Loss):
    def __init__(self, given):
        self.given = given

    def value(self, u):
        return self.given(u)

    def derivative(self, u):
        return self.given(u)


@pytest.mark.parametrize(
    "given",
    [
        lambda u: 1.0,
        lambda u: np.zeros((2, *np.shape(u))),
        lambda u: "low",
        lambda u: None,
        lambda u: [[1.0], [1.0, 2.0]],
        lambda u: np.full_like(u, np.nan),
        lambda u: np.full_like(u, np.inf),
    ],
)
def test_losses_that_return_no_numeric_array_are_refused(given):
    data, v, p = problem(0)
    loss = Broken(given)
    for question in (
        lambda: ml.AttentionRisk(data, v, loss).value(p),
        lambda: ml.AttentionRisk(data, v, loss).gradient(p),
        lambda: ml.AttentionRisk(data, v, loss).excess(p),
        lambda: ml.descend(data, v, loss=loss, n_steps=2),
        lambda: ml.descend(ml.JointRisk(data, loss), n_steps=2),
        lambda: ml.flow(data, v, loss=loss, until=ml.UntilLength(1.0)),
        lambda: ml.path(data, [1.0], head=v, loss=loss),
    ):
        with refused("loss"):
            question()


# ---- next tokens


class Waves(LabelLoss):
    """cos(3u) + u²/2: up and down on [0, 1]."""

    def scalar(self, u):
        return np.cos(3.0 * u) + 0.5 * u**2, -3.0 * np.sin(3.0 * u) + u, 1.0 - 9.0 * np.cos(3.0 * u)


class Upside(NextTokenLoss):
    """Σ_c sin(ŷ_c) + 2 ŷ_y²: increasing in the label's output, and of all outputs."""

    def value(self, outputs, labels):
        return np.sum(np.sin(outputs), axis=1) + 2.0 * outputs[np.arange(len(labels)), labels] ** 2

    def derivative(self, outputs, labels):
        slope = np.cos(outputs)
        slope[np.arange(len(labels)), labels] += 4.0 * outputs[np.arange(len(labels)), labels]
        return slope


@pytest.mark.statement("C Eq. (19)")
@pytest.mark.parametrize("loss", [Waves(), Upside(), ml.SquaredLoss()], ids=names)
@pytest.mark.parametrize("general", [False, True])
def test_next_token_gradients_agree_with_differences(loss, general):
    rng = np.random.default_rng(3)
    E = rng.normal(size=(5, 4))
    ds = ml.SequenceDataset([[0, 1, 2], [3, 1, 4], [2, 2, 0]], [1, 3, 2], E)
    W, C = rng.normal(size=(4, 4)), rng.normal(size=(5, 4)) if general else None
    slope = differences(lambda x: ml.NextTokenRisk(ds, head=C, loss=loss).value(x), W)
    assert agrees(ml.NextTokenRisk(ds, head=C, loss=loss).gradient(W).value(), slope)
    run = ml.descend(ds, head=C, loss=loss, optimizer=ml.GradientDescent(1e-3), n_steps=1, start=W)
    assert agrees((W - run.final) / 1e-3, slope)


class Constant(ml.losses.Loss):
    """Its value hides the sign of its slope."""

    def value(self, u):
        return np.zeros_like(u)

    def log_abs_derivative(self, u):
        return -np.logaddexp(0.0, u)


class Bump(LabelLoss):
    """-(u - 1/4)²: decreasing at the label's own output 1, increasing below 1/4."""

    def scalar(self, u):
        return -((u - 0.25) ** 2), -2.0 * (u - 0.25), np.full_like(u, -2.0)


def test_losses_without_a_monotone_slope_are_refused_if_it_is_needed():
    with pytest.raises(ml.InputError):
        Constant().derivative_sign(np.array([2.0]))
    with pytest.raises(ml.InputError):
        ml.path(ml.SequenceDataset([[0, 1]], [0], np.eye(2)), [1.0], loss=Bump())


# ---- the contract that a loss of one's own can be held to

DECREASING = [ml.Logistic(), ml.Exponential(), ml.CorrelationLoss()]


@pytest.mark.parametrize("loss", [*DECREASING, *OWN], ids=names)
@pytest.mark.parametrize("interval", [(-5.0, 5.0), (0.5, 3.0)])
def test_the_contract_of_losses_holds(loss, interval):
    check_loss(loss, low=interval[0], high=interval[1], rng=21)


class Steep(Rising):
    def log_abs_derivative(self, u):
        return np.asarray(u, dtype=float) + 0.01


class Upright(Rising):
    def derivative(self, u):
        return np.exp(u)

    def derivative_sign(self, u):
        return -np.ones_like(u)


class Flat(Rising):
    def rise(self, u, delta):
        return np.zeros_like(u)


class Summed(Rising):
    def value(self, u):
        return np.exp(u) + 0.0 * np.sum(np.minimum(u, 1.0)) + 1e-3 * np.size(u)


class Holed(Rising):
    def value(self, u):
        return np.where(np.asarray(u) < -30.0, np.nan, np.exp(u))


class Bounded(Rising):
    def __init__(self, **numbers):
        self.numbers = numbers

    def constants(self, low, high):
        return dataclasses.replace(super().constants(low, high), **self.numbers)


BROKEN = {
    "contract.loss.derivative": Steep(),
    "contract.loss.derivative_sign": Upright(),
    "contract.loss.rise": Flat(),
    "contract.loss.elementwise": Summed(),
    "contract.loss.far": Holed(),
    "contract.loss.bound": Bounded(log_bound=0.0),
    "contract.loss.smallest": Bounded(log_smallest=0.0),
    "contract.loss.lipschitz": Bounded(log_lipschitz=0.0),
    "contract.loss.decreasing": Bounded(decreasing=True),
}


@pytest.mark.parametrize("promise", BROKEN)
def test_a_loss_that_breaks_the_contract_fails_with_the_broken_rule(promise):
    with pytest.raises(AssertionError) as error:
        check_loss(BROKEN[promise])
    assert error.value.args[0].code == promise
