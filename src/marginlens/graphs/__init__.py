"""Token-priority graphs of next-token data, their components, and the cyclic part of a dataset."""

from typing import TYPE_CHECKING

from marginlens.graphs.cyclic import (
    LocalRule,
    cyclic_subset,
    leading_subset,
    local_subset,
    local_subspace,
    pseudo_graphs,
    tied_positions,
)
from marginlens.graphs.export import (
    from_tables,
    to_networkx,
    to_table,
)
from marginlens.graphs.from_data import priority_graphs, ranking_evidence, separated_tokens
from marginlens.graphs.priority import PriorityGraph, graphs_of_edges, is_acyclic
from marginlens.graphs.subspace import CyclicSubspace, cyclic_subspace
from marginlens.removed import no_attribute

__all__ = [
    "CyclicSubspace",
    "LocalRule",
    "PriorityGraph",
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
    "separated_tokens",
    "tied_positions",
    "to_networkx",
    "to_table",
]

# Type checkers must refuse names that do not exist, so this is hidden from them.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise no_attribute(__name__, name)
