"""Selections measured on a device: gaps, kinds of optimality, correlations and attention of the CPU."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import marginlens as ml
from gpu.twin import TwinDevice, needs_compiler
from marginlens.data import DeviceTokens, gaussian_problems, sphere_problems
from marginlens.gpu.measures import OPTIMALITY_KINDS
from marginlens.risk import softmax
from marginlens.theory.device_optimality import device_optimality


def on_device(array):
    return array.get() if hasattr(array, "get") else array


def assert_same(found, data, head, selected, p):
    expected = ml.token_optimality(data, head, selected)
    kinds = np.select([expected.is_globally_optimal, expected.is_locally_optimal, expected.is_feasible], [0, 1, 2], 3)
    assert np.array_equal(on_device(found.kind), kinds)
    gap = np.abs(expected.score_gap[np.isfinite(expected.score_gap)]).max(initial=1.0)
    np.testing.assert_allclose(on_device(found.score_gap), expected.score_gap, rtol=1e-12, atol=1e-12 * gap)
    feasible = expected.solution.status == ml.Status.OPTIMAL
    correlation = ml.correlation(p, np.where(feasible[:, None], expected.solution.x, p))
    np.testing.assert_allclose(on_device(found.correlation)[feasible], correlation[feasible], atol=1e-9)
    chosen = np.take_along_axis(softmax(data, p), selected[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(on_device(found.smallest_probability), chosen.min(axis=-1), rtol=1e-11)


@needs_compiler
@settings(max_examples=20)
@given(
    st.sampled_from([sphere_problems, gaussian_problems]),
    st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 12)),
    st.integers(0, 2**20),
)
def test_measures_are_the_cpus(make, shape, seed):
    n, T, d = shape
    data, v = make(0, 5, n, T, d, seed)
    rng = np.random.default_rng(seed)
    tokens = DeviceTokens(data.X, data.y, data.K, device=TwinDevice())
    p = rng.normal(size=(5, d))
    for selected in (data.optimal(v), rng.integers(0, T, size=(5, n)), np.argmax(softmax(data, p), axis=-1)):
        assert_same(device_optimality(tokens, v, selected, p), data, v, selected, p)


@needs_compiler
@settings(max_examples=15)
@given(st.integers(0, 2**20))
def test_ties_of_scores_and_of_constraints_are_the_cpus(seed):
    rng = np.random.default_rng(seed)
    X = rng.integers(-1, 2, size=(8, 2, 4, 3)).astype(float)
    data, v, selected = ml.TokenDataset(X, np.ones((8, 2))), np.array([1.0, -1.0, 0.0]), rng.integers(0, 4, size=(8, 2))
    tokens, p = DeviceTokens(X, data.y, device=TwinDevice()), rng.normal(size=(8, 3))
    assert_same(device_optimality(tokens, v, selected, p), data, v, selected, p)


@needs_compiler
def test_ragged_problems_are_the_cpus():
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 6, size=(30, 3))
    data = ml.TokenDataset([[rng.normal(size=(t, 7)) for t in row] for row in lengths], np.ones((30, 3)))
    tokens = DeviceTokens(data.X, data.y, lengths=data.lengths, device=TwinDevice())
    v, p, selected = rng.normal(size=7), rng.normal(size=(30, 7)), rng.integers(0, lengths)
    assert_same(device_optimality(tokens, v, selected, p), data, v, selected, p)


@needs_compiler
def test_without_p_only_the_selection_is_measured():
    data, v = sphere_problems(0, 5, 2, 3, 6, 0)
    found = device_optimality(DeviceTokens(data.X, data.y, device=TwinDevice()), v, data.optimal(v))
    assert found.correlation is None
    assert np.all(found.kind == OPTIMALITY_KINDS.index("global"))
    assert "5 global" in repr(found)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(2, 3, 5), (4, 6, 3), (4, 6, 10), (4, 6, 100), (5, 8, 33)], ids=str)
def test_the_gpu_measures_what_the_cpu_does(shape):
    n, T, d = shape
    tokens, v = sphere_problems(0, 2000, n, T, d, 5, device="cuda")
    data, head = sphere_problems(0, 2000, n, T, d, 5)
    p = np.random.default_rng(0).normal(size=(2000, d))
    for selected in (data.optimal(head), np.argmax(softmax(data, p), axis=-1)):
        assert_same(device_optimality(tokens, v, selected, tokens.device.xp.asarray(p)), data, head, selected, p)
