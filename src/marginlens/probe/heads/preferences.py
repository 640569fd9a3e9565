"""Preferences of a head: priority graphs among the tokens that its queries select and pass over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from marginlens.errors import InputError, whole_number
from marginlens.graphs.priority import PriorityGraph, graphs_of_edges
from marginlens.result import Described
from marginlens.typing import ArrayLike, BoolArray, IntArray

POOLED = -1  # the `last` of a graph that pools all queries
GRAPH_ROWS = 40  # of the strongest preferences, from which the tokens of a graph come
MAX_GRAPH_TOKENS = 12


@dataclass(frozen=True, repr=False, eq=False)
class VisibleTypes(Described):
    """The token types that the queries of all inputs have and see; the same for every head.

    Attributes:
        types: (n_types,) the ids that occur, in increasing order; the other arrays hold indices into it.

        query_type: (n_queries,) the type of each query, input after input.

        lengths: (n_inputs,) the number of queries of each input.

        pair_query: (n_pairs,) the query of every pair of a query and a type that it sees, in increasing order.

        pair_type: (n_pairs,) the type of every pair.
    """

    types: IntArray
    query_type: IntArray
    lengths: IntArray
    pair_query: IntArray
    pair_type: IntArray
    quantities = "{lengths:#} inputs, {query_type:#} queries, {types:#} types"

    def n_queries_seeing(self, i: int, j: int) -> int:
        """Count the queries that see both ids."""
        first, second = (self.pair_query[self.types[self.pair_type] == token] for token in (i, j))
        return len(np.intersect1d(first, second, assume_unique=True))


@dataclass(frozen=True)
class Preference:
    """Token `preferred` was selected over `over` by `wins` queries, the reverse by `losses`, of `met` queries that saw both."""

    preferred: str
    over: str
    wins: int
    losses: int
    met: int


@dataclass(frozen=True, repr=False, eq=False)
class PreferenceGraph(Described):
    """All preferences of a head among a few tokens.

    Attributes:
        names: (n_tokens,) the names of the tokens.

        graph: the `PriorityGraph` of indices into `names`; `counts` are the numbers of queries that preferred one token over
            the other.
    """

    names: tuple[str, ...]
    graph: PriorityGraph
    quantities = "{names:#} tokens, {graph.edges:#} preferences"

    def to_dict(self) -> dict[str, Any]:
        """Return tokens and edges (preferred, over, queries) as plain values; tokens by their place in the list."""
        edges = np.column_stack([self.graph.edges, self.graph.counts])
        return {"tokens": list(self.names), "edges": edges.tolist()}


@dataclass(frozen=True, repr=False, eq=False)
class HeadPreferences(Described):
    """The preferences of one head.

    Attributes:
        pairs: (n_pairs, 2) ids (i, j) for which i won over j at least once.

        wins: (n_pairs,) the number of wins of i over j.

        losses: (n_pairs,) the number of wins of j over i.

        accepted: (n_pairs,) whether i counts as preferred over j.

        graph: the `PriorityGraph` of the accepted pairs, over all queries; its `last` is -1.
    """

    pairs: IntArray
    wins: IntArray
    losses: IntArray
    accepted: BoolArray
    graph: PriorityGraph
    visible: VisibleTypes
    quantities = "{pairs:#} pairs, {graph.edges:#} preferences, strict {strict_share:.3g}"

    @property
    def contested_share(self) -> float:
        """The share of compared pairs that were decided both ways; nan if no pair was compared."""
        both = int((self.losses > 0).sum()) // 2
        total = int((self.losses == 0).sum()) + both
        return both / total if total else float("nan")

    @property
    def strict_share(self) -> float:
        """The share of the graph's edges that are in no cycle; nan without edges."""
        return len(self.graph.strict) / len(self.graph.edges) if len(self.graph.edges) else float("nan")

    def strongest(self, n_rows: int, names: Mapping[int, str]) -> tuple[Preference, ...]:
        """Return the accepted preferences with most wins beyond losses, at most `n_rows` of them, with `names` of the ids."""
        rows = self._strongest_rows(whole_number(n_rows, "n_rows", at_least=0))
        return tuple(
            Preference(names[i], names[j], int(self.wins[r]), int(self.losses[r]), self.visible.n_queries_seeing(i, j))
            for r, (i, j) in zip(rows, self.pairs[rows].tolist(), strict=True)
        )

    def strongest_graph(self, names: Mapping[int, str]) -> PreferenceGraph | None:
        """Return the graph of the tokens in the strongest preferences, at most `MAX_GRAPH_TOKENS`; None if there is no preference."""
        chosen: set[int] = set()
        for pair in self.pairs[self._strongest_rows(GRAPH_ROWS)].tolist():
            if len(chosen.union(pair)) <= MAX_GRAPH_TOKENS:
                chosen.update(pair)
        if not chosen:
            return None
        ids = np.array(sorted(chosen))
        inside = np.isin(self.graph.edges, ids).all(axis=1)
        edges = np.searchsorted(ids, np.repeat(self.graph.edges[inside], self.graph.counts[inside], axis=0))
        graph = graphs_of_edges(np.zeros(len(edges), dtype=np.int64), edges[:, 0], edges[:, 1], len(ids))[0]
        return PreferenceGraph(tuple(names[token] for token in ids.tolist()), graph)

    def _strongest_rows(self, n_rows: int) -> IntArray:
        accepted = np.flatnonzero(self.accepted)
        order = np.argsort(-(self.wins - self.losses)[accepted], kind="stable")
        return accepted[order[:n_rows]]


def visible_types(ids: Sequence[ArrayLike], visible: Sequence[ArrayLike] | None = None) -> VisibleTypes:
    """Return what the queries of all inputs see, ready for `head_preferences`.

    Args:
        ids: the ids (n_tokens_i,) of the tokens of every input; for images the positions of the patches serve as ids.

        visible: a mask (n_tokens_i, n_tokens_i) for every input, True if query i sees token j; by default all tokens are
            visible.
    """
    arrays = [np.asarray(tokens) for tokens in ids]
    if not arrays or any(tokens.ndim != 1 or tokens.dtype.kind not in "iu" for tokens in arrays):
        raise InputError("ids", "a list with one array of token ids for each input", f"{len(arrays)} entries")
    masks = [np.ones((len(tokens), len(tokens)), dtype=bool) for tokens in arrays] if visible is None else list(visible)
    if [np.shape(mask) for mask in masks] != [(len(tokens), len(tokens)) for tokens in arrays]:
        raise InputError(
            "visible", "one mask (n_tokens, n_tokens) for each input", f"{len(masks)} masks of other shapes"
        )
    types, flat = np.unique(np.concatenate(arrays).astype(np.int64), return_inverse=True)
    lengths = np.array([len(tokens) for tokens in arrays], dtype=np.int64)
    keys = [np.empty(0, dtype=np.int64)]
    for start, mask in zip((np.cumsum(lengths) - lengths).tolist(), masks, strict=True):
        query, token = np.nonzero(np.asarray(mask, dtype=bool))
        keys.append(np.unique((start + query) * len(types) + flat[start + token]))
    pairs = np.concatenate(keys)
    return VisibleTypes(types, flat.reshape(-1).astype(np.int64), lengths, pairs // len(types), pairs % len(types))


def head_preferences(
    visible: VisibleTypes, selected: Sequence[ArrayLike], *, min_wins: int = 2, min_share: float = 0.9
) -> HeadPreferences:
    """Compute the preferences of one head.

    A query that sees both i and j and selects i is a win of i over j; it counts once, however often i and j occur. Token i is
    preferred over j if it has at least `min_wins` wins, and at least the share `min_share` of all wins between the two. With
    `min_wins=1` and `min_share=0` every win is an edge, as in paper C's graph of a dataset. With a share above 1/2 no two
    tokens are preferred over each other, so cycles have at least three tokens.

    Args:
        visible: the result of `visible_types`.

        selected: for every input, the position that each of its queries selects, (n_tokens_i,), -1 for none, as in
            `Selection.unique`.
    """
    arrays = [np.asarray(positions) for positions in selected]
    if [positions.shape for positions in arrays] != [(n,) for n in visible.lengths.tolist()]:
        raise InputError(
            "selected", "one position for each token of each input", f"{len(arrays)} arrays of other lengths"
        )
    flat = np.concatenate(arrays).astype(np.int64)
    lengths = np.repeat(visible.lengths, visible.lengths)  # (n_queries,) of the query's own input
    if (flat < -1).any() or (flat >= lengths).any():
        raise InputError("selected", "positions in the query's own input, or -1", "one outside")
    starts = np.repeat(np.cumsum(visible.lengths) - visible.lengths, visible.lengths)
    chosen = np.where(flat >= 0, visible.query_type[np.maximum(starts + flat, 0)], -1)
    winner, size = chosen[visible.pair_query], len(visible.types)  # winner: (n_pairs,) beside all that a query saw
    is_win = (winner >= 0) & (winner != visible.pair_type)
    keys, wins = np.unique(winner[is_win] * size + visible.pair_type[is_win], return_counts=True)
    i, j = keys // size, keys % size
    reverse = np.searchsorted(keys, j * size + i).clip(max=max(len(keys) - 1, 0))
    losses = np.where(keys[reverse] == j * size + i, wins[reverse], 0) if len(keys) else wins
    accepted = np.asarray((wins >= min_wins) & (wins >= min_share * (wins + losses)))
    head, tail = np.repeat(i[accepted], wins[accepted]), np.repeat(j[accepted], wins[accepted])
    graph = graphs_of_edges(np.zeros_like(head), head, tail, size).get(0)
    if graph is None:
        none = np.empty(0, dtype=np.int64)
        graph = PriorityGraph(POOLED, none, np.empty((0, 2), dtype=np.int64), none, none)
    types = visible.types
    graph = replace(graph, last=POOLED, nodes=types[graph.nodes], edges=types[graph.edges])
    return HeadPreferences(types[np.column_stack([i, j])], wins, losses, accepted, graph, visible)
