"""What decides between tokens that W^mm ranks equal: the terms of a regularisation path that grow slower than its norm, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from marginlens import core
from marginlens.data.sequences import SequenceDataset
from marginlens.graphs.cyclic import component_table
from marginlens.graphs.priority import PriorityGraph, graphs_of_edges
from marginlens.graphs.subspace import cyclic_subspace, scale_to_unit
from marginlens.papers import implements
from marginlens.result import Displayed
from marginlens.risk.sequence_batch import reduce_sequences
from marginlens.status import Case
from marginlens.svm.dual_balance import balance, can_carry
from marginlens.svm.graph import graph_svm
from marginlens.svm.solution import MarginSolution, Status
from marginlens.svm.solvers.independent_parts import is_orthonormal
from marginlens.typing import BoolArray, FloatArray, IntArray

ACTIVE_GAP = 1e-7  # logit gap beyond one at which a strict pair no longer counts as active
WEAK_MULTIPLIER = 1e-9  # a multiplier below this share of their sum counts as zero
MAX_LEVELS = 20  # terms beyond the leading one
MAX_ROW_ENTRIES = 50_000_000  # numbers that the active rows may have when formed


class ExpansionKind(Case):
    """What follows the leading term of a regularisation path; the value is the code of its sentence."""

    CONSTANT = "expansion.constant"
    SLOW = "expansion.slow"
    UNKNOWN = "expansion.unknown"


class StrictEntries(NamedTuple):
    """What each token of lower priority weighs in the slope of the risk at W^cyc: (n_entries,) last token, label, token, log of it."""

    last: IntArray
    label: IntArray
    token: IntArray
    log_pull: FloatArray


def strict_entries(data: SequenceDataset, graphs: Mapping[int, PriorityGraph], W_cyc: FloatArray) -> StrictEntries:
    r"""The entries of the log-loss with C Eᵀ = I, of the sequences whose last token has a graph in `graphs`.

    .. math:: c_{it} = \frac1n \frac{e^{x_{it}^\top W^{cyc} \bar x_i}}{\sum_{s \in \mathcal R_i} e^{x_{is}^\top W^{cyc} \bar x_i}},
        \quad t \notin \mathcal R_i

    Args:
        data: the sequences.
        graphs: the priority graphs of some or all of their last tokens.
        W_cyc: (d_model, d_model).
    """
    chosen = np.isin(data.last, list(graphs))
    if not chosen.any():
        nothing = np.empty(0, dtype=np.int64)
        return StrictEntries(nothing, nothing, nothing, np.empty(0))
    offsets = np.concatenate([[0], np.cumsum(data.lengths[chosen])])
    part = SequenceDataset.of_positions(
        data.tokens[np.repeat(chosen, data.lengths)], offsets, data.labels[chosen], data.E
    )
    reduced = reduce_sequences(part)
    sample, starts = reduced.sample, reduced.offsets[:-1]
    table, column = component_table(graphs, len(data.E))
    last, label = reduced.queries[reduced.column][sample], reduced.labels[sample]
    tied = table[reduced.tokens, column[last]] == table[label, column[last]]
    logits = reduced.logits(reduced.table(W_cyc))
    total = np.logaddexp.reduceat(np.where(tied, logits, -np.inf), starts)
    log_pull = logits - total[sample] + np.log(reduced.share)[sample]
    return StrictEntries(last[~tied], label[~tied], reduced.tokens[~tied], log_pull[~tied])


@dataclass(frozen=True, repr=False, eq=False)
class PathExpansion(Displayed):
    r"""The terms of the path :math:`\bar W_R = C_R W^{mm} + \sum_l s_l(R)\, W_l + W^{cyc} + O + o(1)`.

    Attributes:
        slow: (d_model, d_model) matrices :math:`W_l`, with :math:`C_R \gg s_1(R) \gg s_2(R) \gg \dots \to \infty`: like log R,
            log log R, and so on. Empty where every active pair carries a multiplier.
        offset: (d_model, d_model) the constant O; nan where it is unknown. It is orthogonal to S_cyc. A multiple of W^mm or of a slow
            direction in it has no meaning and is left out.
        status: an `ExpansionKind`.
        reason: what is unknown and why; empty otherwise.
    """

    slow: tuple[FloatArray, ...]
    offset: FloatArray
    status: ExpansionKind
    reason: str = ""
    quantities = "{status.name}, {slow:#} slow directions, norm of the offset={offset:norm}"


@implements("X", "O")
def expand_path(
    E: FloatArray,
    graphs: Mapping[int, PriorityGraph],
    priority: MarginSolution,
    entries: StrictEntries,
    *,
    orthonormal: bool | None = None,
) -> PathExpansion:
    r"""The terms after the leading one of the path of smallest risk in balls.

    Far out the slope across S_cyc is :math:`-\sum_r c_r e^{-\langle a_r, W \rangle} a_r` over the active rows
    :math:`a_r = (e_i - e_j) e_k^\top`, and the ball holds it along W. So the constant term is

    .. math:: O = \arg\min_{O \perp W^{mm}} \sum_r c_r e^{-\langle a_r, O \rangle},

    which is finite when every active row can carry a positive multiplier. Rows that carry none in any dual solution are left undecided
    by that sum; what separates them is Graph-SVM again, with the rows that carry one as equalities:

    .. math:: W_1 = \arg\min \|W\| \ \text{s.t.}\ \langle a_r, W \rangle = 0\ (r \text{ carries}),\ \ge 1\ (r \text{ does not}),

    and so on until no row is left.

    Args:
        E: (n_vocabulary, d_model).
        graphs: last token → `PriorityGraph`.
        priority: their Graph-SVM solution.
        entries: the tokens below their labels, of every last token in `graphs`.
        orthonormal: whether the rows of E are orthonormal, where that is known already. Then last tokens do not meet, and `graphs` and
            `entries` may be those of some of them.
    """
    d = E.shape[1]
    columns = is_orthonormal(E) if orthonormal is None else orthonormal
    near, power = (E, 0) if columns else scale_to_unit(E)
    offset, level = np.zeros((d, d)), graphs
    slow: list[FloatArray] = []
    if priority.status is Status.TRIVIAL or not len(entries.last):
        return PathExpansion((), offset, ExpansionKind.CONSTANT)
    x, pairs, multipliers = (
        np.ldexp(priority.x, 2 * power),
        np.asarray(priority.pairs),
        np.asarray(priority.multipliers),
    )
    known = np.isin(pairs[:, 0], list(graphs))
    pairs, multipliers = pairs[known], multipliers[known]

    def unknown(reason: str) -> PathExpansion:
        return PathExpansion(tuple(slow), np.full((d, d), np.nan), ExpansionKind.UNKNOWN, reason)

    for _ in range(MAX_LEVELS):
        edges = _Edges.of(near, level, entries, x, pairs, multipliers)
        if not len(edges.last):
            return unknown("no pair of Graph-SVM is active to the accuracy of its solution")
        if not columns and len(edges.last) * d * d > MAX_ROW_ENTRIES:
            return unknown(f"{len(edges.last)} active pairs in {d} × {d} dimensions are too many to balance")
        found = (_by_components if columns else _by_rows)(near, level, edges)
        if found is None:
            return unknown("the residual attention of the active pairs could not be balanced")
        carries, term = found
        offset = offset + term - np.sum(term * x) / np.sum(x * x) * x
        left = np.flatnonzero(~carries)
        if not len(left):
            status = ExpansionKind.SLOW if slow else ExpansionKind.CONSTANT
            return PathExpansion(tuple(slow), np.ldexp(offset, -2 * power), status)
        level = _merged(level, edges, carries, len(E))
        entries = edges.rest(left, near, term)
        solution = graph_svm(near, level)
        if solution.status is not Status.OPTIMAL:
            return unknown("active pairs without a multiplier could not be told from those with one")
        x, pairs, multipliers = solution.x, np.asarray(solution.pairs), np.asarray(solution.multipliers)
        slow.append(np.ldexp(x, -2 * power))
    return unknown("the expansion has too many terms")


# ---- active pairs, one for any two components


class _Edges(NamedTuple):
    """The active pairs of components: last token, a token of the upper and one of the lower, both components, log c, multiplier."""

    last: IntArray
    above: IntArray
    below: IntArray
    upper: IntArray
    lower: IntArray
    log_c: FloatArray
    multiplier: FloatArray

    @classmethod
    def of(
        cls,
        E: FloatArray,
        graphs: Mapping[int, PriorityGraph],
        entries: StrictEntries,
        x: FloatArray,
        pairs: IntArray,
        multipliers: FloatArray,
    ) -> _Edges:
        """The pairs that `x` separates by one and no more; multipliers add up to one."""
        table, column = component_table(graphs, len(E))
        size = len(E) + 1

        def keys(k: IntArray, i: IntArray, j: IntArray) -> IntArray:
            place = column[k]
            return (place * size + table[i, place]) * size + table[j, place]

        active = _gaps(E, x, entries.last, entries.label, entries.token) <= 1.0 + ACTIVE_GAP
        last, label, token = (part[active] for part in entries[:3])
        log_pull = entries.log_pull[active]
        key, first, place = np.unique(keys(last, label, token), return_index=True, return_inverse=True)
        log_c = np.full(len(key), -np.inf)
        np.logaddexp.at(log_c, place, log_pull)
        weight = np.zeros(len(key))
        of_pairs = keys(*pairs.T)
        where = np.minimum(np.searchsorted(key, of_pairs), max(len(key) - 1, 0))
        if len(key):
            known = key[where] == of_pairs
            np.add.at(weight, where[known], multipliers[known])
        weight = weight / max(weight.sum(), np.finfo(float).tiny)
        weight = np.where(weight > WEAK_MULTIPLIER, weight, 0.0)
        upper, lower = key // size % size, key % size
        return cls(last[first], label[first], token[first], upper, lower, log_c, weight)

    def rest(self, some: IntArray, E: FloatArray, term: FloatArray) -> StrictEntries:
        """The pairs `some` as entries of the next level, at which `term` has been added to the path."""
        k, i, j = self.last[some], self.above[some], self.below[some]
        return StrictEntries(k, i, j, self.log_c[some] - _gaps(E, term, k, i, j))


def _gaps(E: FloatArray, W: FloatArray, k: IntArray, i: IntArray, j: IntArray) -> FloatArray:
    """(n,) the logit gaps (e_i - e_j)ᵀ W e_k."""
    queries, column = np.unique(k, return_inverse=True)
    heights = E @ (W @ E[queries].T)  # (n_vocabulary, n_queries)
    return heights[i, column] - heights[j, column]


def _merged(
    graphs: Mapping[int, PriorityGraph], edges: _Edges, carries: BoolArray, n_vocabulary: int
) -> dict[int, PriorityGraph]:
    """Graphs in which components joined by an active pair with a multiplier are one, and those without are strict."""
    last, head, tail = [edges.last[~carries]], [edges.above[~carries]], [edges.below[~carries]]
    tied = edges.last[carries], edges.above[carries], edges.below[carries]
    last, head, tail = [*last, tied[0], tied[0]], [*head, tied[1], tied[2]], [*tail, tied[2], tied[1]]
    for k, graph in graphs.items():
        for members in graph.components:
            last.append(np.full(len(members), k))
            head.append(members)
            tail.append(np.roll(members, 1))
    return graphs_of_edges(np.concatenate(last), np.concatenate(head), np.concatenate(tail), n_vocabulary)


# ---- balance


def _by_components(
    E: FloatArray, graphs: Mapping[int, PriorityGraph], edges: _Edges
) -> tuple[BoolArray, FloatArray] | None:
    """For orthonormal embeddings: every component of every last token has a logit of its own, so the rows are a graph's edges."""
    column = component_table(graphs, len(E))[1]
    size = len(E) + 1
    ends = column[edges.last] * size
    nodes, place = np.unique(np.concatenate([ends + edges.upper, ends + edges.lower]), return_inverse=True)
    upper, lower = np.split(place, 2)
    last = list(graphs)
    members = [graphs[last[node // size]].components[node % size] for node in nodes.tolist()]
    carries, logits = np.empty(len(upper), dtype=np.bool_), np.empty(len(nodes))
    n_tokens = np.array([len(tokens) for tokens in members], dtype=np.float64)
    if not core.balance_components(upper, lower, edges.log_c, edges.multiplier, n_tokens, carries, logits):
        return None
    U = np.zeros((len(E), len(last)))
    for node, tokens, logit in zip(nodes.tolist(), members, logits.tolist(), strict=True):
        U[tokens, node // size] = logit
    return carries, E.T @ U @ E[last]


def _by_rows(E: FloatArray, graphs: Mapping[int, PriorityGraph], edges: _Edges) -> tuple[BoolArray, FloatArray] | None:
    """For any embeddings, through the rows themselves."""
    d = E.shape[1]
    rows = ((E[edges.above] - E[edges.below])[:, :, None] * E[edges.last][:, None, :]).reshape(-1, d * d)
    inside = cyclic_subspace(E, graphs).basis.reshape(-1, d * d)
    rows = rows - rows @ inside.T @ inside
    rows = rows - rows @ inside.T @ inside
    carries = can_carry(rows, edges.multiplier)
    found = balance(rows[carries], edges.log_c[carries], edges.multiplier[carries])
    return None if found is None else (carries, found.reshape(d, d))
