"""Weights of the gradient formed for four inputs at a time, against those formed input by input, and logits against NumPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tolerances
from marginlens import core
from random_examples import examples

SCALES = (0.0, 1e-3, 1.0, 30.0, 150.0, 400.0, 4000.0)  # of logits: from uniform attention to weights of e^-10000


def weights_of(a, scores, lengths, code):
    """Logarithm of the scale and weights (n_inputs, n_tokens) of `weights_of_places`, and the sum of all moduli."""
    n, T = scores.shape
    log_scale, found = np.empty(1), np.empty(-(-n // 4) * 4 * T)
    core.weights_of_places(a, scores, lengths, code, log_scale, found)
    by_input = found.reshape(-1, T, 4).swapaxes(1, 2).reshape(-1, T)[:n]
    return log_scale[0], by_input, np.abs(found).sum()


@examples(150)
@given(
    n=st.integers(1, 9),
    T=st.integers(1, 6),
    code=st.integers(0, 2),
    scale=st.sampled_from(SCALES),
    tied=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_weights_of_four_inputs_equal_those_of_one_at_a_time(n, T, code, scale, tied, seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, T + 1, n)
    a, scores = scale * rng.normal(size=(n, T)), rng.normal(size=(n, T))
    if tied:  # equal scores, and equal largest logits
        scores = np.round(scores)
        a[:, : (T + 1) // 2] = a.max()
    expected, scales = np.full((n, T), np.nan), np.empty(1)
    core.pair_weights(a, scores, lengths, code, scales, expected)
    shifted, weights, size = weights_of(a, scores, lengths, code)
    if not expected.any():
        assert not weights.any()
        return
    np.testing.assert_allclose(
        size, np.abs(weights).sum(), rtol=tolerances.ROUNDING, atol=0.0
    )  # none at places without a token
    logarithm = np.log(np.abs(expected).max()) + scales[0]
    assert abs(np.log(np.abs(weights).max()) + shifted - logarithm) <= 1e-13 * max(1.0, abs(logarithm))
    ratio = weights / np.abs(weights).max() - expected / np.abs(expected).max()
    assert np.abs(ratio).max() <= 1e-15 * max(10.0, scale)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 4, 5), (3, 2, 5, 12), (2, 1, 3, 21), (0, 2, 2, 3)])
def test_logits_equal_those_of_centered_keys(shape):
    rng = np.random.default_rng(sum(shape))
    keys, points = rng.normal(size=shape), rng.normal(size=(shape[0], shape[3]))
    lengths = rng.integers(1, shape[2] + 1, shape[:2])
    is_token = np.arange(shape[2]) < lengths[..., None]
    means = np.einsum("bitd,bit->bid", keys, is_token / lengths[..., None])
    expected = np.where(is_token, np.einsum("bitd,bd->bit", keys - means[:, :, None], points), 0.0)
    out = np.empty(shape[:3])
    core.centred_logits(0, shape[0], keys, lengths, points, out)
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-14)
