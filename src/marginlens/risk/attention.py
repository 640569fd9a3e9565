"""The training risk, and how far it is above the risk of selecting tokens outright, as a logarithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from marginlens.data.tokens import TokenDataset, as_dataset
from marginlens.losses.margin import Logistic, Loss, as_loss, value_of
from marginlens.papers import implements
from marginlens.risk.heads import as_head
from marginlens.risk.softmax import attend, logits

FloatArray = npt.NDArray[np.float64]


@implements("A", "Eq. (1)", "(ERM)")
def risk(data: TokenDataset, v: Any, p: Any, loss: Loss = Logistic()) -> FloatArray:  # noqa: B008
    r"""Training risk of the attention model at p.

    .. math:: L(p) = \frac1n \sum_{i=1}^n \ell(Y_i\, v^\top X_i^\top \mathbb S(K_i p))

    Returns:
        Shape (…): a zero-dimensional array for one problem.
    """
    _, margin = as_head(data, v).attend(logits(data, p))
    return np.mean(value_of(as_loss(loss), margin), axis=-1)


@dataclass(frozen=True)
class ExcessRisk:
    """`sign · exp(log)`: how far the risk is above (or below, sign -1) that of selecting the given tokens; shapes (…)."""

    sign: FloatArray
    log: FloatArray

    def above(self, other: ExcessRisk) -> Any:
        """Whether this excess is strictly larger than `other`, decided on logarithms, elementwise."""
        with np.errstate(invalid="ignore"):  # the logarithm of no excess is -inf
            height, its_height = self.sign * self.log, other.sign * other.log
        return np.where(self.sign != other.sign, self.sign > other.sign, height > its_height)


@implements("A", "Eq. (63)")
def excess_risk(data: TokenDataset, v: Any, p: Any, loss: Loss = Logistic(), selected: Any = None) -> ExcessRisk:  # noqa: B008
    r"""Risk at p less the risk of selecting one token per input outright, exact when it is far below the smallest float64.

    .. math:: L(p) - \frac1n \sum_{i=1}^n \ell(\gamma_{i\alpha_i})

    Args:
        selected: α of shape (…, n_inputs); by default the tokens with the largest logits at p.
    """
    alpha = None if selected is None else as_dataset(data).selection(selected)
    at = attend(logits(data, p), data.scores(v), data.mask, alpha)
    with np.errstate(divide="ignore"):
        log_delta = np.log(np.abs(at.shortfall)) + at.log_unit
    sign = np.sign(at.shortfall)
    rise = as_loss(loss).signed_log_rise(at.top_score, log_delta, sign)
    sign = np.where(sign == 0.0, 0.0, rise.sign)
    logs = np.where(sign == 0.0, -np.inf, rise.log)
    with np.errstate(divide="ignore"):
        total, total_sign = logsumexp(logs, axis=-1, b=sign / data.n_inputs, return_sign=True)
    return ExcessRisk(np.asarray(total_sign), np.asarray(total))
