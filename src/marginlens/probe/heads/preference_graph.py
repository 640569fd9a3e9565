"""The strongest preferences of a head as a small priority graph, with the names of its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.graphs.priority import PriorityGraph, graphs_of_edges
from marginlens.probe.heads.preferences import HeadPreferences, Preference

ROWS = 40  # of the strongest preferences, from which the tokens of a graph come
MOST = 12  # tokens of a graph


@dataclass(frozen=True, repr=False, eq=False)
class NamedGraph:
    """Which of a few tokens a head prefers over which, among them all the preferences that it has.

    Attributes:
        names: (n_tokens) what they are called.
        graph: the `PriorityGraph` of places in `names`; `counts` are the queries that preferred one over the other.
    """

    names: tuple[str, ...]
    graph: PriorityGraph

    def __repr__(self) -> str:
        return f"NamedGraph({len(self.names)} tokens, {len(self.graph.edges)} preferences)"

    def told(self) -> dict[str, Any]:
        """Tokens and edges (preferred, over, queries) as plain values; tokens by their place in the list."""
        edges = np.column_stack([self.graph.edges, self.graph.counts])
        return {"tokens": list(self.names), "edges": edges.tolist()}


def strongest_graph(found: HeadPreferences, rows: Sequence[Preference], names: Mapping[int, str]) -> NamedGraph | None:
    """The graph of the tokens in the strongest preferences, as many as `MOST` allows; None where there is no preference.

    Args:
        rows: from `found.strongest`. names: what each id is called.
    """
    chosen: dict[int, None] = {}
    for row in rows:
        more = {**chosen, row.preferred: None, row.over: None}
        if len(more) <= MOST:
            chosen = more
    if not chosen:
        return None
    ids = np.array(sorted(chosen))
    pooled = found.pooled
    inside = np.isin(pooled.edges, ids).all(axis=1)
    head, tail = np.searchsorted(ids, np.repeat(pooled.edges[inside], pooled.counts[inside], axis=0)).T
    graph = graphs_of_edges(np.zeros_like(head), head, tail, len(ids))[0]
    return NamedGraph(tuple(names[one] for one in ids.tolist()), graph)
