r"""Margin problems in ℓp, 1 < p < ∞: Newton's method on the dual below p = 2, an interior-point method above.

.. math:: \min_x \{\|x\|_p : A x \ge b\}, \qquad \max_{\lambda \ge 0} b^\top\lambda - \tfrac12 \|A^\top\lambda\|_q^2, \quad 1/p + 1/q = 1

At the optimum x is the dual vector of g = Aᵀλ: x_j = ‖g‖_q^(2-q) sign(g_j) |g_j|^(q-1). Below p = 2 that map is smooth, and a few
projected Newton steps in λ are enough. Above p = 2 its inverse is, and x and λ move together through the interior, each entry linearised
at the larger of x_j and the dual vector's. Far from p = 2 a sequence of powers leads there. Of all iterates the x of the smallest
upper bound and the λ of the largest lower bound come back. Random problems end with a bracket below 1e-12 from p = 1.02 to 8; beyond,
more and more end at 1e-7 to 1e-5 and are called inaccurate.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from marginlens.kernels.linalg import (
    COMPILED,
    EPS,
    cholesky,
    dot,
    gram,
    matvec,
    max_abs,
    solve_lower,
    solve_upper,
    vecmat,
)
from marginlens.runtime.compilation import njit
from marginlens.runtime.threads import over_problems
from marginlens.typing import FloatArray, IntArray

MAX_NEWTON_ROWS = 128  # up to so many rows, all are solved together
GAP_GOAL, INTERIOR_GAP_GOAL = 16.0 * EPS, 1e-13  # of the bracket, at which iterations end
_MAX_ITERATIONS = 80
_MAX_HALVINGS = 40
_ARMIJO = 1e-4
_SHIFT, _FIRST_SHIFT = (
    1e-15,
    1e-3,
)  # share of each diagonal entry that is added to it; at first, where there are more rows than entries
_LESS_SHIFT, _MORE_SHIFT, _REJECTED_SHIFT = 0.03, 3.0, 1e3  # factors of it after a full step, a shortened one, and none
_MIN_ENTRY = 1e-12  # of ‖g‖: smaller entries count as this where their curvature would grow beyond bounds
_MIN_CURVATURE = 1e-13  # of the largest one
_TO_BOUNDARY = 0.995  # share of the way to the boundary that an interior step takes
_FIRST_FACTOR, _FIRST_SHARE = (
    1.05,
    0.02,
)  # by which x is longer than the Euclidean solution at first; of the largest, below which no slack and no multiplier starts
_MIN_MULTIPLIER, _MAX_SLACK = (
    1e-12,
    1e-4,
)  # of the largest: a row of a larger multiplier and a smaller slack is polished
_MAX_POLISHES = 4
_POLISHED_GAP, _RETRIED_GAP = 1e-12, 1e-10  # beyond which a solution is polished, and the other method tried
_FIRST_Q, _Q_FACTOR = 5.0, 1.7  # powers of the dual norm that lead to a large one
_FIRST_P, _P_FACTOR = 3.0, 1.25  # powers that lead to a large one
_FIRST_WORKING_ROWS, _ROWS_ADDED, _MAX_ROUNDS = 300, 100, 100
_COST_PER_ENTRY = 100.0  # operations for each entry of A, about


@njit(**COMPILED)
def dual_vector(g: Any, q: float, x: Any) -> float:
    """x with ‖x‖_p = ‖g‖_q and g·x = ‖g‖_q²; returns ‖g‖_q."""
    largest = max_abs(g)
    x[:] = 0.0
    if largest == 0.0:
        return 0.0
    total = 0.0
    for j in range(len(g)):
        size = abs(g[j]) / largest
        if size > 0.0:
            x[j] = size ** (q - 1.0)
            total += x[j] * size
    root = total ** (1.0 / q)
    factor = largest * root ** (2.0 - q)
    for j in range(len(g)):
        x[j] *= factor if g[j] > 0.0 else -factor
    return largest * root


@njit(**COMPILED)
def _power_norm(x: Any, p: float) -> float:
    largest = max_abs(x)
    if largest == 0.0:
        return 0.0
    total = 0.0
    for j in range(len(x)):
        total += (abs(x[j]) / largest) ** p
    return largest * total ** (1.0 / p)


@njit(**COMPILED)
def _upper_bound(b: Any, products: Any, norm: float) -> float:
    """‖x‖ over the smallest a_r·x/b_r; infinite where a sign is wrong."""
    smallest = math.inf
    for r in range(len(b)):
        if b[r] > 0.0:
            smallest = min(smallest, products[r] / b[r])
        elif products[r] < -16.0 * EPS * norm:
            return math.inf
    return norm / smallest if smallest > 0.0 else math.inf


@njit(**COMPILED)
def _factored(K: Any, k: int, shift: float) -> bool:
    """The Cholesky factor in place, of K with its diagonal enlarged by this share, and further where needed."""
    saved = K[:k, :k].copy()
    for _ in range(8):
        for i in range(k):
            for j in range(i):
                K[i, j] = saved[i, j]
            K[i, i] = saved[i, i] * (1.0 + shift)
        if cholesky(K, k, 0.0) < 0:
            return True
        shift *= 100.0
    return False


# ---- p < 2


@njit(**COMPILED)
def newton(A: Any, b: Any, q: float, multipliers: Any, x: Any) -> float:
    """Projected Newton steps on the dual from the given multipliers; x and the multipliers are overwritten by the best ones.

    Returns the gap of the bracket.
    """
    n, d = A.shape
    g, point, products = np.empty(d), np.empty(d), np.empty(n)
    weights, trial, free = multipliers.copy(), np.empty(n), np.empty(n, dtype=np.int64)
    scaled, K, step, descent = np.empty((n, d)), np.empty((n, n)), np.empty(n), np.empty(n)
    vecmat(weights, A, g)
    norm = dual_vector(g, q, point)
    if norm == 0.0:
        return math.inf
    factor = dot(b, weights) / (norm * norm)
    for r in range(n):
        weights[r] *= factor
    vecmat(weights, A, g)
    norm = dual_vector(g, q, point)
    value, lower, upper = 0.5 * norm * norm - dot(b, weights), 0.0, math.inf
    shift = _SHIFT if n <= d else _FIRST_SHIFT
    for _ in range(_MAX_ITERATIONS):
        matvec(A, point, products)
        bound = dot(b, weights) / norm
        if bound > lower:
            lower = bound
            multipliers[:] = weights
        bound = _upper_bound(b, products, norm)
        if bound < upper:
            upper = bound
            x[:] = point
        if upper - lower <= GAP_GOAL * lower:
            break
        k = 0
        for r in range(n):
            if weights[r] > 0.0 or products[r] < b[r]:
                free[k] = r
                k += 1
        for j in range(d):
            root = math.sqrt((q - 1.0) * (max(abs(g[j]), _MIN_ENTRY * norm) / norm) ** (q - 2.0))
            for i in range(k):
                scaled[i, j] = A[free[i], j] * root
        gram(scaled, np.arange(k), np.int64(0), K)
        for i in range(k):
            for j in range(i + 1):
                K[i, j] += (2.0 - q) * (products[free[i]] / norm) * (products[free[j]] / norm)
            descent[i] = b[free[i]] - products[free[i]]
            step[i] = descent[i]
        if not _factored(K, k, shift):
            break
        solve_lower(K, k, step)
        solve_upper(K, k, step)
        share, accepted = 1.0, False
        for _ in range(_MAX_HALVINGS):
            trial[:] = 0.0
            gain = 0.0
            for i in range(k):
                r = free[i]
                trial[r] = max(0.0, weights[r] + share * step[i])
                gain += descent[i] * (trial[r] - weights[r])
            vecmat(trial, A, g)
            new_norm = dual_vector(g, q, point)
            new_value = 0.5 * new_norm * new_norm - dot(b, trial)
            if new_norm > 0.0 and new_value <= value - _ARMIJO * gain + 4.0 * EPS * abs(value):
                accepted = True
                break
            share *= 0.5
        if not accepted and shift >= 1.0:
            break
        if not accepted:
            shift = min(1.0, shift * _REJECTED_SHIFT)
            vecmat(weights, A, g)
            dual_vector(g, q, point)
            continue
        shift = max(_SHIFT, shift * (_LESS_SHIFT if share == 1.0 else _MORE_SHIFT))
        weights[:] = trial
        norm, value = new_norm, new_value
    return (upper - lower) / lower if lower > 0.0 else math.inf


# ---- p > 2


@njit(**COMPILED)
def interior_point(A: Any, b: Any, p: float, multipliers: Any, x: Any) -> float:
    """Mehrotra's predictor and corrector for min ‖x‖_p^p/p from the given x and multipliers, which the best ones overwrite.

    Returns the gap of the bracket.
    """
    n, d = A.shape
    q = p / (p - 1.0)
    scale = _power_norm(x, p)
    total = dot(b, multipliers) / scale
    if not (scale > 0.0 and total > 0.0):
        return math.inf
    goal = b / scale
    point, weights, slack = x * (_FIRST_FACTOR / scale), multipliers / total, np.empty(n)
    products, combined, image = np.empty(n), np.empty(d), np.empty(d)
    rest, inverse, scaled, K = np.empty(d), np.empty(d), np.empty((n, d)), np.empty((n, n))
    point_step, slack_step, weight_step, correction = np.empty(d), np.empty(n), np.empty(n), np.zeros(n)
    matvec(A, point, products)
    most, heaviest = max_abs(goal), max_abs(weights)
    for r in range(n):
        slack[r] = max(products[r] - goal[r], _FIRST_SHARE * most)
        weights[r] = max(weights[r], _FIRST_SHARE * heaviest)
    lower, upper = 0.0, math.inf
    for _ in range(_MAX_ITERATIONS):
        matvec(A, point, products)
        vecmat(weights, A, combined)
        norm = dual_vector(combined, q, image)
        bound = dot(goal, weights) / norm
        if bound > lower:
            lower = bound
            for r in range(n):
                multipliers[r] = weights[r]
        bound = _upper_bound(goal, products, _power_norm(point, p))
        if bound < upper:
            upper = bound
            for j in range(d):
                x[j] = point[j] * scale
        if upper - lower <= INTERIOR_GAP_GOAL * lower:
            break
        largest = 0.0
        for j in range(d):
            size = abs(point[j])
            rest[j] = math.copysign(size ** (p - 1.0), point[j]) - combined[j]
            inverse[j] = (p - 1.0) * max(size, abs(combined[j]) ** (q - 1.0)) ** (p - 2.0)
            largest = max(largest, inverse[j])
        for j in range(d):
            inverse[j] = 1.0 / (max(inverse[j], _MIN_CURVATURE * largest) if p > 2.0 else inverse[j])
            root = math.sqrt(inverse[j])
            for r in range(n):
                scaled[r, j] = A[r, j] * root
        gram(scaled, np.arange(n), np.int64(0), K)
        for r in range(n):
            K[r, r] += slack[r] / weights[r]
        if not _factored(K, n, _SHIFT):
            break
        mean = dot(slack, weights) / n
        centre, share = 0.0, 1.0
        correction[:] = 0.0
        for attempt in range(2):
            for j in range(d):
                point_step[j] = inverse[j] * rest[j]
            matvec(A, point_step, weight_step)
            for r in range(n):
                complement = slack[r] * weights[r] - centre + correction[r]
                weight_step[r] += goal[r] + slack[r] - products[r] - complement / weights[r]
            solve_lower(K, n, weight_step)
            solve_upper(K, n, weight_step)
            vecmat(weight_step, A, image)
            for j in range(d):
                point_step[j] = inverse[j] * (image[j] - rest[j])
            matvec(A, point_step, slack_step)
            share = 1.0
            for r in range(n):
                slack_step[r] += products[r] - slack[r] - goal[r]
                if slack_step[r] < 0.0:
                    share = min(share, -slack[r] / slack_step[r])
                if weight_step[r] < 0.0:
                    share = min(share, -weights[r] / weight_step[r])
            if attempt == 0:
                reached = 0.0
                for r in range(n):
                    reached += (slack[r] + share * slack_step[r]) * (weights[r] + share * weight_step[r]) / n
                    correction[r] = share * share * slack_step[r] * weight_step[r]
                centre = mean * (reached / mean) ** 3
        share *= _TO_BOUNDARY
        for j in range(d):
            point[j] += share * point_step[j]
        for r in range(n):
            slack[r] += share * slack_step[r]
            weights[r] += share * weight_step[r]
    return (upper - lower) / lower if lower > 0.0 else math.inf


# ---- batches


@njit(**COMPILED)
def power_norm_slice(
    first: int, last: int, rows: Any, lower: Any, indices: Any, p: float, x: Any, multipliers: Any, gaps: Any
) -> None:
    """Solve the problems `indices[first:last]` of a batch with rows of Euclidean norm one, from their Euclidean solutions.

    Args:
        rows: (batch, n_rows, d); lower: (batch, n_rows); x: (batch, d) and multipliers: (batch, n_rows), overwritten.
        gaps: (batch,) of the brackets, written.
    """
    for place in range(first, last):
        j = indices[place]
        goal = p / (p - 1.0) if p < 2.0 else p
        power = min(goal, _FIRST_Q if p < 2.0 else _FIRST_P)
        while True:
            if p < 2.0:
                gaps[j] = newton(rows[j], lower[j], power, multipliers[j], x[j])
            else:
                gaps[j] = interior_point(rows[j], lower[j], power, multipliers[j], x[j])
            if power == goal:
                break
            power = min(goal, power * (_Q_FACTOR if p < 2.0 else _P_FACTOR))


def solve_batch(
    rows: FloatArray, lower: FloatArray, indices: IntArray, p: float, x: FloatArray, multipliers: FloatArray
) -> None:
    """Solve the problems `indices` of a batch from their Euclidean x (batch, d) and multipliers (batch, n_rows), which are overwritten."""
    if lower.shape[1] <= MAX_NEWTON_ROWS:
        _solve_rows(rows, lower, indices, p, x, multipliers)
        return
    for j in indices:
        _solve_with_working_set(rows[j], lower[j], p, x[j], multipliers[j])


def _solve_rows(
    rows: FloatArray, lower: FloatArray, indices: IntArray, p: float, x: FloatArray, multipliers: FloatArray
) -> None:
    """Solve the problems with all their rows; where one method leaves a gap, x is polished, and then the other method tried."""
    gaps = np.zeros(len(rows))
    first_x, first_multipliers = x.copy(), multipliers.copy()
    fields = (rows, lower, indices, p, x, multipliers, gaps)
    over_problems(power_norm_slice, len(indices), *fields, step_cost=_COST_PER_ENTRY * rows[0].size)
    for j in indices[~(gaps[indices] <= _POLISHED_GAP)]:
        A, b = rows[j], lower[j]
        x[j] = polished(A, b, p, multipliers[j], x[j])
        gap = _gap(A, b, p, multipliers[j], x[j])
        if gap <= _RETRIED_GAP:
            continue
        if p < 2.0:
            interior_point(A, b, p, first_multipliers[j], first_x[j])
        else:
            first_multipliers[j] = multipliers[j]
            newton(A, b, p / (p - 1.0), first_multipliers[j], first_x[j])
        first_x[j] = polished(A, b, p, first_multipliers[j], first_x[j])
        if _gap(A, b, p, first_multipliers[j], first_x[j]) < gap:
            x[j], multipliers[j] = first_x[j], first_multipliers[j]


def _solve_with_working_set(A: FloatArray, b: FloatArray, p: float, x: FloatArray, multipliers: FloatArray) -> None:
    """Solve one problem of many rows: rows that the solution of a working set violates join it until there are none."""
    start, weights = x.copy(), multipliers.copy()
    members = np.union1d(np.argsort(A @ x - b, kind="stable")[:_FIRST_WORKING_ROWS], np.flatnonzero(weights))
    for _ in range(_MAX_ROUNDS):
        x[:], part = start, weights[None, members]
        _solve_rows(A[None, members], b[None, members], np.zeros(1, dtype=np.int64), p, x[None], part)
        multipliers[:] = 0.0
        multipliers[members] = part[0]
        products, positive = A @ x, members[b[members] > 0.0]
        smallest = float((products[positive] / b[positive]).min())
        slack = products - smallest * b
        outside = np.setdiff1d(np.flatnonzero(slack < -16.0 * EPS * float(np.linalg.norm(x))), members)
        if not len(outside):
            break
        members = np.union1d(members, outside[np.argsort(slack[outside], kind="stable")[:_ROWS_ADDED]])


# ---- what rounding leaves


def polished(A: FloatArray, b: FloatArray, p: float, multipliers: FloatArray, x: FloatArray) -> FloatArray:
    """x (d,) corrected by the rows that it should satisfy with equality, in the metric of the norm's curvature, where that shortens it.

    Where rows nearly cancel, the rows determine x better than the dual vector of Aᵀλ does.
    """
    upper = _upper_bound(b, A @ x, _power_norm(x, p))
    if not np.isfinite(upper):
        return x
    near = np.abs(A @ x - b) <= _MAX_SLACK * b.max()
    members = np.flatnonzero(near & (multipliers > _MIN_MULTIPLIER * multipliers.max()))
    weights = np.maximum(np.abs(x) / np.abs(x).max(), _MIN_ENTRY) ** (2.0 - p)
    weights = np.maximum(weights / weights.max(), _MIN_CURVATURE)
    roots = np.sqrt(weights)
    best = x
    for _ in range(_MAX_POLISHES):
        step = np.linalg.lstsq(A[members] * roots, b[members] - A[members] @ best)[0]
        point = best + roots * step
        bound = _upper_bound(b, A @ point, _power_norm(point, p))
        if not bound < upper:
            break
        best, upper = point, bound
    return best


def _gap(A: FloatArray, b: FloatArray, p: float, multipliers: FloatArray, x: FloatArray) -> float:
    """The gap of the bracket."""
    lower = float(b @ multipliers) / _power_norm(multipliers @ A, p / (p - 1.0))
    upper = float(_upper_bound(b, A @ x, _power_norm(x, p)))
    return upper / lower - 1.0 if lower > 0.0 else np.inf
