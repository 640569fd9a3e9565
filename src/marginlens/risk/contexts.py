"""The cross-entropy of a linear next-token decoder on contexts with soft labels: the model of paper G."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from marginlens.data.contexts import ContextDataset, as_contexts
from marginlens.directions import length
from marginlens.papers import implements
from marginlens.result import Described
from marginlens.risk.log_scaled import LogScaled, RankOneTerms
from marginlens.risk.multiclass import class_rows
from marginlens.risk.protocol import MarginRows, as_points
from marginlens.rounding import EPS
from marginlens.typing import ArrayLike, BoolArray, FloatArray, IntArray


@implements("G", "Eq. (2)")
@dataclass(frozen=True, eq=False, repr=False)
class ContextRisk(Described):
    r"""The cross-entropy of a decoder W (n_vocabulary, d_model) on contexts h_j, each followed by tokens with given probabilities.

    .. math:: \mathrm{CE}(W) = -\sum_j \hat\pi_j \sum_{z \in \mathcal S_j} \hat p_{jz} \log \mathbb S_z(W h_j) \ \ge\ \mathcal H

    It is the sum of the entropy and of two terms that are never negative, and that are computed without taking differences: how far the
    probabilities among the tokens that follow are from theirs, and what leaks to tokens that never follow.

    Args:
        data: the contexts; the logits of all tokens at all contexts are held at once.
    """

    data: ContextDataset
    quantities = "{data!r}"

    def __post_init__(self) -> None:
        as_contexts(self.data)

    @property
    def shape(self) -> tuple[int, int]:
        """(n_vocabulary, d_model)."""
        return self.data.shape

    @cached_property
    def H(self) -> FloatArray:
        """(n_contexts, d_model) the embeddings as an array."""
        H = self.data.H
        return np.asarray(H.toarray()) if scipy.sparse.issparse(H) else H

    @cached_property
    def _inside(self) -> BoolArray:
        """(n_contexts, n_vocabulary) whether a token follows a context."""
        return self._log_p > -np.inf

    @cached_property
    def _log_p(self) -> FloatArray:
        """(n_contexts, n_vocabulary) log p, -inf outside supports."""
        table = np.full((self.data.n_contexts, self.data.n_vocabulary), -np.inf)
        table[self.data.context, self.data.token] = np.log(self.data.probability)
        return table

    @cached_property
    def _p(self) -> FloatArray:
        return np.exp(self._log_p)

    def logits(self, x: ArrayLike) -> FloatArray:
        """W h_j, (…, n_contexts, n_vocabulary)."""
        return self.H @ np.swapaxes(as_points(x, self.shape), -1, -2)

    def probabilities(self, x: ArrayLike) -> FloatArray:
        """The decoder's distribution of the next token after each context, (…, n_contexts, n_vocabulary)."""
        return np.asarray(scipy.special.softmax(self.logits(x), axis=-1))

    def select(self, x: ArrayLike) -> IntArray:
        """The token with the largest logit after each context, (…, n_contexts)."""
        return np.argmax(self.logits(x), axis=-1)

    def excess(self, x: ArrayLike) -> FloatArray:
        """CE(W) less the entropy, (…): accurate also where it is far below the rounding of CE(W)."""
        misfit, leak, _ = self._parts(x)
        inside = np.sum(self._p * (np.expm1(misfit) - misfit), axis=-1)
        return np.asarray((inside + np.logaddexp(0.0, leak)) @ self.data.share)

    def value(self, x: ArrayLike) -> FloatArray:
        """CE(W), (…)."""
        return self.data.entropy + self.excess(x)

    def log_value(self, x: ArrayLike) -> FloatArray:
        """log CE(W), (…), right also where it underflows, which it can where every context has one token."""
        return self._log_sum_with(x, self.data.entropies)

    def log_excess(self, x: ArrayLike) -> FloatArray:
        """The logarithm of `excess`, (…), right also where that underflows."""
        return self._log_sum_with(x, np.zeros(self.data.n_contexts))

    def _log_sum_with(self, x: ArrayLike, floor: FloatArray) -> FloatArray:
        """log of the mean over contexts of their excess plus `floor` (n_contexts,)."""
        misfit, leak, _ = self._parts(x)
        inside = np.sum(self._p * (np.expm1(misfit) - misfit), axis=-1) + floor
        with np.errstate(divide="ignore"):
            logs = np.where((inside == 0.0) & (leak < -30.0), leak, np.log(inside + np.logaddexp(0.0, leak)))
        return np.asarray(scipy.special.logsumexp(logs, axis=-1, b=self.data.share))

    def gradient(self, x: ArrayLike) -> LogScaled:
        r"""Exact gradient, a sum of one matrix of rank one for each context.

        .. math:: \nabla \mathrm{CE}(W) = \sum_j \hat\pi_j \sum_v (\mathbb S_v(W h_j) - \hat p_{jv})\, e_v h_j^\top

        Inside a support the difference is :math:`\hat p\,(e^\delta - 1)` less the share of what leaks out, with δ the distance of a logit
        from its log-odds; a δ that is rounding of logits counts as none.
        """
        logits = self.logits(x)
        misfit, leak, kept = self._parts(x)
        log_out = leak - np.logaddexp(0.0, leak)  # of what leaks out
        away = np.where(self._inside, -np.inf, logits - (kept + np.logaddexp(0.0, leak))[..., None])
        change = self._p * np.expm1(misfit)
        with np.errstate(divide="ignore"):
            log_change = np.log(np.abs(change)) - np.logaddexp(0.0, leak)[..., None]
        largest = np.maximum(log_out, np.max(log_change, axis=-1))
        largest = np.where(np.isfinite(largest), largest, 0.0)
        inside = (
            np.sign(change) * np.exp(log_change - largest[..., None]) - self._p * np.exp(log_out - largest)[..., None]
        )
        left = np.where(self._inside, inside, np.exp(away - largest[..., None]))
        left = left * self.data.share[:, None]
        scale = np.max(largest, axis=-1)
        dense = np.swapaxes(left * np.exp(largest - scale[..., None])[..., None], -1, -2) @ self.H
        right = np.broadcast_to(self.H, (*left.shape[:-1], self.H.shape[1]))
        return LogScaled(dense, scale, axes=2, terms=RankOneTerms(left, right, largest))

    def margin_rows(self, selected: ArrayLike) -> MarginRows:
        """(e_s - e_v) h_jᵀ for every other token v of every context, with s the one to be selected; `ntp_svm` has those of supports."""
        return class_rows(self.H, selected, self.shape[0])

    def smoothness(self) -> float:
        """Half the largest eigenvalue of Σ π_j h_j h_jᵀ: no eigenvalue of a softmax's derivative exceeds 1/2."""
        return 0.5 * float(np.linalg.norm(np.sqrt(self.data.share)[:, None] * self.H, ord=2)) ** 2

    def _parts(self, x: ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
        """δ (…, n_contexts, n_vocabulary): log-probabilities among the tokens that follow, less log p, zero elsewhere; (…, n_contexts) the
        log of what the other tokens' exponentials are beside theirs, -inf where all follow; and the log of the sum of theirs.
        """
        logits = self.logits(x)
        kept = _log_sum(np.where(self._inside, logits, -np.inf))
        misfit: Any = np.where(self._inside, logits - kept[..., None] - np.where(self._inside, self._log_p, 0.0), 0.0)
        reach = np.max(length(np.asarray(x)), axis=-1)[..., None, None] * length(self.H)[:, None]
        rounding = (8 + self.shape[1]) * EPS * (1.0 + reach)  # of logits and their logarithms
        misfit = np.where((np.abs(misfit) <= rounding) | (self.data.sizes == 1)[:, None], 0.0, misfit)
        return misfit, _log_sum(np.where(self._inside, -np.inf, logits)) - kept, kept


def _log_sum(logits: FloatArray) -> FloatArray:
    """log Σ e^logit over the last axis, -inf where all are; SciPy's takes several times as long."""
    top = np.max(logits, axis=-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(top[..., 0] + np.log(np.sum(np.exp(logits - top), axis=-1)))
