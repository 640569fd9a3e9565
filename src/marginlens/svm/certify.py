"""The proofs behind a status, computed from the rows as they were given: optimality residual and Farkas residual."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marginlens.data.tokens import FloatArray
from marginlens.kernels.linalg import dot, matvec, vecmat
from marginlens.runtime.compilation import njit

EPS = 2.0**-52


class Problem(NamedTuple):
    """Rows as given, their norms (0 for rows to leave out), and their floors divided by the norms and then by the largest."""

    A: FloatArray  # (n_rows, d)
    size: FloatArray  # (n_rows,)
    floor: FloatArray  # (n_rows,)


class Answer(NamedTuple):
    """x = sum_r weights[r] a_r / size_r and slack_r = a_r·x / size_r - floor_r, or a Farkas vector in weights."""

    x: FloatArray  # (d,)
    weights: FloatArray  # (n_rows,)
    slack: FloatArray  # (n_rows,)


@njit(cache=True, nogil=True)
def measure(problem: Problem, answer: Answer) -> None:
    """Fill in x and slack from the weights and the original rows."""
    A, size, _ = problem
    x, weights, slack = answer
    m = len(size)
    for r in range(m):
        slack[r] = weights[r] / size[r] if weights[r] != 0.0 else 0.0
    vecmat(slack, A[:m], x)
    measure_slack(problem, answer)


@njit(cache=True, nogil=True)
def measure_slack(problem: Problem, answer: Answer) -> None:
    """Fill in slack from x and the original rows."""
    A, size, floor = problem
    slack = answer.slack
    matvec(A[: len(size)], answer.x, slack)
    for r in range(len(size)):
        slack[r] = slack[r] / size[r] - floor[r] if size[r] > 0.0 else 0.0


@njit(cache=True, nogil=True)
def optimality(floor: FloatArray, answer: Answer) -> tuple[float, float]:
    """The largest residual among feasibility, complementarity and duality gap, and how much rounding is amplified.

    The amplification is sum_r weights[r] / ‖x‖: multipliers in double precision determine x up to its product with the unit
    roundoff, so no solver can promise a smaller residual than that.
    """
    x, weights, slack = answer
    square = dot(x, x)
    if not square > 0.0:
        return np.inf, np.inf
    length, worst, total, value = np.sqrt(square), 0.0, 0.0, 0.0
    for r in range(len(floor)):
        total += weights[r]
        value += weights[r] * floor[r]
        worst = max(worst, -slack[r] / length, abs(weights[r] * slack[r]) / square)
    worst = max(worst, abs(square - value) / square)
    return (worst if worst < np.inf else np.inf), total / length


@njit(cache=True, nogil=True)
def impossibility(problem: Problem, weights: FloatArray) -> float:
    """‖sum_r weights[r] a_r / size_r‖ over the weight on positive floors: at rounding level, no x exists."""
    A, size, floor = problem
    m, d = A.shape
    scaled, rest = np.empty(m), np.empty(d)
    counted = 0.0
    for r in range(m):
        scaled[r] = weights[r] / size[r] if size[r] > 0.0 else 0.0
        if floor[r] > 0.0:
            counted += weights[r]
    vecmat(scaled, A[:m], rest)
    return np.sqrt(dot(rest, rest)) / counted if counted > 0.0 else np.inf
