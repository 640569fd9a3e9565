r"""The next-token risk split in two: the part that components of equal priority decide, and the tail of lower priorities, in
logarithms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from marginlens.data.sequences import SequenceDataset
from marginlens.graphs.cyclic import component_table
from marginlens.graphs.priority import PriorityGraph
from marginlens.graphs.subspace import cyclic_subspace
from marginlens.losses.next_token import LabelLoss, LogLoss, label_rise
from marginlens.nexttoken.contexts import finite_part
from marginlens.risk.cross_entropy import ContextRisk
from marginlens.risk.sequence_batch import ReducedProblem, log_sums, reduce_sequences
from marginlens.typing import BoolArray, FloatArray, IntArray

STRICT_SPAN_RTOL = 1e-10  # singular values, relative to the longest row, below which a direction is no part of a span


@dataclass(frozen=True)
class Slopes:
    r"""The risk at one point to second order; what concerns the complement of S_cyc is divided by exp(`log_unit`).

    Attributes:
        inner: (n_cyclic,) slope along S_cyc.

        outer: (r - n_cyclic,) slope along its complement, scaled.

        inner_terms, outer_terms: their lengths if no two terms cancelled.

        inner_hessian: second derivatives within S_cyc.

        cross_hessian: (r - n_cyclic, n_cyclic) scaled.

        outer_hessian: scaled.
    """

    log_unit: float
    inner: FloatArray
    outer: FloatArray
    inner_terms: float
    outer_terms: float
    inner_hessian: FloatArray
    cross_hessian: FloatArray
    outer_hessian: FloatArray


class SplitRisk:
    r"""The risk of one dataset in orthonormal coordinates c = (x, z): x along S_cyc, z along what else the risk depends on.

    .. math:: L = \bar L(x) + T(x, z), \quad
        \bar L = \frac1n \sum_i \ell(\bar u_i), \quad T = \frac1n \sum_i \ell(\bar u_i - \delta_i) - \ell(\bar u_i)

    with :math:`\bar u_i` the output of a softmax over :math:`\mathcal R_i` alone, which only x moves, and
    :math:`\delta_i = \sum_{t \notin \mathcal R_i} s_{it} (\bar u_i - \gamma_{it})` what the other tokens take away. Far out T is
    :math:`e^{-R \cdot \text{margin}}`; it and its slopes are never formed by subtraction.

    Attributes:
        basis: (r, d_model, d_model) orthonormal, the first `n_cyclic` spanning S_cyc.

        reach: the longest row.
    """

    def __init__(
        self, data: SequenceDataset, graphs: Mapping[int, PriorityGraph], scores: FloatArray | None, loss: LabelLoss
    ) -> None:
        """Make the risk; `scores` (n_vocabulary, n_vocabulary) is C Eᵀ, and None stands for C Eᵀ = I."""
        problem = self.problem = reduce_sequences(data)
        self.loss, self._sample = loss, problem.sample
        sample, labels = self._sample, problem.labels[self._sample]
        self.likelihood = scores is None and isinstance(loss, LogLoss)
        self._score = (problem.tokens == labels).astype(float) if scores is None else scores[labels, problem.tokens]
        self._top = (
            np.ones(len(problem.labels)) if scores is None else scores[problem.labels, problem.labels]
        )  # γ of the label
        self._tied, self._is_label = tied_entries(problem, graphs), problem.is_label
        k = problem.queries[problem.column[sample]]
        rows = ((problem.E[problem.tokens] - problem.E[labels])[:, :, None] * problem.E[k][:, None, :]).reshape(
            len(k), -1
        )
        inside = cyclic_subspace(data.E, graphs).basis
        self._set_rows(rows, inside.reshape(-1, rows.shape[1]), inside.shape[1:])

    def _set_rows(self, rows: FloatArray, inside: FloatArray, shape: tuple[int, ...]) -> None:
        """Take the rows (n_entries, size), token less label, apart by an orthonormal basis of S_cyc (n_cyclic, size); W has this shape."""
        rest = np.where(self._tied[:, None], 0.0, rows - rows @ inside.T @ inside)
        scale = float(np.max(np.linalg.norm(rows, axis=1)))
        self._crosses = np.linalg.norm(rest, axis=1) > STRICT_SPAN_RTOL * scale  # lower entries whose logit z moves
        rest = np.where(self._crosses[:, None], rest - rest @ inside.T @ inside, 0.0)
        if self.likelihood:
            self._tied = ~self._crosses  # on infeasible data S_cyc may hold rows of lower priority: L̄ has these too
        outside = _orthonormal(rest, scale)
        self.n_cyclic = len(inside)
        self.basis = np.concatenate([inside, outside]).reshape(-1, *shape)
        self.inner, self.outer = rows @ inside.T, rest @ outside.T  # (n_entries, n_cyclic), (n_entries, r - n_cyclic)
        self._rows = np.concatenate([self.inner, self.outer], axis=1)
        self.reach = float(np.max(np.linalg.norm(self._rows, axis=1), initial=0.0))

    # ---- coordinates

    def coordinates(self, W: FloatArray) -> FloatArray:
        """Return the coordinates of matrices (…, d_model, d_model), (…, r)."""
        return np.einsum("rde,...de->...r", self.basis, W)

    def matrix(self, c: FloatArray) -> FloatArray:
        """Return the matrices (…, d_model, d_model) at coordinates (…, r)."""
        return np.einsum("rde,...r->...de", self.basis, c)

    # ---- values

    def body(self, c: FloatArray) -> FloatArray:
        """Return L̄ at points (batch, r)."""
        logits = self._logits(c)
        if not self.likelihood:
            return self.loss.scalar(self._best(logits))[0] @ self.problem.share
        inside = self._log_sum(np.where(self._tied, logits, -np.inf))
        return (inside - logits[:, self._is_label]) @ self.problem.share

    @property
    def floor(self) -> float:
        """The risk of putting out every label, which is below L̄ on cyclic data and equal to it on acyclic data."""
        return float(self.problem.share @ self.loss.scalar(self._top)[0])

    def log_tail(self, c: FloatArray) -> FloatArray:
        """Compute log T at points (batch, r), finite however small T is; on acyclic data the log of the risk above its infimum L*.

        -inf if no sequence holds a token of lower priority than its label.
        """
        with np.errstate(divide="ignore"):
            logs = self.log_tails(c) + np.log(self.problem.share)
            largest = np.max(logs, axis=1, keepdims=True)
            largest = np.where(np.isfinite(largest), largest, 0.0)
            return largest[:, 0] + np.log(np.sum(np.exp(logs - largest), axis=1))

    def log_tails(self, c: FloatArray) -> FloatArray:
        """Return the logarithm of the contribution of each merged sample to T, without its share, (batch, n_samples)."""
        logits = self._logits(c)
        log_ratio, log_rho = self._ratios(logits)
        log_total = np.logaddexp(0.0, log_rho)
        if self.likelihood:
            with np.errstate(divide="ignore"):
                return np.where(log_rho < -37.0, log_rho, np.log(np.where(log_rho < -37.0, 1.0, log_total)))
        best = self._best(logits)  # (batch, n_samples)
        with np.errstate(divide="ignore"):
            gap = np.log(np.where(self._tied, 1.0, best[:, self._sample] - self._score))
        log_delta = self._log_sum(log_ratio + gap) - log_total
        logs = label_rise(self.loss, best, np.ones_like(log_delta), log_delta).log
        return np.where(np.isnan(logs), np.inf, logs)

    def log_pull(self, c: FloatArray) -> FloatArray:
        """Return the log of the weight of each lower entry in T's slope across S_cyc, to first order in T, (batch, n_entries);
        otherwise -inf.
        """
        logits = self._logits(c)
        log_ratio, _ = self._ratios(logits)
        log_pull = log_ratio + np.log(self.problem.share)[self._sample]
        if self.likelihood:
            return log_pull
        best = self._best(logits)
        with np.errstate(divide="ignore"):
            slope = np.log(-self.loss.scalar(best)[1]) + np.zeros_like(best)
            gap = np.log(np.where(self._tied, 1.0, best[:, self._sample] - self._score))
            return log_pull + slope[:, self._sample] + gap

    # ---- slopes

    def slopes(self, c: FloatArray) -> Slopes:
        r"""Return the first and second derivatives at a point (r,).

        With :math:`a_{it}` the row of token t less that of the label, :math:`w_{it} = \ell'(u_i) s_{it} (\gamma_{it} - u_i)`,
        :math:`g_i = \sum_t w_{it} a_{it}` and :math:`\bar a_i = \sum_t s_{it} a_{it}`,

        .. math:: \nabla L = \tfrac1n \sum_i g_i, \quad \nabla^2 L = \tfrac1n \sum_i \Big( \sum_t w_{it} a_{it} a_{it}^\top
            - g_i \bar a_i^\top - \bar a_i g_i^\top + \tfrac{\ell''_i}{\ell_i'^2} g_i g_i^\top \Big)

        For the log-loss with C Eᵀ = I the last three terms are :math:`-g_i g_i^\top`.
        """
        problem, sample = self.problem, self._sample
        logits = self._logits(c[None])
        log_ratio, log_rho = self._ratios(logits)
        log_total = np.logaddexp(0.0, log_rho)[0]
        inside = self._log_sum(np.where(self._tied, logits, -np.inf))
        log_s = np.where(self._tied, (logits - inside[:, sample])[0], log_ratio[0]) - log_total[sample]
        sign, log_w, curvature = self._weights(log_s, self._best(logits)[0])
        log_w = np.where(self._is_label, -np.inf, log_w)  # the label's own row is zero
        share = problem.share[sample]
        lower = np.where(self._crosses, log_w, -np.inf)
        unit = float(np.max(lower + np.log(share), initial=-np.inf))
        unit = unit if np.isfinite(unit) else 0.0
        w, w_low = sign * np.exp(log_w), sign * np.exp(lower - unit)  # plain; scaled
        s, s_low = np.exp(log_s), np.exp(np.where(self._crosses, log_s, -np.inf) - unit)
        x, z = self.inner, self.outer
        pairs = ((w, x), (w_low, z), (s, x), (s_low, z))
        gx, gz, ax, az = (self._total(v[:, None] * a) for v, a in pairs)  # gz and az are scaled
        p, low, k = problem.share[:, None], (w_low * share)[:, None], curvature[:, None]
        return Slopes(
            log_unit=unit,
            inner=problem.share @ gx,
            outer=problem.share @ gz,
            inner_terms=float(np.sum(np.abs(w) * share * np.linalg.norm(x, axis=1))),
            outer_terms=float(np.sum(np.abs(w_low) * share * np.linalg.norm(z, axis=1))),
            inner_hessian=x.T @ ((w * share)[:, None] * x) + (p * gx).T @ (k * gx - ax) - (p * ax).T @ gx,
            cross_hessian=z.T @ (low * x) + (p * gz).T @ (k * gx - ax) - (p * az).T @ gx,
            outer_hessian=z.T @ (low * z) + np.exp(unit) * ((p * gz).T @ (k * gz - az) - (p * az).T @ gz),
        )

    def _weights(self, log_s: FloatArray, best: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return sign and logarithm of w per entry, and ℓ''/ℓ'² per sample; `best` (n_samples,) holds the outputs over R_i only."""
        if self.likelihood:
            return np.ones(len(log_s)), log_s, np.ones(len(self.problem.labels))
        sample = self._sample
        taken = np.exp(log_s) * np.where(self._tied, 0.0, best[sample] - self._score)
        u = best - np.add.reduceat(taken, self.problem.offsets[:-1])
        _, slope, second = self.loss.scalar(u)
        above = u[sample] - self._score
        with np.errstate(divide="ignore", invalid="ignore"):
            log_w = log_s + np.log(np.abs(above)) + np.log(-slope)[sample]
            return np.sign(above), np.where(above == 0.0, -np.inf, log_w), second / slope**2

    # ---- sums over samples

    def _logits(self, c: FloatArray) -> FloatArray:
        """Return the logits less that of the label, multiplicities included, (batch, n_entries)."""
        return c @ self._rows.T + self.problem.log_counts

    def _best(self, logits: FloatArray) -> FloatArray:
        """Return the output over R_i only, (batch, n_samples), from logits (batch, n_entries): the label's own score on acyclic data."""
        if self.n_cyclic == 0:
            return np.broadcast_to(self._top, (len(logits), len(self._top)))
        inside = self._log_sum(np.where(self._tied, logits, -np.inf))
        shares = np.where(self._tied, np.exp(np.where(self._tied, logits - inside[:, self._sample], 0.0)), 0.0)
        single = np.add.reduceat(self._tied.astype(int), self.problem.offsets[:-1]) == 1
        mixed = np.add.reduceat(shares * self._score, self.problem.offsets[:-1], axis=1)
        return np.where(single, self._top, mixed)  # exactly, where the label is by itself

    def _ratios(self, logits: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Compute log(s_t / Σ_{R_i} s) of every lower entry, -inf for the others, and the logarithm of their sums, (batch, n_samples)."""
        inside = self._log_sum(np.where(self._tied, logits, -np.inf))
        ratio = np.where(self._tied, -np.inf, logits - inside[:, self._sample])
        return ratio, self._log_sum(ratio)

    def _log_sum(self, logs: FloatArray) -> FloatArray:
        return log_sums(logs, self.problem.offsets)

    def _total(self, values: FloatArray) -> FloatArray:
        return np.add.reduceat(values, self.problem.offsets[:-1], axis=0)


def tied_entries(problem: ReducedProblem, graphs: Mapping[int, PriorityGraph]) -> BoolArray:
    """Return whether each entry's token is in its label's component, (n_entries,)."""
    table, column = component_table(graphs, len(problem.E))
    place = column[problem.queries[problem.column]][problem.sample]
    return table[problem.tokens, place] == table[problem.labels[problem.sample], place]


def _orthonormal(rows: FloatArray, scale: float) -> FloatArray:
    """Return orthonormal rows (rank, d) that span the given ones (m, d), except for rounding at this scale."""
    _, singular, directions = np.linalg.svd(rows, full_matrices=False)
    return directions[singular > STRICT_SPAN_RTOL * scale]


# ---- decoders on fixed contexts


class _Samples(NamedTuple):
    """The samples for `SplitRisk`: one for every context and token that followed it, with all tokens as entries."""

    offsets: IntArray
    labels: IntArray
    share: FloatArray
    log_counts: FloatArray


class ContextSplit(SplitRisk):
    """The cross-entropy of a decoder in coordinates along F, of the tokens that follow, and across it, of those that never do."""

    def __init__(self, risk: ContextRisk) -> None:
        data, V = risk.data, risk.shape[0]
        n = len(data.token)
        token = np.tile(np.arange(V), n)
        share = data.share[data.context] * data.probability
        self.problem = _Samples(np.arange(0, n * V + 1, V), data.token, share, np.zeros(n * V))  # type: ignore[assignment]
        self.loss, self.likelihood, self._sample = LogLoss(), True, np.repeat(np.arange(n), V)
        self._is_label = token == data.token[self._sample]
        self._score, self._top = self._is_label.astype(np.float64), np.ones(n)
        follows = data.counts.toarray() > 0.0
        self._tied = follows[data.context[self._sample], token]
        unit = np.eye(V)
        rows = (unit[token] - unit[data.token[self._sample]])[:, :, None] * risk.H[data.context[self._sample]][
            :, None, :
        ]
        inside = finite_part(data).subspace.basis
        self._set_rows(rows.reshape(n * V, -1), inside.reshape(-1, rows[0].size), risk.shape)
