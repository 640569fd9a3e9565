"""Weights of the gradient formed for four inputs at a time, against those formed input by input."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

import tolerances
from marginlens.kernels import blocks
from marginlens.kernels.lanes import pointer
from marginlens.risk.kernels.gradient_coefficients import ROOM_PER_LANE, block_weights, pair_weights

SCALES = (0.0, 1e-3, 1.0, 30.0, 150.0, 400.0, 4000.0)  # of logits: from uniform attention to weights of e^-10000


@njit(nogil=True)
def weights_of(a, scores, lengths, code):
    """Logarithm of the scale and weights (n_inputs, n_tokens) of `block_weights`, the second of two calls."""
    n, T = scores.shape
    m = blocks.n_places(n, T)
    vectors, room = np.zeros((3, m)), np.full(ROOM_PER_LANE * (m // T), np.nan)
    blocks.arrange(a, lengths, vectors[0])
    blocks.close(lengths, T, m, vectors[0])
    blocks.arrange(scores, lengths, vectors[1])
    log_scale, weights = 0.0, np.zeros((n, T))
    for _ in range(2):
        log_scale = block_weights(
            pointer(vectors[0]), pointer(vectors[1]), n, T, code, pointer(room), pointer(vectors[2])
        )
    for i in range(n):
        for t in range(T):
            weights[i, t] = vectors[2, blocks.place(i, t, T)]
    return log_scale, weights, np.abs(vectors[2]).sum() + 0.0 * room[0]


@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(1, 9),
    T=st.integers(1, 6),
    code=st.integers(0, 2),
    scale=st.sampled_from(SCALES),
    tied=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_four_inputs_at_a_time_have_the_weights_of_one_at_a_time(n, T, code, scale, tied, seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, T + 1, n)
    a, scores = scale * rng.normal(size=(n, T)), rng.normal(size=(n, T))
    if tied:  # equal scores, and equal largest logits
        scores = np.round(scores)
        a[:, : (T + 1) // 2] = a.max()
    expected = np.zeros(n * T)
    log_scale = pair_weights(a.ravel(), scores, lengths, code, expected)
    shifted, weights, size = weights_of(a, scores, lengths, code)
    if not expected.any():
        assert not weights.any()
        return
    np.testing.assert_allclose(size, np.abs(weights).sum(), rtol=tolerances.ROUNDING)  # none at places without a token
    logarithm = np.log(np.abs(expected).max()) + log_scale
    assert abs(np.log(np.abs(weights).max()) + shifted - logarithm) <= 1e-13 * max(1.0, abs(logarithm))
    ratio = weights.ravel() / np.abs(weights).max() - expected / np.abs(expected).max()
    assert np.abs(ratio).max() <= 1e-15 * max(10.0, scale)
