"""The exact gradient of the training risk in NumPy, as a vector and the logarithm of its scale; batched.

The compiled loop does the same sums one problem at a time. This form serves single evaluations, losses and heads that are not compiled,
and the theory's gradient conditions, and it is what the compiled loop is checked against.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from marginlens.data import TokenDataset
from marginlens.directions import length
from marginlens.losses.margin import Logistic, Loss, SignedLog, as_loss, slope_of
from marginlens.papers import implements, uses
from marginlens.risk.heads import as_head
from marginlens.risk.softmax import Attended, logits

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ScaledVector:
    """The vector `vector · exp(log_scale)`, for gradients too small to be a float64; shapes (…, d) and (…)."""

    vector: FloatArray
    log_scale: FloatArray

    @property
    def log_norm(self) -> FloatArray:
        """Logarithm of the norm, -inf for a zero vector."""
        with np.errstate(divide="ignore"):
            return np.log(length(self.vector)) + np.where(np.isfinite(self.log_scale), self.log_scale, 0.0)

    def value(self) -> FloatArray:
        """The vector itself; entries below the smallest float64 become zero."""
        return self.vector * np.exp(self.log_scale)[..., None]

    def __repr__(self) -> str:
        return f"ScaledVector(shape={self.vector.shape}, log_norm={np.round(self.log_norm, 3)})"


def pairwise_gradient(K: FloatArray, at: Attended, slope: SignedLog) -> ScaledVector:
    r"""Gradient of the mean loss from attention, score gaps and ℓ' per input.

    .. math:: \nabla L = \tfrac1n \sum_i \ell'_i \sum_{t \ne \alpha_i} s_{it} (\gamma_{it} - f_i)(k_{it} - k_{i\alpha_i}),
        \quad f_i = \gamma_{i\alpha_i} - \delta_i

    Args:
        K: (…, n_inputs, n_tokens, d_key). at: attention relative to α. slope: ℓ' as sign and logarithm, each (…, n_inputs).
    """
    tied = at.gap == 0.0
    value = np.where(tied, -at.shortfall[..., None], at.gap - at.delta[..., None])  # f - γ_t
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = at.log_s + np.log(np.abs(value)) + np.where(tied, at.log_unit[..., None], 0.0) + slope.log[..., None]
    np.put_along_axis(logs, at.alpha[..., None], -np.inf, axis=-1)
    logs = np.where(value == 0.0, -np.inf, logs)
    largest = np.max(logs, axis=(-2, -1))
    safe = np.where(largest == -np.inf, 0.0, largest)
    weights = (
        -slope.sign[..., None] * np.sign(value) * np.exp(logs - safe[..., None, None]) / K.shape[-3]
    )  # (…, n_inputs, n_tokens)
    away = K - np.take_along_axis(K, at.alpha[..., None, None], axis=-2)
    return ScaledVector(np.einsum("...it,...itd->...d", weights, away), safe)


@implements("A", "Eq. (15a)", "Eq. (18)")
@uses(
    "A",
    {
        "Eq. (13a)": "The gradient of one input's output in q = Wᵀp for a linear head, summed over pairs of tokens.",
        "Eq. (13b)": "The same in p, with keys in place of tokens.",
    },
)
def risk_gradient(data: TokenDataset, v: Any, p: Any, loss: Loss = Logistic()) -> ScaledVector:  # noqa: B008
    r"""Exact gradient of the training risk at p, accurate to rounding relative to its own size at any norm of p.

    .. math:: \nabla L(p) = \frac1n \sum_{i=1}^n \ell'_i\, K_i^\top \mathbb S'(K_i p)\, \gamma_i

    Args:
        data: keys `data.K` of shape (…, n_inputs, n_tokens, d_key).
        v: linear head (…, d_model), or a nonlinear one: a torch module or function from (n, d_model) to n numbers.
        p: (…, d_key).
    Returns:
        A `ScaledVector`; `.value()` is the gradient itself, `.log_norm` its size where that underflows.
    """
    at, margin = as_head(data, v).attend(logits(data, p))
    return pairwise_gradient(data.K, at, slope_of(as_loss(loss), margin))
