"""Gradient flow on every kind of risk: the limit of small normalised steps, batches against singles, and where it ends."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.data import TokenDataset
from marginlens.optimizers import NormalizedGD
from quadratic_risk import Quadratic, risks_of_every_kind
from tolerances import ROUNDING, SIX_DIGITS

SMALL_STEP = 1e-3
ON_THE_CURVE = 5e-3  # distance to normalised steps of that size after an arc length of one


RISKS = risks_of_every_kind()


@pytest.mark.statement("B Eq. (7)")
@pytest.mark.parametrize("name", RISKS)
def test_flow_is_the_limit_of_small_normalized_steps(name):
    risk = RISKS[name]
    start = 0.3 * np.random.default_rng(1).normal(size=risk.shape)
    record = ml.Record(1, ("x", "risk", "norm"))
    run = ml.flow(risk, until=ml.UntilLength(1.0), start=start, record=record)
    steps = ml.descend(risk, optimizer=NormalizedGD(SMALL_STEP), n_steps=round(1.0 / SMALL_STEP), start=start)
    assert run.status is ml.Status.COMPLETED
    assert np.linalg.norm(run.final - steps.final) < ON_THE_CURVE
    assert run.saved["risk"][1] < run.saved["risk"][0]
    assert np.array_equal(run.saved["x"][-1], run.final)


@pytest.mark.parametrize("name", ["joint", "next token"])
def test_flow_reaches_the_requested_norm(name):
    run = ml.flow(RISKS[name], until=ml.UntilNorm(15.0), start=0.1 * np.ones(RISKS[name].shape), rtol=1e-5)
    assert run.norm == pytest.approx(15.0, rel=SIX_DIGITS, abs=ROUNDING)


def test_flow_ends_at_a_finite_minimum():
    run = ml.flow(Quadratic(), until=ml.UntilNorm(50.0))
    assert run.status is ml.Status.STATIONARY
    assert run.final == pytest.approx(np.ones(3), abs=2e-5, rel=0.0)


def test_flow_of_a_batch_equals_its_loop():
    rng = np.random.default_rng(2)
    data = TokenDataset(rng.normal(size=(2, 2, 3, 2)), np.array([[1.0, -1.0], [1.0, 1.0]]))
    start = rng.normal(size=(2, 4))
    reports = []
    batch = ml.flow(
        ml.JointRisk(data), until=ml.UntilLength(2.0), start=start, progress=lambda *report: reports.append(report)
    )
    assert reports == [(1, 2), (2, 2)]
    for j in range(2):
        single = ml.flow(ml.JointRisk(data[j]), until=ml.UntilLength(2.0), start=start[j])
        assert np.array_equal(single.final, batch.final[j])
    both = [ml.data.cyclic_sequences(4, 4, 5, 4, seed) for seed in (0, 1)]
    heads = [None, both[1].E]
    runs = ml.flow(both, heads, loss=ml.SquaredLoss(), until=ml.UntilLength(1.0))
    alone = ml.flow(both[1], heads[1], loss=ml.SquaredLoss(), until=ml.UntilLength(1.0))
    assert np.array_equal(runs.final[1], alone.final)
