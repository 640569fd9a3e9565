"""Conditions on the steps and the memory of an optimizer under which its runs end in the largest margin of its norm.

Each condition is a `Check` with the numbers that decide it: constant steps must be short, a memory must fade faster than gradients fall,
steps on mini-batches must remember an epoch, and factors must be wide enough.
"""

from __future__ import annotations

import numpy as np

from marginlens.kinds import defining_class
from marginlens.norms import L2, Frobenius
from marginlens.optimizers import GradientDescent, Optimizer, SteepestDescent
from marginlens.optimizers.schedules import size_at
from marginlens.status import Status
from marginlens.svm import MarginSolution
from marginlens.theory.checks import Check
from marginlens.theory.unproved_steps import Steps, part_of, steps_of

# ηγ up to which runs with constant steps came near the margin almost always. No sharp bound is known.
LARGEST_GAIN = 0.1
# Relative to the largest singular value: leaving a smaller one out costs no more of the margin.
RANK_RTOL = 1e-3
# Up to so many rows the diameter is taken over all pairs; beyond it, it is bounded by twice the longest row.
PAIRWISE_ROWS = 64
MAX_ROWS = 2_000  # beyond which no diameter is computed
SMALLEST_SHARE = 1e-300  # stands in for a β₂ of zero, whose logarithm is needed


def conditions_on_steps(steps: Steps, solution: MarginSolution | None) -> tuple[Check, ...]:
    """Check that steps follow the current gradient and every row on the margin.

    Args:
        steps: the optimizer.

        solution: the margin problem in the norm of the steps, None if it was not solved.

    Returns:
        The conditions that apply to this optimizer.
    """
    checks = []
    if steps.power is not None and steps.power > 1.0:
        checks.append(Check("bias.finite_sum", False, {"power": steps.power}))
    if steps.power == 0.0 and _can_freeze(steps):
        checks.append(_short_steps(steps, solution))
    if steps.betas is not None:
        first, second = steps.betas
        checks.append(Check("bias.beta_order", first <= second, {"beta_1": first, "beta_2": second}))
        rate = -0.5 * float(np.log(max(second, SMALLEST_SHARE)))
        checks.append(_memory_fades(steps, rate, "½ log(1/β₂)", solution))
    elif steps.momentum > 0.0:
        checks.append(_memory_fades(steps, -float(np.log(steps.momentum)), "log(1/β)", solution))
    return tuple(checks)


def gain_of_first_step(steps: Steps, solution: MarginSolution | None) -> float | None:
    """Return ηγ of the first step; None if the best margin γ or the schedule is not known."""
    is_solved = solution is not None and solution.status is Status.OPTIMAL
    if solution is None or not is_solved or steps.power is None or steps.size is None:
        return None
    return size_at(steps.size, 0) * float(solution.margin)


def _can_freeze(steps: Steps) -> bool:
    """Return whether long constant steps stop short of the margin: they do in every norm except the Euclidean."""
    if steps.betas is not None:
        return True
    return steps.norm is not None and steps.size is not None and defining_class(steps.norm) not in (L2, Frobenius)


def _short_steps(steps: Steps, solution: MarginSolution | None) -> Check:
    """Check that constant steps are short enough to follow all rows on the margin together, not one after the other."""
    gain = gain_of_first_step(steps, solution)
    if gain is None:
        return Check("bias.short_steps", False, {"most": LARGEST_GAIN, "case": "unknown_margin"})
    share = least_share(steps, solution)
    numbers = {"eta_gamma": gain, "most": LARGEST_GAIN}
    if share is None:
        return Check("bias.short_steps", gain <= LARGEST_GAIN, numbers)
    case = "share" if share > 0.0 else "no_share"
    return Check("bias.short_steps", gain <= LARGEST_GAIN, {**numbers, "least_share": share, "case": case})


def least_share(steps: Steps, solution: MarginSolution | None) -> float | None:
    r"""Return the share of the margin that all measured runs of constant steps without memory kept while their norm grew.

    .. math:: 1 - \frac{\eta D^2}{8\gamma}, \qquad D = \max_{r, s} \|a_r - a_s\|_*

    By Hoeffding's lemma one step lowers :math:`\log \sum_r e^{-\langle a_r, x\rangle}` by at least
    :math:`\eta(\gamma - \eta D^2/8)`. That the loss of attention does the same is not proved here.

    Args:
        steps: the optimizer.

        solution: the margin problem in its norm.

    Returns:
        The share; None for steps with a memory, or if γ or the rows are not known.
    """
    gain = gain_of_first_step(steps, solution)
    remembers = defining_class(steps.optimizer) is not SteepestDescent or steps.momentum > 0.0
    if gain is None or solution is None or steps.norm is None or remembers or len(solution.rows) > MAX_ROWS:
        return None
    rows = np.asarray(solution.rows).reshape(-1, *solution.x.shape)
    dual = steps.norm.dual
    if len(rows) <= PAIRWISE_ROWS:
        diameter = max((dual(a - b) for k, a in enumerate(rows) for b in rows[:k]), default=0.0)
    else:
        diameter = 2.0 * max(dual(a) for a in rows)
    size = gain / float(solution.margin)
    return 1.0 - size * float(diameter) ** 2 / (8.0 * float(solution.margin))


def _memory_fades(steps: Steps, rate: float, formula: str, solution: MarginSolution | None) -> Check:
    """Check that the memory of old gradients fades (by e^-rate a step) faster than the gradients fall (by e^-ηγ a step)."""
    bound = {"memory_rate": rate, "formula": formula}
    if solution is None:
        return Check("bias.memory", False, {**bound, "case": "no_solver"})
    if solution.status is not Status.OPTIMAL:
        return Check("bias.memory", False, {**bound, "case": "unsolved", "status": solution.status.name.lower()})
    gain = gain_of_first_step(steps, solution)
    if gain is None or steps.power is None:
        return Check("bias.memory", False, {**bound, "case": "schedule"})
    numbers = {"eta_gamma": gain, "memory_rate": rate, "ratio": gain / rate, "formula": formula}
    if steps.power == 0.0 or gain <= rate:
        return Check("bias.memory", gain < rate, numbers)
    first_step = (gain / rate) ** (1.0 / steps.power)
    return Check("bias.memory", True, {**numbers, "first_step": first_step, "case": "falling"})


def covers_inputs(optimizer: Optimizer, n_inputs: int, batch_size: int) -> Check:
    """Check that an optimizer whose steps see only some inputs remembers the gradients of about all of them.

    Args:
        optimizer: any optimizer.

        n_inputs: n.

        batch_size: the number of inputs in each step.

    Returns:
        The check, with the `memory` and the `epoch` in steps.
    """
    part = part_of(optimizer)
    if isinstance(part, GradientDescent):
        return Check("bias.batches", True, {"case": "plain"})
    steps = steps_of(part)
    share = steps.momentum if steps.betas is None else steps.betas[0]
    memory, epoch = 1.0 / (1.0 - share), n_inputs / batch_size
    return Check("bias.batches", memory >= epoch, {"memory": memory, "epoch": epoch})


def holds_rank(width: int, solution: MarginSolution | None) -> Check:
    """Check that factors of a width can hold the max-margin solution of all W.

    Args:
        width: the number of columns of Q and K.

        solution: the margin problem of W.

    Returns:
        The check, with the `width` and the `rank`.
    """
    if solution is None or solution.status is not Status.OPTIMAL:
        return Check("bias.rank", False, {"width": width, "case": "unknown"})
    rank = int(np.linalg.matrix_rank(solution.direction, tol=RANK_RTOL * np.linalg.norm(solution.direction, 2)))
    return Check("bias.rank", width >= rank, {"width": width, "rank": rank})
