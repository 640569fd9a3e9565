"""The dual active-set method on the Gram matrix of all rows: the quickest for few rows, however wide they are.

It squares the condition number and gives up on dependent rows, so whoever calls it checks the result and falls back on the
orthogonal version of the same method.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marginlens.data.tokens import BoolArray, FloatArray, IntArray
from marginlens.kernels.linalg import EPS, cholesky, dot, matvec, solve_lower, solve_upper, vecmat, vecmat_rows
from marginlens.runtime.compilation import njit

SMALLEST_PIVOT = 1e-7  # below it a unit row counts as dependent on others
TIGHT = 16 * EPS  # a distance that counts as none, relative to the sum of the multipliers, which is at least ‖x‖


@njit(cache=True, nogil=True)
def gram_active_set(problem: Problem, G: FloatArray, all_tight: bool, answer: Answer) -> bool:
    """Solve from the Gram matrix G of all rows (lower triangle; overwritten), starting with every row tight, or none.

    Returns whether it got through; `answer` then holds x, its multipliers and the slack of every row.
    """
    A, size, floor = problem
    slack = answer.slack
    m = len(floor)
    _normalise(G, size, slack)
    chosen = np.empty(m, dtype=np.bool_)
    for r in range(m):
        chosen[r] = all_tight and size[r] > 0.0
    L, members = np.empty((m, m)), np.empty(m, dtype=np.int64)
    held, turn = np.empty(m), np.empty(m)
    k: Any = np.int64(0)  # typed: a literal would compile all that takes it twice
    if all_tight:
        k = settle(G, floor, chosen, members, L, held)
    for _ in range(8 * m + 8):
        new = _most_violated(G, floor, slack, chosen, members[:k], held)
        if new < 0:
            answer.weights[:] = 0.0
            for i in range(k):
                answer.weights[members[i]] = held[i]
                held[i] /= size[members[i]]
            vecmat_rows(held, A, members[:k], answer.x)
            return True
        gained = 0.0
        while True:
            square = 1.0
            for i in range(k):
                turn[i] = G[new, members[i]]
            solve_lower(L, k, turn)
            for i in range(k):
                square -= turn[i] * turn[i]
                L[k, i] = turn[i]
            if square < SMALLEST_PIVOT:
                return False
            L[k, k] = np.sqrt(square)
            solve_upper(L, k, turn)
            leaving, limit = -1, -slack[new] / square
            for i in range(k):
                if turn[i] * limit > held[i]:
                    leaving, limit = i, held[i] / turn[i]
            for i in range(k):
                held[i] -= limit * turn[i]
            gained += limit
            slack[new] += limit * square
            if leaving < 0:
                members[k], held[k], chosen[new] = new, gained, True
                k += 1
                break
            chosen[members[leaving]] = False
            k -= 1
            for i in range(leaving, k):
                members[i], held[i] = members[i + 1], held[i + 1]
            for i in range(k):
                for j in range(i + 1):
                    L[i, j] = G[members[i], members[j]]
            if cholesky(L, k, 0.0) >= 0:
                return False
    return False


@njit(cache=True, nogil=True)
def settle(
    G: FloatArray, floor: FloatArray, chosen: BoolArray, members: IntArray, L: FloatArray, held: FloatArray
) -> int:
    """Unmark chosen rows until all multipliers are positive: those with negative ones, and those that depend on others.

    `members[:k]` lists the rows that stay, `held[:k]` their multipliers and L their Cholesky factor; k is returned.
    """
    while True:
        k: Any = np.int64(0)
        for r in range(len(floor)):
            if chosen[r]:
                members[k], held[k] = r, floor[r]
                for i in range(k + 1):
                    L[k, i] = G[r, members[i]]
                k += 1
        stopped = cholesky(L, k, SMALLEST_PIVOT)
        if stopped >= 0:
            chosen[members[stopped]] = False
            continue
        solve_lower(L, k, held)
        solve_upper(L, k, held)
        negative = False
        for i in range(k):
            if held[i] <= 0.0:
                chosen[members[i]] = False
                negative = True
        if not negative:
            return k


@njit(cache=True, nogil=True)
def _normalise(G: FloatArray, size: FloatArray, inverse: FloatArray) -> None:
    """Turn the lower triangle of a Gram matrix into the full Gram matrix of rows of norm one; `inverse` is scratch."""
    for i in range(len(size)):
        inverse[i] = 1.0 / size[i] if size[i] > 0.0 else 0.0
    for i in range(len(size)):
        for j in range(i):
            G[i, j] *= inverse[i] * inverse[j]
            G[j, i] = G[i, j]
        G[i, i] = 1.0 if size[i] > 0.0 else 0.0


@njit(cache=True, nogil=True)
def _most_violated(
    G: FloatArray, floor: FloatArray, slack: FloatArray, chosen: BoolArray, members: IntArray, held: FloatArray
) -> int:
    """Recompute every slack from the multipliers, and return the row outside that is missed by most, or -1."""
    total = 0.0
    for i in range(len(members)):
        total += held[i]
    vecmat_rows(held, G, members, slack)
    worst, which = -TIGHT * total, -1
    for r in range(len(floor)):
        slack[r] -= floor[r]
        if slack[r] < worst and not chosen[r]:
            worst, which = slack[r], r
    return which


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
