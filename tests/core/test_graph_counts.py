"""Counting the edges of a text in the core, against what the definition says, place by place."""

from collections import Counter

import numpy as np
import pytest

from marginlens import core
from refusals import raised


def followed(ids, first, window, separator):
    """Places whose token stands in the window before them, and how many places have a window, by the definition."""
    places, n_windows = [], 0
    for j in range(first, len(ids)):
        edges = [0, *(k + 1 for k in range(j) if ids[k] == separator)]
        if ids[j] == separator or j - window < max(edges):
            continue
        n_windows += 1
        places += [j] if ids[j] in ids[j - window : j] else []
    return places, n_windows


@pytest.mark.parametrize("seed", range(20))
def test_positions_and_edges_follow_the_definition(seed):
    rng = np.random.default_rng(seed)
    n, K, window, separator = rng.integers(0, 60), rng.integers(1, 8), rng.integers(1, 7), rng.integers(-1, 4)
    ids = rng.integers(0, K, n)
    places, n_windows = np.empty(n, dtype=np.int64), np.empty(1, dtype=np.int64)
    first = int(rng.integers(0, n + 1))
    found = places[: core.find_followed(K, ids, first, window, separator, places, n_windows)]
    assert (found.tolist(), n_windows[0]) == followed(ids.tolist(), first, window, separator)
    keys = np.empty((len(found), window), dtype=np.int64)
    core.fill_edge_keys(ids, found, K, keys)
    expected = [[(ids[j - 1] * K + ids[j]) * K + token for token in ids[j - window : j]] for j in found]
    assert keys.tolist() == expected


@pytest.mark.parametrize("sizes", [(0, 0), (0, 5), (1, 1), (40, 3), (200, 150)])
def test_counts_equal_a_counters(sizes):
    rng, parts = np.random.default_rng(sizes), []
    for size in sizes:
        keys, counts = np.sort(rng.integers(0, 50, size)), np.empty(size, dtype=np.int64)
        expected = Counter(keys.tolist())
        n = core.count_keys(keys, counts)
        assert dict(zip(keys[:n].tolist(), counts[:n].tolist(), strict=True)) == expected
        parts.append((keys[:n], counts[:n], expected))
    (*a, counter), (*b, other) = parts
    keys, counts = np.empty((2, len(a[0]) + len(b[0])), dtype=np.int64)
    n = core.merge_counts(*a, *b, keys, counts)
    assert keys[:n].tolist() == sorted(counter + other)
    assert dict(zip(keys[:n].tolist(), counts[:n].tolist(), strict=True)) == counter + other


def test_a_position_without_a_window_is_refused():
    with raised(ValueError, "sizes"):
        core.fill_edge_keys(np.zeros(5, dtype=np.int64), np.array([2]), 1, np.empty((1, 3), dtype=np.int64))
