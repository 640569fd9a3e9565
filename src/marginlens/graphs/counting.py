"""Counts of the edges of priority graphs over the windows of a text, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from marginlens import core
from marginlens.data.sequences import SequenceDataset
from marginlens.errors import InputError, whole_number
from marginlens.graphs.priority import (
    MAX_GRAPH_TOKENS,
    Evidence,
    PriorityGraph,
    as_graph,
    counted_keys,
    graph_arrays,
    sequence_evidence,
    summed_evidence,
)
from marginlens.typing import ArrayLike, IntArray

# Radix of the keys of edges. It is that of the largest vocabulary, so that ids may grow while chunks are read.
RADIX = MAX_GRAPH_TOKENS + 1
# Tokens of all windows that are counted at a time; they take 34 MB, several times.
BLOCK_POSITIONS = 1 << 22


class EdgeCounts(NamedTuple):
    """Edges of priority graphs and how often each occurs.

    Attributes:
        keys: (n_edges,) (last · RADIX + label) · RADIX + token, distinct and increasing.

        counts: (n_edges,) the number of positions with each edge.
    """

    keys: IntArray
    counts: IntArray


class WindowCounts(NamedTuple):
    """The edges of all windows of a text that hold their next token.

    Attributes:
        edges: counts of the edges.

        window: T, the number of tokens in each window.

        n_windows: the number of all windows.

        n_tokens: the number of all tokens.
    """

    edges: EdgeCounts
    window: int
    n_windows: int
    n_tokens: int

    @property
    def n_dropped(self) -> int:
        """The number of windows that lack their next token."""
        return self.n_windows - int(self.edges.counts.sum()) // self.window

    def ending_in(self, n_vocabulary: int) -> IntArray:
        """Return the number of counted windows that end in each token, (n_vocabulary,)."""
        last, counts = self.edges.keys // (RADIX * RADIX), self.edges.counts
        return np.bincount(last, counts, n_vocabulary).astype(np.int64) // self.window

    def graphs(self) -> dict[int, PriorityGraph]:
        """Return the priority graph of every last token."""
        arrays = graph_arrays(*self.edges, RADIX)
        return {int(k): arrays.graph(place) for place, k in enumerate(arrays.last)}


def count_windows(chunks: Iterable[ArrayLike], window: int, separator: int | None = None) -> WindowCounts:
    """Count the edges of all windows, in time linear in the tokens but for sorting the edges.

    Memory grows with the number of different edges, not with the text: only the counts and the last `window` tokens of a chunk
    are kept.

    Args:
        chunks: consecutive pieces of a text, each an array (n_tokens,) of ids.

        window: T, the number of tokens in each window.

        separator: an id that separates texts and belongs to none of them.
    """
    T = whole_number(window, "window", at_least=1)
    mark = -1 if separator is None else whole_number(separator, "separator", at_least=0)
    # Each is less than half as long as the one before, so that merging takes n log n.
    waiting: list[EdgeCounts] = []
    n_windows = n_tokens = 0
    for block in _blocks(chunks, T):
        n_tokens += len(block.ids) - block.first
        edges, n_of_block = _count_block(block, T, mark)
        n_windows += n_of_block
        if len(edges.keys):
            waiting.append(edges)
        while len(waiting) > 1 and len(waiting[-2].keys) < 2 * len(waiting[-1].keys):
            waiting[-2:] = [_merged(*waiting[-2:])]
    while len(waiting) > 1:
        waiting[-2:] = [_merged(*waiting[-2:])]
    if not n_windows:
        raise InputError("window", f"shorter than the text, which has {n_tokens} tokens", T)
    if not waiting:
        raise InputError("window", "long enough that some window holds the token that follows it", T)
    return WindowCounts(waiting[0], T, n_windows, n_tokens)


def window_evidence(
    chunks: Iterable[ArrayLike], graph: PriorityGraph, window: int, separator: int | None = None
) -> Evidence:
    """Find the windows of a text that put tokens strictly above others in one of its priority graphs; the text is read once.

    Args:
        chunks: as in `count_windows`.

        graph: the priority graph, from the same text and window.

        window: as in `count_windows`.

        separator: as in `count_windows`.
    """
    T, last = whole_number(window, "window", at_least=1), as_graph(graph).last
    parts = []
    for block in _blocks(chunks, T):
        ids = block.ids
        labels = _labels(ids, T, separator)
        labels = labels[(labels >= block.first) & (ids[labels - 1] == last)]
        windows = ids[labels[:, None] + np.arange(-T, 0)]
        realizable = (windows == ids[labels, None]).any(axis=1)
        if not realizable.any():
            continue
        windows, labels = windows[realizable], labels[realizable]
        offsets = np.arange(len(labels) + 1) * T
        # Evidence does not depend on embeddings.
        E = np.empty((int(ids.max()) + 1, 0))
        found = sequence_evidence(SequenceDataset.of_positions(windows.reshape(-1), offsets, ids[labels], E), graph)
        parts.append(replace(found, first=block.origin + labels[found.first] - T))
    if not parts:
        raise InputError("graph", "one of the priority graphs of these chunks", f"that of last token {last} of others")
    return summed_evidence(parts)


class _Block(NamedTuple):
    """Tokens that are counted together: `ids`, with labels from `first` on; ids[0] is token number `origin` of the text."""

    ids: IntArray
    first: int
    origin: int


def _blocks(chunks: Iterable[ArrayLike], window: int) -> Iterator[_Block]:
    """Yield the tokens of all chunks, each with as many earlier tokens as windows reach back."""
    size = max(BLOCK_POSITIONS // window, window)
    before, n_read = np.zeros(0, dtype=np.int64), 0
    for chunk in chunks:
        tokens = _checked(chunk)
        for start in range(0, len(tokens), size):
            new = tokens[start : start + size].astype(np.int64)
            ids = np.concatenate([before, new])
            yield _Block(ids, len(before), n_read - len(before))
            n_read += len(new)
            before = ids[max(0, len(ids) - window) :]


def _labels(ids: IntArray, window: int, separator: int | None) -> IntArray:
    """Return the places of the labels that have a whole window of their text before them."""
    labels = np.arange(window, len(ids))
    if separator is None:
        return labels
    marks = np.concatenate([[0], np.cumsum(ids == separator)])
    return labels[marks[labels + 1] == marks[labels - window]]


def _checked(chunk: object) -> Any:
    """Return the chunk as an array if it holds ids, otherwise raise."""
    expected = f"arrays (n_tokens,) of token ids from 0 to {MAX_GRAPH_TOKENS - 1}, pieces of a text"
    if isinstance(chunk, SequenceDataset | str):
        raise InputError("data", expected, f"a {type(chunk).__name__} among them")
    tokens = np.asarray(chunk)
    if tokens.size == 0 and tokens.ndim == 1:
        return np.zeros(0, dtype=np.int64)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        remedy = "Put a single array into a list." if tokens.ndim == 0 else ""
        raise InputError("data", expected, f"shape {tokens.shape} with dtype {tokens.dtype} among them", remedy)
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= MAX_GRAPH_TOKENS:
        raise InputError("data", expected, f"id {low if low < 0 else high}", "Number the tokens that occur from 0 on.")
    return tokens


def _count_block(block: _Block, window: int, separator: int) -> tuple[EdgeCounts, int]:
    """Count the edges of the windows of a block that hold their label, and all windows."""
    ids = block.ids
    K = int(ids.max(initial=0)) + 1
    places, n_windows = np.empty(len(ids), dtype=np.int64), np.zeros(1, dtype=np.int64)
    n_places = core.find_followed(K, ids, block.first, window, separator, places, n_windows)
    windows = np.empty((n_places, window), dtype=np.int64)
    core.fill_edge_keys(ids, places[:n_places], K, windows)
    keys, counts = counted_keys(windows.reshape(-1), K**3)
    last, pair = keys // (K * K), keys % (K * K)
    return EdgeCounts((last * RADIX + pair // K) * RADIX + pair % K, counts), int(n_windows[0])


def _merged(a: EdgeCounts, b: EdgeCounts) -> EdgeCounts:
    keys, counts = (np.empty(len(a.keys) + len(b.keys), dtype=np.int64) for _ in range(2))
    n = core.merge_counts(*a, *b, keys, counts)
    return EdgeCounts(keys[:n].copy(), counts[:n].copy())
