"""Values, slopes and Hessians of likelihoods by component: against NumPy sample by sample, and indices that are refused."""

import numpy as np
import pytest

import tolerances
from marginlens import core

FIRST, SIZES = np.array([0, 4, 5]), np.array([4, 1, 3])  # three components of eight cells


def samples(lengths, component, rng):
    """Cells, log-counts, offsets, labels, shares and components of samples, and the components' layout."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    cells = [FIRST[c] + rng.permutation(SIZES[c])[:n] for n, c in zip(lengths, component, strict=True)]
    label = offsets[:-1] + rng.integers(0, lengths)
    cell = np.concatenate([np.zeros(0, dtype=np.int64), *cells])
    share, log_count = rng.uniform(0.1, 1.0, len(lengths)), np.log(rng.integers(1, 4, len(cell)))
    corners = np.concatenate([[0], np.cumsum(SIZES**2)])
    return [cell, log_count, offsets, label, share, np.array(component, dtype=np.int64), FIRST, SIZES, corners]


def terms(cells, given):
    out = np.zeros(3), np.zeros(8), np.zeros(26)
    core.add_likelihoods(cells, *given, *out)
    return out


@pytest.mark.parametrize("scale", [0.0, 1.0, 40.0, 900.0])
def test_every_sample_adds_its_loss_its_slopes_and_its_curvature(scale):
    rng = np.random.default_rng(3)
    given, cells = samples([3, 1, 4, 2, 3, 1], [0, 1, 0, 2, 2, 0], rng), scale * rng.normal(size=8)
    values, slopes, hessian = np.zeros(3), np.zeros(8), np.zeros((8, 8))
    cell, log_count, offsets, label, share, component = given[:6]
    for i, c in enumerate(component):
        entries = slice(offsets[i], offsets[i + 1])
        logits, at = cells[cell[entries]] + log_count[entries], cell[entries]
        s = np.exp(logits - np.logaddexp.reduce(logits))
        values[c] += share[i] * (np.logaddexp.reduce(logits) - logits[label[i] - offsets[i]])
        slopes[at] += share[i] * (s - (np.arange(len(s)) == label[i] - offsets[i]))
        hessian[np.ix_(at, at)] += share[i] * (np.diag(s) - np.outer(s, s))
    found = terms(cells, given)
    np.testing.assert_allclose(found[0], values, rtol=tolerances.ROUNDING, atol=tolerances.ROUNDING)
    np.testing.assert_allclose(found[1], slopes, atol=tolerances.ROUNDING)
    blocks = [hessian[a : a + n, a : a + n].ravel() for a, n in zip(FIRST, SIZES, strict=True)]
    np.testing.assert_allclose(found[2], np.concatenate(blocks), atol=tolerances.ROUNDING)


def test_no_samples_and_logits_that_are_none():
    rng = np.random.default_rng(0)
    assert not any(array.any() for array in terms(np.zeros(8), samples([], [], rng)))
    assert np.isnan(terms(np.full(8, np.nan), samples([2], [0], rng))[0][0])


@pytest.mark.parametrize(
    ("argument", "value"), [(0, 8), (0, -1), (0, 4), (2, -1), (2, 99), (3, 99), (5, 3), (6, 9), (7, 6), (8, 25)]
)
def test_indices_out_of_bounds_are_refused(argument, value):
    given = [array.copy() for array in samples([3, 2], [0, 2], np.random.default_rng(0))]
    given[argument][-1 if argument == 2 and value > 0 else 0] = value
    with pytest.raises(ValueError, match="sizes do not fit"):
        terms(np.zeros(8), given)
