"""The three protocols: built-in norms, optimizers and risks keep their contracts, so does a user's own, and broken ones are noticed."""

from dataclasses import dataclass

import numpy as np
import pytest

import marginlens as ml
from marginlens.risk import CopyRisk, MulticlassRisk, MultiHeadRisk
from marginlens.testing import check_norm, check_optimizer, check_risk
from marginlens_papers.claims.random_data import class_clusters
from plain_norms import Weighted
from quadratic_risk import Quadratic, risks_of_every_kind


@dataclass(frozen=True)
class Momentum:
    """Heavy-ball momentum, as a user would write it."""

    size: float = 0.1
    decay: float = 0.9

    def init(self, x0):
        return np.zeros_like(x0)

    def update(self, gradient, velocity):
        velocity = self.decay * velocity - self.size * gradient.value()
        return velocity, velocity


def tokens(seed=0):
    rng = np.random.default_rng(seed)
    return ml.TokenDataset(rng.normal(size=(3, 4, 3)), [1.0, -1.0, 1.0]), rng.normal(size=3)


QUERIES = np.random.default_rng(4).normal(size=(3, 3))
RISKS = {
    **risks_of_every_kind(),
    "p, exponential": ml.AttentionRisk(*tokens(), ml.Exponential()),
    "p, correlation": ml.AttentionRisk(*tokens(), ml.CorrelationLoss()),
    "joint, exponential": ml.JointRisk(tokens()[0], ml.Exponential()),
    "W, queries": ml.AttentionRisk(*tokens()).as_matrix(QUERIES),
    "W, correlation": ml.AttentionRisk(*tokens(), ml.CorrelationLoss()).as_matrix(QUERIES),
    "factors, queries": ml.AttentionRisk(*tokens()).as_factors(QUERIES, 2),
    "heads": MultiHeadRisk(*tokens(), 3),
    "heads, exponential": MultiHeadRisk(*tokens(), QUERIES[:, None] * np.ones((2, 1)), ml.Exponential()),
    "self-attention": MultiHeadRisk.self_attention(*tokens()),
    "classes": MulticlassRisk(*class_clusters(4, 5, 3, 0.3, 0)),
    "copying": CopyRisk.of(tokens()[0], [0, 2, 1]),
}


ENTRYWISE = [ml.L1(), ml.L2(), ml.LInf(), ml.Lp(1.75), ml.Lp(3), ml.Lp(1.001), ml.Lp(1000), ml.Frobenius()]
OF_MATRICES = [ml.Spectral(), ml.Nuclear(), ml.MaxRow()]


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        *[(norm, shape) for norm in ENTRYWISE for shape in ((1,), (5,), (3, 2))],
        *[(norm, shape) for norm in OF_MATRICES for shape in ((1, 1), (1, 4), (4, 1), (3, 2), (4, 7))],
    ],
    ids=repr,
)
def test_norms_keep_their_contract(norm, shape):
    check_norm(norm, shape, scales=(1e-100, 1.0, 1e100))


@pytest.mark.parametrize("norm", [*ENTRYWISE, ml.Spectral(), ml.Nuclear(), ml.MaxRow()], ids=repr)
def test_norms_are_finite_where_squares_overflow(norm):
    """More than the contract asks of a norm of one's own."""
    check_norm(norm, (3, 2), scales=(1e-200, 1e200))


def test_a_norm_written_as_a_plain_sum_of_squares_keeps_the_contract():
    check_norm(Weighted(np.array([0.25, 3.0, 1.0, 7.5])), (4,))


@pytest.mark.parametrize(
    "optimizer", [ml.GradientDescent(0.3), ml.NormalizedGD(0.2), Momentum()], ids=lambda one: type(one).__name__
)
def test_optimizers_keep_their_contract(optimizer):
    check_optimizer(optimizer)


@pytest.mark.statement("A Eq. (4)", "X M", "F cross-entropy")
@pytest.mark.parametrize("name", RISKS)
def test_risks_keep_their_contract(name):
    check_risk(RISKS[name])


def broken_promise(check, given):
    """The code of the promise that an object breaks."""
    with pytest.raises(AssertionError) as error:
        check(given)
    return error.value.args[0].code


def test_broken_contracts_are_detected():
    class Halved(ml.L2):
        def dual(self, g):
            return 0.5 * self.value(g)

    class Forgetful(Momentum):
        def update(self, gradient, velocity):
            velocity += gradient.value()  # changes its state in place
            return -velocity, velocity

    class Wrong(Quadratic):
        def gradient(self, x):
            return ml.risk.LogScaled(1.0 - np.asarray(x), np.asarray(0.0))

    class TooSmooth(Quadratic):
        def smoothness(self):
            return 0.5

    assert broken_promise(check_norm, Halved()) == "contract.norm.steepest_product"
    assert broken_promise(check_optimizer, Forgetful()) == "contract.optimizer.state"
    assert broken_promise(check_risk, Wrong()) == "contract.risk.gradient"
    assert broken_promise(check_risk, TooSmooth()) == "contract.risk.smoothness"


@pytest.mark.parametrize("name", RISKS)
def test_a_users_own_optimizer_works_on_every_risk(name):
    risk = RISKS[name]
    start = 0.1 * np.random.default_rng(1).normal(size=risk.shape)
    optimizer = Momentum(0.05)
    run = ml.descend(risk, optimizer=optimizer, n_steps=200, start=start, record=ml.Record(50, ("x", "risk", "norm")))
    assert run.status is ml.Status.COMPLETED
    assert run.saved["risk"][-1] < run.saved["risk"][0]
    x, velocity = start, np.zeros(risk.shape)
    for _ in range(200):  # the same by hand
        velocity = 0.9 * velocity - 0.05 * risk.gradient(x).value()
        x = x + velocity
    assert np.allclose(run.final, x, rtol=1e-9, atol=1e-9)
    assert np.array_equal(run.saved["x"][-1], run.final)


def test_training_factors_is_training_their_product():
    data, v = tokens()
    risk = ml.AttentionRisk(data, v).as_factors([1.0, 2.0], 3)
    rng = np.random.default_rng(3)
    Q, K = rng.normal(size=(2, 3)), rng.normal(size=(3, 3))
    run = ml.descend(risk, optimizer=ml.GradientDescent(0.1), n_steps=50, start=(Q, K))
    for _ in range(50):
        g = risk.of_p.gradient(K @ Q.T @ np.array([1.0, 2.0])).value()
        Q, K = Q - 0.1 * np.outer([1.0, 2.0], K.T @ g), K - 0.1 * np.outer(g, Q.T @ np.array([1.0, 2.0]))
    assert np.allclose(run.split().Q, Q, rtol=0, atol=1e-10)
    assert np.allclose(run.split().K, K, rtol=0, atol=1e-10)
    assert np.allclose(risk.matrix(run.final), Q @ K.T, rtol=0, atol=1e-10)


def test_margin_rows_are_those_of_the_margin_problems():
    data, v = tokens()
    chosen = data.optimal(v)
    rows, lower = ml.AttentionRisk(data, v).margin_rows(chosen)
    solved, same = ml.att_svm(data, chosen), ml.least_distance(rows, lower)
    assert solved.status is same.status is ml.Status.OPTIMAL
    assert np.allclose(solved.x, same.x, rtol=0, atol=1e-9)
    ds = ml.data.acyclic_sequences(5, 6, 4, 4, 0)
    rows, lower = ml.NextTokenRisk(ds).margin_rows()
    graph, flat = ml.graph_svm(ds), ml.least_distance(rows.reshape(len(rows), -1), lower)
    assert np.allclose(graph.x.ravel(), flat.x, rtol=0, atol=1e-7 * np.abs(flat.x).max())


@pytest.mark.parametrize("name", [name for name in RISKS if name != "a user's own"])
@pytest.mark.parametrize(
    "x", ["a", None, np.nan, [], 3, np.ones(7), np.ones((2, 2, 2, 2)), [[1, 2], [3]], {}, 1j, object], ids=repr
)
def test_points_of_the_wrong_kind_are_refused(name, x):
    for method in ("value", "log_value", "gradient", "select", "attention", "excess", "margins", "split", "vector"):
        if hasattr(RISKS[name], method):
            with pytest.raises(ml.InputError):
                getattr(RISKS[name], method)(x)
