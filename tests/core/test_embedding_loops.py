"""Distinct tokens, and AdamW on embeddings, in the core against plain Python and NumPy."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from marginlens import core
from refusals import raised

CONSTANTS = (0.99, 0.1, 0.999, 0.001, 3.0, 1e-8, 0.05)


@pytest.mark.parametrize("lengths", [[], [0], [3, 0, 5], [1] * 7, [40, 2, 90]])
@pytest.mark.parametrize("counted", [True, False])
def test_distinct_tokens_equal_a_counters(lengths, counted):
    rng = np.random.default_rng(len(lengths))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = rng.integers(0, 11, offsets[-1]).astype(np.int32)
    expected = [Counter(tokens[a:b].tolist()) for a, b in pairwise(offsets)]  # in order
    found, count, bounds = np.empty_like(tokens), np.zeros_like(tokens), np.empty_like(offsets)
    place = np.zeros(11, dtype=np.int64)
    n = core.find_distinct(tokens, offsets, place, found, count if counted else None, bounds)
    assert bounds.tolist() == [0, *np.cumsum([len(each) for each in expected])]
    assert found[:n].tolist() == [token for each in expected for token in each]
    assert not counted or count[:n].tolist() == [times for each in expected for times in each.values()]


@pytest.mark.parametrize("offsets", [[], [0, 5, 3], [-1, 2], [0, 9]])
def test_offsets_out_of_bounds_are_refused(offsets):
    offsets, tokens, place = np.array(offsets, dtype=np.int64), np.zeros(5, dtype=np.int32), np.zeros(1, dtype=np.int64)
    with raised(ValueError, "sizes"):
        core.find_distinct(tokens, offsets, place, tokens.copy(), None, offsets.copy())


@pytest.mark.parametrize(("offsets", "token"), [([0, 3], 4), ([0, 3], -1), ([0, 4], 0), ([2, 1], 0), ([-1, 2], 0)])
def test_texts_out_of_bounds_are_refused(offsets, token):
    tokens = np.array([0, token, 1], dtype=np.int32)
    of_tokens, samples = [np.zeros(4) for _ in range(4)], np.zeros(1, dtype=np.int64)
    with raised(ValueError, "sizes"):
        core.add_slopes(tokens, tokens, np.array(offsets), samples, np.ones(1), *of_tokens, np.empty(1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (5, 7), (4, 64), (9, 133)])
def test_steps_and_sums_equal_numpys(shape, dtype):
    (n, d), rng, eps = shape, np.random.default_rng(shape), np.finfo(dtype).eps
    E, M, S = rng.normal(size=(3, n, d)).astype(dtype)
    (x, y), (p, v, new_p, new_v) = rng.normal(size=(2, n)).astype(dtype), rng.normal(size=(4, d)).astype(dtype)
    S, constants = S * S, np.array(CONSTANTS, dtype=dtype)
    shrink, new, kept, share, unbias, tiny, rate = constants.astype(float)
    g = np.outer(x, p.astype(float)) + np.outer(y, v.astype(float))
    m, s = M + (g - M) * new, S * kept + g * g * share
    expected = E * shrink - rate * m / (np.sqrt(s) * unbias + tiny)
    sums, rows = np.empty((3, 2, d), dtype=dtype), np.flatnonzero(rng.random(n) < 0.7)
    getattr(core, f"sum_embeddings_{E.dtype}")(0, 3, E, rows, x, y, sums)
    for weights, found in zip((x, y), sums.sum(axis=0), strict=True):
        np.testing.assert_allclose(found, weights[rows].astype(float) @ E[rows], rtol=0, atol=20 * max(n, 1) * eps)
    a, b = np.full((2, n), np.nan, dtype=dtype)
    step = getattr(core, f"step_embeddings_{E.dtype}")
    for first, last in ((0, n // 2), (n // 2, n)):
        step(first, last, E, M, S, x, y, p, v, new_p, new_v, constants, a, b)
    np.testing.assert_allclose(E, expected, rtol=0, atol=100 * eps)
    np.testing.assert_allclose(a, E @ new_p.astype(float), rtol=0, atol=20 * max(d, 1) * eps)
    np.testing.assert_allclose(b, E @ new_v.astype(float), rtol=0, atol=20 * max(d, 1) * eps)
