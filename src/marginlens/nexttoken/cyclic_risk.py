"""The mean loss over a cyclic subset as a function of the logits of its cells (token, last token)."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, cast

import numpy as np
import scipy

from marginlens import core
from marginlens.errors import InputError
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
from marginlens.risk.sequence_batch import reduce_sequences
from marginlens.typing import FloatArray, IntArray

# Up to this rank, coordinates in a basis and dense Hessians are fastest.
MAX_DENSE_RANK = 800
# Numbers held at once for the second derivatives of a loss of all outputs.
SECOND_DERIVATIVES_AT_ONCE = 4_000_000


class CyclicRisk:
    r"""The mean loss over a cyclic subset as a function of the logits :math:`M_{xk} = e_x^\top W e_k` of its cells.

    .. math:: \bar{\mathcal L}(M) = \sum_i \pi_i\, \ell(y_i, H s_i), \quad s_i = \mathbb S(M_{\cdot k_i} + \log m_i)

    Cells are the pairs (token x, last token k) that occur, in the order of the subspace; equal samples are merged, with shares
    :math:`\pi_i` and multiplicities :math:`m_i`. Embeddings are brought near length one by a power of two. Weights W of this class stand
    for W · 2^(-2 `power`) with the embeddings as given: these have the same logits, and gradients larger by 2^(2 `power`).

    Args:
        subset: the samples.

        space: S_cyc of the same graphs.

        scores: H = C Eᵀ, or None for the identity.

        loss: the loss.
    """

    def __init__(
        self, subset: CyclicSubset, space: CyclicSubspace, scores: FloatArray | None, loss: NextTokenLoss
    ) -> None:
        E, self.power = scale_to_unit(space.E)
        self.space, self.subset = replace(space, E=E), copy(subset)
        self.subset.E = E
        self.scores, self.loss, self.problem = scores, loss, reduce_sequences(self.subset)
        problem, K = self.problem, len(E)
        self.sample, self.is_label = problem.sample, problem.is_label
        entries = problem.queries[problem.column[self.sample]] * K + problem.tokens
        cells = space.queries[space.columns] * K + space.tokens
        if not np.array_equal(np.unique(entries), np.sort(cells)):
            raise InputError(
                "graphs", "graphs of exactly these sequences", "components with tokens that no sequence keeps"
            )
        order = np.argsort(cells)
        # (n_entries,) the cell of each entry
        self.cell: IntArray = order[np.searchsorted(cells, entries, sorter=order)]

    def __repr__(self) -> str:
        head = "C Eᵀ = I" if self.scores is None else "a general head"
        return f"CyclicRisk({type(self.loss).__name__}, {head}, {len(self.problem.labels)} samples, {self.space!r})"

    @property
    def is_likelihood(self) -> bool:
        """True if this is the log-loss with C Eᵀ = I, the convex case of C Lemma 3."""
        return isinstance(self.loss, LogLoss) and self.scores is None

    def at(self, cells: FloatArray) -> RiskPoint:
        """Evaluate the risk at logits (n_cells,)."""
        logits = cells[self.cell] + self.problem.log_counts
        starts, lengths = self.problem.offsets[:-1], np.diff(self.problem.offsets)
        weights = np.exp(logits - np.repeat(np.maximum.reduceat(logits, starts), lengths))
        s = weights / self.sums(weights)
        return RiskPoint(self, s, *(self._likelihood(logits, s) if self.is_likelihood else self._general(s)))

    def gradient(self, W: FloatArray) -> FloatArray:
        """Compute the gradient by W, (d_model, d_model)."""
        return self.space.lift(self.at(self.space.cells(W)).gradient)

    def sums(self, entries: FloatArray) -> FloatArray:
        """Sum `entries` over each sample, repeated for each of its entries."""
        return np.repeat(np.add.reduceat(entries, self.problem.offsets[:-1]), np.diff(self.problem.offsets))

    def collect(self, entries: FloatArray) -> FloatArray:
        """Add entries, weighted by their samples' shares, in their cells, (n_cells,)."""
        weights = entries * self.problem.share[self.sample]
        return np.asarray(np.bincount(self.cell, weights=weights, minlength=len(self.space.tokens)), dtype=np.float64)

    def _likelihood(self, logits: FloatArray, s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Compute losses log Σ e^(logit - label's logit) and slopes s - 1_y, with 1 - s_y as the sum of the others to keep its digits."""
        starts = self.problem.offsets[:-1]
        of_label = np.full(len(starts), -np.inf)
        of_label[self.sample[self.is_label]] = logits[self.is_label]
        rest = np.logaddexp.reduceat(np.where(self.is_label, -np.inf, logits), starts)
        missing = np.isinf(of_label)
        losses = np.where(missing, np.inf, np.logaddexp(0.0, rest - np.where(missing, 0.0, of_label)))
        return losses, np.where(self.is_label, -self.sums(np.where(self.is_label, 0.0, s)), s)

    def _general(self, s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Compute losses, and slopes s (γ - Σ s γ) with γ = Hᵀ ∂ℓ/∂ŷ relative to the token of the largest weight, to avoid cancellation."""
        problem, starts, lengths = self.problem, self.problem.offsets[:-1], np.diff(self.problem.offsets)
        if isinstance(self.loss, LabelLoss):
            losses, slope, _ = scalar_of(self.loss, np.add.reduceat(s * self.label_scores, starts))
            gains = np.repeat(slope, lengths) * self.label_scores
        else:
            outputs = self.outputs(s, slice(None))
            losses = value_of(self.loss, outputs, problem.labels)
            gains = self.pulled_back(derivative_of(self.loss, outputs, problem.labels))[self.sample, problem.tokens]
        order = np.lexsort((-s, self.sample))
        relative = gains - np.repeat(gains[order[starts]], lengths)
        return losses, s * (relative - self.sums(s * relative))

    @cached_property
    def label_scores(self) -> FloatArray:
        """The contribution H[y, x] of each entry to its sample's ŷ_y, (n_entries,)."""
        if self.scores is None:
            return self.is_label.astype(np.float64)
        return self.scores[self.problem.labels[self.sample], self.problem.tokens]

    def outputs(self, s: FloatArray, samples: slice) -> FloatArray:
        """Compute the outputs ŷ = H s of these samples, (n_samples, n_vocabulary)."""
        shape = (len(self.problem.labels), len(self.problem.E))
        spread = scipy.sparse.csr_array((s, self.problem.tokens, self.problem.offsets), shape=shape)[samples].toarray()
        return np.asarray(spread if self.scores is None else spread @ self.scores.T, dtype=np.float64)

    def pulled_back(self, by_outputs: FloatArray) -> FloatArray:
        """Multiply derivatives by the outputs by Hᵀ, (n_samples, n_vocabulary)."""
        return by_outputs if self.scores is None else by_outputs @ self.scores

    # ---- components

    @cached_property
    def blocks(self) -> list[slice]:
        """The cells of each component."""
        starts = np.append(np.searchsorted(self.space.groups, np.arange(self.space.n_groups)), len(self.space.groups))
        return [slice(int(a), int(b)) for a, b in pairwise(starts)]

    def minimise_by_component(self, cells: FloatArray) -> int:
        """Move cells (n_cells,) to the minimum of a likelihood with free logits, and return the number of steps, negative if it failed.

        Every sample's label must be among its tokens.
        """
        return int(core.minimise_likelihoods(cells, *self._likelihood_arrays))

    @cached_property
    def _likelihood_arrays(self) -> tuple[Any, ...]:
        """The samples, and for every component its first cell, the number of its cells and the offset of its Hessian, with the end."""
        problem = self.problem
        label = np.empty(len(problem.labels), dtype=np.int64)
        label[self.sample[self.is_label]] = np.flatnonzero(self.is_label)
        block_of = self.space.groups[self.cell[problem.offsets[:-1]]]
        first = np.array([block.start for block in self.blocks])
        sizes = np.array([block.stop - block.start for block in self.blocks])
        corners = np.concatenate([[0], np.cumsum(sizes**2)])
        samples = (self.cell, problem.log_counts, problem.offsets, label, problem.share, block_of)
        return (*samples, first, sizes, corners)

    # ---- between cells and W

    @cached_property
    def is_small(self) -> bool:
        """True if coordinates in a basis of S_cyc are worth forming."""
        return self.space.direct and min(self.space.n_generators, self.space.E.shape[1] ** 2) <= MAX_DENSE_RANK

    @cached_property
    def table(self) -> FloatArray:
        """The logits, up to a constant for each component, of an orthonormal basis of S_cyc, (n_cells, rank)."""
        space = self.space
        if space.factor is None:
            return space.table_basis()
        table = np.zeros((len(space.tokens), space.n_generators))
        table[space.free] = space.factor
        return table

    def coordinates(self, W: FloatArray) -> FloatArray:
        """Compute the coordinates (rank,) of W in S_cyc, in the basis of `table`."""
        space = self.space
        if space.factor is None:
            return np.asarray(np.tensordot(space.basis, W, axes=2))
        return np.asarray(scipy.linalg.solve_triangular(space.factor, space.differences(space.cells(W)), lower=True))

    def matrix(self, coordinates: FloatArray) -> FloatArray:
        """Compute the W (d_model, d_model) with these coordinates."""
        if self.space.factor is None:
            return np.asarray(np.tensordot(coordinates, self.space.basis, axes=1))
        return self.weights(self.space.centre(self.table @ coordinates))

    def weights(self, cells: FloatArray) -> FloatArray:
        """Compute the W (d_model, d_model) in S_cyc with these centred logits, if the embeddings in use are independent."""
        space = self.space
        if space.scales is not None:
            return space.lift(cells / space.scales[space.columns])
        if space.factor is not None:
            W = np.zeros((space.E.shape[1], space.E.shape[1]))
            for _ in range(3):
                missing = space.differences(cells - space.cells(W))
                W = W + space.lift(space.differences_transposed(scipy.linalg.cho_solve((space.factor, True), missing)))
            return W
        solution = np.zeros_like(cells)
        gram = scipy.sparse.linalg.LinearOperator(
            (len(cells), len(cells)), matvec=lambda a: space.centre(space.cells(space.lift(space.centre(np.ravel(a)))))
        )
        noise, missing = 1e-15 * float(np.linalg.norm(cells)), cells
        for _ in range(3):
            if np.linalg.norm(missing) <= noise:
                break
            more = solution + space.centre(
                scipy.sparse.linalg.cg(gram, missing, rtol=1e-13, atol=noise, maxiter=20 * len(cells))[0]
            )
            after = cells - gram.matvec(more)
            if not np.linalg.norm(after) < np.linalg.norm(missing):
                break
            solution, missing = more, after
        return space.lift(space.centre(solution))

    def smallest_eigenvalue(self, W: FloatArray) -> float:
        """Compute the smallest eigenvalue of the Hessian by W inside S_cyc, in orthonormal coordinates."""
        space, point = self.space, self.at(self.space.cells(W))
        if space.rank == 0:
            return float("inf")
        if space.scales is not None:
            hessian = point.hessian()
            return min(
                _smallest_centred(hessian[block, block].toarray()) * space.scales[space.columns[block.start]]
                for block in self.blocks
            )
        if space.direct:
            return float(np.linalg.eigvalsh(self.table.T @ (point.hessian() @ self.table))[0])
        d = space.E.shape[1]
        top = float(np.linalg.norm(space.E, 2) ** 4)

        def apply(w: FloatArray) -> FloatArray:
            inside = space.project(np.ravel(w).reshape(d, d))
            outside = np.ravel(w).reshape(d, d) - inside
            return np.ravel(space.project(space.lift(point.product(space.cells(inside)))) + top * outside)

        operator = scipy.sparse.linalg.LinearOperator((d * d, d * d), matvec=apply, dtype=np.float64)
        # A fixed start makes the result the same in every run.
        start = np.random.default_rng(0).standard_normal(d * d)
        return float(
            scipy.sparse.linalg.eigsh(operator, k=1, which="SA", tol=1e-6, v0=start, return_eigenvectors=False)[0]
        )


@dataclass(frozen=True, repr=False, eq=False)
class RiskPoint:
    """The risk at some logits: its value, gradient and curvature by the cells.

    Attributes:
        risk: the function.

        softmax: (n_entries,) the attention on each token of a sample.

        losses: (n_samples,) the loss of each sample.

        slopes: (n_entries,) the derivative of each sample's loss by its logits.
    """

    risk: CyclicRisk
    softmax: FloatArray
    losses: FloatArray
    slopes: FloatArray

    @cached_property
    def value(self) -> float:
        """The risk; infinite if some loss is."""
        return float(self.risk.problem.share @ self.losses)

    @cached_property
    def gradient(self) -> FloatArray:
        """The derivative by the logits, (n_cells,), which adds up to zero over each component."""
        return self.risk.space.centre(self.risk.collect(self.slopes))

    def product(self, direction: FloatArray) -> FloatArray:
        """Apply the Hessian to a vector of cells, (n_cells,)."""
        risk, s = self.risk, self.softmax
        moved = direction[risk.cell]
        moved = moved - risk.sums(s * moved)
        if risk.is_likelihood:
            return risk.space.centre(risk.collect(s * moved))
        second, first = self._second_product(s * moved), self.slopes * moved
        return risk.space.centre(risk.collect(first - s * risk.sums(first) + s * (second - risk.sums(s * second))))

    def _second_product(self, change: FloatArray) -> FloatArray:
        """Apply Hᵀ ∂²ℓ/∂ŷ² H to a change of the softmax."""
        risk, problem = self.risk, self.risk.problem
        if isinstance(risk.loss, LabelLoss):
            curvature = np.repeat(self._label_curvature, np.diff(problem.offsets))
            return risk.sums(change * risk.label_scores) * curvature * risk.label_scores
        if isinstance(risk.loss, CrossEntropy):
            # diag(π) - ππᵀ is applied without forming it.
            probability = scipy.special.softmax(risk.outputs(self.softmax, slice(None)), axis=1)
            moved = risk.outputs(change, slice(None))
            by_outputs = probability * (moved - np.sum(probability * moved, axis=1, keepdims=True))
            return risk.pulled_back(by_outputs)[risk.sample, problem.tokens]
        result = np.empty_like(change)
        for samples, second in self._second_derivatives():
            entries = slice(problem.offsets[samples.start], problem.offsets[samples.stop])
            pulled = risk.pulled_back(np.einsum("nab,nb->na", second, risk.outputs(change, samples)))
            result[entries] = pulled[risk.sample[entries] - samples.start, problem.tokens[entries]]
        return result

    @cached_property
    def _label_curvature(self) -> FloatArray:
        """The second derivative ℓ''(u) of a loss of the label's output, (n_samples,)."""
        u = np.add.reduceat(self.softmax * self.risk.label_scores, self.risk.problem.offsets[:-1])
        return scalar_of(cast(LabelLoss, self.risk.loss), u)[2]

    def _second_derivatives(self) -> Iterator[tuple[slice, FloatArray]]:
        """Yield second derivatives (n, n_vocabulary, n_vocabulary) of the losses by the outputs, some samples at a time."""
        risk, problem = self.risk, self.risk.problem
        n, K = len(problem.labels), len(problem.E)
        step = max(1, SECOND_DERIVATIVES_AT_ONCE // (K * K))
        for first in range(0, n, step):
            samples = slice(first, min(n, first + step))
            yield samples, second_of(risk.loss, risk.outputs(self.softmax, samples), problem.labels[samples])

    def hessian(self) -> scipy.sparse.csr_array:
        """Compute the sparse Hessian (n_cells, n_cells), which is zero between different components."""
        risk, problem, s = self.risk, self.risk.problem, self.softmax
        weight, S = scipy.sparse.diags_array(problem.share), self._by_sample(s)
        if risk.is_likelihood:
            return scipy.sparse.csr_array(scipy.sparse.diags_array(risk.collect(s)) - S.T @ weight @ S)
        cross = S.T @ weight @ self._by_sample(self.slopes)
        hessian = scipy.sparse.diags_array(risk.collect(self.slopes)) - cross - cross.T
        if isinstance(risk.loss, LabelLoss):
            Q = self._by_sample(s * (risk.label_scores - risk.sums(s * risk.label_scores)))
            return scipy.sparse.csr_array(
                hessian + Q.T @ scipy.sparse.diags_array(problem.share * self._label_curvature) @ Q
            )
        return scipy.sparse.csr_array(hessian + self._second_hessian())

    def _second_hessian(self) -> scipy.sparse.csr_array:
        """Sum J Hᵀ ∂²ℓ/∂ŷ² H J over the samples, with J = diag(s) - s sᵀ."""
        risk, problem = self.risk, self.risk.problem
        rows, columns, values = [], [], []
        for samples, second in self._second_derivatives():
            pulled = second if risk.scores is None else risk.scores.T @ second @ risk.scores
            for i in range(samples.start, samples.stop):
                entries = slice(problem.offsets[i], problem.offsets[i + 1])
                tokens, s, cell = problem.tokens[entries], self.softmax[entries], risk.cell[entries]
                J = np.diag(s) - np.outer(s, s)
                values.append(
                    problem.share[i] * (J @ pulled[i - samples.start][np.ix_(tokens, tokens)] @ J).reshape(-1)
                )
                rows.append(np.repeat(cell, len(cell)))
                columns.append(np.tile(cell, len(cell)))
        size = len(risk.space.tokens)
        where = (np.concatenate(rows), np.concatenate(columns))
        return scipy.sparse.csr_array(scipy.sparse.coo_array((np.concatenate(values), where), shape=(size, size)))

    def _by_sample(self, entries: FloatArray) -> scipy.sparse.csr_array:
        """Arrange entries as a sparse matrix (n_samples, n_cells)."""
        shape = (len(self.risk.problem.labels), len(self.risk.space.tokens))
        return scipy.sparse.csr_array((entries, self.risk.cell, self.risk.problem.offsets), shape=shape)


def _smallest_centred(hessian: FloatArray) -> float:
    """Compute the smallest eigenvalue of a Hessian orthogonal to the constants, which it annihilates."""
    # Twice the largest absolute row sum, on the constants alone, lifts their eigenvalue 0 above all others.
    above = 2.0 * float(np.abs(hessian).sum(axis=1).max(initial=1.0))
    return float(np.linalg.eigvalsh(hessian + above / len(hessian))[0])
