"""The compiled loop of optimizers in any norm: equal to one step at a time, resumed, in batches, with ragged inputs and shared queries."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.dynamics.descend import Descent
from marginlens.dynamics.loops import StepwiseLoop
from marginlens.risk.protocol import starting_points
from tolerances import ROUNDING


def problems(seed=0, ragged=False):
    rng = np.random.default_rng(seed)
    if ragged:
        X = [rng.normal(size=(length, 5)) for length in (4, 2, 6)]
        return ml.AttentionRisk(ml.TokenDataset(X, [1.0, -1.0, 1.0]), rng.normal(size=5)), rng.normal(size=(3, 4))
    data, v = ml.data.sphere_tokens(2, 4, 5, 6, seed)
    return ml.AttentionRisk(data, v), rng.normal(size=(2, 4, 3))


def one_at_a_time(risk, optimizer, n_steps, start=None):
    loop = StepwiseLoop(risk, optimizer)
    return Descent(risk, loop, loop.begin(starting_points(risk, start)), 0).resume(n_steps, None, None)


def test_rank_one_steps_reach_the_margin_in_either_form():
    """Which of two singular values is the larger may be decided by rounding, so iterates differ and margins do not."""
    risk, queries = problems(4)
    risk, optimizer = risk[0].as_matrix(queries[0]), ml.SteepestDescent(ml.Nuclear(), 0.05)
    runs = ml.descend(risk, optimizer=optimizer, n_steps=1000), one_at_a_time(risk, optimizer, 1000)
    rows = risk.margin_rows(runs[0].selected).rows
    shares = [np.min(np.einsum("rqd,qd->r", rows, run.final)) / ml.Nuclear().value(run.final) for run in runs]
    assert shares[0] == pytest.approx(shares[1], rel=0.01, abs=ROUNDING)


def test_spectral_steps_are_exact_for_terms_beyond_float64_range():
    """From a W of norm 1e4 the terms of the gradient differ by e^1000 and more, and the steps have all singular values at one."""
    risk, queries = problems(6)
    risk = risk[0].as_matrix(queries[0])
    start = 1e4 * np.random.default_rng(7).normal(size=risk.shape)
    logs = risk.gradient(start).terms.log_scale
    assert np.ptp(logs) > 745
    move = ml.descend(risk, optimizer=ml.SteepestDescent(ml.Spectral(), 1.0), n_steps=1, start=start).final - start
    assert np.allclose(np.linalg.svd(move, compute_uv=False), 1.0, rtol=0, atol=1e-8)


def test_queries_with_zeros_take_their_steps_one_by_one():
    """A coordinate that only one input's query has keeps its sign however small that input's gradient is."""
    rng = np.random.default_rng(8)
    data = ml.TokenDataset(rng.normal(size=(2, 3, 3)), [1.0, 1.0])
    risk = ml.AttentionRisk(data, rng.normal(size=3)).as_matrix(np.eye(2))
    start = np.zeros((2, 3))
    start[0] = 3000.0 * (data.X[0, 0] - data.X[0, 1])
    assert np.ptp(risk.gradient(start).terms.log_scale) > 745
    moved = ml.descend(risk, optimizer=ml.SignDescent(1.0), n_steps=1, start=start).final - start
    assert np.array_equal(np.abs(moved), np.ones((2, 3)))
