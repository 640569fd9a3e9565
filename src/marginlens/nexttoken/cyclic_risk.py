"""The mean loss over a cyclic subset as a function of the logits of its cells (token, last token)."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.linalg import cho_solve, solve_triangular
from scipy.sparse import coo_array, csr_array, diags_array
from scipy.sparse.linalg import LinearOperator, cg, eigsh
from scipy.special import softmax

from marginlens.data.tokens import BoolArray, FloatArray, IntArray
from marginlens.errors import reject
from marginlens.graphs.cyclic import CyclicSubset
from marginlens.graphs.subspace import CyclicSubspace, scale_to_unit
from marginlens.losses.next_token import (
    CrossEntropy,
    LabelLoss,
    LogLoss,
    NextTokenLoss,
    derivative_of,
    scalar_of,
    second_of,
    value_of,
)
from marginlens.risk.reduced_sequences import ReducedProblem, reduce_sequences
from marginlens.runtime.compilation import njit

_CHUNK = 4_000_000  # numbers held at once for the second derivatives of a loss of all outputs


class ComponentRisk:
    r"""The risk of a reduced problem as a function of its table :math:`M = E W E^\top` of logits.

    .. math:: \mathcal L(M) = \sum_i \pi_i\, \ell(y_i, H s_i), \quad s_i = \mathbb S(M_{\cdot k_i} + \log m_i)

    Args:
        problem: samples with shares :math:`\pi_i` and multiplicities :math:`m_i`.
        scores: H = C Eᵀ (n_vocabulary, n_vocabulary), or None for C Eᵀ = I.
        loss: the loss of a sample.

    A table enters only through its cells, the pairs (token, last token) that occur: `tokens` and `columns` (n_cells,), sorted by last
    token, then token. `at(table)` evaluates at a whole table (n_vocabulary, n_queries), `at_cells(values)` at the logits of the cells.
    """

    def __init__(
        self, problem: ReducedProblem, *, scores: FloatArray | None = None, loss: NextTokenLoss | None = None
    ) -> None:
        self.problem, self.scores = problem, scores
        self.loss = LogLoss() if loss is None else loss
        K = len(problem.E)
        self.sample = problem.sample
        keys, entry = np.unique(problem.column[self.sample] * K + problem.tokens, return_inverse=True)
        self.cell: IntArray = entry.reshape(-1)  # (n_entries,) the cell of each entry
        self.columns, self.tokens = keys // K, keys % K
        self.is_label: BoolArray = problem.is_label

    def __repr__(self) -> str:
        head = "C Eᵀ = I" if self.scores is None else "a general head"
        return f"ComponentRisk({type(self.loss).__name__}, {head}, {len(self.problem.labels)} samples, {len(self.tokens)} cells)"

    @property
    def is_likelihood(self) -> bool:
        """Whether this is the log-loss with C Eᵀ = I, the convex case of C Lemma 3."""
        return isinstance(self.loss, LogLoss) and self.scores is None

    def at(self, table: FloatArray) -> RiskPoint:
        """The risk near a table (n_vocabulary, n_queries)."""
        return self.at_cells(table[self.tokens, self.columns])

    def at_cells(self, values: FloatArray) -> RiskPoint:
        """The risk near a table whose cells have the logits `values` (n_cells,)."""
        logits = values[self.cell] + self.problem.log_counts
        starts, lengths = self.problem.offsets[:-1], np.diff(self.problem.offsets)
        weights = np.exp(logits - np.repeat(np.maximum.reduceat(logits, starts), lengths))
        softmax = weights / np.repeat(np.add.reduceat(weights, starts), lengths)
        if self.is_likelihood:
            return RiskPoint(self, softmax, *self._likelihood(logits, softmax))
        return RiskPoint(self, softmax, *self._general(softmax))

    def sums(self, entries: FloatArray) -> FloatArray:
        """(n_entries,) the sum of `entries` over each sample, repeated."""
        return np.repeat(np.add.reduceat(entries, self.problem.offsets[:-1]), np.diff(self.problem.offsets))

    def spread(self, entries: FloatArray) -> FloatArray:
        """(n_vocabulary, n_queries) entries weighed by their samples' shares and added up in the table."""
        table = np.zeros((len(self.problem.E), len(self.problem.queries)))
        table[self.tokens, self.columns] = self.collect(entries)
        return table

    def collect(self, entries: FloatArray) -> FloatArray:
        """(n_cells,) entries weighed by their samples' shares and added up in the cells."""
        weights = entries * self.problem.share[self.sample]
        return np.asarray(np.bincount(self.cell, weights=weights, minlength=len(self.tokens)), dtype=np.float64)

    def _likelihood(self, logits: FloatArray, softmax: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Losses log Σ e^(logit - label's logit) and slopes s - 1_y, with 1 - s_y as the sum of the others."""
        starts, lengths = self.problem.offsets[:-1], np.diff(self.problem.offsets)
        of_label = np.full(len(starts), -np.inf)
        of_label[self.sample[self.is_label]] = logits[self.is_label]
        rest = np.logaddexp.reduceat(np.where(self.is_label, -np.inf, logits), starts)
        losses = np.where(
            np.isinf(of_label), np.inf, np.logaddexp(0.0, rest - np.where(np.isinf(of_label), 0.0, of_label))
        )
        others = np.where(self.is_label, 0.0, softmax)
        missing = np.repeat(np.add.reduceat(others, starts), lengths)
        return losses, np.where(self.is_label, -missing, softmax)

    def _general(self, softmax: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Losses, and slopes s (γ - Σ s γ) with γ = Hᵀ ∂ℓ/∂ŷ taken relative to the token of the largest weight."""
        problem, starts, lengths = self.problem, self.problem.offsets[:-1], np.diff(self.problem.offsets)
        if isinstance(self.loss, LabelLoss):
            u = np.add.reduceat(softmax * self.label_scores, starts)
            losses, slope, _ = scalar_of(self.loss, u)
            gains = np.repeat(slope, lengths) * self.label_scores
        else:
            outputs = self.outputs(softmax, slice(None))
            losses = value_of(self.loss, outputs, problem.labels)
            slopes = derivative_of(self.loss, outputs, problem.labels)
            pulled = slopes if self.scores is None else slopes @ self.scores
            gains = pulled[self.sample, problem.tokens]
        order = np.lexsort((-softmax, self.sample))
        relative = gains - np.repeat(gains[order[starts]], lengths)
        return losses, softmax * (relative - self.sums(softmax * relative))

    @cached_property
    def label_scores(self) -> FloatArray:
        """(n_entries,) H[y, x]: what each entry contributes to its sample's ŷ_y."""
        if self.scores is None:
            return self.is_label.astype(np.float64)
        return self.scores[self.problem.labels[self.sample], self.problem.tokens]

    def outputs(self, softmax: FloatArray, some: slice) -> FloatArray:
        """(n_some, n_vocabulary) ŷ = H s of some samples."""
        shape = (len(self.problem.labels), len(self.problem.E))
        spread = csr_array((softmax, self.problem.tokens, self.problem.offsets), shape=shape)[some].toarray()
        return np.asarray(spread if self.scores is None else spread @ self.scores.T, dtype=np.float64)


@dataclass(frozen=True, repr=False, eq=False)
class RiskPoint:
    """The risk at one table: its value, gradient and curvature.

    Attributes:
        risk: the function. softmax: (n_entries,) the attention on each token of a sample. losses: (n_samples,) the loss of each.
        slopes: (n_entries,) the derivative of each sample's loss by its logits.
    """

    risk: ComponentRisk
    softmax: FloatArray
    losses: FloatArray
    slopes: FloatArray

    def __repr__(self) -> str:
        return f"RiskPoint(value={self.value:.6g}, gradient={float(np.linalg.norm(self.cell_gradient)):.2e})"

    @cached_property
    def value(self) -> float:
        """The risk, infinite where a loss is."""
        return float(self.risk.problem.share @ self.losses)

    @cached_property
    def gradient(self) -> FloatArray:
        """(n_vocabulary, n_queries) the derivative by the table; `problem.lift` makes it the derivative by W."""
        return self.risk.spread(self.slopes)

    @cached_property
    def cell_gradient(self) -> FloatArray:
        """(n_cells,) the derivative by the logits of the cells."""
        return self.risk.collect(self.slopes)

    def product(self, direction: FloatArray) -> FloatArray:
        """(n_vocabulary, n_queries) the Hessian by the table, applied to a table."""
        return self.risk.spread(self._along(direction[self.risk.tokens, self.risk.columns]))

    def cell_product(self, direction: FloatArray) -> FloatArray:
        """(n_cells,) the Hessian by the logits of the cells, applied to a vector of cells."""
        return self.risk.collect(self._along(direction))

    def _along(self, direction: FloatArray) -> FloatArray:
        risk, s = self.risk, self.softmax
        moved = direction[risk.cell]
        moved = moved - risk.sums(s * moved)
        if risk.is_likelihood:
            return s * moved
        bent = self._bent(s * moved)
        first = self.slopes * moved
        return first - s * risk.sums(first) + s * (bent - risk.sums(s * bent))

    def _bent(self, change: FloatArray) -> FloatArray:
        """Hᵀ ∂²ℓ/∂ŷ² H applied to a change of the softmax."""
        risk, problem = self.risk, self.risk.problem
        if isinstance(risk.loss, LabelLoss):
            return (
                risk.sums(change * risk.label_scores)
                * np.repeat(self._bend, np.diff(problem.offsets))
                * risk.label_scores
            )
        if isinstance(risk.loss, CrossEntropy):  # diag(π) - ππᵀ needs no matrix
            outputs, moved = risk.outputs(self.softmax, slice(None)), risk.outputs(change, slice(None))
            share = softmax(outputs, axis=1)
            turned = share * (moved - np.sum(share * moved, axis=1, keepdims=True))
            pulled = turned if risk.scores is None else turned @ risk.scores
            return pulled[risk.sample, problem.tokens]
        bent = np.empty_like(change)
        for some, second in self._seconds():
            entries = slice(problem.offsets[some.start], problem.offsets[some.stop])
            turned = np.einsum("nab,nb->na", second, risk.outputs(change, some))
            pulled = turned if risk.scores is None else turned @ risk.scores
            bent[entries] = pulled[risk.sample[entries] - some.start, problem.tokens[entries]]
        return bent

    @cached_property
    def _bend(self) -> FloatArray:
        """(n_samples,) ℓ''(u) of a loss of the label's output."""
        loss = self.risk.loss
        if not isinstance(loss, LabelLoss):
            raise TypeError(f"{type(loss).__name__} is no loss of the label's output alone")
        u = np.add.reduceat(self.softmax * self.risk.label_scores, self.risk.problem.offsets[:-1])
        return scalar_of(loss, u)[2]

    def _seconds(self) -> Any:
        """Second derivatives (n_some, n_vocabulary, n_vocabulary) of the losses by the outputs, some samples at a time."""
        risk, problem = self.risk, self.risk.problem
        n, K = len(problem.labels), len(problem.E)
        step = max(1, _CHUNK // (K * K))
        for first in range(0, n, step):
            some = slice(first, min(n, first + step))
            yield some, second_of(risk.loss, risk.outputs(self.softmax, some), problem.labels[some])

    def hessian(self) -> csr_array:
        """(n_cells, n_cells) the Hessian by the logits of the cells, sparse: cells of different last tokens do not meet."""
        risk, problem, s = self.risk, self.risk.problem, self.softmax
        weight = diags_array(problem.share)
        S = self._by_sample(s)
        if risk.is_likelihood:
            return csr_array(diags_array(risk.collect(s)) - S.T @ weight @ S)
        G = self._by_sample(self.slopes)
        cross = S.T @ weight @ G
        bent = diags_array(risk.collect(self.slopes)) - cross - cross.T
        if isinstance(risk.loss, LabelLoss):
            Q = self._by_sample(s * (risk.label_scores - risk.sums(s * risk.label_scores)))
            return csr_array(bent + Q.T @ diags_array(problem.share * self._bend) @ Q)
        return csr_array(bent + self._outer())

    def _outer(self) -> csr_array:
        """J Hᵀ ∂²ℓ/∂ŷ² H J of every sample, J = diag(s) - s sᵀ, added up."""
        risk, problem = self.risk, self.risk.problem
        rows, columns, values = [], [], []
        for some, second in self._seconds():
            pulled = second if risk.scores is None else risk.scores.T @ second @ risk.scores
            for i in range(some.start, some.stop):
                entries = slice(problem.offsets[i], problem.offsets[i + 1])
                tokens, s, cell = problem.tokens[entries], self.softmax[entries], risk.cell[entries]
                J = np.diag(s) - np.outer(s, s)
                values.append(problem.share[i] * (J @ pulled[i - some.start][np.ix_(tokens, tokens)] @ J).reshape(-1))
                rows.append(np.repeat(cell, len(cell)))
                columns.append(np.tile(cell, len(cell)))
        size = len(risk.tokens)
        where = (np.concatenate(rows), np.concatenate(columns))
        return csr_array(coo_array((np.concatenate(values), where), shape=(size, size)))

    def _by_sample(self, entries: FloatArray) -> csr_array:
        """(n_samples, n_cells) entries in the cells that they belong to."""
        shape = (len(self.risk.problem.labels), len(self.risk.tokens))
        return csr_array((entries, self.risk.cell, self.risk.problem.offsets), shape=shape)


_SMALL = 800  # up to this rank, coordinates in a basis and dense Hessians are the quickest


class Landscape:
    """The mean loss over a cyclic subset, by the logits of its cells (token, last token), in the order of the subspace.

    Embeddings are brought near length one by a power of two: with those given, the weights W of here are W · 2^(-2 `power`) and have the
    same logits, and gradients are larger by 2^(2 `power`).

    Args:
        subset: the samples. space: S_cyc of the same graphs. scores: H = C Eᵀ, or None for the identity. loss: the loss.
    """

    def __init__(
        self, subset: CyclicSubset, space: CyclicSubspace, scores: FloatArray | None, loss: NextTokenLoss
    ) -> None:
        E, self.power = scale_to_unit(space.E)
        self.space, self.subset = replace(space, E=E), copy(subset)
        self.subset.E = E
        self.risk = ComponentRisk(reduce_sequences(self.subset), scores=scores, loss=loss)
        K, queries = len(space.E), self.risk.problem.queries
        have, want = queries[self.risk.columns] * K + self.risk.tokens, space.queries[space.columns] * K + space.tokens
        if len(have) != len(want) or not np.array_equal(np.sort(have), np.sort(want)):
            raise reject(
                "graphs", "graphs of these sequences and no others", "components with tokens that no sequence keeps"
            )
        order = np.argsort(have)
        self.place: IntArray = order[
            np.searchsorted(have, want, sorter=order)
        ]  # where each of the subspace's cells is in the risk's

    def __repr__(self) -> str:
        return f"Landscape({self.risk!r}, {self.space!r})"

    # ---- by cells

    def at(self, cells: FloatArray) -> RiskPoint:
        """The risk at logits (n_cells,) in the order of the subspace."""
        values = np.empty_like(cells)
        values[self.place] = cells
        return self.risk.at_cells(values)

    def slope(self, point: RiskPoint) -> FloatArray:
        """(n_cells,) the gradient by the cells; it adds up to zero over each component."""
        return self.space.centre(point.cell_gradient[self.place])

    def curvature(self, point: RiskPoint) -> csr_array:
        """(n_cells, n_cells) the Hessian by the cells; zero between different components."""
        return csr_array(point.hessian()[self.place][:, self.place])

    def bend(self, point: RiskPoint, cells: FloatArray) -> FloatArray:
        """(n_cells,) the Hessian applied to a vector of cells."""
        values = np.empty_like(cells)
        values[self.place] = cells
        return self.space.centre(point.cell_product(values)[self.place])

    def gradient(self, W: FloatArray) -> FloatArray:
        """(d_model, d_model) the gradient by W."""
        return self.space.lift(self.slope(self.at(self.space.cells(W))))

    # ---- blocks: the cells of one component

    @cached_property
    def blocks(self) -> list[slice]:
        """The cells of each component."""
        starts = np.append(np.searchsorted(self.space.groups, np.arange(self.space.n_groups)), len(self.space.groups))
        return [slice(int(a), int(b)) for a, b in pairwise(starts)]

    @cached_property
    def block_of(self) -> IntArray:
        """(n_samples,) the component of each merged sample."""
        groups = np.empty(len(self.place), dtype=np.int64)
        groups[self.place] = self.space.groups
        return groups[self.risk.cell[self.risk.problem.offsets[:-1]]]

    # ---- between cells and W

    @cached_property
    def small(self) -> bool:
        """Whether coordinates in a basis of S_cyc are worth forming."""
        return self.space.direct and min(self.space.n_generators, self.space.E.shape[1] ** 2) <= _SMALL

    @cached_property
    def table(self) -> FloatArray:
        """(n_cells, rank) the logits, up to a constant for each component, of an orthonormal basis of S_cyc."""
        space = self.space
        if space.factor is None:
            return space.table_basis()
        table = np.zeros((len(space.tokens), space.n_generators))
        table[space.free] = space.factor
        return table

    def coordinates(self, W: FloatArray) -> FloatArray:
        """(rank,) the coordinates of W in S_cyc, in the basis of `table`."""
        space = self.space
        if space.factor is None:
            return np.asarray(np.tensordot(space.basis, W, axes=2))
        return np.asarray(solve_triangular(space.factor, space.differences(space.cells(W)), lower=True))

    def matrix(self, coordinates: FloatArray) -> FloatArray:
        """(d_model, d_model) the W with these coordinates."""
        if self.space.factor is None:
            return np.asarray(np.tensordot(coordinates, self.space.basis, axes=1))
        return self.weights(self.space.centre(self.table @ coordinates))

    def weights(self, cells: FloatArray) -> FloatArray:
        """(d_model, d_model) the W in S_cyc with these centred logits, where the embeddings in use are independent."""
        space = self.space
        if space.scales is not None:
            return space.lift(cells / space.scales[space.columns])
        if space.factor is not None:
            W = np.zeros((space.E.shape[1], space.E.shape[1]))
            for _ in range(3):
                missing = space.differences(cells - space.cells(W))
                W = W + space.lift(space.differences_transposed(cho_solve((space.factor, True), missing)))
            return W
        found = np.zeros_like(cells)
        gram = LinearOperator(
            (len(cells), len(cells)), matvec=lambda a: space.centre(space.cells(space.lift(space.centre(np.ravel(a)))))
        )
        noise, missing = 1e-15 * float(np.linalg.norm(cells)), cells
        for _ in range(3):
            if np.linalg.norm(missing) <= noise:
                break
            more = found + space.centre(cg(gram, missing, rtol=1e-13, atol=noise, maxiter=20 * len(cells))[0])
            after = cells - gram.matvec(more)
            if not np.linalg.norm(after) < np.linalg.norm(missing):
                break
            found, missing = more, after
        return space.lift(space.centre(found))

    def smallest_eigenvalue(self, W: FloatArray) -> float:
        """The smallest eigenvalue of the Hessian by W inside S_cyc, in orthonormal coordinates."""
        space, point = self.space, self.at(self.space.cells(W))
        if space.rank == 0:
            return float("inf")
        if space.scales is not None:
            hessian = self.curvature(point)
            return min(
                _smallest_centred(hessian[block, block].toarray()) * space.scales[space.columns[block.start]]
                for block in self.blocks
            )
        if space.direct:
            return float(np.linalg.eigvalsh(self.table.T @ (self.curvature(point) @ self.table))[0])
        d = space.E.shape[1]
        top = float(np.linalg.norm(space.E, 2) ** 4)

        def apply(w: FloatArray) -> FloatArray:
            inside = space.project(np.ravel(w).reshape(d, d))
            outside = np.ravel(w).reshape(d, d) - inside
            return np.ravel(space.project(space.lift(self.bend(point, space.cells(inside)))) + top * outside)

        operator = LinearOperator((d * d, d * d), matvec=apply, dtype=np.float64)
        start = np.random.default_rng(0).standard_normal(d * d)  # the same in every run
        return float(eigsh(operator, k=1, which="SA", tol=1e-6, v0=start, return_eigenvectors=False)[0])


def _smallest_centred(hessian: FloatArray) -> float:
    """The smallest eigenvalue of a Hessian orthogonal to the constants, which it annihilates."""
    size = len(hessian)
    above = 2.0 * float(np.abs(hessian).sum(axis=1).max(initial=1.0))
    return float(np.linalg.eigvalsh(hessian + above / size)[0])


class Likelihood:
    """Value, slope and curvature of every component's part of the log-loss with C Eᵀ = I, by the logits of the cells.

    Args:
        landscape: the risk; every sample's label must be among its tokens.
    """

    def __init__(self, landscape: Landscape) -> None:
        risk = landscape.risk
        problem, place = risk.problem, landscape.place
        where = np.empty_like(place)
        where[place] = np.arange(len(place))
        label = np.empty(len(problem.labels), dtype=np.int64)
        label[risk.sample[risk.is_label]] = np.flatnonzero(risk.is_label)
        sizes = np.array([block.stop - block.start for block in landscape.blocks])
        self._first = np.array([block.start for block in landscape.blocks])
        self._square = np.concatenate([[0], np.cumsum(sizes**2)])
        self._sizes, self._blocks = sizes, landscape.blocks
        self._arrays: Any = (
            where[risk.cell],
            problem.log_counts,
            problem.offsets,
            label,
            problem.share,
            landscape.block_of,
        )

    def __repr__(self) -> str:
        return f"Likelihood({len(self._sizes)} components, {int(self._sizes.sum())} cells)"

    def __call__(self, cells: FloatArray) -> tuple[FloatArray, FloatArray, list[FloatArray]]:
        """Values (n_components,), slopes (n_cells,) and one Hessian per component."""
        values, slopes, squares = np.zeros(len(self._sizes)), np.zeros(len(cells)), np.zeros(self._square[-1])
        _accumulate(cells, self._arrays, (self._first, self._sizes, self._square), (values, slopes, squares))
        hessians = [
            squares[self._square[b] : self._square[b + 1]].reshape(size, size)
            for b, size in enumerate(self._sizes.tolist())
        ]
        return values, slopes, hessians


@njit(cache=True, nogil=True)
def _accumulate(cells: Any, arrays: Any, layout: Any, out: Any) -> None:
    """Add up every sample; curvatures s_a s_b enter row and diagonal alike, so that rows add up to zero."""
    entry_cell, log_counts, offsets, label, share, block_of = arrays
    first, sizes, square = layout
    values, slopes, squares = out
    longest = 0
    for i in range(len(share)):
        longest = max(longest, offsets[i + 1] - offsets[i])
    s = np.empty(longest)
    for i in range(len(share)):
        begin, end, block = offsets[i], offsets[i + 1], block_of[i]
        top = -np.inf
        for t in range(begin, end):
            s[t - begin] = cells[entry_cell[t]] + log_counts[t]
            top = max(top, s[t - begin])
        of_label = s[label[i] - begin]
        total = 0.0
        others = 0.0
        for t in range(begin, end):
            s[t - begin] = np.exp(s[t - begin] - top)
            total += s[t - begin]
            if t != label[i]:
                others += s[t - begin]
        if of_label == top:
            values[block] += share[i] * np.log1p(others)
        else:
            values[block] += share[i] * (top - of_label + np.log(total))
        for t in range(begin, end):
            s[t - begin] /= total
            slopes[entry_cell[t]] += share[i] * (-others / total if t == label[i] else s[t - begin])
        corner, width, origin = square[block], sizes[block], first[block]
        for t in range(begin, end):
            a = entry_cell[t] - origin
            for u in range(begin, t):
                b = entry_cell[u] - origin
                both = share[i] * s[t - begin] * s[u - begin]
                squares[corner + a * width + b] -= both
                squares[corner + b * width + a] -= both
                squares[corner + a * width + a] += both
                squares[corner + b * width + b] += both
