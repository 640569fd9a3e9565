"""The lemmas about the first step, each with both of its sides: errors, norms and the loss."""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.data.tokens import IntArray
from marginlens.embeddings.one_step import FirstStep, as_first_step
from marginlens.embeddings.proved import ProvedBound, log10_width
from marginlens.papers import implements, uses


@implements("B", "Lemma 2", "Eq. (6)")
def first_step_errors(step: FirstStep, delta: Any) -> ProvedBound:
    r"""The largest error of the first step beside its bound.

    .. math:: \max\{\max_s \|err_s\|, \|err_p\|\} \le 11\, \eta_0\, d^{-1/4}, \quad
        d \ge \max\Big\{256, \Big(2\log\frac{|\mathcal S|^2}{\delta}\Big)^2\Big\}

    Here and below 𝒮 holds the tokens that occur in the sequences; rows of E that no sequence uses do not count.
    """
    d = len(as_first_step(step).error_p)
    needed = log10_width(len(_occurring(step)), delta)
    return ProvedBound("B Eq. (6)", float(step.errors.max()), _error_bound(step), d, needed)


@implements("B", "Lemma 11")
@uses("B", {"Eq. (16)": "The bound on ‖p¹‖, the second of the two that come back."})
def first_step_norms(step: FirstStep, delta: Any) -> tuple[ProvedBound, ProvedBound]:
    r"""The largest norm of an embedding after the first step, and the norm of p, beside their bounds.

    .. math:: \max_s \|E^1_s\| \le 2 (1 + 2\eta_0), \quad \|p^1\| \le 2 + 11\, \eta_0\, d^{-1/4}
    """
    p = as_first_step(step).after.p
    E = step.after.E[_occurring(step)]
    needed = log10_width(len(E), delta)
    largest = float(np.sqrt(np.einsum("sd,sd->s", E, E).max()))
    return (
        ProvedBound("B Lemma 11, embeddings", largest, 2.0 * (1.0 + 2.0 * step.rate), len(p), needed),
        ProvedBound("B Lemma 11, p", float(np.linalg.norm(p)), 2.0 + _error_bound(step), len(p), needed),
    )


@implements("B", "Lemma 12")
@uses("B", {"Eq. (17)": "The bound on the loss after the step."})
def first_step_loss(step: FirstStep, delta: Any) -> ProvedBound:
    r"""The loss after the first step beside its bound.

    .. math:: L(E^1, p^1) \le \hat{\mathbb E} \log\Big(1 + \exp\Big(-\frac1T \sum_t \frac{\eta_0}{2} y \alpha_{x_t}
        + \frac{1}{22 \eta_0}\Big)\Big), \quad d \ge (88\eta_0^2 + 111\eta_0 + 2)^8

    The width it asks for can be met only for small η₀, where 1/(22 η₀) makes the bound large.
    """
    data = as_first_step(step).data
    mean = np.add.reduceat(step.alpha[data.tokens], data.offsets[:-1]) / data.lengths
    exponent = -0.5 * step.rate * data.y * mean + 1.0 / (22.0 * step.rate)
    needed = log10_width(len(_occurring(step)), delta, step.rate)
    bound = float(np.mean(np.logaddexp(0.0, exponent)))
    return ProvedBound("B Lemma 12", step.loss_after, bound, len(step.error_p), needed)


def _occurring(step: FirstStep) -> IntArray:
    """𝒮, the ids that occur in the sequences."""
    return np.unique(step.data.tokens)


def _error_bound(step: FirstStep) -> float:
    return float(11.0 * step.rate * len(step.error_p) ** -0.25)
