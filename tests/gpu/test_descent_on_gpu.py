"""Descent on a real GPU against the CPU: the same selections, and p to 1e-9 of its length where a run does not amplify rounding."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.data import DeviceTokens, sphere_problems, sphere_tokens

pytestmark = pytest.mark.gpu
P_RTOL = 1e-9  # of the length of p
STEADY_RTOL = 1e-12  # a run is steady if permuting the coordinates of all vectors moves the CPU's p by less
N_PROBLEMS = 10_000


def compare(data, head, least_steady=0.9, **options):
    """Runs on both, and what the CPU itself makes of the same problems with coordinates in another order."""
    expected = ml.descend(data, head, **options)
    run = ml.descend(data, head, device="cuda", **options)
    order = np.random.default_rng(0).permutation(data.d_model)
    moved = ml.TokenDataset(np.ascontiguousarray(data.X[..., order]), data.y)
    again = ml.descend(moved, np.ascontiguousarray(head[..., order]), **options)
    size = np.maximum(expected.norm, 1e-300)
    steady = np.linalg.norm(again.final - expected.final[..., order], axis=-1) < STEADY_RTOL * size
    error = np.linalg.norm(run.final - expected.final, axis=-1) / size
    assert steady.mean() >= least_steady
    assert error[steady].max() < P_RTOL
    agree = np.all(again.selected == expected.selected, axis=-1)
    np.testing.assert_array_equal(run.selected[agree], expected.selected[agree])
    np.testing.assert_array_equal(run.status[agree], expected.status[agree])


CASES = {
    "d = 10": (N_PROBLEMS, (4, 6, 10), 1000, {}),
    "d = 100": (N_PROBLEMS, (4, 6, 100), 1000, {}),
    "d = 5": (N_PROBLEMS, (2, 3, 5), 1000, {}),
    "exponential": (N_PROBLEMS, (4, 6, 100), 1000, {"loss": ml.Exponential()}),
    "correlation": (N_PROBLEMS, (4, 6, 100), 1000, {"loss": ml.CorrelationLoss()}),
    "constant steps": (N_PROBLEMS, (4, 6, 100), 1000, {"optimizer": ml.GradientDescent(1.0)}),
    "signs": (2000, (4, 6, 50), 500, {"optimizer": ml.SignDescent(0.05)}),
    "coordinates": (2000, (4, 6, 50), 500, {"optimizer": ml.CoordinateDescent(0.05)}),
    "l3": (2000, (4, 6, 50), 500, {"optimizer": ml.SteepestDescent(ml.Lp(3.0), 0.05)}),
    "64 tokens": (100, (8, 8, 100), 100, {}),
    "36 tokens": (100, (6, 6, 5), 100, {}),
    "400 tokens": (100, (20, 20, 30), 100, {}),
    "long inputs": (100, (3, 40, 70), 100, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_runs_are_those_of_the_cpu(name):
    count, shape, n_steps, options = CASES[name]
    compare(*sphere_tokens(count, *shape, 1), n_steps=n_steps, **options)


def test_norms_of_a_million():
    data, head = sphere_tokens(1000, 4, 6, 100, 4)
    begun = ml.descend(data, head, n_steps=100)
    start = begun.final * (1e6 / begun.norm[:, None])
    run, expected = (ml.descend(data, head, start=start, n_steps=500, device=device) for device in ("cuda", "cpu"))
    np.testing.assert_array_equal(run.selected, expected.selected)
    assert np.all(np.linalg.norm(run.final - expected.final, axis=-1) <= P_RTOL * expected.norm)


def test_problems_made_on_the_gpu():
    tokens, heads = sphere_problems(0, 3000, 4, 6, 50, 0, 0, device="cuda")
    run = ml.descend(tokens, heads, n_steps=500)
    assert isinstance(tokens, DeviceTokens)
    host = tokens.to_host()
    expected = ml.descend(host, heads.get(), n_steps=500)
    np.testing.assert_array_equal(run.to_host("selected"), expected.selected)
    error = np.linalg.norm(run.to_host("final") - expected.final, axis=1)
    assert np.median(error / expected.norm) < P_RTOL
    np.testing.assert_allclose(run.to_host("saturation"), expected.attention.max(-1).mean(-1), rtol=1e-9)


def test_inputs_of_different_lengths():
    data, head = sphere_tokens(2000, 4, 6, 30, 7)
    lengths = np.random.default_rng(8).integers(1, 7, (2000, 4))
    lengths[:, 0] = 6
    ragged = ml.TokenDataset([[data.X[b, i, :n] for i, n in enumerate(row)] for b, row in enumerate(lengths)], data.y)
    expected, run = (ml.descend(ragged, head, n_steps=500, device=device) for device in ("cpu", "cuda"))
    error = np.linalg.norm(run.final - expected.final, axis=1) / np.maximum(expected.norm, 1e-300)
    assert np.quantile(error, 0.9) < P_RTOL
    assert (run.selected == expected.selected).all(axis=1).mean() > 0.999


def test_runs_can_be_resumed_and_recorded():
    data, head = sphere_tokens(500, 4, 6, 50, 9)
    record = ml.Record(50, ("x", "norm"))
    run = ml.descend(data, head, n_steps=200, record=record, device="cuda")
    expected = ml.descend(data, head, n_steps=200, record=record)
    np.testing.assert_allclose(run.saved["norm"], expected.saved["norm"], rtol=1e-9)
    resumed = ml.descend(data, head, n_steps=90, device="cuda").resume(110)
    np.testing.assert_array_equal(resumed.final, run.final)


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ml.InputError, match="cuda:0"):
        ml.descend(*sphere_tokens(1, 2, 3, 4, 0), device="cuda:99")
