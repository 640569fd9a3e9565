"""Graph-SVM: the shortest W under which higher priority means larger attention logits and equal priority equal ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from marginlens.data.tokens import IntArray
from marginlens.errors import real_array, reject
from marginlens.graphs.priority import PriorityGraph
from marginlens.papers import implements
from marginlens.svm.graph_rows import GraphRows
from marginlens.svm.least_distance import least_distance
from marginlens.svm.solution import MarginSolution, Status


@dataclass(frozen=True, repr=False, eq=False)
class GraphSolution(MarginSolution):
    """A `MarginSolution` whose `x` is a matrix W (d_model, d_model).

    `pairs` (n_strict, 3) holds (k, i, j) of every strict row, `tied` (n_tied, 3) those of every equality; `rows` and
    `equalities` stand for the matrices without forming them.
    """

    tied: IntArray = field(default_factory=lambda: np.empty((0, 3), dtype=np.int64))

    def __repr__(self) -> str:
        size = f"{len(self.floor)} strict, {len(self.tied)} tied, d={self.x.shape[-1]}"
        return f"GraphSolution({self.status.name}, margin={self.margin:.6g}, {size})"


@implements("C", "Graph-SVM", "Acyc-SVM")
def graph_svm(E: Any, graphs: Mapping[int, PriorityGraph]) -> GraphSolution:
    r"""Shortest W that ranks every token above those of lower priority by at least one, and tokens of equal priority alike.

    .. math:: \min_W \|W\|_F \ \text{s.t.}\ (e_i - e_j)^\top W e_k \ge 1\ (i \Rightarrow j),\ = 0\ (i \asymp j)
        \ \text{in}\ \mathcal G^{(k)},\ k \in [K]

    Args:
        E: embeddings (n_vocabulary, d_model).
        graphs: from last token k to its `PriorityGraph`, as from `priority_graphs`.
    Returns:
        A `GraphSolution` with `multipliers[r] >= 0` for the pair `pairs[r]` = (k, i, j), i ⇒ j, and
        `equality_multipliers[r]` for `tied[r]` = (k, i, j), i ≍ j, of which each component needs one less than it has tokens:
        W = sum of multipliers times (e_i - e_j) e_kᵀ. W = 0 where nothing is strict. `kkt_residual()` and
        `certificate_residual()` check it.
    """
    embeddings = real_array(E, "E", ("n_vocabulary", "d_model"))
    strict, tied = graph_triples(graphs, len(embeddings))
    rows, equalities = GraphRows(embeddings, strict), GraphRows(embeddings, tied)
    d = embeddings.shape[1]
    floor = np.ones(len(strict))
    if not len(strict):
        nothing = np.zeros(0)
        return GraphSolution(
            rows, floor, equalities, np.zeros((d, d)), Status.TRIVIAL, nothing, np.zeros(len(tied)), np.zeros(0, dtype=bool),
            None, strict, tied,
        )  # fmt: skip
    found = least_distance(np.asarray(rows), floor, equalities=np.asarray(equalities) if len(tied) else None)
    mu = np.zeros(0) if found.equality_multipliers is None else found.equality_multipliers
    x = found.x.reshape(d, d)
    return GraphSolution(
        rows, floor, equalities, x, found.status, found.multipliers, mu, found.active, found.certificate, strict, tied
    )


def graph_triples(graphs: Any, n_vocabulary: int) -> tuple[IntArray, IntArray]:
    """The tokens (k, i, j) of every strict pair, and of enough equal pairs to tie every component, ordered by k."""
    if not isinstance(graphs, Mapping):
        raise reject("graphs", "a dictionary from last token to PriorityGraph", type(graphs).__name__)
    strict, tied = [np.empty((0, 3), dtype=np.int64)], [np.empty((0, 3), dtype=np.int64)]
    for last in sorted(graphs):
        graph = _checked(last, graphs[last], n_vocabulary)
        strict.append(_named(graph.last, graph.strict))
        for members in graph.components:
            others = members[1:]
            tied.append(_named(graph.last, np.stack([np.full_like(others, members[0]), others], axis=1)))
    return np.concatenate(strict), np.concatenate(tied)


def _named(last: int, pairs: IntArray) -> IntArray:
    return np.column_stack([np.full(len(pairs), last, dtype=np.int64), pairs])


def _checked(last: Any, graph: Any, n_vocabulary: int) -> PriorityGraph:
    if not isinstance(graph, PriorityGraph):
        raise reject(f"graphs[{last!r}]", "a PriorityGraph", type(graph).__name__)
    if graph.last != last:
        raise reject(f"graphs[{last!r}]", f"the graph of last token {last!r}", f"that of {graph.last!r}")
    ids = np.append(graph.nodes, graph.last)
    outside = (ids < 0) | (ids >= n_vocabulary)
    if outside.any():
        raise reject(f"graphs[{last!r}]", f"a graph of ids from 0 to {n_vocabulary - 1}, one for each row of E", f"id {ids[outside][0]}")
    return graph



