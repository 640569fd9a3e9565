"""Risk, gradient and curvature over a cyclic subset against the definition and finite differences."""

import numpy as np
import pytest

import tolerances
from marginlens.data import SequenceDataset, cyclic_sequences
from marginlens.graphs import cyclic_subspace, priority_graphs
from marginlens.graphs.cyclic import leading_subset, pseudo_graphs
from marginlens.losses.next_token import CrossEntropy, LogLoss, SquaredLoss, SquaredProbability
from marginlens.nexttoken import cyclic_risk
from marginlens.nexttoken.cyclic_risk import CyclicRisk

LOSSES = {type(loss).__name__: loss for loss in (LogLoss(), SquaredLoss(), CrossEntropy(), SquaredProbability())}


def by_definition(subset, loss, scores, W):
    total = 0.0
    for i in range(len(subset)):
        ids, label = subset[i]
        logits = subset.E[ids] @ W @ subset.E[subset.last[i]]
        s = np.exp(logits - logits.max())
        share = np.bincount(ids, weights=s / s.sum(), minlength=subset.n_vocabulary)
        outputs = share if scores is None else scores @ share
        total += loss.value(outputs[None], np.array([label]))[0]
    return total / len(subset)


@pytest.mark.parametrize("general", [False, True], ids=["C Eᵀ = I", "general head"])
@pytest.mark.parametrize("name", LOSSES)
def test_value_gradient_and_curvature_follow_the_definition(name, general, monkeypatch):
    monkeypatch.setattr(cyclic_risk, "SECOND_DERIVATIVES_AT_ONCE", 100)  # several chunks
    rng, loss = np.random.default_rng(0), LOSSES[name]
    data = cyclic_sequences(6, 4, 15, 5, rng)
    scores = np.abs(rng.normal(size=(6, 6))) + 0.1 if general else None
    graphs = priority_graphs(data)
    subset, space = leading_subset(data, graphs), cyclic_subspace(data.E, graphs)
    risk = CyclicRisk(subset, space, scores, loss)
    scale = 2.0 ** (2 * risk.power)
    W, V, h = scale * rng.normal(size=(4, 4)), scale * space.project(rng.normal(size=(4, 4))), 1e-5

    def brute(weights):
        return by_definition(subset, loss, scores, weights / scale)

    point, direction = risk.at(risk.space.cells(W)), risk.space.cells(V)
    assert point.value == pytest.approx(brute(W), rel=tolerances.ROUNDING, abs=tolerances.ROUNDING)
    slope = (brute(W + h * V) - brute(W - h * V)) / (2 * h)
    assert float(np.sum(risk.gradient(W) * V)) == pytest.approx(slope, abs=tolerances.FINITE_DIFFERENCE, rel=0.0)
    ahead, behind = (risk.at(risk.space.cells(W + sign * h * V)).gradient for sign in (1.0, -1.0))
    np.testing.assert_allclose(
        point.product(direction), (ahead - behind) / (2 * h), rtol=0.0, atol=tolerances.FINITE_DIFFERENCE
    )
    np.testing.assert_allclose(
        risk.space.centre(point.hessian() @ direction), point.product(direction), rtol=0.0, atol=tolerances.ROUNDING
    )


def tied(sequences, labels):
    """The log-loss of samples whose tokens are all one component."""
    data = SequenceDataset(sequences, labels, np.eye(3), unrealizable="keep")
    graphs = pseudo_graphs(data, np.zeros((3, 3)), 0.01)
    return CyclicRisk(leading_subset(data, graphs), cyclic_subspace(data.E, graphs), None, LogLoss())


def test_saturated_samples_keep_their_slope():
    """At logits of ±200 the label's slope is the sum of the others', not the rounding of 1 - s."""
    point = tied([[0, 1]], [0]).at(np.array([200.0, 0.0]))
    np.testing.assert_allclose(point.gradient, [-np.exp(-200.0), np.exp(-200.0)], rtol=tolerances.ROUNDING, atol=0.0)
    assert point.value == pytest.approx(np.exp(-200.0), rel=tolerances.ROUNDING, abs=0.0)
    assert tied([[0, 1]], [0]).at(np.array([-2000.0, 0.0])).value == 2000.0


def test_an_unreachable_label_has_infinite_risk():
    assert tied([[0, 1]], [2]).at(np.zeros(2)).value == np.inf
