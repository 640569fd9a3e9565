"""Risk, gradient and curvature of reduced problems against the definition and finite differences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tolerances
from marginlens.data.random_sequences import cyclic_sequences
from marginlens.data.sequences import SequenceDataset
from marginlens.losses.next_token import CrossEntropy, LogLoss, NextTokenLoss, SquaredLoss, SquaredProbability
from marginlens.nexttoken import cyclic_risk
from marginlens.nexttoken.cyclic_risk import ComponentRisk
from marginlens.risk.reduced_sequences import reduce_sequences

LOSSES = [LogLoss(), SquaredLoss(), CrossEntropy(), SquaredProbability()]


def problem(seed: int, *, general: bool) -> tuple[SequenceDataset, np.ndarray | None, np.random.Generator]:
    rng = np.random.default_rng(seed)
    ds = cyclic_sequences(6, 4, 15, 5, rng)
    return ds, (np.abs(rng.normal(size=(6, 6))) + 0.1 if general else None), rng


def by_definition(ds: SequenceDataset, loss: NextTokenLoss, scores: np.ndarray | None) -> Callable[[np.ndarray], float]:
    def risk(W: np.ndarray) -> float:
        total = 0.0
        for i in range(len(ds)):
            ids, label = ds[i]
            logits = ds.E[ids] @ W @ ds.E[ids[-1]]
            s = np.exp(logits - logits.max())
            share = np.bincount(ids, weights=s / s.sum(), minlength=ds.n_vocabulary)
            outputs = share if scores is None else scores @ share
            total += loss.value(outputs[None], np.array([label]))[0]
        return total / len(ds)

    return risk


@pytest.mark.parametrize("general", [False, True], ids=["C Eᵀ = I", "general head"])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda one: type(one).__name__)
def test_value_gradient_and_curvature_follow_the_definition(
    loss: NextTokenLoss, general: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cyclic_risk, "_CHUNK", 100)  # several chunks of second derivatives
    ds, scores, rng = problem(0, general=general)
    reduced, brute = reduce_sequences(ds), by_definition(ds, loss, scores)
    risk = ComponentRisk(reduced, scores=scores, loss=loss)
    W, V, h = rng.normal(size=(4, 4)), rng.normal(size=(4, 4)), 1e-5
    point, direction = risk.at(reduced.table(W)), reduced.table(V)
    assert point.value == pytest.approx(brute(W), rel=tolerances.ROUNDING)
    slope = float(np.sum(reduced.lift(point.gradient) * V))
    assert slope == pytest.approx((brute(W + h * V) - brute(W - h * V)) / (2 * h), abs=tolerances.FINITE_DIFFERENCE)
    bent = (risk.at(reduced.table(W + h * V)).gradient - risk.at(reduced.table(W - h * V)).gradient) / (2 * h)
    np.testing.assert_allclose(point.product(direction), bent, atol=tolerances.FINITE_DIFFERENCE)
    cells = direction[risk.tokens, risk.columns]
    np.testing.assert_allclose(point.hessian() @ cells, point.cell_product(cells), atol=tolerances.ROUNDING)


def test_saturated_samples_keep_their_slope() -> None:
    """At logits of ±200 the label's slope is the sum of the others', not the rounding of 1 - s."""
    ds = SequenceDataset([[0, 1]], [0], np.eye(2))
    risk = ComponentRisk(reduce_sequences(ds))
    point = risk.at_cells(np.array([200.0, 0.0]))
    np.testing.assert_allclose(point.cell_gradient, [-np.exp(-200.0), np.exp(-200.0)], rtol=tolerances.ROUNDING)
    assert point.value == pytest.approx(np.exp(-200.0), rel=tolerances.ROUNDING, abs=0.0)
    assert risk.at_cells(np.array([-2000.0, 0.0])).value == 2000.0


def test_a_label_that_no_token_gives_costs_infinitely_much() -> None:
    ds = SequenceDataset.of_positions(np.array([0, 1]), np.array([0, 2]), np.array([2]), np.eye(3))
    assert ComponentRisk(reduce_sequences(ds)).at_cells(np.zeros(2)).value == np.inf
