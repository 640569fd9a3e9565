r"""Risk, gradient and curvature of a reduced next-token problem at a table of logits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import coo_array, csr_array, diags_array
from scipy.special import softmax

from marginlens.data.tokens import BoolArray, FloatArray, IntArray
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
from marginlens.risk.reduced_sequences import ReducedProblem

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
