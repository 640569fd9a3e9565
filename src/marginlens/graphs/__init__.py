"""Token-priority graphs of next-token data, their components, and the cyclic part of a dataset."""

from marginlens.graphs.cyclic import (
    CyclicSubset,
    LocalRule,
    cyclic_subset,
    leading_subset,
    local_subset,
    local_subspace,
    pseudo_graphs,
    selected_positions,
    tied_positions,
)
from marginlens.graphs.export import (
    from_tables,
    to_networkx,
    to_table,
)
from marginlens.graphs.from_data import priority_graphs, separated_tokens
from marginlens.graphs.priority import (
    ComponentOrder,
    Evidence,
    PriorityGraph,
    component_levels,
    component_order,
    graphs_of_edges,
    is_acyclic,
    ranking_evidence,
    reduced_order,
)
from marginlens.graphs.stream import GraphSummary, StoredGraphs
from marginlens.graphs.subspace import CyclicSubspace, cyclic_subspace

__all__ = [
    "ComponentOrder",
    "CyclicSubset",
    "CyclicSubspace",
    "Evidence",
    "GraphSummary",
    "LocalRule",
    "PriorityGraph",
    "StoredGraphs",
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
