"""The compiled loop of optimizers in any norm: equal to one step at a time, resumed, in batches, with ragged inputs and shared queries."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.dynamics.descend import Descent, StepwiseLoop, starting_points
from marginlens.dynamics.kernels.steepest_descent import MatrixLoop
from marginlens.optimizers import PowerDecay

ROUNDING = 1e-9  # of iterates after hundreds of steps
ROOT_ROUNDING = 1e-6  # where steps are square roots of gradients, whose rounding beside zero they enlarge

ON_BOTH = {
    "sign": ml.SignDescent(0.05),
    "coordinate": ml.CoordinateDescent(0.05),
    "l3": ml.SteepestDescent(ml.Lp(3.0), PowerDecay(0.3, 0.5)),
    "l1.75, heavy ball": ml.SteepestDescent(ml.Lp(1.75), 0.05, 0.8),
    "Signum, Nesterov": ml.SignDescent(0.02, 0.9, nesterov=True),
    "Euclidean, heavy ball": ml.SteepestDescent(ml.L2(), 0.1, 0.5),
    "Adam": ml.Adam(0.02),
    "Adam, eps": ml.Adam(0.05, (0.8, 0.95), 1e-3),
    "mirror": ml.MirrorDescent(1.75, 0.5),
    "normalised mirror": ml.MirrorDescent(3.0, 0.1, normalized=True),
}
ON_MATRICES = {
    **ON_BOTH,
    "spectral": ml.SteepestDescent(ml.Spectral(), 0.05),
    "Muon": ml.Muon(0.02),
    "max row": ml.SteepestDescent(ml.MaxRow(), 0.05, 0.5),
    "normalised": ml.NormalizedGD(0.1),
    "plain": ml.GradientDescent(1.0),
}


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


def agree(risk, optimizer, start=None):
    fast = ml.descend(risk, optimizer=optimizer, n_steps=300, start=start)
    slow = one_at_a_time(risk, optimizer, 300, start)
    assert isinstance(fast.continuation.loop, MatrixLoop)
    atol = ROOT_ROUNDING if getattr(optimizer, "norm", None) == ml.Lp(3.0) else ROUNDING
    assert np.allclose(fast.final, slow.final, rtol=0, atol=atol)
    assert np.array_equal(fast.selected, slow.selected)


@pytest.mark.parametrize("name", ON_BOTH)
def test_compiled_steps_on_p_are_the_optimizers_own(name):
    agree(problems()[0], ON_BOTH[name])


@pytest.mark.parametrize("name", ON_MATRICES)
def test_compiled_steps_on_W_are_the_optimizers_own(name):
    risk, queries = problems(1)
    agree(risk.as_matrix(queries), ON_MATRICES[name])


@pytest.mark.parametrize("name", ["sign", "Muon", "Adam"])
def test_ragged_inputs_and_shared_queries(name):
    risk, queries = problems(2, ragged=True)
    start = 0.3 * np.random.default_rng(3).normal(size=(4, 5))
    agree(risk.as_matrix(queries), ON_MATRICES[name], start)
    agree(risk.as_matrix(queries[0]), ON_MATRICES[name], start)


def test_rank_one_steps_reach_the_margin_whichever_way_they_are_taken():
    """Which of two singular values is the larger may be decided by rounding, so iterates differ and margins do not."""
    risk, queries = problems(4)
    risk, optimizer = risk[0].as_matrix(queries[0]), ml.SteepestDescent(ml.Nuclear(), 0.05)
    runs = ml.descend(risk, optimizer=optimizer, n_steps=1000), one_at_a_time(risk, optimizer, 1000)
    rows = risk.margin_rows(runs[0].selected).rows
    shares = [np.min(np.einsum("rqd,qd->r", rows, run.final)) / ml.Nuclear().value(run.final) for run in runs]
    assert shares[0] == pytest.approx(shares[1], rel=0.01)


@pytest.mark.parametrize("name", ["sign", "Signum, Nesterov", "Adam", "normalised mirror"])
def test_runs_can_be_cut_saved_and_repeated(name):
    risk, queries = problems(5)
    for each in (risk, risk.as_matrix(queries)):
        record = ml.Record([0, 3, 70, 150])
        whole = ml.descend(each, optimizer=ON_BOTH[name], n_steps=150, record=record)
        half = ml.descend(each, optimizer=ON_BOTH[name], n_steps=64)
        assert np.array_equal(half.resume(86).final, whole.final)
        assert np.array_equal(whole.saved["x"][:, -1], whole.final)
        assert np.array_equal(whole.saved["x"][:, 0], np.zeros_like(whole.final))
        single = ml.descend(each[1], optimizer=ON_BOTH[name], n_steps=150, record=record)
        assert np.array_equal(single.saved["x"], whole.saved["x"][1])


def test_spectral_steps_stay_right_where_terms_differ_beyond_float64():
    """From a W of norm 1e4 the terms of the gradient differ by e^1000 and more, and the steps have all singular values at one."""
    risk, queries = problems(6)
    risk = risk[0].as_matrix(queries[0])
    start = 1e4 * np.random.default_rng(7).normal(size=risk.shape)
    logs = risk.gradient(start).terms.log_scale
    assert np.ptp(logs) > 745
    move = ml.descend(risk, optimizer=ml.SteepestDescent(ml.Spectral(), 1.0), n_steps=1, start=start).final - start
    assert np.allclose(np.linalg.svd(move, compute_uv=False), 1.0, rtol=0, atol=1e-8)


def test_zero_gradients_end_a_run():
    data = ml.TokenDataset(np.ones((2, 3, 4)), [1.0, -1.0])
    run = ml.descend(data, np.ones(4), optimizer=ml.SignDescent(1.0), n_steps=10)
    assert run.status is ml.Status.STATIONARY
    assert run.steps_taken == 0


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
