"""What a head prefers over what: priority graphs among the tokens that its queries select and pass over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from marginlens.data.tokens import BoolArray, IntArray
from marginlens.errors import reject, whole_number
from marginlens.graphs.priority import PriorityGraph, graphs_of_edges

POOLED = -1  # the `last` of a graph that pools all queries


@dataclass(frozen=True)
class PreferenceRule:
    """When a head is said to prefer token i over token j.

    A query that sees both and selects i is a win of i over j; it counts once however often i and j occur. The graph has an edge i → j
    where i won at least `least` times, and in at least this `share` of all wins of one of the two over the other. With `least=1` and
    `share=0` every win is an edge, which is paper C's graph of a dataset; with a share above 1/2 no two tokens are preferred
    over each other, so cycles have three tokens or more.
    """

    least: int = 2
    share: float = 0.9

    def __post_init__(self) -> None:
        whole_number(self.least, "least", at_least=1)
        if not 0.0 <= self.share <= 1.0:
            raise reject("share", "a number from 0 to 1", self.share)


@dataclass(frozen=True, repr=False, eq=False)
class VisibleTypes:
    """Which token types the queries of all inputs are and see; the same for every head.

    Attributes:
        types: (n_types,) the ids that occur, increasing; the other arrays name types by their place here.
        query_type: (n_queries,) the type of each query, input after input. lengths: (n_inputs,) queries of each input.
        pair_query, pair_type: (n_pairs,) every query with every different type that it sees, ordered by query.
    """

    types: IntArray
    query_type: IntArray
    lengths: IntArray
    pair_query: IntArray
    pair_type: IntArray

    def __repr__(self) -> str:
        return f"VisibleTypes({len(self.lengths)} inputs, {len(self.query_type)} queries, {len(self.types)} types)"

    def met(self, i: int, j: int) -> int:
        """How many queries see both ids."""
        places = np.searchsorted(self.types, [i, j])
        known = [p < len(self.types) and self.types[p] == one for p, one in zip(places, (i, j), strict=True)]
        if not all(known):
            return 0
        first, second = (self.pair_query[self.pair_type == p] for p in places)
        return len(np.intersect1d(first, second, assume_unique=True))


@dataclass(frozen=True)
class Preference:
    """Token id `preferred` was selected over `over` by `wins` queries, the reverse by `losses`, of `met` queries that saw both."""

    preferred: int
    over: int
    wins: int
    losses: int
    met: int


@dataclass(frozen=True, repr=False, eq=False)
class HeadPreferences:
    """What one head prefers over what.

    Attributes:
        pairs: (n_pairs, 2) ids (i, j) where i won over j at least once. wins: (n_pairs,) how often; losses: (n_pairs,) the reverse.
        pooled: the `PriorityGraph` of the edges that the rule accepts, over all queries; its `last` is -1.
        by_query: one such graph for each query id that has an edge, as in paper C.
        rule: what the edges stand for.
    """

    pairs: IntArray
    wins: IntArray
    losses: IntArray
    pooled: PriorityGraph
    by_query: Mapping[int, PriorityGraph]
    rule: PreferenceRule
    seen: VisibleTypes = field(repr=False)

    def __repr__(self) -> str:
        shape = f"{len(self.pairs)} pairs, {len(self.pooled.edges)} preferences"
        return f"HeadPreferences({shape}, strict {self.strict_share:.3g}, {len(self.by_query)} query graphs)"

    @property
    def contested_share(self) -> float:
        """Share of the pairs met by a choice between them that were decided both ways; nan where there is none."""
        unordered = int((self.losses == 0).sum()) + int((self.losses > 0).sum()) // 2
        return int((self.losses > 0).sum()) / 2 / unordered if unordered else float("nan")

    @property
    def strict_share(self) -> float:
        """Share of the pooled graph's edges that no path leads back over; the others are in cycles. nan without edges."""
        return _strict_share([self.pooled])

    @property
    def strict_share_by_query(self) -> float:
        """The same over the edges of all graphs of single query ids."""
        return _strict_share(list(self.by_query.values()))

    def strongest(self, n_rows: int) -> tuple[Preference, ...]:
        """The accepted preferences with most wins beyond losses, at most `n_rows` of them."""
        whole_number(n_rows, "n_rows", at_least=0)
        accepted = np.flatnonzero(_accepted(self.wins, self.losses, self.rule))
        order = np.argsort(-(self.wins - self.losses)[accepted], kind="stable")
        rows = accepted[order[:n_rows]]
        return tuple(
            Preference(int(i), int(j), int(self.wins[r]), int(self.losses[r]), self.seen.met(int(i), int(j)))
            for r, (i, j) in zip(rows, self.pairs[rows], strict=True)
        )


def visible_types(ids: Sequence[Any], visible: Sequence[Any] | None = None) -> VisibleTypes:
    """What the queries of all inputs see, ready for `head_preferences`.

    Args:
        ids: for every input the ids (n_tokens_i,) of its tokens; for images the positions of the patches serve as ids.
        visible: for every input a mask (n_tokens_i, n_tokens_i), query i sees token j; where left out all see all.
    """
    arrays = [np.asarray(one) for one in ids]
    if not arrays or any(one.ndim != 1 or one.dtype.kind not in "iu" for one in arrays):
        raise reject("ids", "a list with one array of token ids for each input", f"{len(arrays)} entries")
    masks = [np.ones((len(one), len(one)), dtype=bool) for one in arrays] if visible is None else list(visible)
    if [np.shape(one) for one in masks] != [(len(one), len(one)) for one in arrays]:
        raise reject("visible", "one mask (n_tokens, n_tokens) for each input", f"{len(masks)} masks of other shapes")
    types, flat = np.unique(np.concatenate(arrays).astype(np.int64), return_inverse=True)
    lengths = np.array([len(one) for one in arrays], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    keys = [np.empty(0, dtype=np.int64)]
    for start, mask in zip(starts[:-1].tolist(), masks, strict=True):
        query, token = np.nonzero(np.asarray(mask, dtype=bool))
        keys.append(np.unique((start + query) * len(types) + flat[start + token]))
    pairs = np.concatenate(keys)
    return VisibleTypes(types, flat.reshape(-1).astype(np.int64), lengths, pairs // len(types), pairs % len(types))


def head_preferences(
    seen: VisibleTypes, selected: Sequence[Any], rule: PreferenceRule | None = None
) -> HeadPreferences:
    """The preferences of one head.

    Args:
        seen: from `visible_types`.
        selected: for every input the position (n_tokens_i,) that each of its queries selects, -1 for none, as
            `Selection.selected` has it.
        rule: when a preference counts as one.
    """
    asked = rule or PreferenceRule()
    winner = _selected_types(seen, selected)[seen.pair_query]  # (n_pairs,) beside all that a query saw
    choice = (winner >= 0) & (winner != seen.pair_type)
    query, head, tail = seen.query_type[seen.pair_query[choice]], winner[choice], seen.pair_type[choice]
    pooled, counts, reverse = _counted(np.zeros_like(query), head, tail, len(seen.types))
    single, times, against = _counted(query, head, tail, len(seen.types))
    accepted, specific = _accepted(counts, reverse, asked), _accepted(times, against, asked)
    graph = _graphs(pooled[accepted], counts[accepted], seen.types).get(int(seen.types[0]))
    graphs = _graphs(single[specific], times[specific], seen.types)
    return HeadPreferences(
        seen.types[pooled[:, 1:]],
        counts,
        reverse,
        replace(graph, last=POOLED) if graph is not None else _no_graph(),
        graphs,
        asked,
        seen,
    )


def _selected_types(seen: VisibleTypes, selected: Sequence[Any]) -> IntArray:
    """(n_queries,) the type that every query selects, -1 for none."""
    arrays = [np.asarray(one) for one in selected]
    if [one.shape for one in arrays] != [(n,) for n in seen.lengths.tolist()]:
        raise reject("selected", "one position for each token of each input", f"{len(arrays)} arrays of other lengths")
    flat = np.concatenate(arrays).astype(np.int64)
    if (flat < -1).any() or (flat >= np.repeat(seen.lengths, seen.lengths)).any():
        raise reject("selected", "positions in the query's own input, or -1", "one outside")
    starts = np.repeat(np.cumsum(seen.lengths) - seen.lengths, seen.lengths)
    return np.where(flat >= 0, seen.query_type[np.maximum(starts + flat, 0)], -1)


def _counted(query: IntArray, head: IntArray, tail: IntArray, size: int) -> tuple[IntArray, IntArray, IntArray]:
    """The different (query, head, tail), how often each occurs, and how often it does with head and tail exchanged."""
    keys, counts = np.unique((query * size + head) * size + tail, return_counts=True)
    k, i, j = keys // (size * size), keys // size % size, keys % size
    mirror = (k * size + j) * size + i
    place = np.minimum(np.searchsorted(keys, mirror), max(len(keys) - 1, 0))
    reverse = np.where(keys[place] == mirror, counts[place], 0) if len(keys) else counts
    return np.column_stack([k, i, j]), counts.astype(np.int64), reverse.astype(np.int64)


def _accepted(wins: IntArray, losses: IntArray, rule: PreferenceRule) -> BoolArray:
    return np.asarray((wins >= rule.least) & (wins >= rule.share * (wins + losses)))


def _graphs(edges: IntArray, counts: IntArray, types: IntArray) -> dict[int, PriorityGraph]:
    """A graph for each query among edges (n_edges, 3) of query, head and tail, all by place in `types`, with ids in the end."""
    if not len(edges):
        return {}
    k, i, j = np.repeat(edges, counts, axis=0).T
    graphs = graphs_of_edges(k, i, j, len(types))
    return {
        int(types[q]): replace(graph, last=int(types[q]), nodes=types[graph.nodes], edges=types[graph.edges])
        for q, graph in graphs.items()
    }


def _no_graph() -> PriorityGraph:
    nothing = np.empty(0, dtype=np.int64)
    return PriorityGraph(POOLED, nothing, np.empty((0, 2), dtype=np.int64), nothing, nothing)


def _strict_share(graphs: list[PriorityGraph]) -> float:
    edges = sum(len(graph.edges) for graph in graphs)
    return sum(len(graph.strict) for graph in graphs) / edges if edges else float("nan")
