"""The terms of a regularisation path that grow slower than its norm, or not at all: they decide between tokens that W^mm ranks equal."""

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
from marginlens.words import Fact

# A strict pair counts as active if its logit gap exceeds one by no more than this.
ACTIVE_GAP = 1e-7
# A multiplier below this share of their sum counts as zero.
WEAK_MULTIPLIER = 1e-9
# Terms beyond the leading one.
MAX_LEVELS = 20
# Numbers that the active rows may have when they are formed.
MAX_ROW_ENTRIES = 50_000_000


class ExpansionKind(Case):
    """Kind of the terms after the leading one of a regularisation path; the value is the code of its sentence."""

    CONSTANT = "expansion.constant"
    SLOW = "expansion.slow"
    UNKNOWN = "expansion.unknown"


class StrictEntries(NamedTuple):
    """The weight of each token of lower priority in the slope of the risk at W^cyc, as columns (n_entries,)."""

    last: IntArray
    label: IntArray
    token: IntArray
    log_pull: FloatArray


def strict_entries(data: SequenceDataset, graphs: Mapping[int, PriorityGraph], W_cyc: FloatArray) -> StrictEntries:
    r"""Compute the entries of the log-loss with C Eᵀ = I, for the sequences whose last token has a graph in `graphs`.

    .. math:: c_{it} = \frac1n \frac{e^{x_{it}^\top W^{cyc} \bar x_i}}{\sum_{s \in \mathcal R_i} e^{x_{is}^\top W^{cyc} \bar x_i}},
        \quad t \notin \mathcal R_i

    Args:
        data: the sequences.

        graphs: the priority graphs of some or all last tokens.

        W_cyc: (d_model, d_model) the cyclic correction.
    """
    used = np.isin(data.last, list(graphs))
    if not used.any():
        nothing = np.empty(0, dtype=np.int64)
        return StrictEntries(nothing, nothing, nothing, np.empty(0))
    offsets = np.concatenate([[0], np.cumsum(data.lengths[used])])
    tokens = data.tokens[np.repeat(used, data.lengths)]
    reduced = reduce_sequences(SequenceDataset.of_positions(tokens, offsets, data.labels[used], data.E))
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
            log log R, and so on. Empty if every active pair carries a multiplier.

        offset: (d_model, d_model) the constant O, orthogonal to S_cyc; nan if it is unknown. A multiple of W^mm or of a slow direction
            in it has no meaning and is left out.

        status: an `ExpansionKind`.

        reason: why the offset is unknown, or None.
    """

    slow: tuple[FloatArray, ...]
    offset: FloatArray
    status: ExpansionKind
    reason: Fact | None = None
    quantities = "{status.name}, {slow:#} slow directions, offset_norm={offset:norm}"


@implements("X", "O")
def expand_path(
    E: FloatArray,
    graphs: Mapping[int, PriorityGraph],
    priority: MarginSolution,
    entries: StrictEntries,
    *,
    orthonormal: bool | None = None,
) -> PathExpansion:
    r"""Compute the terms after the leading one of the path of smallest risk in balls.

    Far out, the slope across S_cyc is :math:`-\sum_r c_r e^{-\langle a_r, W \rangle} a_r` over the active rows
    :math:`a_r = (e_i - e_j) e_k^\top`, and on the boundary of the ball it is parallel to W. The constant term is therefore

    .. math:: O = \arg\min_{O \perp W^{mm}} \sum_r c_r e^{-\langle a_r, O \rangle},

    which is finite if every active row can carry a positive multiplier. That sum does not decide rows that carry none in any dual
    solution. They are separated by a Graph-SVM again, with the rows that carry a multiplier as equalities:

    .. math:: W_1 = \arg\min \|W\| \ \text{s.t.}\ \langle a_r, W \rangle = 0\ (r \text{ carries}),\ \ge 1\ (r \text{ does not}),

    and so on until no row is left.

    Args:
        E: the embeddings, of shape (n_vocabulary, d_model).

        graphs: last token → `PriorityGraph`.

        priority: their Graph-SVM solution.

        entries: the tokens below their labels, for every last token in `graphs`.

        orthonormal: whether the rows of E are orthonormal, if that is known already. Then last tokens do not interact, and `graphs` and
            `entries` may be those of some of them.

    Returns:
        The slow directions and the constant term, or why it is unknown.
    """
    nothing = np.zeros((E.shape[1], E.shape[1]))
    if priority.status is Status.TRIVIAL or not len(entries.last):
        return PathExpansion((), nothing, ExpansionKind.CONSTANT)
    columns = is_orthonormal(E) if orthonormal is None else orthonormal
    near, power = (E, 0) if columns else scale_to_unit(E)
    pairs, multipliers = np.asarray(priority.pairs), np.asarray(priority.multipliers)
    relevant = np.isin(pairs[:, 0], list(graphs))
    leading = _Leading(np.ldexp(priority.x, 2 * power), pairs[relevant], multipliers[relevant])
    slow, offset, reason = _terms(near, graphs, leading, entries, columns=columns)
    terms = tuple(np.ldexp(term, -2 * power) for term in slow)
    if reason is not None:
        return PathExpansion(terms, np.full_like(nothing, np.nan), ExpansionKind.UNKNOWN, reason)
    return PathExpansion(terms, np.ldexp(offset, -2 * power), ExpansionKind.SLOW if slow else ExpansionKind.CONSTANT)


class _Leading(NamedTuple):
    """The Graph-SVM solution of one level: W, its pairs (n_rows, 3) and their multipliers (n_rows,)."""

    x: FloatArray
    pairs: IntArray
    multipliers: FloatArray


def _terms(
    E: FloatArray, graphs: Mapping[int, PriorityGraph], leading: _Leading, entries: StrictEntries, *, columns: bool
) -> tuple[list[FloatArray], FloatArray, Fact | None]:
    """Compute the slow directions, the constant term and why it is unknown, for embeddings near length one, level by level."""
    d, x = E.shape[1], leading.x
    slow: list[FloatArray] = []
    offset = np.zeros((d, d))
    for _ in range(MAX_LEVELS):
        edges = _Edges.of(E, graphs, entries, leading)
        if not len(edges.last):
            return slow, offset, Fact("expansion_reason.no_active_pair")
        if not columns and len(edges.last) * d * d > MAX_ROW_ENTRIES:
            return slow, offset, Fact("expansion_reason.too_many_pairs", {"pairs": len(edges.last), "d_model": d})
        balanced = (_by_components if columns else _by_rows)(E, graphs, edges)
        if balanced is None:
            return slow, offset, Fact("expansion_reason.not_balanced")
        carries, term = balanced
        # A multiple of the level's own solution has no meaning in the constant term: C_R or s_l(R) takes it up.
        offset = offset + term - np.sum(term * x) / np.sum(x * x) * x
        undecided = np.flatnonzero(~carries)
        if not len(undecided):
            return slow, offset, None
        graphs = _merged(graphs, edges, carries, len(E))
        entries = edges.rest(undecided, E, term)
        solution = graph_svm(E, graphs)
        if solution.status is not Status.OPTIMAL:
            return slow, offset, Fact("expansion_reason.multipliers")
        leading = _Leading(solution.x, np.asarray(solution.pairs), np.asarray(solution.multipliers))
        x = leading.x
        slow.append(x)
    return slow, offset, Fact("expansion_reason.too_many_terms", {"terms": MAX_LEVELS})


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
        leading: _Leading,
    ) -> _Edges:
        """Find the pairs that the leading term separates by one and no more; their multipliers add up to one."""
        table, column = component_table(graphs, len(E))
        size = len(E) + 1

        def keys(k: IntArray, i: IntArray, j: IntArray) -> IntArray:
            """Number the pairs of components, in base `size`."""
            q = column[k]
            return (q * size + table[i, q]) * size + table[j, q]

        active = _gaps(E, leading.x, entries.last, entries.label, entries.token) <= 1.0 + ACTIVE_GAP
        last, label, token = (part[active] for part in entries[:3])
        log_pull = entries.log_pull[active]
        key, first, edge = np.unique(keys(last, label, token), return_index=True, return_inverse=True)
        log_c = np.full(len(key), -np.inf)
        np.logaddexp.at(log_c, edge, log_pull)
        weight = np.zeros(len(key))
        key_of_pair = keys(*leading.pairs.T)
        nearest = np.minimum(np.searchsorted(key, key_of_pair), max(len(key) - 1, 0))
        if len(key):
            is_active = key[nearest] == key_of_pair
            np.add.at(weight, nearest[is_active], leading.multipliers[is_active])
        weight = weight / max(weight.sum(), np.finfo(float).tiny)
        weight = np.where(weight > WEAK_MULTIPLIER, weight, 0.0)
        upper, lower = key // size % size, key % size
        return cls(last[first], label[first], token[first], upper, lower, log_c, weight)

    def rest(self, rows: IntArray, E: FloatArray, term: FloatArray) -> StrictEntries:
        """Make the pairs of some rows the entries of the next level, after `term` has been added to the path."""
        k, i, j = self.last[rows], self.above[rows], self.below[rows]
        return StrictEntries(k, i, j, self.log_c[rows] - _gaps(E, term, k, i, j))


def _gaps(E: FloatArray, W: FloatArray, k: IntArray, i: IntArray, j: IntArray) -> FloatArray:
    """Compute the logit gaps (n,), (e_i - e_j)ᵀ W e_k."""
    queries, column = np.unique(k, return_inverse=True)
    heights = E @ (W @ E[queries].T)  # (n_vocabulary, n_queries)
    return heights[i, column] - heights[j, column]


def _merged(
    graphs: Mapping[int, PriorityGraph], edges: _Edges, carries: BoolArray, n_vocabulary: int
) -> dict[int, PriorityGraph]:
    """Merge components joined by an active pair with a multiplier; pairs without one stay strict."""
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
    """Balance orthonormal embeddings: every component of every last token has its own logit, so the rows are a graph's edges."""
    column = component_table(graphs, len(E))[1]
    size = len(E) + 1
    ends = column[edges.last] * size
    nodes, node_of = np.unique(np.concatenate([ends + edges.upper, ends + edges.lower]), return_inverse=True)
    upper, lower = np.split(node_of, 2)
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
    """Balance any embeddings, through the rows themselves."""
    d = E.shape[1]
    rows = ((E[edges.above] - E[edges.below])[:, :, None] * E[edges.last][:, None, :]).reshape(-1, d * d)
    inside = cyclic_subspace(E, graphs).basis.reshape(-1, d * d)
    # Twice, because rounding leaves a part in S_cyc after the first projection.
    for _ in range(2):
        rows = rows - rows @ inside.T @ inside
    carries = can_carry(rows, edges.multiplier)
    term = balance(rows[carries], edges.log_c[carries], edges.multiplier[carries])
    return None if term is None else (carries, term.reshape(d, d))
