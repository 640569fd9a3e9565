"""The theorems' assumptions, checked on data one by one, each with its numbers and a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from marginlens.data.tokens import FloatArray, TokenDataset
from marginlens.losses.margin import Logistic, Loss, as_loss
from marginlens.optimizers import GradientDescent, NormalizedGD, as_optimizer
from marginlens.papers import implements
from marginlens.risk.smoothness import loss_on_scores, smoothness
from marginlens.svm import Status
from marginlens.theory.optimality import globally_optimal_direction
from marginlens.theory.problem import all_tied, each_problem, power, score_blur, score_differences


@dataclass(frozen=True, repr=False)
class Check:
    """One condition of a theorem on one problem: what it is called, whether it holds, the numbers that decide it, a sentence."""

    name: str
    holds: bool
    sentence: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.holds

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name}={value:.4g}" for name, value in self.numbers.items())
        return f"Check({self.name}: {'holds' if self.holds else 'fails'}{', ' if numbers else ''}{numbers})"

    def __str__(self) -> str:
        return f"[{'x' if self.holds else ' '}] {self.name}: {self.sentence}"


@implements("A", "Assumption A")
def check_assumption_a(data: TokenDataset, v: Any, loss: Loss = Logistic()) -> Any:  # noqa: B008
    r"""Whether the loss strictly decreases with a bounded, Lipschitz slope on the scores of the problem.

    .. math:: \ell' < 0,\quad |\ell'| \le M_1,\quad |\ell'(u) - \ell'(w)| \le M_0 |u - w| \quad \text{on } [\min\gamma, \max\gamma]

    A slope of exactly zero fails the check although the loss may still strictly decrease: the proofs divide by the smallest slope.

    Returns:
        A `Check` with M0, M1, smallest_slope, their logarithms, which decide, low and high; a list of them for a batch.
    """
    name = type(as_loss(loss)).__name__

    def question(one: TokenDataset, head: FloatArray) -> Check:
        found = loss_on_scores(one, head, loss)[0]
        scores = one.scores(head)[one.mask]
        holds = (
            found.decreasing
            and found.log_lipschitz < np.inf
            and -np.inf < found.log_smallest
            and found.log_bound < np.inf
        )
        low, high = float(scores.min()), float(scores.max())
        sentence = (
            f"on the scores [{low:.4g}, {high:.4g}] {name} {'strictly decreases' if holds else 'does not strictly decrease'}"
            f" with slopes from {power(found.log_smallest)} to M1 = {power(found.log_bound)}, which are M0 = "
            f"{power(found.log_lipschitz)} Lipschitz"
        )
        numbers = {
            "M0": found.lipschitz,
            "M1": found.bound,
            "smallest_slope": found.smallest,
            "log_M0": found.log_lipschitz,
            "log_M1": found.log_bound,
            "log_smallest_slope": found.log_smallest,
            "low": low,
            "high": high,
        }
        return Check("A Assumption A", holds, sentence, numbers)

    return each_problem(data, v, question)


@implements("A", "Assumption B")
def check_assumption_b(data: TokenDataset, v: Any) -> Any:
    r"""Whether all non-optimal tokens of an input score the same, below the optimal one.

    .. math:: \gamma_{it} = \gamma_{i\tau} < \gamma_{i\,\mathrm{opt}_i} \quad \text{for all } t, \tau \ne \mathrm{opt}_i

    Returns:
        A `Check` with spread, the largest difference among non-optimal scores of one input, and smallest_gap, the smallest
        difference to the optimal one; a list of them for a batch. Equal means equal up to rounding.
    """

    def question(one: TokenDataset, head: FloatArray) -> Check:
        gaps, other = score_differences(one, head, one.optimal(head))
        spread = float(np.max(np.max(gaps, axis=-1) - np.min(np.where(other, gaps, np.inf), axis=-1), initial=0.0))
        spread, gap = max(spread, 0.0), float(np.min(gaps[other], initial=np.inf))
        holds = bool(all_tied(one.scores(head), score_blur(one, head), other).all() and gap > 0.0)
        sentence = f"the non-optimal scores of an input differ by up to {spread:.4g} and lie at least {gap:.4g} below the optimal one"
        return Check("A Assumption B", holds, sentence, {"spread": spread, "smallest_gap": gap})

    return each_problem(data, v, question)


@implements("A", "Thm 1")
def check_strict_optimum(data: TokenDataset, v: Any) -> Any:
    r"""Whether the highest score of every input belongs to one token.

    .. math:: \gamma_{it} < \gamma_{i\,\mathrm{opt}_i} \quad \text{for all } t \ne \mathrm{opt}_i

    Returns:
        A `Check` with smallest_gap; a list of them for a batch.
    """

    def question(one: TokenDataset, head: FloatArray) -> Check:
        gaps, other = score_differences(one, head, one.optimal(head))
        gap = float(np.min(gaps[other], initial=np.inf))
        beats = f"beats the rest of its input by at least {gap:.4g}" if gap > 0.0 else "ties with another in some input"
        return Check("strict optimum", gap > 0.0, f"the highest-scoring token {beats}", {"smallest_gap": gap})

    return each_problem(data, v, question)


@implements("A", "Thm 4")
def check_distinct_scores(data: TokenDataset, v: Any) -> Any:
    r"""Whether no two tokens of an input score the same.

    .. math:: \gamma_{it} \ne \gamma_{i\tau} \quad \text{for all } t \ne \tau

    Returns:
        A `Check` with smallest_gap; a list of them for a batch.
    """

    def question(one: TokenDataset, head: FloatArray) -> Check:
        scores, blur = np.where(one.mask, one.scores(head), np.inf), score_blur(one, head)
        order = np.argsort(scores, axis=-1, kind="stable")
        scores, blur = np.take_along_axis(scores, order, axis=-1), np.take_along_axis(blur, order, axis=-1)
        with np.errstate(invalid="ignore"):
            steps = np.diff(scores, axis=-1)
        real = np.isfinite(steps)
        gap = float(np.min(steps[real], initial=np.inf))
        holds = bool(np.all(steps[real] > (blur[..., 1:] + blur[..., :-1])[real]))
        sentence = f"two scores of one input differ by at least {gap:.4g}"
        return Check("distinct scores", holds, sentence, {"smallest_gap": gap})

    return each_problem(data, v, question)


@implements("A", "Def 1")
def check_separable(data: TokenDataset, v: Any) -> Any:
    r"""Whether the GMM direction exists: some p selects the optimal token of every input.

    .. math:: \exists p:\ (k_{i\,\mathrm{opt}_i} - k_{it})^\top p \ge 1 \quad \text{for all } t \ne \mathrm{opt}_i

    Theorems 1 and 2 speak of this direction without saying that it must exist; where it does not they say nothing.

    Returns:
        A `Check` with the margin 1/‖p‖, zero where there is no such p; a list of them for a batch.
    """

    def question(one: TokenDataset, head: FloatArray) -> Check:
        found = globally_optimal_direction(one, head)
        status = found.solution.status
        sentence = {
            Status.OPTIMAL: f"one direction selects every optimal token, with margin {found.margin:.4g}",
            Status.TRIVIAL: "no input has two tokens, so there is nothing to select",
            Status.INFEASIBLE: "no direction selects every optimal token",
        }.get(status, "rounding decides whether a direction selects every optimal token")
        return Check("separable optimum", status is Status.OPTIMAL, sentence, {"margin": float(found.margin)})

    return each_problem(data, v, question)


@implements("A", "Lemma 6")
def check_step(data: TokenDataset, v: Any, optimizer: Any, loss: Loss = Logistic()) -> Any:  # noqa: B008
    r"""Whether an optimizer is one that the theorems on gradient descent speak of.

    .. math:: p(t+1) = p(t) - \eta \nabla L(p(t)), \quad \eta \le 1/L_p

    Returns:
        A `Check` with L_p, largest_step = 1/L_p, log_L_p, and from_keys, the sharper constant that serves as well; a list for a batch.
    """
    rule = as_optimizer(optimizer)

    def question(one: TokenDataset, head: FloatArray) -> Check:
        found = smoothness(one, head, loss)
        numbers = {
            "L_p": found.L_p,
            "largest_step": found.largest_step,
            "from_keys": found.from_keys,
            "log_L_p": found.log_L_p,
        }
        if not isinstance(rule, GradientDescent):
            return Check(
                "step size", False, f"the theorems speak of plain gradient descent, not of {_steps_of(rule)}", numbers
            )
        holds = bool(rule.size <= found.largest_step)
        relation = "does not exceed" if holds else "exceeds"
        return Check("step size", holds, f"η = {rule.size:.4g} {relation} 1/L_p = {power(-found.log_L_p)}", numbers)

    return each_problem(data, v, question)


def _steps_of(optimizer: Any) -> str:
    return "normalised steps" if isinstance(optimizer, NormalizedGD) else f"{type(optimizer).__name__}"
