"""Ends of the search for a cyclic correction: saddles, plateaus, runaways, and what is recomputed from them."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.optimize import minimize

import marginlens as ml
from marginlens.data.sequence_generators import cyclic_sequences
from marginlens.graphs import subspace as subspaces
from marginlens.graphs.cyclic import LocalRule
from marginlens.losses.next_token import LabelLoss, SquaredProbability
from marginlens.nexttoken import cyclic_risk
from marginlens.nexttoken.correction import local_correction
from marginlens.nexttoken.cyclic_risk import CyclicRisk, RiskPoint
from refusals import refused
from tolerances import AUTOGRAD, CONDITIONED, GENERAL_MINIMISER, ROUNDING

FINITE, INFINITE, INACCURATE = ml.Status.FINITE, ml.Status.INFINITE, ml.Status.INACCURATE
LOSSES = [ml.LogLoss(), ml.SquaredLoss(), ml.CrossEntropy(), SquaredProbability()]
APART = np.array([[0.0, 0.5], [0.0, -0.5]])  # raises token 0 over token 1 by one where 1 comes last


@dataclass(frozen=True)
class Power(LabelLoss):
    """-(u - centre)^degree."""

    centre: float
    degree: int

    def scalar(self, u):
        n, x = self.degree, u - self.centre
        return -(x**n), -n * x ** (n - 1), -n * (n - 1) * x ** max(n - 2, 0)


def pair(*labels):
    """Sequences of tokens 0 and 1 with these labels."""
    return ml.SequenceDataset([[0, 1]] * len(labels), labels, np.eye(2))


@pytest.mark.parametrize("general", [False, True], ids=["C Eᵀ = I", "general head"])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda one: type(one).__name__)
def test_the_residual_off_the_correction_is_the_gradient(loss, general):
    rng = np.random.default_rng(1)
    ds = cyclic_sequences(6, 8, 12, 4, rng)
    head = (rng.uniform(0.1, 0.9, size=(6, 6)) + 0.5 * np.eye(6)) @ np.linalg.pinv(ds.E).T if general else None
    found = ml.cyclic_correction(ds, loss=loss, head=head)
    moved = replace(found, x=0.5 * rng.normal(size=(8, 8)))
    slope = ml.NextTokenRisk(found.subset, head=head, loss=loss).gradient(moved.x).value()
    assert moved.residual() == pytest.approx(np.linalg.norm(slope), rel=AUTOGRAD, abs=ROUNDING)
    assert moved.residual() > 1e-4


@pytest.mark.parametrize(("loss", "limit"), [(Power(0.0, 2), -0.5), (Power(0.5, 4), -0.0625)], ids=["saddle", "flat"])
def test_a_stationary_start_that_is_not_a_minimum_is_left(loss, limit):
    """By symmetry the slope at zero is none; the curvature is negative, or none either."""
    found = ml.cyclic_correction(pair(0, 1), loss=loss)
    assert found.status is INFINITE
    assert found.risk == pytest.approx(limit, rel=ROUNDING, abs=ROUNDING)


def test_a_plateau_is_not_a_minimum():
    """At a gap of -60 the squared loss of labels 0, 0, 1 is flat to rounding; its minimum is at log 2."""
    ds, start = pair(0, 0, 1), -60.0 * APART
    stuck = ml.cyclic_correction(ds, loss=ml.SquaredLoss(), start=start)
    assert stuck.status is INACCURATE
    scaled = ml.SequenceDataset([[0, 1]] * 3, ds.labels, 2.0**10 * ds.E)
    again = ml.cyclic_correction(scaled, loss=ml.SquaredLoss(), start=start / 2.0**20)
    assert again.gradient_norm == 2.0**20 * stuck.gradient_norm > 0.0
    free = ml.cyclic_correction(ds, loss=ml.SquaredLoss())
    np.testing.assert_allclose(free.x, np.log(2.0) * APART, rtol=0.0, atol=CONDITIONED)


def test_divergence_is_proved_by_a_far_point(monkeypatch):
    """Without a basis there is no Graph-SVM to ask: the direction is the point's own, at least one at every gap."""
    rng = np.random.default_rng(0)
    ds = ml.SequenceDataset([[0, 1, 2]] * 6, [0, 0, 0, 1, 1, 2], rng.normal(size=(3, 4)))
    monkeypatch.setattr(cyclic_risk, "MAX_DENSE_RANK", 0)
    monkeypatch.setattr(subspaces, "_MAX_FACTORED", 0)
    found = ml.cyclic_correction(ds, loss=Power(0.0, 1))
    assert found.status is INFINITE
    gaps = (ds.E[0] - ds.E[1:]) @ found.direction @ ds.E[2]
    assert gaps.min() == pytest.approx(1.0, rel=CONDITIONED, abs=ROUNDING)


@pytest.mark.parametrize("by_products", [False, True], ids=["in a basis", "by products"])
def test_rounding_of_the_risk_does_not_decide(by_products, monkeypatch):
    """Another order of additions changes the risk by rounding: Newton's last steps gain less than that and are taken all the same."""
    if by_products:
        monkeypatch.setattr(cyclic_risk, "MAX_DENSE_RANK", -1)
    rng, exact = np.random.default_rng(0), CyclicRisk.at

    def rounded(self, cells):
        point = exact(self, cells)
        point.__dict__["value"] = point.value * (1.0 + 0.1 * ROUNDING * rng.normal())
        return point

    monkeypatch.setattr(CyclicRisk, "at", rounded)
    for seed in range(40):
        found = ml.cyclic_correction(cyclic_sequences(7, 5, 20, 4, np.random.default_rng(seed)))
        assert found.status is FINITE, (seed, found.reason)


@pytest.mark.parametrize("seed", range(4))
def test_a_stationary_point_with_flat_curvature_is_accepted(monkeypatch, seed):
    """Another order of additions gives flat directions curvatures of either sign, of the size of rounding."""
    noise = np.random.default_rng(seed)
    exact = RiskPoint.hessian

    def rounded(self):
        found = exact(self)
        blur = 1e-14 * noise.standard_normal(found.shape)
        return found + blur + blur.T

    monkeypatch.setattr(RiskPoint, "hessian", rounded)
    rng = np.random.default_rng(5)
    for _ in range(8):
        ds = cyclic_sequences(6, 8, 12, 4, rng)
        assert ml.cyclic_correction(ds, loss=ml.SquaredLoss(), head=ds.E).status in (FINITE, INFINITE)


# ---- the local correction by both rules


@pytest.mark.statement("C §6")
@pytest.mark.parametrize("rule", list(LocalRule), ids=lambda one: one.name)
def test_the_local_correction_agrees_with_a_general_minimizer(rule):
    datasets, finite = [cyclic_sequences(6, 9, 8, 4, seed) for seed in range(12)], 0
    trained = ml.descend(
        datasets, head=[ds.E for ds in datasets], loss=ml.CrossEntropy(), optimizer=ml.NormalizedGD(0.1), n_steps=1_000
    )
    for ds, W in zip(datasets, trained.final, strict=True):
        found = local_correction(ds, W, rule, head=ds.E, loss=ml.CrossEntropy())
        if found.status is not FINITE:
            continue
        finite += 1

        def risk(flat, subset=found.subset, E=ds.E):
            W = flat.reshape(9, 9)
            slope = ml.NextTokenRisk(subset, head=E, loss=ml.CrossEntropy()).gradient(W).value()
            return float(ml.NextTokenRisk(subset, head=E, loss=ml.CrossEntropy()).value(W)), slope.ravel()

        free = minimize(risk, np.zeros(81), jac=True, method="BFGS", options={"gtol": 1e-9}).x.reshape(9, 9)
        np.testing.assert_allclose(
            free, found.x, rtol=0.0, atol=GENERAL_MINIMISER
        )  # gradients span what the samples compare
        np.testing.assert_allclose(found.subspace.project(found.x), found.x, rtol=0.0, atol=ROUNDING)
        assert found.residual() < 1e-10
    assert finite >= 4


@pytest.mark.statement("C §6")
def test_the_local_correction_accepts_partly_compared_components():
    """Tokens 0 to 3 form one component; labels keep {0, 1} and {2, 3} apart, and nothing compares 1 with 2."""
    sequences = [[0, 1, 5], [0, 1, 5], [2, 3, 5], [2, 3, 5], [1, 2, 4, 5], [0, 3, 4, 5]]
    ds = ml.SequenceDataset(sequences, [0, 1, 2, 3, 4, 4], np.eye(6))
    W = np.zeros((6, 6))
    W[[4, 5], 5] = -40.0  # 0, 1, 2, 3 tie above the others
    by_label = local_correction(ds, W, LocalRule.LABELS_COMPONENT)
    by_selected = local_correction(ds, W, LocalRule.SELECTED_COMPONENT, head=np.eye(6), loss=ml.CrossEntropy())
    assert by_label.subset.samples.tolist() == [0, 1, 2, 3]
    assert by_selected.subset.samples.tolist() == [0, 1, 2, 3, 4, 5]
    assert by_label.subspace.rank == by_selected.subspace.rank == 3
    assert by_label.objective.space.rank == 2
    assert by_label.status is FINITE
    np.testing.assert_allclose(by_label.x, 0.0, rtol=0.0, atol=ROUNDING)  # each label once in its pair
    assert by_label.curvature > 0.0


@pytest.mark.statement("C §6")
def test_the_local_correction_of_label_choosing_weights_is_global():
    rng = np.random.default_rng(6)
    for _ in range(4):
        ds = cyclic_sequences(6, 8, 6, 4, rng)
        whole = ml.cyclic_correction(ds)
        W = 200.0 * ml.graph_svm(ds.E, ml.priority_graphs(ds)).x + whole.x
        for rule in LocalRule:
            found = local_correction(ds, W, rule)
            np.testing.assert_allclose(found.x, whole.x, rtol=0.0, atol=CONDITIONED)
            assert found.subspace.rank == whole.subspace.rank
    nothing = local_correction(
        ml.SequenceDataset([[0, 1, 2]], [0], np.eye(3)), np.diag([90.0, 0, 0]) @ np.ones((3, 3)), rule
    )
    assert nothing.status is ml.Status.TRIVIAL
    assert not nothing.x.any()
    with refused("rule"):
        local_correction(ds, W, None)
