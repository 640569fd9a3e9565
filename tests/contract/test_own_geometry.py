"""A user's own norms and optimizers go as far as the built-in ones, and subclasses are what they inherit until they change it."""

from dataclasses import dataclass

import numpy as np
import pytest

import marginlens as ml
from marginlens.kinds import defining_class, inherited_attr
from marginlens.optimizers.compiled import compiled_rule
from marginlens.testing import check_norm
from tolerances import ROUNDING, SIX_DIGITS


@dataclass(frozen=True)
class PlainPower:
    """ℓp as a user would write it, with 0/0 at zero."""

    p: float

    def value(self, x):
        return float(np.sum(np.abs(x) ** self.p) ** (1 / self.p))

    def dual(self, g):
        q = self.p / (self.p - 1)
        return float(np.sum(np.abs(g) ** q) ** (1 / q))

    def steepest(self, g):
        return np.sign(g) * (np.abs(g) / self.dual(g)) ** (1 / (self.p - 1))


class Columns:
    """The sum of the columns' Euclidean norms."""

    def value(self, x):
        return float(np.linalg.norm(x, axis=0).sum())

    def dual(self, g):
        return float(np.linalg.norm(g, axis=0).max())

    def steepest(self, g):
        sizes = np.linalg.norm(g, axis=0)
        return np.where(np.arange(g.shape[1]) == sizes.argmax(), g / sizes, 0.0)


class Box(ml.L2):
    """Inherits from the Euclidean norm and is another one."""

    def value(self, x):
        return float(np.abs(x).max())

    def dual(self, g):
        return float(np.abs(g).sum())

    def steepest(self, g):
        return np.sign(g)


class MyL1(ml.L1):
    """Nothing but a name."""


class MySpectral(ml.Spectral):
    """Nothing but a name."""


def problem(n, n_tokens, d, seed):
    data, heads = ml.data.sphere_tokens(1, n, n_tokens, d, seed)
    return data[0], heads[0]


@pytest.mark.parametrize(
    ("own", "built_in"),
    [
        (PlainPower(1.4), ml.Lp(1.4)),
        (PlainPower(2.0), ml.L2()),
        (PlainPower(3.5), ml.Lp(3.5)),
        (Box(), ml.LInf()),
        (MyL1(), ml.L1()),
    ],
    ids=lambda norm: type(norm).__name__,
)
@pytest.mark.parametrize("seed", [11, 12])
def test_margins_in_a_users_norm_are_those_of_its_twin(own, built_in, seed):
    data, _ = problem(3, 3, 7, seed)
    found, expected = (ml.att_svm(data, [0, 1, 2], norm=norm) for norm in (own, built_in))
    assert found.status is expected.status is ml.Status.OPTIMAL
    assert found.norm is own
    assert found.bracket().gap <= 1e-8
    assert found.margin == pytest.approx(expected.margin, rel=1e-8, abs=ROUNDING)


def test_an_infeasible_problem_is_infeasible_in_every_norm():
    X = np.array([[[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]])
    found = ml.att_svm(ml.TokenDataset(X, [1.0, 1.0]), [0, 0], norm=PlainPower(3.0))
    assert found.status is ml.Status.INFEASIBLE
    assert found.certificate_residual() <= 1e-12


def test_margins_of_matrices_in_a_users_norm_are_proved():
    """Σ‖columns‖ of W is the max-row norm's dual of Wᵀ; here only the bracket and a planted wrong point decide."""
    data, _ = problem(3, 4, 4, 5)
    found = ml.att_svm(data, [0, 0, 0], norm=Columns(), query=np.random.default_rng(6).normal(size=(3, 2)))
    assert found.status is ml.Status.OPTIMAL
    lower, upper = found.bracket()
    assert lower <= Columns().value(found.x) * (1 + 1e-12) <= upper * (1 + 1e-9)
    wrong = found.in_norm(Columns(), found.x.reshape(-1) + 0.1, found.multipliers, None)
    assert wrong.status is ml.Status.INACCURATE


def test_steepest_descent_in_a_users_norm_reaches_its_margin():
    data, v = problem(2, 3, 6, 21)
    risk = ml.AttentionRisk(data, v)
    run = ml.descend(risk, optimizer=ml.SteepestDescent(PlainPower(3.0), 0.2), n_steps=2_000)
    limit = ml.att_svm(data, run.selected, norm=PlainPower(3.0))
    twin = ml.descend(risk, optimizer=ml.SteepestDescent(ml.Lp(3.0), 0.2), n_steps=2_000)
    np.testing.assert_allclose(run.final, twin.final, rtol=1e-7, atol=0.0)
    assert ml.correlation(run.final, limit.x) > 0.99


class Lion:
    """Signs of an interpolated mean, as a user would write it, with the norm that its steps are steepest in."""

    norm = ml.LInf()

    def __init__(self, size):
        self.size = size

    def init(self, x0):
        return np.zeros_like(x0)

    def update(self, gradient, state):
        direction = gradient.direction()
        return -self.size * np.sign(0.9 * state + 0.1 * direction), 0.99 * state + 0.01 * direction


def test_predict_takes_the_norm_that_an_optimizer_names():
    data, v = problem(2, 4, 5, 3)
    risk = ml.AttentionRisk(data, v)
    bias = ml.predict(risk, optimizer=Lion(0.01)).bias
    assert defining_class(bias.norm) is ml.LInf
    assert not bias.proved
    assert not bias.observed
    assert bias.solution.margin == pytest.approx(
        ml.att_svm(data, bias.selected, norm=ml.LInf()).margin, rel=SIX_DIGITS, abs=ROUNDING
    )
    assert bias.note.code == "bias.own_norm"


def test_predict_solves_w_in_a_norm_that_is_not_transpose_invariant():
    data, v = problem(2, 3, 3, 8)
    query = np.random.default_rng(9).normal(size=(2, 4))
    risk = ml.AttentionRisk(data, v).as_matrix(query)
    bias = ml.predict(risk, optimizer=ml.SteepestDescent(ml.MaxRow(), 0.01)).bias
    expected = ml.att_svm(data, bias.selected, norm=ml.MaxRow(), query=query)
    assert bias.solution.margin == pytest.approx(expected.margin, rel=1e-7, abs=ROUNDING)
    assert ml.correlation(bias.direction.ravel(), expected.x.ravel()) > 0.999


def test_a_subclass_inherits_behaviour_until_it_overrides_it():
    class Slower(ml.SignDescent):
        def update(self, gradient, state):
            move, state = super().update(gradient, state)
            return 0.5 * move, state

    assert defining_class(MySpectral()) is ml.Spectral
    assert defining_class(ml.Frobenius()) is ml.L2
    assert defining_class(Box()) is Box
    assert inherited_attr(MyL1(), "code") == ml.L1.code
    assert inherited_attr(Box(), "code") is None
    assert compiled_rule(ml.SignDescent(0.1), (3,)) is not None
    assert compiled_rule(Slower(0.1), (3,)) is None
    assert compiled_rule(ml.SteepestDescent(Box(), 0.1), (3,)) is None


@pytest.mark.parametrize(
    "norm", [Columns(), PlainPower(3.0), ml.Nuclear(), MyL1(), Box()], ids=lambda norm: type(norm).__name__
)
def test_the_norm_contract_detects_a_norms_shape(norm):
    check_norm(norm)
