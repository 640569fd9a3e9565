"""Conditions of paper A's theorems, each checked on data with its numbers; Lemma 14."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from marginlens.data.tokens import TokenDataset
from marginlens.errors import InputError, positive_number
from marginlens.losses.margin import Logistic, Loss
from marginlens.optimizers import Adam, CoordinateDescent, GradientDescent, NormalizedGD, SignDescent
from marginlens.optimizers.protocol import Optimizer, as_optimizer
from marginlens.papers import implements
from marginlens.status import Status
from marginlens.svm.sets import as_optimal_sets
from marginlens.theory.checks import Check
from marginlens.theory.optimality import one_problem
from marginlens.theory.scored_tokens import ScoredTokens, all_tied
from marginlens.theory.unproved_steps import optimizer_words
from marginlens.typing import ArrayLike, BoolArray, FloatArray, IntArray

# ---- loss, scores and step

_NAMED_STEPS: dict[type, str] = {
    NormalizedGD: "normalized_gd",
    SignDescent: "sign_descent",
    CoordinateDescent: "coordinate_descent",
    Adam: "adam",
}


@implements("A", "Assumption A")
def check_assumption_a(data: TokenDataset, head: ArrayLike, loss: Loss = Logistic()) -> Check | Any:  # noqa: B008
    r"""Check whether the loss strictly decreases with a bounded, Lipschitz slope on the scores of the problem.

    .. math:: \ell' < 0,\quad |\ell'| \le M_1,\quad |\ell'(u) - \ell'(w)| \le M_0 |u - w| \quad \text{on } [\min\gamma, \max\gamma]

    A slope of exactly zero fails the check, even if the loss still strictly decreases, because the proofs divide by the smallest slope.

    Returns:
        A `Check` with M0, M1 and smallest_slope, their logarithms (which decide), low and high; a list of them for a batch.
    """
    return ScoredTokens(data, head, loss).each(assumption_a)


def assumption_a(problem: ScoredTokens) -> Check:
    """Return whether Assumption A holds for one problem."""
    found = problem.loss_constants[0]
    low, high = problem.score_ranges[0]
    bounded = max(found.log_lipschitz, found.log_bound) < np.inf and found.log_smallest > -np.inf
    numbers = {
        "M0": found.lipschitz,
        "M1": found.bound,
        "smallest_slope": found.smallest,
        "log_M0": found.log_lipschitz,
        "log_M1": found.log_bound,
        "log_smallest_slope": found.log_smallest,
        "low": low,
        "high": high,
        "case": "default" if found.decreasing else "rising",
    }
    return Check("condition.assumption_a", found.decreasing and bounded, numbers)


@implements("A", "Assumption B")
def check_assumption_b(data: TokenDataset, head: ArrayLike) -> Check | Any:
    r"""Check whether all non-optimal tokens of an input score the same, below the optimal one.

    .. math:: \gamma_{it} = \gamma_{i\tau} < \gamma_{i\,\mathrm{opt}_i} \quad \text{for all } t, \tau \ne \mathrm{opt}_i

    Returns:
        A `Check` with spread, the largest difference among non-optimal scores of one input, and smallest_gap, the smallest
        difference to the optimal one; a list of them for a batch. Equal means exactly equal: if scores differ by less than the
        rounding errors of double precision, the check fails.
    """
    return ScoredTokens(data, head).each(assumption_b)


def assumption_b(problem: ScoredTokens) -> Check:
    """Return whether Assumption B holds for one problem."""
    gaps, other = problem.differences(problem.optimal)
    spread = max(float(np.max(np.max(gaps, axis=-1) - np.min(np.where(other, gaps, np.inf), axis=-1))), 0.0)
    gap = float(np.min(gaps[other], initial=np.inf))
    numbers = {"spread": spread, "smallest_gap": gap, "case": _case_of(gap)}
    holds = bool(all_tied(problem.scores, problem.blur, other).all() and gap > 0.0)
    is_decided = not (problem.sharp_differences(np.argmax(other, axis=-1))[1] & other).any()
    return Check("condition.assumption_b", holds if is_decided or not holds else None, numbers)


def _case_of(gap: float) -> str:
    """Choose the text that says by how much the best token of an input leads."""
    return "alone" if gap == np.inf else "default" if gap > 0.0 else "tie"


@implements("A", "Thm 1")
def check_strict_optimum(data: TokenDataset, head: ArrayLike) -> Check | Any:
    r"""Check whether the highest score of every input belongs to one token.

    .. math:: \gamma_{it} < \gamma_{i\,\mathrm{opt}_i} \quad \text{for all } t \ne \mathrm{opt}_i

    Returns:
        A `Check` with smallest_gap; a list of them for a batch.
    """
    return ScoredTokens(data, head).each(strict_optimum)


def strict_optimum(problem: ScoredTokens) -> Check:
    """Return whether one problem has a strict optimum."""
    gaps, other = problem.differences(problem.optimal)
    gap = float(np.min(gaps[other], initial=np.inf))
    return Check("condition.strict_optimum", gap > 0.0, {"smallest_gap": gap, "case": _case_of(gap)})


@implements("A", "Def 1")
def check_separable(data: TokenDataset, head: ArrayLike) -> Check | Any:
    r"""Check whether the GMM direction exists: some p selects the optimal token of every input.

    .. math:: \exists p:\ (k_{i\,\mathrm{opt}_i} - k_{it})^\top p \ge 1 \quad \text{for all } t \ne \mathrm{opt}_i

    Theorems 1 and 2 assume this direction without saying that it must exist; if it does not exist, they do not apply.

    Returns:
        A `Check` with the margin 1/‖p‖, zero if there is no such p; a list of them for a batch.
    """
    return ScoredTokens(data, head).each(separable_optimum)


def separable_optimum(problem: ScoredTokens) -> Check:
    """Return whether one problem has a GMM direction."""
    found = problem.margin(problem.optimal)
    status = found.status
    holds = False if status in (Status.TRIVIAL, Status.INFEASIBLE) else True if status is Status.OPTIMAL else None
    return Check("condition.separable_optimum", holds, {"margin": float(found.margin), "case": status.name.lower()})


@implements("A", "Lemma 6")
def check_step(
    data: TokenDataset,
    head: ArrayLike,
    optimizer: Optimizer,
    loss: Loss = Logistic(),  # noqa: B008
) -> Check | Any:
    r"""Check whether the theorems on gradient descent cover an optimizer.

    .. math:: p(t+1) = p(t) - \eta \nabla L(p(t)), \quad \eta \le 1/L_p

    Returns:
        A `Check` with L_p, largest_step = 1/L_p, log_L_p, and from_keys, a sharper constant that may replace L_p; a list for a batch.
    """
    return ScoredTokens(data, head, loss).each(lambda problem: step_size(problem, optimizer))


def step_size(problem: ScoredTokens, optimizer: Optimizer) -> Check:
    """Return whether the theorems cover the steps of an optimizer on one problem."""
    rule, found = as_optimizer(optimizer), problem.smoothness
    numbers: dict[str, Any] = {name: getattr(found, name) for name in ("L_p", "largest_step", "from_keys", "log_L_p")}
    numbers["log_largest_step"] = -found.log_L_p
    if type(rule) is GradientDescent:
        holds = bool(rule.size <= found.largest_step)
        return Check("condition.step_size", holds, {**numbers, "size": rule.size, "case": "gradient_descent"})
    case = _NAMED_STEPS.get(type(rule), "other")
    return Check("condition.step_size", False, {**numbers, "optimizer": optimizer_words(rule), "case": case})


# ---- several optimal tokens in an input


@implements("A", "Def 1")
def optimal_sets(data: TokenDataset, head: ArrayLike) -> tuple[IntArray, ...]:
    r"""Find the tokens that share the highest score of each input, up to rounding.

    .. math:: O_i = \Big\{ t : \gamma_{it} = \max_\tau \gamma_{i\tau} \Big\}

    Args:
        data: one problem.
        head: v (d_model,).
    Returns:
        One sorted array of token indices per input, as `set_svm`, `check_mixing` and `mixing_constants` take them.
    """
    return optimal_sets_of(ScoredTokens(one_problem(data), head))


def optimal_sets_of(problem: ScoredTokens) -> tuple[IntArray, ...]:
    """Find the tokens that share the highest score of each input of one problem, up to rounding."""
    difference, other = problem.differences(problem.optimal)
    return tuple(np.flatnonzero(tied) for tied in problem.data.mask & ~(other & (difference != 0.0)))


class MixingConstants(NamedTuple):
    r"""The constants of Lemma 14 on one problem with a linear head.

    Attributes:
        nu: (n_inputs,) the score ν_i that the optimal tokens share.
        epsilon, C: the constants of Eq. (85), after the shift.
        shift: (n_inputs,) what was added to all scores of an input to make ν_i positive; zero if it already is.
        log_C_plus, log_C_minus: logarithms of the constants in :math:`C_- q_{\max} \le L(p) - L_\star \le C_+ q_{\max}`, for every p.
    """

    nu: FloatArray
    shift: FloatArray
    epsilon: float
    C: float
    log_C_plus: float
    log_C_minus: float

    def rho(self, delta: float) -> float:
        r"""The function :math:`\rho(\Delta) = -2 (1 + 1/\Delta) \log\Theta` for which Assumption D holds."""
        return -2.0 * (1.0 + 1.0 / positive_number(delta, "delta")) * (self.log_C_plus - self.log_C_minus)


@implements("A", "Lemma 14", "Eq. (85)")
def mixing_constants(
    data: TokenDataset,
    head: ArrayLike,
    optimal_sets: Sequence[ArrayLike],
    loss: Loss = Logistic(),  # noqa: B008
) -> MixingConstants:
    r"""Compute the constants of Assumption D for a linear head: they bound the excess risk by the probability of non-optimal tokens.

    .. math:: \epsilon = \min_{i,\ t \notin O_i} \Big(1 - \frac{\gamma_{it}}{\nu_i}\Big), \quad
        C = \max_{i,\ t \notin O_i} (-\gamma_{it})_+, \quad C_+ = B (C + \max_i \nu_i), \quad C_- = \frac{A\,\epsilon}{n} \min_i \nu_i

    where A and B are the smallest and the largest slope of the loss on the interval from the lowest to the highest score. The
    paper takes them on [-M, M], where M is the largest absolute score; that interval is wider than any margin needs. Inputs
    whose tokens are all optimal are left out of the maxima and minima, because they lose no probability.

    The lemma requires ν_i > 0. If ν_i is not positive, the scores of that input are shifted until the lowest is zero: its loss
    becomes :math:`u \mapsto \ell(u - \text{shift}_i)`, which decreases with the same slopes at the same tokens. The proof does
    not otherwise need all inputs to share one loss.

    Args:
        data: one problem.
        head: v (d_model,).
        optimal_sets: for each input, tokens that share one score above all others. Returns:
        A `MixingConstants`; check it with `excess_risk` and `log_nonoptimality` at any p.
    """
    problem = ScoredTokens(one_problem(data), head, loss)
    return mixing_constants_of(problem, as_optimal_sets(data, optimal_sets))


def mixing_constants_of(problem: ScoredTokens, sets: tuple[IntArray, ...]) -> MixingConstants:
    """Compute the constants of Lemma 14 for one problem and checked sets."""
    nu, outside = _shared_scores(problem, sets)
    log_largest, log_smallest = problem.log_slopes
    mixes = outside.any(axis=-1)
    if not mixes.any():
        return MixingConstants(nu, np.zeros_like(nu), 1.0, 0.0, 0.0, 0.0)
    scores = np.where(outside, problem.scores, np.inf)
    positive = nu > np.max(np.where(outside, 0.0, problem.blur), axis=-1)
    shift = np.where(mixes & ~positive, -np.min(scores, axis=-1), 0.0)
    best, others = (nu + shift)[mixes], (scores + shift[:, None])[mixes]
    C = max(0.0, -float(np.min(others)))
    epsilon = float(np.min(np.where(outside[mixes], 1.0 - others / best[:, None], np.inf)))
    log_C_plus = float(log_largest + np.log(C + best.max()))
    log_C_minus = float(log_smallest + np.log(epsilon * best.min() / problem.data.n_inputs))
    return MixingConstants(nu, shift, epsilon, C, log_C_plus, log_C_minus)


def membership(data: TokenDataset, sets: tuple[IntArray, ...]) -> BoolArray:
    """Return the mask of the optimal tokens, (n_inputs, n_tokens)."""
    return np.array([np.isin(np.arange(data.n_tokens), members) for members in sets])


def _shared_scores(problem: ScoredTokens, sets: tuple[IntArray, ...]) -> tuple[FloatArray, BoolArray]:
    """Return ν (n_inputs,) and the tokens outside the sets; refuse a set that does not share a score above the others."""
    scores, inside, blur = problem.scores, membership(problem.data, sets), problem.blur
    outside = problem.data.mask & ~inside
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
        raise InputError(f"optimal_sets[{i}]", expected, got)
    return nu, outside
