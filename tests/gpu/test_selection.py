"""Selections measured on a device: gaps, kinds of optimality, correlations and attention of the CPU."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

import marginlens as ml
from gpu.twin import device_arrays
from marginlens.data import gaussian_problems, sphere_problems
from marginlens.gpu.device import to_host
from marginlens.risk import softmax
from marginlens.sweeps.on_device import measured_on_device
from marginlens.sweeps.records import optimality_codes
from random_examples import examples


def check(device, data, head, selected, p):
    """What the device measures is what the CPU says."""
    made = device_arrays(device, data, head)
    found = measured_on_device(device, made, device.xp.asarray(selected), device.xp.asarray(p))
    found = {name: to_host(array) for name, array in found.items()}
    expected = ml.token_optimality(data, head, selected)
    assert np.array_equal(found["optimality"], optimality_codes(expected))
    gap = np.abs(expected.score_gap[np.isfinite(expected.score_gap)]).max(initial=1.0)
    np.testing.assert_allclose(found["score_gap"], expected.score_gap, rtol=1e-12, atol=1e-12 * gap)
    feasible = expected.solution.status == ml.Status.OPTIMAL
    correlation = ml.correlation(p, np.where(feasible[:, None], expected.solution.x, p))
    np.testing.assert_allclose(found["correlation"][feasible], correlation[feasible], rtol=0.0, atol=1e-9)
    chosen = np.take_along_axis(softmax(data, p), selected[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(found["smallest_probability"], chosen.min(axis=-1), rtol=1e-11, atol=0.0)


@examples(20)
@given(
    st.sampled_from([sphere_problems, gaussian_problems]),
    st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 12)),
    st.integers(0, 2**20),
    st.just(5),
)
@example(sphere_problems, (4, 6, 100), 5, 300)
@example(sphere_problems, (5, 8, 33), 5, 300)
def test_measures_equal_the_cpus(device, make, shape, seed, n_problems):
    n, T, d = shape
    data, v = make(0, n_problems, n, T, d, seed)
    rng = np.random.default_rng(seed)
    p = rng.normal(size=(n_problems, d))
    for selected in (data.optimal(v), rng.integers(0, T, size=(n_problems, n)), np.argmax(softmax(data, p), axis=-1)):
        check(device, data, v, selected, p)


@examples(15)
@given(st.integers(0, 2**20))
def test_ties_of_scores_and_constraints_equal_the_cpus(device, seed):
    rng = np.random.default_rng(seed)
    X = rng.integers(-1, 2, size=(8, 2, 4, 3)).astype(float)
    data, v, selected = ml.TokenDataset(X, np.ones((8, 2))), np.array([1.0, -1.0, 0.0]), rng.integers(0, 4, size=(8, 2))
    check(device, data, v, selected, rng.normal(size=(8, 3)))
