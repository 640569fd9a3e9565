"""Token-priority graphs of next-token data, their components, and the cyclic part of a dataset."""

from marginlens.graphs.cyclic import CyclicSubset, cyclic_subset, tied_positions
from marginlens.graphs.evidence import Evidence, ranking_evidence
from marginlens.graphs.export import (
    from_tables,
    to_networkx,
    to_table,
)
from marginlens.graphs.order import ComponentOrder, component_levels, component_order, reduced_order
from marginlens.graphs.priority import PriorityGraph, graphs_of_edges, is_acyclic, priority_graphs, separated_tokens
from marginlens.graphs.pseudo import (
    LocalRule,
    leading_subset,
    local_subset,
    local_subspace,
    pseudo_graphs,
    selected_positions,
)
from marginlens.graphs.subspace import CyclicSubspace, cyclic_subspace

__all__ = [
    "ComponentOrder",
    "CyclicSubset",
    "CyclicSubspace",
    "Evidence",
    "LocalRule",
    "PriorityGraph",
    "component_levels",
    "component_order",
    "cyclic_subset",
    "cyclic_subspace",
    "from_tables",
    "graphs_of_edges",
    "is_acyclic",
    "leading_subset",
    "local_subset",
    "local_subspace",
    "priority_graphs",
    "pseudo_graphs",
    "ranking_evidence",
    "reduced_order",
    "selected_positions",
    "separated_tokens",
    "tied_positions",
    "to_networkx",
    "to_table",
]
