"""Priority graphs for other programs: as networkx graphs, and as plain tables that a JSON file can keep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from marginlens.errors import missing_extra, reject
from marginlens.graphs.priority import PriorityGraph, as_graph, graphs_of_edges

if TYPE_CHECKING:
    import networkx as nx


def to_networkx(graph: PriorityGraph) -> nx.DiGraph:
    """A priority graph as a `networkx.DiGraph` on token ids.

    Returns:
        A graph with attribute `last`. Every node carries its `component` (0 has the highest priority); every edge label → token
        carries `count`, the positions that show it, and `strict`, whether no path leads back.
    """
    try:
        import networkx as nx
    except ImportError as problem:
        raise missing_extra("networkx", "graph", "to_networkx") from problem
    made = nx.DiGraph(last=as_graph(graph).last)
    made.add_nodes_from(
        (int(token), {"component": int(part)}) for token, part in zip(graph.nodes, graph.component_of, strict=True)
    )
    parts = graph.component_of[np.searchsorted(graph.nodes, graph.edges)]
    for (i, j), count, (above, below) in zip(graph.edges.tolist(), graph.counts.tolist(), parts.tolist(), strict=True):
        made.add_edge(i, j, count=count, strict=above != below)
    return made


def to_table(graph: PriorityGraph) -> dict[str, Any]:
    """A priority graph as plain lists: last, nodes, edges (label, token, count), and components for the reader."""
    as_graph(graph)
    return {
        "last": graph.last,
        "nodes": graph.nodes.tolist(),
        "edges": np.column_stack([graph.edges, graph.counts]).tolist(),
        "components": [part.tolist() for part in graph.components],
    }


def from_tables(tables: Iterable[Mapping[str, Any]]) -> dict[int, PriorityGraph]:
    """The graphs of tables as `to_table` makes them, by last token; components are found anew from the edges."""
    graphs = {}
    if not isinstance(tables, Iterable) or isinstance(tables, str | bytes | Mapping | np.ndarray):
        raise reject("tables", "a list of tables made by to_table", type(tables).__name__)
    for table in tables:
        try:
            nodes = np.array(table["nodes"], dtype=np.int64)
            edges = np.array(table["edges"], dtype=np.int64).reshape(-1, 3)
            last = int(table["last"])
        except (KeyError, TypeError, ValueError, OverflowError) as problem:
            raise reject("tables", "made by to_table", f"one that lacks {problem}") from problem
        if len(nodes) == 0 or nodes.min() < 0 or not np.isin(edges[:, :2], nodes).all():
            raise reject("tables", "made by to_table", f"edges between tokens that are no nodes (last token {last})")
        edges = edges[np.lexsort((edges[:, 1], edges[:, 0]))]
        heads, tails = np.concatenate([edges[:, 0], nodes]), np.concatenate([edges[:, 1], nodes])
        size = max(int(nodes.max()), last) + 1
        made = graphs_of_edges(np.full(len(heads), last), heads, tails, size)[last]
        if len(made.edges) != len(edges):
            raise reject(
                "tables", "made by to_table", f"an edge listed twice or from a token to itself (last token {last})"
            )
        graphs[last] = replace(made, counts=edges[:, 2])
    return graphs
