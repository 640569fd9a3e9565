"""Token-priority graphs of next-token data, their components, and the cyclic part of a dataset."""

from marginlens.graphs.cyclic import CyclicSubset, cyclic_subset, tied_positions
from marginlens.graphs.priority import PriorityGraph, graphs_of_edges, is_acyclic, priority_graphs

__all__ = [
    "CyclicSubset",
    "PriorityGraph",
    "cyclic_subset",
    "graphs_of_edges",
    "is_acyclic",
    "priority_graphs",
    "tied_positions",
]
