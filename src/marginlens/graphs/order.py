"""The order that a priority graph puts on its components: what implies what, how deep it goes, and the edges that suffice."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from marginlens.data.tokens import BoolArray, IntArray
from marginlens.graphs.priority import PriorityGraph, as_graph


def reduced_order(graph: PriorityGraph) -> BoolArray:
    """(n_components, n_components) the pairs of components with a strict edge between them that no longer chain implies."""
    direct, reach = component_order(graph)
    above, below = direct.any(axis=1), direct.any(axis=0)
    upper, middle, lower = np.flatnonzero(above), np.flatnonzero(above & below), np.flatnonzero(below)
    steps = direct[np.ix_(upper, middle)].astype(np.float64) @ reach[np.ix_(middle, lower)].astype(np.float64)
    direct[np.ix_(upper, lower)] &= steps == 0.0
    return direct


class ComponentOrder(NamedTuple):
    """Which components stand strictly above which, each (n_components, n_components).

    Attributes:
        direct: whether a strict edge leads from one component (row) to another (column). reach: whether a chain of such edges does;
            components that neither reaches are not compared by the data.
    """

    direct: BoolArray
    reach: BoolArray


def component_order(graph: PriorityGraph) -> ComponentOrder:
    """The strict order of the components of a graph: by an edge, and by chains of edges."""
    count = as_graph(graph).n_components
    direct = np.zeros((count, count), dtype=bool)
    ends = _ends(graph)
    direct[ends[:, 0], ends[:, 1]] = True
    above = direct.any(axis=1)
    reach = direct.copy()
    for part in np.flatnonzero(above)[::-1]:  # edges lead to higher numbers
        reach[part] |= reach[direct[part] & above].any(axis=0)
    return ComponentOrder(direct, reach)


def component_levels(graph: PriorityGraph) -> IntArray:
    """(n_components,) how many components the longest chain above each one has."""
    level = np.zeros(as_graph(graph).n_components, dtype=np.int64)
    for i, j in np.unique(_ends(graph), axis=0).tolist():  # edges lead to higher numbers, so i is final
        level[j] = max(level[j], level[i] + 1)
    return level


def thinned(graph: PriorityGraph) -> PriorityGraph:
    r"""The same order with as few strict edges as it takes: one for each pair of components that no longer chain implies.

    Its Graph-SVM has the same solution. Tokens of a component have equal logits, so one edge between two components says what all say;
    and a chain :math:`i \Rightarrow j \Rightarrow l` of margins of at least one gives :math:`i \Rightarrow l` a margin of two.
    """
    ends = graph.component_of[np.searchsorted(graph.nodes, graph.edges)].reshape(-1, 2)
    keys = ends[:, 0] * graph.n_components + ends[:, 1]
    kept = ends[:, 0] == ends[:, 1]
    _, first = np.unique(keys, return_index=True)
    first = first[reduced_order(graph)[ends[first, 0], ends[first, 1]]]
    kept[first] = True
    return replace(graph, edges=graph.edges[kept], counts=graph.counts[kept])


def _ends(graph: PriorityGraph) -> IntArray:
    """(n_strict, 2) the components of the strict edges."""
    return graph.component_of[np.searchsorted(graph.nodes, graph.strict)].reshape(-1, 2)
