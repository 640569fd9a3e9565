"""Smoothness of the attention risk in p: Lipschitz constants of its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.arithmetic.directions import as_scalar, length
from marginlens.data.tokens import TokenDataset, as_dataset
from marginlens.losses.margin import Logistic, Loss, LossConstants, as_loss
from marginlens.papers import implements, uses
from marginlens.result import Result, Tabular
from marginlens.typing import ArrayLike, BoolArray, FloatArray


@dataclass(frozen=True, repr=False, eq=False)
class Smoothness(Result, Tabular):
    """Smoothness constants of the risk in p, each (…).

    Attributes:
        L_p: the constant of Eq. (6) if keys come from a matrix W, otherwise `from_keys`.

        from_keys: the sharper constant from key and score norms, valid for any keys.

        from_weights: the constant of Eq. (6); nan if the keys were given without W.

        M0: a Lipschitz constant of ℓ' on the scores of the problem.

        M1: a bound of |ℓ'| on the scores of the problem.

        log_L_p: the logarithm of L_p, accurate also if L_p itself underflows to 0.0 or overflows.

    `to_frame()` has one row per problem: problem, and every constant by its name.
    """

    L_p: Any
    from_keys: Any
    from_weights: Any
    M0: Any
    M1: Any
    log_L_p: Any

    @property
    def largest_step(self) -> Any:
        """The largest constant step that the theorems allow, 1/L_p; inf if the risk is constant or 1/L_p overflows."""
        L_p, log_L_p = np.asarray(self.L_p), np.asarray(self.log_L_p)
        with np.errstate(divide="ignore", over="ignore"):
            return as_scalar(np.where((L_p > 0.0) & np.isfinite(L_p), 1.0 / L_p, np.exp(-log_L_p)))

    def __repr__(self) -> str:
        if np.ndim(self.L_p) == 0:
            return f"Smoothness(L_p={self.L_p:.4g}, from_keys={self.from_keys:.4g}, M0={self.M0:.4g}, M1={self.M1:.4g})"
        return f"Smoothness({np.size(self.L_p)} problems, L_p {np.min(self.L_p):.4g} … {np.max(self.L_p):.4g})"

    def _columns(self) -> dict[str, Any]:
        constants = {name: np.ravel(value) for name, value in vars(self).items()}
        return {"problem": np.arange(np.size(self.L_p)), **constants}


@implements("A", "Eq. (6)", "Lemma 6")
@uses("A", {"Eq. (24)": "The constant of Eq. (6) again, as the lemma states it."})
def smoothness(data: TokenDataset, head: ArrayLike, loss: Loss = Logistic()) -> Smoothness:  # noqa: B008
    r"""Bound the Lipschitz constant L_p of the gradient of the training risk: steps up to 1/L_p never increase the risk.

    .. math:: \frac1n \sum_i \big(M_0 \|\gamma_i\|^2 \|K_i\|^2 + 3 M_1 \|\gamma_i\| \|K_i\|^2\big)
        \;\le\; L_p = \frac1n \sum_i \big(M_0 \|v\|^2 \|W\|^2 \|X_i\|^4 + 3 M_1 \|v\| \|W\|^2 \|X_i\|^3\big)

    Args:
        data: one problem or a batch. Matrix norms in the formula are spectral.

        head: v (d_model,) or (batch, d_model).

        loss: the loss. M₀ and M₁ are taken on the interval of the problem's scores, which contains all margins.

    Returns:
        A `Smoothness` with both constants. Check them against `AttentionRisk.gradient` at two points.
    """
    scores = as_dataset(data).finite_scores(head)
    batch = data.as_batch()
    constants = loss_on_scores(scores.reshape(batch.mask.shape), batch.mask, as_loss(loss))
    return smoothness_on_scores(data, data.head(head), scores, constants)


def smoothness_on_scores(
    data: TokenDataset, head: FloatArray, scores: FloatArray, constants: Sequence[LossConstants]
) -> Smoothness:
    """Return the smoothness of problems whose head, scores and loss have been checked."""
    shape = data.batch_shape
    slopes = np.array([(c.log_lipschitz, c.log_bound) for c in constants]).T.reshape(2, *shape)  # logs of M0 and M1
    with np.errstate(divide="ignore"):  # a norm of zero
        sizes = np.log(length(np.where(data.mask, scores, 0.0)))  # (…, n_inputs)
        keys = np.log(np.linalg.norm(data.K, ord=2, axis=(-2, -1)))
        log_from_keys = log_L_p = _log_bound(slopes, sizes, keys)
        log_from_weights = np.full(shape, np.nan)
        if data.W is not None:
            # The keys of `TokenDataset(X, y)` are its tokens.
            tokens = keys if data.K is data.X else np.log(np.linalg.norm(data.X, ord=2, axis=(-2, -1)))
            size, width = np.log(length(head))[..., None], np.log(np.linalg.norm(data.W, ord=2))
            log_from_weights = log_L_p = _log_bound(slopes, size + tokens, width + tokens)
    with np.errstate(over="ignore"):
        L_p, from_keys, from_weights, M0, M1 = (
            as_scalar(np.exp(logarithm)) for logarithm in (log_L_p, log_from_keys, log_from_weights, *slopes)
        )
    return Smoothness(L_p, from_keys, from_weights, M0, M1, as_scalar(log_L_p))


def loss_on_scores(scores: FloatArray, mask: BoolArray, loss: Loss) -> list[LossConstants]:
    """Return the constants of Assumption A for each problem of a batch, on the interval of its scores (batch, n_inputs, n_tokens)."""
    low = np.min(np.where(mask, scores, np.inf), axis=(-2, -1))
    high = np.max(scores, axis=(-2, -1))
    return [loss.constants(a, b) for a, b in zip(low.tolist(), high.tolist(), strict=True)]


def _log_bound(slopes: FloatArray, scores: FloatArray, keys: FloatArray) -> Any:
    """Return the log of the mean of (M0 ‖γ_i‖² + 3 M1 ‖γ_i‖) ‖K_i‖² over the inputs, from logarithms, which do not overflow."""
    log_M0, log_M1 = slopes[..., None]
    terms = np.logaddexp(log_M0 + 2.0 * scores, np.log(3.0) + log_M1 + scores) + 2.0 * keys  # (…, n_inputs)
    return np.logaddexp.reduce(terms, axis=-1) - np.log(terms.shape[-1])
