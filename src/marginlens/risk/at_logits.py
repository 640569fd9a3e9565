"""Attention risks at given attention logits, whichever weights made them: values, excess, and exact pairwise gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from marginlens.arithmetic.log_scaled import ExcessRisk, LogScaled
from marginlens.data.tokens import TokenDataset
from marginlens.losses.margin import VISIBLE, ExactMargin, SignedLog, has_poles, slope_at, slope_of, value_of
from marginlens.risk.heads import Shortfall
from marginlens.risk.softmax import Attended, probabilities
from marginlens.typing import ArrayLike, FloatArray, IntArray

if TYPE_CHECKING:
    from marginlens.risk.attention import SoftmaxRisk


class TokenRisk(ABC):
    """The base of risks of attention over the tokens of `data`: everything that depends on a point only through its logits.

    A point is p, W, the factors of W, the weights of several heads, or a head with its p. Points of a batch have the batch axis
    first.
    """

    data: TokenDataset

    @abstractmethod
    def at_point(self, x: ArrayLike) -> AtLogits:
        """Return the risk at the attention logits of a point."""

    @property
    def is_batch(self) -> bool:
        """True if there is a leading batch axis."""
        return self.data.is_batch

    def __len__(self) -> int:
        return len(self.data)

    @property
    def n_inputs(self) -> int:
        """The number of inputs of a problem."""
        return self.data.n_inputs

    def value(self, x: ArrayLike) -> FloatArray:
        """Return the risk, (…)."""
        return self.at_point(x).value()

    def log_value(self, x: ArrayLike) -> FloatArray:
        """Return the logarithm of the risk, (…), nan if it is negative. Losses that underflow fall like their slopes."""
        return self.at_point(x).log_value()

    def excess(self, x: ArrayLike, selected: ArrayLike | None = None) -> ExcessRisk:
        """Return the risk less that of selecting one token per input outright, by default the one with the largest logit."""
        return self.at_point(x).excess(selected)

    def margins(self, x: ArrayLike) -> FloatArray:
        """Return Y_i f(X_i) of every input, (…, n_inputs)."""
        return self.at_point(x).margins()

    def attention(self, x: ArrayLike) -> FloatArray:
        """Return the softmax probabilities, (…, n_inputs, n_tokens), zero in padding."""
        return self.at_point(x).attention()

    def select(self, x: ArrayLike) -> IntArray:
        """Return the token with the largest attention in each input, (…, n_inputs)."""
        return self.at_point(x).select()


@dataclass(frozen=True)
class AtLogits:
    """An attention risk at given attention logits: everything that does not depend on the weights behind them.

    Attributes:
        risk: the risk as a function of p, of one problem or a batch.

        logits: (…, n_inputs, n_tokens) the attention logits, up to a constant for each input.
    """

    risk: SoftmaxRisk
    logits: FloatArray

    def margins(self) -> FloatArray:
        """Return Y_i f(X_i) of every input, (…, n_inputs)."""
        margin: FloatArray = self.risk.scored_head.attend(self.logits)[1]
        return margin

    def slopes(self) -> tuple[Attended, SignedLog]:
        """Return the attention relative to the largest logits, and ℓ' of each input, (…, n_inputs)."""
        at, margin = self.risk.scored_head.attend(self.logits)
        return at, slope_at(self.risk.loss, at.exact_margin, margin)

    def attention(self) -> FloatArray:
        """Return the softmax probabilities, (…, n_inputs, n_tokens), zero in padding."""
        return probabilities(self.logits, self.risk.data.mask)

    def select(self) -> IntArray:
        """Return the token with the largest attention in each input, (…, n_inputs)."""
        return np.argmax(np.where(self.risk.data.mask, self.logits, -np.inf), axis=-1)

    def value(self) -> FloatArray:
        """Return the risk, (…)."""
        loss = self.risk.loss
        return np.mean(loss.value_at(self._exact) if has_poles(loss) else value_of(loss, self.margins()), axis=-1)

    @property
    def _exact(self) -> ExactMargin:
        return self.risk.scored_head.attend(self.logits)[0].exact_margin

    def log_value(self) -> FloatArray:
        """Return the logarithm of the risk, (…)."""
        loss = self.risk.loss
        if has_poles(loss):
            value, faint = loss.value_at(self._exact), loss.log_faint_value_at(self._exact)
        else:
            margin = self.margins()
            value, faint = value_of(loss, margin), slope_of(loss, margin).log
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.where(np.abs(value) > VISIBLE, np.log(value), faint)
            of_positive = np.asarray(np.logaddexp.reduce(logs, axis=-1)) - np.log(value.shape[-1])
            return np.where(np.any(value < 0.0, axis=-1), np.log(np.mean(value, axis=-1)), of_positive)

    def excess(self, selected: ArrayLike | None = None) -> ExcessRisk:
        """Return the risk less that of selecting one token per input outright, by default the one with the largest logit."""
        alpha = (
            self.select()
            if selected is None
            else np.broadcast_to(self.risk.selection(selected), self.logits.shape[:-1])
        )
        loss, (top, log_delta, sign) = self.risk.loss, self.shortfalls(alpha)
        rise = (
            loss.rise_to(self._exact, top, log_delta, sign)
            if has_poles(loss)
            else loss.signed_log_rise(top, log_delta, sign)
        )
        sign = np.where(sign == 0.0, 0.0, rise.sign)
        total = signed_mean(sign, np.where(sign == 0.0, -np.inf, rise.log))
        return ExcessRisk(total.sign, total.log)

    def shortfalls(self, alpha: IntArray) -> Shortfall:
        """Return the margins of selecting `alpha` outright, and log|δ| and the sign of how far the outputs fall short of them."""
        shortfall: Shortfall = self.risk.scored_head.shortfall(self.logits, alpha)
        return shortfall

    def gradient(self) -> LogScaled:
        """Return the gradient in a p that all inputs share, (…, d_key)."""
        return pairwise_gradient(self.risk.data.K, *self.slopes())

    def gradients_by_input(self) -> LogScaled:
        """Return the gradient in the p of each input, (…, n_inputs, d_key), each with its own scale; zero if an input has none."""
        return pairwise_gradient(self.risk.data.K, *self.slopes(), by_input=True)

    def residual_attention(self) -> FloatArray:
        r"""Compute the multipliers :math:`|\ell'_i| s_{it} (f_i - \gamma_{it})` of the margin rows, (…, n_inputs, n_tokens),
        the largest scaled to one.

        They are zero for selected tokens and in padding, and negative for tokens with a score above the output.
        """
        return _pair_weights(*self.slopes(), (-2, -1))[0]


def pairwise_gradient(K: FloatArray, at: Attended, slope: SignedLog, *, by_input: bool = False) -> LogScaled:
    r"""Compute the gradient of the mean loss from attention, score gaps and ℓ' per input.

    .. math:: \nabla L = \sum_i g_i, \quad f_i = \gamma_{i\alpha_i} - \delta_i, \quad
        g_i = \tfrac1n \ell'_i \sum_{t \ne \alpha_i} s_{it} (\gamma_{it} - f_i)(k_{it} - k_{i\alpha_i})

    Args:
        K: (…, n_inputs, n_tokens, d_key).

        at: attention relative to α.

        slope: ℓ' as sign and logarithm, each (…, n_inputs).

        by_input: return the g_i, (…, n_inputs, d_key), each with its own scale, instead of their sum.
    """
    weights, scale = _pair_weights(at, slope, (-1,) if by_input else (-2, -1))
    sums = "...it,...itd->...id" if by_input else "...it,...itd->...d"
    return LogScaled(np.einsum(sums, weights / K.shape[-3], relative_keys(K, at.alpha)), scale)


def _pair_weights(at: Attended, slope: SignedLog, axes: tuple[int, ...]) -> tuple[FloatArray, FloatArray]:
    """Return -ℓ'_i s_it (f_i - γ_it) for every token but α, with the largest over `axes` scaled to one, and the logarithms of
    these scales.
    """
    sign, logs = score_pull(at)
    logs = np.where(at.is_alpha, -np.inf, logs + slope.log[..., None])
    largest = np.max(logs, axis=axes, keepdims=True)
    safe = np.where(largest == -np.inf, 0.0, largest)
    return -slope.sign[..., None] * sign * np.exp(logs - safe), safe.squeeze(axes)


def score_pull(at: Attended) -> SignedLog:
    """Return s_t (f - γ_t) as sign and logarithm, each (…, n_inputs, n_tokens); -inf if it is zero."""
    tied = at.gap == 0.0
    value = np.where(tied, -at.shortfall[..., None], at.gap - at.delta[..., None])
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = at.log_s + np.log(np.abs(value)) + np.where(tied, at.log_unit[..., None], 0.0)
    return SignedLog(np.sign(value), np.where(value == 0.0, -np.inf, logs))


def relative_keys(K: FloatArray, alpha: IntArray) -> FloatArray:
    """Return k_t - k_α, (…, n_inputs, n_tokens, d_key), for keys with or without the leading axes of α."""
    K = np.broadcast_to(K, (*alpha.shape[:-1], *K.shape[-3:]))
    return K - np.take_along_axis(K, alpha[..., None, None], axis=-2)


def signed_mean(sign: FloatArray, logs: FloatArray) -> SignedLog:
    """Compute the mean over the last axis of numbers given by signs and logarithms, as sign and logarithm."""
    largest = np.max(logs, axis=-1)
    safe = np.where(np.isfinite(largest), largest, 0.0)
    total = np.sum(sign * np.exp(logs - safe[..., None]), axis=-1) / logs.shape[-1]
    with np.errstate(divide="ignore"):
        return SignedLog(np.sign(total), safe + np.log(np.abs(total)))
