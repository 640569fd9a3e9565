"""Token-priority graphs of next-token data, their components, and the cyclic part of a dataset."""

from typing import TYPE_CHECKING

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
from marginlens.graphs.from_data import priority_graphs, ranking_evidence, separated_tokens
from marginlens.graphs.priority import (
    ComponentOrder,
    Evidence,
    PriorityGraph,
    component_levels,
    component_order,
    graphs_of_edges,
    is_acyclic,
    reduced_order,
)
from marginlens.graphs.subspace import CyclicSubspace, cyclic_subspace
from marginlens.removed import no_attribute

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

if not TYPE_CHECKING:  # a checker of types is to refuse names that are not there

    def __getattr__(name: str) -> object:
        raise no_attribute(__name__, name)
