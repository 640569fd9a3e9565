"""Softmax attention without cancellation: log-probabilities, score gaps, and the shortfall of the output from one token's score."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marginlens.data.tokens import TokenDataset, as_dataset
from marginlens.losses.margin import ExactMargin
from marginlens.typing import ArrayLike, BoolArray, FloatArray, IntArray


def logits(data: TokenDataset, p: ArrayLike) -> FloatArray:
    """Return the attention logits K p + b, shape (…, n_inputs, n_tokens), of keys less their input's mean, which leaves the softmax
    unchanged; b are the offsets of the data.
    """
    return np.einsum("...itd,...d->...it", centred_keys(as_dataset(data)), data.point(p)) + data.offsets


def centred_keys(data: TokenDataset) -> FloatArray:
    """Return the keys less their input's mean, (…, n_inputs, n_tokens, d_key), zero in padding."""
    mean = np.sum(data.K, axis=-2, keepdims=True) / data.lengths[..., None, None]  # padded keys are zero
    return np.where(data.mask[..., None], data.K - mean, 0.0)


def softmax(data: TokenDataset, p: ArrayLike) -> FloatArray:
    """Return the attention probabilities at p, of shape (…, n_inputs, n_tokens): zero for padded tokens."""
    return probabilities(logits(data, p), data.mask)


def probabilities(logits: FloatArray, mask: BoolArray) -> FloatArray:
    """Return the softmax of logits over the unmasked tokens; nan for an input whose logits have overflowed."""
    masked = np.where(mask, logits, -np.inf)
    with np.errstate(invalid="ignore"):
        weights = np.exp(masked - np.max(masked, axis=-1, keepdims=True))
        return weights / np.sum(weights, axis=-1, keepdims=True)


@dataclass(frozen=True)
class Attended:
    r"""Softmax attention relative to one token α per input, computed without subtraction from one.

    `log_s` (…, n_inputs, n_tokens) is log s_t; `gap` is γ_α - γ_t; and :math:`\delta = \sum_{t \ne \alpha} s_t (\gamma_\alpha - \gamma_t)`
    is `shortfall · exp(log_unit)`, so that the margin is γ_α - δ.
    """

    alpha: IntArray
    log_s: FloatArray
    gap: FloatArray
    shortfall: FloatArray
    log_unit: FloatArray
    top_score: FloatArray

    @property
    def is_alpha(self) -> BoolArray:
        """The token α of each input, (…, n_inputs, n_tokens) booleans."""
        return np.arange(self.gap.shape[-1]) == self.alpha[..., None]

    @property
    def delta(self) -> FloatArray:
        """The shortfall δ as a number, (…, n_inputs); zero if it underflows."""
        return self.shortfall * np.exp(self.log_unit)

    @property
    def exact_margin(self) -> ExactMargin:
        """The margin as γ_α and δ."""
        return ExactMargin(self.top_score, self.shortfall, self.log_unit)

    @property
    def margin(self) -> FloatArray:
        """The margin Y f(X) = γ_α - δ, (…, n_inputs)."""
        return self.top_score - self.delta


def attend(logits: FloatArray, scores: FloatArray, mask: BoolArray, alpha: IntArray | None = None) -> Attended:
    """Return the attention over the unmasked tokens, relative to `alpha` or, by default, to the largest logit of each input."""
    logits = np.where(mask, logits, -np.inf)
    by_largest = alpha is None
    alpha = np.argmax(logits, axis=-1) if alpha is None else alpha
    is_alpha = np.arange(logits.shape[-1]) == alpha[..., None]
    if by_largest:
        ratio = logits - np.max(logits, axis=-1, keepdims=True)  # log(s_t / s_α)
        log_total = np.log1p(np.sum(np.exp(np.where(is_alpha, -np.inf, ratio)), axis=-1, keepdims=True))
    else:
        ratio = logits - np.sum(logits, axis=-1, keepdims=True, where=is_alpha)
        others = np.where(is_alpha, -np.inf, ratio)
        largest = np.maximum(np.max(others, axis=-1, keepdims=True), 0.0)
        small = largest == 0.0  # where α is the largest logit
        log_total = np.log1p(np.sum(np.exp(np.where(small, others, -np.inf)), axis=-1, keepdims=True))
        if not small.all():
            large = largest + np.log(np.exp(-largest) + np.sum(np.exp(others - largest), axis=-1, keepdims=True))
            log_total = np.where(small, log_total, large)
    log_s = ratio - log_total
    top = np.sum(scores, axis=-1, keepdims=True, where=is_alpha)
    gap = np.where(mask, top - np.where(mask, scores, 0.0), 0.0)
    counted = np.where(gap != 0.0, log_s, -np.inf)  # only tokens with another score pull the margin away from γ_α
    log_unit = np.max(counted, axis=-1)
    safe = np.where(np.isfinite(log_unit), log_unit, 0.0)
    shortfall = np.sum(np.exp(counted - safe[..., None]) * gap, axis=-1)
    return Attended(alpha, log_s, gap, shortfall, safe, top[..., 0])
