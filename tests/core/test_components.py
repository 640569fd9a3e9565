"""Components of priority graphs: their order, the likelihoods and the balance of their logits, against NumPy and SciPy."""

import numpy as np
import pytest
import scipy

import tolerances
from marginlens import core
from refusals import raised

FIRST, SIZES = np.array([0, 4, 5]), np.array([4, 1, 3])  # three components of eight cells


@pytest.mark.parametrize("seed", range(30))
def test_components_are_strong_and_numbered_along_the_arcs(seed):
    rng = np.random.default_rng(seed)
    n, n_arcs = int(rng.integers(1, 30)), int(rng.integers(0, 60))
    heads, tails = rng.integers(n, size=n_arcs), rng.integers(n, size=n_arcs)
    graph = np.sort(rng.integers(2, size=n))
    inside = graph[heads] == graph[tails]
    heads, tails = heads[inside], tails[inside]
    ranks, levels = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    count = core.rank_components(heads, tails, graph, ranks, levels)
    matrix = scipy.sparse.csr_array((np.ones(len(heads)), (heads, tails)), shape=(n, n))
    expected, labels = scipy.sparse.csgraph.connected_components(matrix, connection="strong")
    assert count == expected
    assert (np.equal.outer(labels, labels) == (np.equal.outer(ranks, ranks) & np.equal.outer(graph, graph))).all()
    across = labels[heads] != labels[tails]
    assert (ranks[heads] < ranks[tails])[across].all()
    longest = np.zeros(n, dtype=np.int64)
    for _ in range(n):
        np.maximum.at(longest, tails[across], longest[heads[across]] + 1)
        np.maximum.at(longest, np.arange(n), [longest[labels == c].max() for c in labels])
    np.testing.assert_array_equal(levels, longest)
    for g in range(2):
        order = [np.flatnonzero((ranks == r) & (graph == g))[0] for r in np.unique(ranks[graph == g])]
        assert sorted(order, key=lambda node: (levels[node], node)) == order


def samples(lengths, component, rng):
    """Cells, log-counts, offsets, labels, shares and components of samples, and the components' layout."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    cells = [FIRST[c] + rng.permutation(SIZES[c])[:n] for n, c in zip(lengths, component, strict=True)]
    label = offsets[:-1] + rng.integers(0, lengths)
    cell = np.concatenate([np.zeros(0, dtype=np.int64), *cells])
    share, log_count = rng.uniform(0.1, 1.0, len(lengths)), np.log(rng.integers(1, 4, len(cell)))
    corners = np.concatenate([[0], np.cumsum(SIZES**2)])
    return [cell, log_count, offsets, label, share, np.array(component, dtype=np.int64), FIRST, SIZES, corners]


@pytest.mark.parametrize("scale", [0.0, 1.0, 4.0])
def test_likelihoods_have_no_slope_at_their_minimum(scale):
    rng = np.random.default_rng(3)
    given = samples([4] * 40 + [1] * 3 + [3] * 30, [0] * 40 + [1] * 3 + [2] * 30, rng)
    cells = scale * rng.normal(size=8)
    assert 1 < core.minimise_likelihoods(cells, *given) < 20
    slopes = np.zeros(8)
    cell, log_count, offsets, label, share, component = given[:6]
    for i in range(len(component)):
        entries = slice(offsets[i], offsets[i + 1])
        s = scipy.special.softmax(cells[cell[entries]] + log_count[entries])
        slopes[cell[entries]] += share[i] * (s - (np.arange(len(s)) == label[i] - offsets[i]))
    np.testing.assert_allclose(slopes, 0.0, rtol=0.0, atol=tolerances.ROUNDING)


def test_no_samples_have_no_minimum_and_nan_logits_stop():
    rng = np.random.default_rng(0)
    assert core.minimise_likelihoods(np.zeros(8), *samples([], [], rng)) == 1
    assert core.minimise_likelihoods(np.zeros(8), *samples([3], [2], rng)) < 0  # one label alone draws for ever
    assert core.minimise_likelihoods(np.full(8, np.nan), *samples([2], [0], rng)) < 0


@pytest.mark.parametrize(
    ("argument", "value"), [(0, 8), (0, -1), (0, 4), (2, -1), (2, 99), (3, 99), (5, 3), (6, 9), (7, 6), (8, 25)]
)
def test_indices_out_of_bounds_are_refused(argument, value):
    given = [array.copy() for array in samples([3, 2], [0, 2], np.random.default_rng(0))]
    given[argument][-1 if argument == 2 and value > 0 else 0] = value
    with raised(ValueError, "sizes"):
        core.minimise_likelihoods(np.zeros(8), *given)


@pytest.mark.parametrize("seed", range(20))
def test_balanced_pairs_carry_a_dual_solution(seed):
    rng = np.random.default_rng(seed)
    n, n_pairs = int(rng.integers(2, 9)), int(rng.integers(1, 14))
    ends = np.sort(rng.permuted(np.tile(np.arange(n), (n_pairs, 1)), axis=1)[:, :2], axis=1)
    upper, lower = np.unique(ends, axis=0).T.copy()
    log_c, tokens = 3.0 * rng.normal(size=len(upper)), rng.integers(1, 4, n).astype(float)
    multipliers = rng.uniform(0.1, 1.0, len(upper)) * (rng.random(len(upper)) < 0.7)
    carries, logits = np.empty(len(upper), dtype=bool), np.empty(n)
    assert core.balance_components(upper, lower, log_c, multipliers, tokens, carries, logits) == 1
    assert carries[multipliers > 0.0].all()
    weights = np.where(carries, np.exp(log_c - (logits[upper] - logits[lower])), 0.0)
    rows = (np.arange(n) == upper[:, None]).astype(float) - (np.arange(n) == lower[:, None])
    np.testing.assert_allclose(rows.T @ weights, rows.T @ multipliers, rtol=0.0, atol=1e-9 * (1.0 + weights.max()))
    joined = scipy.sparse.csr_array((np.ones(carries.sum()), (upper[carries], lower[carries])), shape=(n, n))
    parts = scipy.sparse.csgraph.connected_components(joined, directed=False)[1]
    np.testing.assert_allclose(
        np.bincount(parts, tokens * logits), 0.0, rtol=0.0, atol=1e-9 * (1.0 + np.abs(logits).max())
    )
