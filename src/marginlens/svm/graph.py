"""Graph-SVM: the shortest W under which higher priority means larger attention logits and equal priority equal ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from marginlens.data.tokens import FloatArray, IntArray
from marginlens.directions import length
from marginlens.errors import real_array, reject
from marginlens.graphs.priority import PriorityGraph
from marginlens.papers import implements
from marginlens.svm.graph_groups import Part, group_labels, solve_part
from marginlens.svm.graph_rows import GraphRows
from marginlens.svm.kernel import MOST_AMPLIFIED, NOTHING, PROVED, TIGHT
from marginlens.svm.solution import MarginSolution, Status

CONTRADICTION = 1e-13  # Farkas residual up to which infeasibility counts as proved


@dataclass(frozen=True, repr=False, eq=False)
class GraphSolution(MarginSolution):
    """A `MarginSolution` whose `x` is a matrix W (d_model, d_model).

    `pairs` (n_strict, 3) holds (k, i, j) of every strict row, `tied` (n_tied, 3) those of every equality; `rows` and
    `equalities` stand for the matrices without forming them.
    """

    rows: GraphRows
    equalities: GraphRows
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
    strict, tied, kept = graph_triples(graphs, len(embeddings))
    return _solve(GraphRows(embeddings, strict), GraphRows(embeddings, tied), kept)


def graph_triples(graphs: Any, n_vocabulary: int) -> tuple[IntArray, IntArray, IntArray]:
    """The tokens (k, i, j) of every strict pair, and of enough equal pairs to tie every component, ordered by k.

    The third array lists one strict pair for any two components: under the ties, the others ask for the same.
    """
    if not isinstance(graphs, Mapping):
        raise reject("graphs", "a dictionary from last token to PriorityGraph", type(graphs).__name__)
    checked = {_last(last): _checked(last, graph, n_vocabulary) for last, graph in graphs.items()}
    last = sorted(checked)
    strict = [checked[one].strict for one in last]
    tied, kept, first = [], [], 0
    for one, pairs in zip(last, strict, strict=True):
        tied.append(_spanning(checked[one]))
        kept.append(first + _one_of_each(checked[one], pairs))
        first += len(pairs)
    return _named(last, strict), _named(last, tied), np.concatenate([*kept, np.empty(0, dtype=np.int64)])


def _spanning(graph: PriorityGraph) -> IntArray:
    """(n_tied, 2) pairs of the first token of a component with each of its others."""
    pairs = [np.empty((0, 2), dtype=np.int64)]
    if not graph.is_acyclic:
        several = (members for members in graph.components if len(members) > 1)
        pairs += [np.stack([np.full(len(members) - 1, members[0]), members[1:]], axis=1) for members in several]
    return pairs[0] if len(pairs) == 1 else np.concatenate(pairs)


def _one_of_each(graph: PriorityGraph, pairs: IntArray) -> IntArray:
    """Which strict pairs to keep: the first between any two components."""
    if graph.is_acyclic:
        return np.arange(len(pairs))
    across = graph.components_of(pairs[:, 0]) * graph.n_components + graph.components_of(pairs[:, 1])
    return np.sort(np.unique(across, return_index=True)[1])


def _solve(rows: GraphRows, ties: GraphRows, kept: IntArray, formed: int | None = None) -> GraphSolution:
    """All groups, put together and judged; `formed` as in `solve_part`."""
    blank = _blank(rows, ties)
    if not len(rows):
        return blank
    alike = np.flatnonzero(rows.sizes == 0.0)
    if len(alike):  # no W tells tokens apart that look the same
        y = np.zeros(len(rows))
        y[alike[0]] = 1.0
        return _infeasible(blank, y, np.zeros(len(ties)))
    last, label = group_labels(rows, ties)
    group = label[np.searchsorted(last, rows.triples[kept, 0])]
    group_of_ties = label[np.searchsorted(last, ties.triples[:, 0])]
    parts, weights, forces = [], np.zeros(len(rows)), np.zeros(len(ties))
    by_group, ties_by_group = np.argsort(group, kind="stable"), np.argsort(group_of_ties, kind="stable")
    for one in np.unique(group):
        some = by_group[slice(*np.searchsorted(group[by_group], [one, one + 1]))]
        equal = ties_by_group[slice(*np.searchsorted(group_of_ties[ties_by_group], [one, one + 1]))]
        part = solve_part(rows, ties, kept[some], equal, formed=formed)
        if part.status is Status.INFEASIBLE:
            y, mu = np.zeros(len(rows)), np.zeros(len(ties))
            y[part.strict], mu[part.tied] = part.weights, part.forces
            return _infeasible(blank, y, mu)
        weights[part.strict], forces[part.tied] = part.weights, part.forces
        parts.append(part)
    return _feasible(blank, weights, forces, parts)


def _blank(rows: GraphRows, ties: GraphRows) -> GraphSolution:
    """W = 0, which is the solution where nothing is strict."""
    n, d = len(rows), rows.E.shape[1]
    nothing, idle = np.zeros(n), np.zeros(n, dtype=bool)
    forces = np.zeros(len(ties))
    return GraphSolution(
        rows,
        np.ones(n),
        ties,
        np.zeros((d, d)),
        Status.TRIVIAL,
        nothing,
        forces,
        idle,
        None,
        rows.triples,
        ties.triples,
    )


def _infeasible(blank: GraphSolution, y: FloatArray, mu: FloatArray) -> GraphSolution:
    nothing = np.full_like(blank.x, np.nan), np.full_like(y, np.nan)
    claimed = replace(
        blank, x=nothing[0], status=Status.INFEASIBLE, multipliers=nothing[1], equality_multipliers=mu, certificate=y
    )
    if claimed.certificate_residual() <= CONTRADICTION:
        return claimed
    return replace(blank, status=Status.INACCURATE, equality_multipliers=np.zeros_like(mu))


def _feasible(blank: GraphSolution, weights: FloatArray, forces: FloatArray, parts: list[Part]) -> GraphSolution:
    """W as the sum over groups; optimal when its residual says so."""
    left, right = np.concatenate([p.left for p in parts], axis=1), np.concatenate([p.right for p in parts], axis=1)
    thin = blank.rows.thin is not None
    W = np.ascontiguousarray((csr_array(right) @ left.T).T) if thin else left @ right.T
    sizes, norm = blank.rows.sizes, float(length(W.reshape(-1)))
    slack = blank.rows.apply(W) - 1.0
    tight = (slack <= TIGHT + NOTHING * norm * sizes) | (weights > 0.0)
    solved = replace(
        blank, x=W, multipliers=weights, equality_multipliers=forces, active=tight, status=Status.INACCURATE
    )
    allowed = min(max(PROVED, 16.0 * solved.rounding_floor()), MOST_AMPLIFIED)
    proved = all(part.status is Status.OPTIMAL for part in parts) and solved.kkt_residual() <= allowed
    return replace(solved, status=Status.OPTIMAL) if proved else solved


def _named(last: list[int], pairs: list[IntArray]) -> IntArray:
    """(n_pairs, 3) all pairs, each after the last token it belongs to."""
    k = np.repeat(np.array(last, dtype=np.int64), [len(some) for some in pairs])
    return np.column_stack([k, np.concatenate([*pairs, np.empty((0, 2), dtype=np.int64)])])


def _last(last: Any) -> int:
    if isinstance(last, bool) or not isinstance(last, int | np.integer):
        raise reject("graphs", "a dictionary from last token, a whole number, to PriorityGraph", f"the key {last!r}")
    return int(last)


def _checked(last: Any, graph: Any, n_vocabulary: int) -> PriorityGraph:
    if not isinstance(graph, PriorityGraph):
        raise reject(f"graphs[{last}]", "a PriorityGraph", type(graph).__name__)
    if graph.last != last:
        raise reject(f"graphs[{last}]", f"the graph of last token {last}", f"that of last token {graph.last}")
    for one in (last, int(graph.nodes.min(initial=last)), int(graph.nodes.max(initial=last))):
        if not 0 <= one < n_vocabulary:
            expected = f"a graph of ids from 0 to {n_vocabulary - 1}, one for each row of E"
            raise reject(f"graphs[{last}]", expected, f"id {one}")
    return graph
