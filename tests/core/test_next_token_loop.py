"""The compiled weights of next tokens against NumPy at every remainder of samples and entries, and the arrays that the loop refuses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tolerances
from marginlens import core
from random_examples import examples
from refusals import raised

LIKELIHOOD, LOG = -2, 0


def samples_of(lengths, rng):
    """Entries of samples of these lengths, the label the first of each: pair, log-count, score, token, span, share, label and head."""
    lengths = np.array(lengths, dtype=np.int64)
    ends = np.cumsum(lengths)
    span, n_entries = np.column_stack([ends - lengths, ends]), int(lengths.sum())
    pair = np.concatenate([np.zeros(0, dtype=np.int64), *(rng.permutation(9)[:length] for length in lengths)])
    score = np.zeros(n_entries)
    score[span[:, 0]] = 1.0
    share = np.full(len(lengths), 1.0 / max(len(lengths), 1))
    label = np.zeros(len(lengths), dtype=np.int64)
    return [
        pair,
        np.log(rng.integers(1, 4, n_entries)),
        score,
        np.zeros(n_entries, dtype=np.int64),
        span,
        share,
        label,
        np.ones((1, 1)),
    ]


def weights(a, samples, loss):
    w, log_scale = np.full(len(a), np.nan), np.zeros(1)
    core.next_token_weights(a, *samples, loss, w, log_scale)
    return w, log_scale[0]


@examples(60)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=11),
    scale=st.sampled_from((0.0, 1.0, 30.0)),
    seed=st.integers(0, 1000),
)
def test_the_likelihood_weighs_a_token_by_its_probability(lengths, scale, seed):
    rng = np.random.default_rng(seed)
    samples, a, expected = samples_of(lengths, rng), scale * rng.normal(size=9), np.zeros(9)
    pair, log_count, _, _, span, share, *_ = samples
    for (begin, end), part in zip(span, share, strict=True):
        logits = a[pair[begin:end]] + log_count[begin:end]
        s = np.exp(logits - logits.max())
        s /= s.sum()
        s[0] = -s[1:].sum()
        expected[pair[begin:end]] += part * s
    for loss in (LIKELIHOOD, LOG):
        w, log_scale = weights(a, samples, loss)
        np.testing.assert_allclose(w * np.exp(log_scale), expected, rtol=tolerances.ROUNDING, atol=tolerances.ROUNDING)


@pytest.mark.parametrize("loss", [LIKELIHOOD, 0, 1, 2, 3])
def test_no_samples_have_zero_gradient_and_nan_logits_no_scale(loss):
    rng = np.random.default_rng(0)
    w, log_scale = weights(np.zeros(9), samples_of([], rng), loss)
    assert not w.any()
    assert log_scale == 0.0
    samples = samples_of([2, 2], rng)
    samples[3], samples[7] = np.arange(4) % 2, np.eye(2)
    for bad in (np.nan, np.inf):
        assert np.isnan(weights(np.where(np.arange(9) == samples[0][1], bad, 0.0), samples, loss)[1])


@pytest.mark.parametrize(("argument", "value"), [(0, 9), (0, -1), (4, 99), (4, -1)])
def test_entries_out_of_bounds_are_refused(argument, value):
    samples = samples_of([3, 2], np.random.default_rng(0))
    samples[argument].reshape(-1)[0] = value
    with raised(ValueError, "sizes"):
        weights(np.zeros(9), samples, LIKELIHOOD)
