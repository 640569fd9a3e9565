"""Match and copy: the squared loss of the attended value, exact however far it has fallen, and what is said of its runs."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.risk import CopyRisk
from marginlens.testing import check_risk
from tolerances import ROUNDING


def problem(seed: int, value_width: int = 6, n_inputs: int = 3, n_tokens: int = 5, width: int = 12):
    rng = np.random.default_rng(seed)
    data = ml.data.TokenDataset(
        rng.standard_normal((n_inputs, n_tokens, value_width)),
        np.ones(n_inputs),
        K=rng.standard_normal((n_inputs, n_tokens, width)),
    )
    return data, rng.integers(n_tokens, size=n_inputs), rng


@pytest.mark.statement("X M")
def test_copying_risk_is_the_mean_half_squared_distance():
    data, match, rng = problem(0)
    risk = CopyRisk.of(data, match)
    assert risk.match.tolist() == match.tolist()
    check_risk(risk, rng=2, scale=3.0)
    for scale in (0.1, 1.0, 5.0):
        p = scale * rng.standard_normal(data.d_key)
        weights = np.exp(data.K @ p - np.max(data.K @ p, axis=1, keepdims=True))
        average = np.einsum("it,itd->id", weights / weights.sum(axis=1, keepdims=True), data.X)
        expected = 0.5 * np.mean(np.sum((average - data.X[np.arange(3), match]) ** 2, axis=1))
        assert risk.value(p) == pytest.approx(expected, rel=1e-12, abs=ROUNDING)


@pytest.mark.statement("X M")
def test_gradients_and_values_are_exact_after_underflow():
    """Far along a separating direction the loss falls like e^(-2 r margin), and the gradient keeps its direction."""
    data, match, _ = problem(1)
    risk, direction = CopyRisk.of(data, match), ml.att_svm(data, match).direction
    radii = np.array([50.0, 2000.0, 4000.0, 8000.0])
    logs = np.array([risk.log_value(r * direction) for r in radii])
    assert logs[-1] < -2000.0
    slope = (logs[-1] - logs[-2]) / (radii[-1] - radii[-2])
    assert slope == pytest.approx(-2.0 * float(ml.att_svm(data, match).margin), rel=1e-9, abs=ROUNDING)
    near, far = (risk.gradient(r * direction) for r in radii[-2:])
    assert near.direction() @ far.direction() == pytest.approx(1.0, abs=1e-9, rel=0.0)
    assert -far.direction() @ direction > 0.0


@pytest.mark.statement("X M")
def test_copying_batches_and_excess_follow_single_problems():
    data, match, rng = problem(2)
    risk, p = CopyRisk.of(data, match), rng.standard_normal(data.d_key)
    both = CopyRisk.of(data.repeat(2), np.stack([match, (match + 1) % 5]))
    assert both.value(np.stack([p, p]))[0] == pytest.approx(risk.value(p), rel=1e-14, abs=ROUNDING)
    assert both[1].match.tolist() == ((match + 1) % 5).tolist()
    other = (match + 2) % 5
    outright = 0.5 * np.mean(np.sum((data.X[np.arange(3), other] - data.X[np.arange(3), match]) ** 2, axis=1))
    excess = risk.excess(p, other)
    assert excess.sign * np.exp(excess.log) == pytest.approx(risk.value(p) - outright, rel=1e-10, abs=ROUNDING)


@pytest.mark.statement("X M")
def test_runs_of_vanishing_loss_reach_the_predicted_limit():
    data, match, _ = problem(3)
    risk = CopyRisk.of(data, match)
    said = ml.predict(risk)
    assert said.observed is not None
    assert said.reasons[0].code == "copying.vanishing"
    assert said.answer.ends_at.code == "outcome.theorem.unknown"
    run = ml.descend(risk, optimizer=ml.NormalizedGD(0.5), n_steps=3000)
    assert risk.log_value(run.final) < -100.0
    assert ml.correlation(run.final, said.observed) > 0.999
    narrow = ml.predict(CopyRisk.of(*problem(3, value_width=2)[:2]))
    assert narrow.observed is None
    assert narrow.verdicts[0].failed[0].code == "requirement.independent_values"
    crowded = ml.predict(CopyRisk.of(*problem(3, width=1)[:2]))
    assert crowded.observed is None
    assert crowded.verdicts[0].failed[0].code == "requirement.separable_matches"
