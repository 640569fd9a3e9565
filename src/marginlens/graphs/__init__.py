"""Token-priority graphs of next-token data, their components, and the cyclic part of a dataset."""

from marginlens.graphs.cyclic import CyclicSubset, cyclic_subset, tied_positions
from marginlens.graphs.export import to_networkx
from marginlens.graphs.priority import PriorityGraph, graphs_of_edges, is_acyclic, priority_graphs
from marginlens.graphs.pseudo import pseudo_graphs
from marginlens.graphs.subspace import CyclicSubspace, cyclic_subspace

__all__ = [
    "CyclicSubset",
    "CyclicSubspace",
    "PriorityGraph",
    "cyclic_subset",
    "cyclic_subspace",
    "graphs_of_edges",
    "is_acyclic",
    "priority_graphs",
    "pseudo_graphs",
    "tied_positions",
    "to_networkx",
]
