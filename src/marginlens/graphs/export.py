"""Priority graphs as networkx graphs and as plain tables that a JSON file can hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from marginlens.errors import InputError, index_array, require, whole_number
from marginlens.graphs.priority import PriorityGraph, as_graph, graphs_of_edges

if TYPE_CHECKING:
    import networkx as nx


def to_networkx(graph: PriorityGraph) -> nx.DiGraph:
    """Convert a priority graph to a `networkx.DiGraph` on token ids.

    Returns:
        A graph with attribute `last`. Every node carries its `component` (0 has the highest priority); every edge label → token
        carries `count`, the positions that show it, and `strict`, whether no path leads back.
    """
    require("networkx", "graph", "to_networkx")
    import networkx as nx

    made = nx.DiGraph(last=as_graph(graph).last)
    made.add_nodes_from(
        (int(token), {"component": int(part)}) for token, part in zip(graph.nodes, graph.component_of, strict=True)
    )
    parts = graph.component_of[np.searchsorted(graph.nodes, graph.edges)]
    for (i, j), count, (above, below) in zip(graph.edges.tolist(), graph.counts.tolist(), parts.tolist(), strict=True):
        made.add_edge(i, j, count=count, strict=above != below)
    return made


def to_table(graph: PriorityGraph) -> dict[str, Any]:
    """Convert a priority graph to plain lists: last, nodes, edges (label, token, count), and components.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> from marginlens.graphs import to_table
        >>> data = ml.SequenceDataset([[0, 1, 2]], [1], np.eye(3))
        >>> to_table(ml.priority_graphs(data)[2])["edges"]
        [[1, 0, 1], [1, 2, 1]]
    """
    as_graph(graph)
    return {
        "last": graph.last,
        "nodes": graph.nodes.tolist(),
        "edges": np.column_stack([graph.edges, graph.counts]).tolist(),
        "components": [part.tolist() for part in graph.components],
    }


def from_tables(tables: Iterable[Mapping[str, Any]]) -> dict[int, PriorityGraph]:
    """Read the graphs of tables made by `to_table`, by last token; components are computed again from the edges.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> from marginlens.graphs import from_tables, to_table
        >>> data = ml.SequenceDataset([[0, 1, 2]], [1], np.eye(3))
        >>> from_tables(to_table(graph) for graph in ml.priority_graphs(data).values())[2].strict.tolist()
        [[1, 0], [1, 2]]
    """
    graphs = {}
    if not isinstance(tables, Iterable) or isinstance(tables, str | bytes | Mapping | np.ndarray):
        raise InputError("tables", "a list of tables made by to_table", type(tables).__name__)
    for place, table in enumerate(tables):
        try:
            given = [table[name] for name in ("nodes", "edges", "last")]
        except (KeyError, TypeError) as problem:
            raise InputError("tables", "made by to_table", f"one that lacks {problem}") from problem
        nodes, edges = (index_array(ids, f"tables[{place}]", "whole numbers, ids of tokens") for ids in given[:2])
        last = whole_number(given[2], f"tables[{place}]", at_least=0)
        edges = edges if edges.size else edges.reshape(0, 3)
        if nodes.ndim != 1 or edges.ndim != 2 or edges.shape[1] != 3:
            got = f"nodes of shape {nodes.shape} and edges of shape {edges.shape}"
            raise InputError(f"tables[{place}]", "nodes of shape (n_nodes,) and edges of shape (n_edges, 3)", got)
        if len(nodes) == 0 or nodes.min() < 0 or not np.isin(edges[:, :2], nodes).all():
            raise InputError(
                "tables", "made by to_table", f"edges between tokens that are no nodes (last token {last})"
            )
        edges = edges[np.lexsort((edges[:, 1], edges[:, 0]))]
        heads, tails = np.concatenate([edges[:, 0], nodes]), np.concatenate([edges[:, 1], nodes])
        size = max(int(nodes.max()), last) + 1
        made = graphs_of_edges(np.full(len(heads), last), heads, tails, size)[last]
        if len(made.edges) != len(edges):
            raise InputError(
                "tables", "made by to_table", f"an edge listed twice or from a token to itself (last token {last})"
            )
        graphs[last] = replace(made, counts=edges[:, 2])
    return graphs
