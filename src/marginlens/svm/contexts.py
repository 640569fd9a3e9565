"""NTP-SVM: the shortest decoder W that gives equal logits to the tokens that follow a context, and lower ones, by at least one,
to all others (paper G).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy

from marginlens.arithmetic.directions import length
from marginlens.data.contexts import ContextDataset, as_contexts
from marginlens.errors import InputError
from marginlens.papers import implements
from marginlens.result import Result
from marginlens.runtime.progress import ProgressCallback, as_progress
from marginlens.runtime.threads import single_blas_thread
from marginlens.status import Status
from marginlens.svm.solution import CERTIFICATE_RTOL, KKT_RTOL
from marginlens.svm.solvers.independent_parts import orthogonal_groups, solve_groups
from marginlens.svm.solvers.least_distance import least_distance
from marginlens.svm.solvers.rows import BilinearRows
from marginlens.typing import FloatArray, Index, IntArray

# A group is solved if it has no more pairs of a context and a token that follows some of the group.
_MAX_GROUP_PAIRS = 500_000
# Rows are formed only if all of them together have no more entries than this.
_MAX_FORMED_ENTRIES = 20_000_000
# Corrections of the multipliers, each of which must halve what is left.
_MAX_MULTIPLIER_CORRECTIONS = 2
# How many contexts of a larger group are tried for a contradiction.
_SUBSETS = (16, 64)
# Logits held at a time while all contexts are checked.
_BLOCK_ENTRIES = 4_000_000
# How many contexts and tokens a message names.
_MAX_LISTED_CONTEXTS = 4


@dataclass(frozen=True, repr=False, eq=False)
class ContextSolution(Result):
    r"""W^mm with its proof, or the proof that there is none, through one table of multipliers Λ (n_vocabulary, n_contexts).

    Optimal: :math:`W = \Lambda H`, the columns of Λ add up to zero, :math:`\Lambda_{vj} \le 0` for :math:`v \notin \mathcal S_j`, and
    :math:`\Lambda_{vj} \ne 0` only where v is exactly one below the tokens of :math:`\mathcal S_j`. Infeasible: such a Λ, negative
    somewhere outside the supports, has :math:`\Lambda H = 0`.

    Attributes:
        data: the problem.

        status: OPTIMAL, TRIVIAL if every token follows every context, INFEASIBLE or INACCURATE.

        special: sparse (n_vocabulary, n_contexts), and common: (n_contexts,): Λ = special + 1 commonᵀ. Tokens that follow no
            context of a group have the common multipliers, which keeps large vocabularies cheap.

        n_groups: the number of independent problems, whose contexts are orthogonal to all others.
    """

    data: ContextDataset = field(repr=False)
    status: Status
    special: Any = field(repr=False)
    common: FloatArray
    n_groups: int
    quantities = (
        "{status.name}, margin={margin:.6g}, {data.n_contexts} contexts, {data.n_vocabulary} tokens, {n_groups} groups"
    )

    @cached_property
    def x(self) -> FloatArray:
        """The matrix W^mm (n_vocabulary, d_model), nan if there is none. It can be large: use `logits` if that is enough."""
        if self.status is Status.INFEASIBLE:
            return np.full(self.data.shape, np.nan)
        return self._combined

    @property
    def _combined(self) -> FloatArray:
        part = self.special @ self.data.H
        dense = part.toarray() if scipy.sparse.issparse(part) else np.asarray(part)
        return np.asarray(dense + self.data.H.T @ self.common)

    @cached_property
    def _norm(self) -> float:
        """The norm ‖Λ H‖, without forming a product that mostly repeats one row."""
        part, row = self.special @ self.data.H, self.data.H.T @ self.common
        square = float((part * part).sum()) + 2.0 * float(np.asarray(part.sum(axis=0)).ravel() @ row)
        return max(square + self.data.n_vocabulary * float(row @ row), 0.0) ** 0.5

    @property
    def margin(self) -> float:
        """The margin 1/‖W^mm‖: zero if the problem is infeasible, infinite if it is trivial."""
        if self.status is Status.INFEASIBLE:
            return 0.0
        return 1.0 / self._norm if self._norm else np.inf

    @property
    def direction(self) -> FloatArray:
        """The direction W^mm/‖W^mm‖."""
        return self.x / (self._norm or 1.0)

    def logits(self, contexts: Index = slice(None)) -> FloatArray:
        """Compute W^mm h_j for some contexts, by index or slice: (n_chosen, n_vocabulary)."""
        chosen = self.data.H[contexts]
        if scipy.sparse.issparse(chosen):
            gram = chosen @ self.data.H.T
            return (gram @ self.special.T).toarray() + (gram @ self.common)[:, None]
        return np.asarray(chosen @ self._combined.T)

    def kkt_residual(self) -> float:
        r"""Recompute the largest residual of the conditions above over all n_contexts × n_vocabulary pairs; nan if infeasible.

        Distances to halfspaces and planes are relative to ‖h_j‖ √2 ‖W‖, column sums and signs of Λ times ‖h_j‖ to ‖W‖, complementarity
        and the gap :math:`\sum_{v \notin S_j} -\Lambda_{vj} = \|W\|^2` to ‖W‖².
        """
        if self.status is Status.INFEASIBLE:
            return float("nan")
        if not self._norm:
            return 0.0 if self.status is Status.TRIVIAL else float("inf")
        worst, total, norm = 0.0, 0.0, self._norm
        for block in self._blocks():
            unit = np.where(block.size == 0.0, 1.0, block.size)[:, None]
            outside = ~block.inside
            slack = np.where(outside, block.anchor[:, None] - block.logits - 1.0, block.logits - block.anchor[:, None])
            distance = np.where(outside, np.maximum(-slack, 0.0), np.abs(slack)) / (unit * 2.0**0.5 * norm)
            distance[block.size == 0.0] = np.where(outside[block.size == 0.0], np.inf, 0.0)
            terms = [
                distance,
                np.where(outside, np.maximum(block.multipliers, 0.0), 0.0) * unit / norm,
                np.where(outside, np.abs(block.multipliers * slack), 0.0) / norm**2,
                np.abs(block.multipliers.sum(axis=1)) * block.size / norm,
            ]
            worst = max(worst, *(float(term.max()) for term in terms))
            total -= float(block.multipliers[outside].sum())
        return max(worst, abs(1.0 - total / norm**2))

    def certificate_residual(self) -> float:
        """Compute ‖Λ H‖ divided by the weight of Λ outside supports, times ‖h_j‖: 0 proves that no W exists; nan if one was found."""
        if self.status is not Status.INFEASIBLE:
            return float("nan")
        weight, wrong, sums = 0.0, 0.0, 0.0
        for block in self._blocks():
            outside = np.where(block.inside, 0.0, block.multipliers)
            size = np.where(block.size == 0.0, 1.0, block.size)
            weight -= float((np.minimum(outside, 0.0) * size[:, None]).sum())
            wrong = max(wrong, float((outside * size[:, None]).max(initial=0.0)))
            sums = max(sums, float(np.abs(block.multipliers.sum(axis=1) * size).max()))
        return max(self._norm, wrong, sums) / weight if weight > 0.0 else float("inf")

    def describe(self) -> str:
        """Describe the result in words; if there is no W, name the contexts and tokens that weigh most in the proof."""
        if self.status is not Status.INFEASIBLE:
            return self.status.sentence
        weights = [np.where(block.inside, 0.0, -block.multipliers) for block in self._blocks()]
        by_context = np.concatenate([block.sum(axis=1) for block in weights])
        by_token = np.sum([block.sum(axis=0) for block in weights], axis=0)
        contexts, tokens = (np.argsort(-by, kind="stable")[:_MAX_LISTED_CONTEXTS] for by in (by_context, by_token))
        shown = ", ".join(str(j) for j in contexts if by_context[j] > 0.0)
        below = ", ".join(str(v) for v in tokens if by_token[v] > 0.0)
        return (
            f"No W separates these data: that tokens {below} are one below those which follow contexts {shown} contradicts what is "
            f"tied and ranked elsewhere (residual {self.certificate_residual():.1g})."
        )

    def _blocks(self) -> Iterator[_Block]:
        """Iterate over all pairs of a context and a token, some contexts at a time."""
        data = self.data
        indptr, step = data.counts.indptr, max(1, _BLOCK_ENTRIES // data.n_vocabulary)
        by_context = self.special.T.tocsr()
        for first in range(0, data.n_contexts, step):
            rows = slice(first, min(first + step, data.n_contexts))
            part = data.H[rows]
            size = np.sqrt(np.asarray((part * part).sum(axis=1)).ravel())
            inside = np.zeros((rows.stop - first, data.n_vocabulary), dtype=bool)
            cells = slice(indptr[first], indptr[rows.stop])
            inside[data.context[cells] - first, data.token[cells]] = True
            logits = self.logits(rows) if self.status is not Status.INFEASIBLE else np.zeros(inside.shape)
            anchor = logits[np.arange(len(logits)), data.token[indptr[first : rows.stop]]]
            multipliers = by_context[rows].toarray() + self.common[rows, None]
            yield _Block(size, inside, logits, anchor, multipliers)


class _Block(NamedTuple):
    """Some contexts: ‖h_j‖, the tokens that follow, the logits, the logit of the first following token, and the multipliers."""

    size: FloatArray  # (n,)
    inside: Any  # (n, n_vocabulary)
    logits: FloatArray  # (n, n_vocabulary)
    anchor: FloatArray  # (n,)
    multipliers: FloatArray  # (n, n_vocabulary)


@implements("G", "NTP-SVM", "Def 2", "Def 3")
def ntp_svm(data: ContextDataset, *, progress: ProgressCallback | None = None) -> ContextSolution:
    r"""Find the shortest W that gives all tokens that follow a context the same logit, at least one above that of every other token.

    .. math:: W^{mm} = \arg\min_W \|W\|_F \ \text{s.t.}\ (e_z - e_{z'})^\top W h_j = 0,\ (e_z - e_v)^\top W h_j \ge 1,
        \quad z, z' \in \mathcal S_j,\ v \notin \mathcal S_j

    The data are NTP-separable if and only if it exists. Contexts that are orthogonal to all others are independent problems:
    with one context it is :math:`(1_{\mathcal S} - |\mathcal S|/V)\,h^\top/\|h\|^2`; with several, tokens that follow the same
    contexts of the group are one unknown with a weight, so the cost of a group depends on its contexts and the tokens that
    follow them, not on the vocabulary.

    Args:
        progress: called as `progress(done, total)` after each group of several contexts.

    Returns:
        A `ContextSolution` with W^mm in `.x`; `.kkt_residual()` or `.certificate_residual()` checks it over all pairs.
    """
    as_contexts(data)
    as_progress(progress)
    groups = orthogonal_groups(data.H)
    single = np.flatnonzero(np.bincount(groups)[groups] == 1)
    # The first part is quick, and there is one even if no group follows.
    parts = [_single_contexts(data, single)]
    order, sizes = np.argsort(groups, kind="stable"), np.bincount(groups)
    several = [members for members in np.split(order, np.cumsum(sizes)[:-1]) if len(members) > 1]
    # The products of groups are small, so that threads would only wait for each other.
    with single_blas_thread():
        for done, contexts in enumerate(several):
            if parts[-1].infeasible:
                break
            parts.append(_solve_group(data, contexts))
            if progress is not None:
                progress(done + 1, len(several))
    parts = parts[-1:] if parts[-1].infeasible else parts
    tokens, contexts, values = (
        np.concatenate(column) for column in zip(*(part.special for part in parts), strict=True)
    )
    special = scipy.sparse.csr_array((values, (tokens, contexts)), shape=(data.n_vocabulary, data.n_contexts))
    common = np.zeros(data.n_contexts)
    for part in parts:
        common[part.contexts] = part.common
    status = Status.INFEASIBLE if parts[-1].infeasible else Status.INACCURATE
    solution = ContextSolution(data, status, special, common, len(single) + len(several))
    if status is Status.INFEASIBLE:
        return (
            solution
            if solution.certificate_residual() <= CERTIFICATE_RTOL
            else replace(solution, status=Status.INACCURATE)
        )
    if (data.sizes == data.n_vocabulary).all():
        return replace(solution, status=Status.TRIVIAL)
    return replace(solution, status=Status.OPTIMAL) if solution.kkt_residual() <= KKT_RTOL else solution


class _Part(NamedTuple):
    """The multipliers of some contexts, or a Farkas vector."""

    # Tokens, contexts and values of the entries.
    special: tuple[IntArray, IntArray, FloatArray]
    contexts: IntArray
    # The counts that all of these contexts share.
    common: FloatArray
    infeasible: bool


def _single_contexts(data: ContextDataset, contexts: IntArray) -> _Part:
    """Solve contexts that are orthogonal to all others in closed form; a zero embedding separates nothing."""
    chosen = data.H[contexts]
    square = np.asarray((chosen * chosen).sum(axis=1)).ravel()
    sizes = data.sizes[contexts]
    zero = contexts[(square == 0.0) & (sizes < data.n_vocabulary)]
    used, square = (zero[:1], np.ones(1)) if len(zero) else (contexts[square > 0.0], square[square > 0.0])
    scale = np.zeros(data.n_contexts)
    scale[used] = 1.0 / square
    values = scale[data.context]
    kept = values != 0.0
    common = -data.sizes[used] / data.n_vocabulary / square
    return _Part((data.token[kept], data.context[kept], values[kept]), used, common, len(zero) > 0)


def _solved(rows: BilinearRows, ties: BilinearRows) -> tuple[FloatArray, FloatArray, bool]:
    """Find multipliers or a Farkas vector: with formed rows, which tolerate nearly dependent contexts, else through products."""
    if (len(rows) + len(ties)) * rows.shape[1] <= _MAX_FORMED_ENTRIES:
        A, C = np.asarray(rows), np.asarray(ties)
        found = least_distance(A, np.ones(len(A)), equalities=C if len(C) else None)
        mu = np.zeros(0) if found.equality_multipliers is None else found.equality_multipliers
        if found.certificate is not None:
            return found.certificate, mu, True
        if found.status is Status.OPTIMAL:
            return *_closed(A, C, found.multipliers, mu), False
    return solve_groups(rows, ties, np.arange(len(rows)))[1:]


def _closed(A: FloatArray, C: FloatArray, weights: FloatArray, mu: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Move the multipliers until W = Aᵀ weights + Cᵀ mu closes the gaps of the rows with a multiplier, if that keeps their signs."""
    active = np.flatnonzero(weights > 0.0)
    binding, goal = np.vstack([A[active], C]), np.append(np.ones(len(active)), np.zeros(len(C)))
    u = np.append(weights[active], mu)
    gap = goal - binding @ (binding.T @ u)
    for _ in range(_MAX_MULTIPLIER_CORRECTIONS):
        moved = u + np.linalg.lstsq(binding.T, np.linalg.lstsq(binding, gap)[0])[0]
        left = goal - binding @ (binding.T @ moved)
        if (moved[: len(active)] <= 0.0).any() or np.abs(left).max() > 0.5 * np.abs(gap).max():
            break
        u, gap = moved, left
    weights = np.zeros_like(weights)
    weights[active] = u[: len(active)]
    return weights, u[len(active) :]


def _small_contradiction(data: ContextDataset, contexts: IntArray, n_tokens: int) -> _Part:
    """Find a few contexts of a large group that contradict each other, which proves the whole group infeasible; else refuse the group."""
    # Contexts with the most ties come first.
    order = np.argsort(-data.sizes[contexts], kind="stable")
    for count in _SUBSETS:
        part = _solve_group(data, np.sort(contexts[order[:count]]))
        if part.infeasible:
            return part
    got = f"one of {len(contexts)} contexts and {n_tokens} tokens, with no contradiction among {_SUBSETS[-1]} of them"
    expected = (
        f"contexts in orthogonal groups of at most {_MAX_GROUP_PAIRS:,} pairs of a context and a token that follows"
    )
    raise InputError("data", expected, got, "Take fewer contexts, or sparse embeddings.")


def _solve_group(data: ContextDataset, contexts: IntArray) -> _Part:
    """Solve the problem of some contexts, in which tokens that follow the same contexts are one unknown."""
    follows = data.counts[contexts].T.tocsr() > 0  # (n_vocabulary, n_chosen)
    seen = np.flatnonzero(np.diff(follows.indptr))
    if len(seen) * len(contexts) > _MAX_GROUP_PAIRS:
        return _small_contradiction(data, contexts, len(seen))
    profiles, kind = np.unique(follows[seen].toarray(), axis=0, return_inverse=True)
    n_unseen = data.n_vocabulary - len(seen)
    n_tokens = np.bincount(kind.reshape(-1), minlength=len(profiles))
    if n_unseen:
        profiles = np.vstack([profiles, np.zeros((1, len(contexts)), dtype=bool)])
        n_tokens = np.append(n_tokens, n_unseen)
    # The token of each context that the others are compared with.
    anchor = np.argmax(profiles, axis=0)
    k, other = np.nonzero(profiles.T)
    tied = np.column_stack([k, anchor[k], other])[other != anchor[k]]
    k, other = np.nonzero(~profiles.T)
    strict = np.column_stack([k, anchor[k], other])
    if not len(strict):
        return _Part((seen[:0], seen[:0], np.zeros(0)), contexts, np.zeros(len(contexts)), False)
    # Unknowns are longer by √n for n tokens, which makes the norm that of all tokens.
    X = np.diag(1.0 / np.sqrt(n_tokens))
    H = data.H[contexts]
    H = H[:, np.unique(H.indices)].toarray() if scipy.sparse.issparse(H) else H
    # Wide H is replaced by one with the same inner products and fewer coordinates.
    H = np.asarray(np.linalg.qr(H.T, mode="r")).T if len(H) < H.shape[1] else H
    rows, ties = BilinearRows(X, H, strict), BilinearRows(X, H, tied)
    rows.check_range("H")
    zero = np.flatnonzero(length(H)[strict[:, 0]] == 0.0)
    # None of several equal logits is larger than the others.
    if len(zero):
        weights, mu, infeasible = (np.arange(len(strict)) == zero[0]).astype(np.float64), np.zeros(len(tied)), True
    else:
        weights, mu, infeasible = _solved(rows, ties)
    table = np.zeros((len(profiles), len(contexts)))
    for triples, values in ((strict, weights), (tied, mu)):
        np.add.at(table, (triples[:, 1], triples[:, 0]), values)
        np.add.at(table, (triples[:, 2], triples[:, 0]), -values)
    # Each of n tokens has its share.
    table /= n_tokens[:, None]
    common = table[-1] if n_unseen else np.zeros(len(contexts))
    entries = (table[kind.reshape(-1)] - common).reshape(-1)
    cells = (np.repeat(seen, len(contexts)), np.tile(contexts, len(seen)), entries)
    return _Part(cells, contexts, common, infeasible)
