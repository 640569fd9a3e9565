"""Several optimal tokens per input: their sets, and Lemma 14's constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.data.tokens import TokenDataset
from marginlens.errors import positive_number, reject
from marginlens.losses.margin import Logistic, Loss, as_loss
from marginlens.papers import implements
from marginlens.result import Result, Tabular, drawn, table
from marginlens.result.drawing import draw_bars
from marginlens.svm.sets import as_optimal_sets
from marginlens.theory.optimality import (
    all_tied,
    log_slopes,
    one_problem,
    score_blur,
    score_differences,
)
from marginlens.typing import Axes, BoolArray, FloatArray, IntArray


@implements("A", "Def 1")
def optimal_sets(data: TokenDataset, head: Any) -> tuple[IntArray, ...]:
    r"""The tokens that share the highest score of each input, up to rounding.

    .. math:: O_i = \Big\{ t : \gamma_{it} = \max_\tau \gamma_{i\tau} \Big\}

    Args:
        data: one problem. head: v (d_model,).
    Returns:
        One sorted array of token indices per input, as `set_svm`, `check_mixing` and `mixing_constants` take them.
    """
    difference, other = score_differences(one_problem(data), head, data.optimal(head))
    return tuple(np.flatnonzero(tied) for tied in data.mask & ~(other & (difference != 0.0)))


@dataclass(frozen=True, repr=False, eq=False)
class MixingConstants(Result, Tabular):
    r"""The constants of Lemma 14 on one problem with a linear head.

    Attributes:
        nu: (n_inputs,) the score ν_i that the optimal tokens share. epsilon, C: the constants of Eq. (85), after the shift.
        shift: (n_inputs,) what was added to all scores of an input so that ν_i is positive: zero where it is already.
        log_C_plus, log_C_minus: logarithms of the constants in :math:`C_- q_{\max} \le L(p) - L_\star \le C_+ q_{\max}`, for every p.

    `to_frame()` has one row per input: input, nu, shift.
    """

    nu: FloatArray
    shift: FloatArray
    epsilon: float
    C: float
    log_C_plus: float
    log_C_minus: float

    def rho(self, delta: float) -> float:
        r""":math:`\rho(\Delta) = -2 (1 + 1/\Delta) \log\Theta`, with which Assumption D holds."""
        return -2.0 * (1.0 + 1.0 / positive_number(delta, "delta")) * (self.log_C_plus - self.log_C_minus)

    @drawn
    def plot(self, ax: Axes) -> None:
        """Draw the score that the optimal tokens of every input share."""
        draw_bars(ax, [str(i) for i in range(len(self.nu))], self.nu, "score ν of the optimal tokens", ylabel="input")

    _columns = table("input", "nu", "shift")


@implements("A", "Lemma 14", "Eq. (85)")
def mixing_constants(data: TokenDataset, head: Any, optimal_sets: Any, loss: Loss = Logistic()) -> MixingConstants:  # noqa: B008
    r"""Why a linear head satisfies Assumption D: the excess risk is the probability of non-optimal tokens up to constant factors.

    .. math:: \epsilon = \min_{i,\ t \notin O_i} \Big(1 - \frac{\gamma_{it}}{\nu_i}\Big), \quad
        C = \max_{i,\ t \notin O_i} (-\gamma_{it})_+, \quad C_+ = B (C + \max_i \nu_i), \quad C_- = \frac{A\,\epsilon}{n} \min_i \nu_i

    with A and B the smallest and the largest slope of the loss on the interval from the lowest to the highest score; the paper takes
    them on [-M, M], M being the largest absolute score, which no margin needs. Inputs whose tokens are all optimal are left out of the
    maxima and minima, because none of their probability is lost.

    The lemma asks for ν_i > 0. Where ν_i is not positive, the scores of that input are shifted until the lowest is zero: its loss becomes
    :math:`u \mapsto \ell(u - \text{shift}_i)`, which decreases with the same slopes at the same tokens, and nothing else in the proof
    uses that all inputs share one loss.

    Args:
        data: one problem. head: v (d_model,). optimal_sets: sets whose tokens share one score above the others of the input.
    Returns:
        A `MixingConstants`; check it with `excess_risk` and `log_nonoptimality` at any p.
    """
    sets = as_optimal_sets(one_problem(data), optimal_sets)
    nu, outside = _shared_scores(data, head, sets)
    log_largest, log_smallest = log_slopes(data, head, as_loss(loss))
    mixes = outside.any(axis=-1)
    if not mixes.any():
        return MixingConstants(nu, np.zeros_like(nu), 1.0, 0.0, 0.0, 0.0)
    scores = np.where(outside, data.scores(head), np.inf)
    positive = nu > np.max(np.where(outside, 0.0, score_blur(data, head)), axis=-1)
    shift = np.where(mixes & ~positive, -np.min(scores, axis=-1), 0.0)
    best, others = (nu + shift)[mixes], (scores + shift[:, None])[mixes]
    C = max(0.0, -float(np.min(others)))
    epsilon = float(np.min(np.where(outside[mixes], 1.0 - others / best[:, None], np.inf)))
    log_C_plus = float(log_largest + np.log(C + best.max()))
    log_C_minus = float(log_smallest + np.log(epsilon * best.min() / data.n_inputs))
    return MixingConstants(nu, shift, epsilon, C, log_C_plus, log_C_minus)


def membership(data: TokenDataset, sets: tuple[IntArray, ...]) -> BoolArray:
    """Which tokens are optimal, (n_inputs, n_tokens)."""
    return np.array([np.isin(np.arange(data.n_tokens), members) for members in sets])


def _shared_scores(data: TokenDataset, v: Any, sets: tuple[IntArray, ...]) -> tuple[FloatArray, BoolArray]:
    """ν (n_inputs,) and the tokens outside the sets; refused where a set does not share a score above the others."""
    scores, inside, blur = data.scores(v), membership(data, sets), score_blur(data, v)
    outside = data.mask & ~inside
    nu = np.max(np.where(inside, scores, -np.inf), axis=-1)
    next_best = np.max(np.where(outside, scores, -np.inf), axis=-1)
    lowest_inside = np.min(np.where(inside, scores - blur, np.inf), axis=-1)
    wrong = ~all_tied(scores, blur, inside) | (
        np.max(np.where(outside, scores + blur, -np.inf), axis=-1) >= lowest_inside
    )
    if wrong.any():
        i = int(np.argmax(wrong))
        expected = "tokens that share one score, above those of the other tokens"
        got = f"scores {np.round(scores[i][inside[i]], 4).tolist()} inside and up to {next_best[i]:.4g} outside"
        raise reject(f"optimal_sets[{i}]", expected, got)
    return nu, outside
