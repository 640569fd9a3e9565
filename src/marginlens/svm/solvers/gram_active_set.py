"""The dual active-set method on the Gram matrix of all rows, and the residuals by which compiled solvers are checked.

It is the quickest method for few rows, however wide they are. It squares the condition number and gives up on dependent rows, so whoever
calls it checks the result and falls back on the orthogonal version of the same method.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marginlens.kernels.linalg import EPS, cholesky, dot, matvec, solve_lower, solve_upper, vecmat, vecmat_rows
from marginlens.runtime.compilation import njit
from marginlens.typing import BoolArray, FloatArray, IntArray

MIN_SQUARED_PIVOT = 1e-7  # below it a unit row counts as dependent on others
VIOLATION_RTOL = (
    16 * EPS
)  # a distance that counts as none, relative to the sum of the multipliers, which is at least ‖x‖


class Problem(NamedTuple):
    """Rows as given, their norms (0 for rows to leave out), and their lower bounds divided by the norms and then by the largest."""

    A: FloatArray  # (n_rows, d)
    row_norms: FloatArray  # (n_rows,)
    lower: FloatArray  # (n_rows,)


class Candidate(NamedTuple):
    """x = sum_r multipliers[r] a_r / ‖a_r‖ and slack_r = a_r·x / ‖a_r‖ - lower_r, or a Farkas vector in multipliers."""

    x: FloatArray  # (d,)
    multipliers: FloatArray  # (n_rows,)
    slack: FloatArray  # (n_rows,)


@njit(cache=True, nogil=True)
def evaluate(problem: Problem, candidate: Candidate) -> None:
    """Fill in x and slack from the multipliers and the original rows."""
    A, row_norms, _ = problem
    x, multipliers, slack = candidate
    m = len(row_norms)
    for r in range(m):
        slack[r] = multipliers[r] / row_norms[r] if multipliers[r] != 0.0 else 0.0
    vecmat(slack, A[:m], x)
    evaluate_slack(problem, candidate)


@njit(cache=True, nogil=True)
def evaluate_slack(problem: Problem, candidate: Candidate) -> None:
    """Fill in slack from x and the original rows."""
    A, row_norms, lower = problem
    slack = candidate.slack
    matvec(A[: len(row_norms)], candidate.x, slack)
    for r in range(len(row_norms)):
        slack[r] = slack[r] / row_norms[r] - lower[r] if row_norms[r] > 0.0 else 0.0


@njit(cache=True, nogil=True)
def optimality_residual(lower: FloatArray, candidate: Candidate) -> tuple[float, float]:
    """The largest residual among feasibility, complementarity and duality gap, and how much rounding is amplified.

    The amplification is sum_r multipliers[r] / ‖x‖: multipliers in double precision determine x up to its product with the unit
    roundoff, so no solver can promise a smaller residual than that.
    """
    x, multipliers, slack = candidate
    square = dot(x, x)
    if not square > 0.0:
        return np.inf, np.inf
    length, worst, total, value = np.sqrt(square), 0.0, 0.0, 0.0
    for r in range(len(lower)):
        total += multipliers[r]
        value += multipliers[r] * lower[r]
        worst = max(worst, -slack[r] / length, abs(multipliers[r] * slack[r]) / square)
    worst = max(worst, abs(square - value) / square)
    return (worst if worst < np.inf else np.inf), total / length


@njit(cache=True, nogil=True)
def farkas_residual(problem: Problem, multipliers: FloatArray) -> float:
    """‖sum_r multipliers[r] a_r / ‖a_r‖‖ over the weight on positive lower bounds: at rounding level, no x exists."""
    A, row_norms, lower = problem
    m, d = A.shape
    scaled, rest = np.empty(m), np.empty(d)
    counted = 0.0
    for r in range(m):
        scaled[r] = multipliers[r] / row_norms[r] if row_norms[r] > 0.0 else 0.0
        if lower[r] > 0.0:
            counted += multipliers[r]
    vecmat(scaled, A[:m], rest)
    return np.sqrt(dot(rest, rest)) / counted if counted > 0.0 else np.inf


@njit(cache=True, nogil=True)
def gram_active_set(problem: Problem, G: FloatArray, all_active: bool, candidate: Candidate) -> bool:
    """Solve from the Gram matrix G of all rows (lower triangle; overwritten), starting with every row active, or none.

    Returns whether it got through; `candidate` then holds x, its multipliers and the slack of every row.
    """
    A, row_norms, lower = problem
    slack = candidate.slack
    m = len(lower)
    _normalise(G, row_norms, slack)
    in_set = np.empty(m, dtype=np.bool_)
    for r in range(m):
        in_set[r] = all_active and row_norms[r] > 0.0
    L, members = np.empty((m, m)), np.empty(m, dtype=np.int64)
    member_multipliers, coefficients = np.empty(m), np.empty(m)
    k: Any = np.int64(0)  # typed: a literal would compile all that takes it twice
    if all_active:
        k = drop_negative(G, lower, in_set, members, L, member_multipliers)
    for _ in range(8 * m + 8):
        new = _most_violated(G, lower, slack, in_set, members[:k], member_multipliers)
        if new < 0:
            candidate.multipliers[:] = 0.0
            for i in range(k):
                candidate.multipliers[members[i]] = member_multipliers[i]
                member_multipliers[i] /= row_norms[members[i]]
            vecmat_rows(member_multipliers, A, members[:k], candidate.x)
            return True
        entering = 0.0
        while True:
            square = 1.0
            for i in range(k):
                coefficients[i] = G[new, members[i]]
            solve_lower(L, k, coefficients)
            for i in range(k):
                square -= coefficients[i] * coefficients[i]
                L[k, i] = coefficients[i]
            if square < MIN_SQUARED_PIVOT:
                return False
            L[k, k] = np.sqrt(square)
            solve_upper(L, k, coefficients)
            leaving, limit = -1, -slack[new] / square
            for i in range(k):
                if coefficients[i] * limit > member_multipliers[i]:
                    leaving, limit = i, member_multipliers[i] / coefficients[i]
            for i in range(k):
                member_multipliers[i] -= limit * coefficients[i]
            entering += limit
            slack[new] += limit * square
            if leaving < 0:
                members[k], member_multipliers[k], in_set[new] = new, entering, True
                k += 1
                break
            in_set[members[leaving]] = False
            k -= 1
            for i in range(leaving, k):
                members[i], member_multipliers[i] = members[i + 1], member_multipliers[i + 1]
            for i in range(k):
                for j in range(i + 1):
                    L[i, j] = G[members[i], members[j]]
            if cholesky(L, k, 0.0) >= 0:
                return False
    return False


@njit(cache=True, nogil=True)
def drop_negative(
    G: FloatArray,
    lower: FloatArray,
    in_set: BoolArray,
    members: IntArray,
    L: FloatArray,
    member_multipliers: FloatArray,
) -> int:
    """Unmark rows of the set until all multipliers are positive: those with negative ones, and those that depend on others.

    `members[:k]` lists the rows that stay, `member_multipliers[:k]` their multipliers and L their Cholesky factor; k is returned.
    """
    while True:
        k: Any = np.int64(0)
        for r in range(len(lower)):
            if in_set[r]:
                members[k], member_multipliers[k] = r, lower[r]
                for i in range(k + 1):
                    L[k, i] = G[r, members[i]]
                k += 1
        stopped = cholesky(L, k, MIN_SQUARED_PIVOT)
        if stopped >= 0:
            in_set[members[stopped]] = False
            continue
        solve_lower(L, k, member_multipliers)
        solve_upper(L, k, member_multipliers)
        negative = False
        for i in range(k):
            if member_multipliers[i] <= 0.0:
                in_set[members[i]] = False
                negative = True
        if not negative:
            return k


@njit(cache=True, nogil=True)
def _normalise(G: FloatArray, row_norms: FloatArray, inverse: FloatArray) -> None:
    """Turn the lower triangle of a Gram matrix into the full Gram matrix of rows of norm one; `inverse` is scratch."""
    for i in range(len(row_norms)):
        inverse[i] = 1.0 / row_norms[i] if row_norms[i] > 0.0 else 0.0
    for i in range(len(row_norms)):
        for j in range(i):
            G[i, j] *= inverse[i] * inverse[j]
            G[j, i] = G[i, j]
        G[i, i] = 1.0 if row_norms[i] > 0.0 else 0.0


@njit(cache=True, nogil=True)
def _most_violated(
    G: FloatArray,
    lower: FloatArray,
    slack: FloatArray,
    in_set: BoolArray,
    members: IntArray,
    member_multipliers: FloatArray,
) -> int:
    """Recompute every slack from the multipliers, and return the most violated row outside the set, or -1."""
    total = 0.0
    for i in range(len(members)):
        total += member_multipliers[i]
    vecmat_rows(member_multipliers, G, members, slack)
    worst, which = -VIOLATION_RTOL * total, -1
    for r in range(len(lower)):
        slack[r] -= lower[r]
        if slack[r] < worst and not in_set[r]:
            worst, which = slack[r], r
    return which
