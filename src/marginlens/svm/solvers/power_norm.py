r"""Margin problems in ℓp, 1 < p < ∞: Newton's method on the dual below p = 2, an interior-point method above.

.. math:: \min_x \{\|x\|_p : A x \ge b\}, \qquad \max_{\lambda \ge 0} b^\top\lambda - \tfrac12 \|A^\top\lambda\|_q^2, \quad 1/p + 1/q = 1

At the optimum x is the dual vector of g = Aᵀλ: x_j = ‖g‖_q^(2-q) sign(g_j) |g_j|^(q-1). Below p = 2 that map is smooth, and a few
projected Newton steps in λ are enough. Above p = 2 its inverse is, and x and λ move together through the interior, each entry linearised
at the larger of x_j and the dual vector's. Far from p = 2 a sequence of powers leads there. Of all iterates the x of the smallest
upper bound and the λ of the largest lower bound come back. Random problems end with a bracket below 1e-12 from p = 1.02 to 6; beyond 10
many do not, and are called inaccurate.
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
from marginlens.typing import FloatArray

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
_FIRST_P, _P_FACTOR = 6.0, 1.4  # powers that lead to a large one
_FIRST_WORKING_ROWS, _ROWS_ADDED, _MAX_ROUNDS = 300, 100, 100


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


# ---- both


@njit(**COMPILED)
def polish(A: Any, b: Any, p: float, multipliers: Any, x: Any) -> None:
    """Correct x by the rows that it should satisfy with equality, in the metric of the norm's curvature, where that shortens it.

    Where rows nearly cancel, the rows determine x better than the dual vector of Aᵀλ does.
    """
    n, d = A.shape
    products, point, weights = np.empty(n), x.copy(), np.empty(d)
    members, scaled, K, step = np.empty(n, dtype=np.int64), np.empty((n, d)), np.empty((n, n)), np.empty(n)
    matvec(A, x, products)
    upper = _upper_bound(b, products, _power_norm(x, p))
    if upper == math.inf:
        return
    heaviest, k = max_abs(multipliers), 0
    for r in range(n):
        if multipliers[r] > _MIN_MULTIPLIER * heaviest and abs(products[r] - b[r]) <= _MAX_SLACK * max_abs(b):
            members[k] = r
            k += 1
    largest = max_abs(x)
    for j in range(d):
        weights[j] = max(abs(x[j]) / largest, _MIN_ENTRY) ** (2.0 - p)
    heaviest = max_abs(weights)
    for j in range(d):
        weights[j] = max(weights[j] / heaviest, _MIN_CURVATURE) if p < 2.0 else min(weights[j] / heaviest, 1.0)
        root = math.sqrt(weights[j])
        for i in range(k):
            scaled[i, j] = A[members[i], j] * root
    gram(scaled, np.arange(k), np.int64(0), K)
    if not _factored(K, k, _SHIFT):
        return
    for _ in range(_MAX_POLISHES):
        for i in range(k):
            step[i] = b[members[i]] - products[members[i]]
        solve_lower(K, k, step)
        solve_upper(K, k, step)
        for j in range(d):
            total = 0.0
            for i in range(k):
                total += A[members[i], j] * step[i]
            point[j] += weights[j] * total
        matvec(A, point, products)
        bound = _upper_bound(b, products, _power_norm(point, p))
        if not bound < upper:
            return
        upper = bound
        x[:] = point


@njit(**COMPILED)
def _gap(A: Any, b: Any, p: float, multipliers: Any, x: Any) -> float:
    """The gap of the bracket."""
    n, d = A.shape
    products, g, image = np.empty(n), np.empty(d), np.empty(d)
    matvec(A, x, products)
    vecmat(multipliers, A, g)
    lower = dot(b, multipliers) / dual_vector(g, p / (p - 1.0), image)
    upper = _upper_bound(b, products, _power_norm(x, p))
    return upper / lower - 1.0 if lower > 0.0 else math.inf


@njit(**COMPILED)
def solve_power(A: Any, b: Any, p: float, multipliers: Any, x: Any) -> None:
    """Solve one problem with rows of Euclidean norm one from its Euclidean solution; x and the multipliers are overwritten."""
    first_x, first_multipliers = x.copy(), multipliers.copy()
    if p < 2.0:
        q = p / (p - 1.0)
        power = min(q, _FIRST_Q)
        while power < q:
            newton(A, b, power, multipliers, x)
            power = min(q, power * _Q_FACTOR)
        gap = newton(A, b, q, multipliers, x)
    else:
        power = min(p, _FIRST_P)
        while power < p:
            interior_point(A, b, power, multipliers, x)
            power = min(p, power * _P_FACTOR)
        gap = interior_point(A, b, p, multipliers, x)
    if gap <= _POLISHED_GAP:
        return
    polish(A, b, p, multipliers, x)
    gap = _gap(A, b, p, multipliers, x)
    if gap <= _RETRIED_GAP:
        return
    if p < 2.0:
        interior_point(A, b, p, first_multipliers, first_x)
    else:
        first_multipliers[:] = multipliers
        newton(A, b, p / (p - 1.0), first_multipliers, first_x)
    polish(A, b, p, first_multipliers, first_x)
    if _gap(A, b, p, first_multipliers, first_x) < gap:
        x[:], multipliers[:] = first_x, first_multipliers


@njit(**COMPILED)
def power_norm_slice(
    first: int, last: int, rows: Any, lower: Any, indices: Any, p: float, x: Any, multipliers: Any
) -> None:
    """Solve the problems `indices[first:last]` of a batch with rows of Euclidean norm one, from their Euclidean solutions.

    Args:
        rows: (batch, n_rows, d); lower: (batch, n_rows); x: (batch, d) and multipliers: (batch, n_rows), overwritten.
    """
    for place in range(first, last):
        j = indices[place]
        solve_power(rows[j], lower[j], p, multipliers[j], x[j])


# ---- many rows


def solve_with_working_set(A: FloatArray, b: FloatArray, p: float, x: FloatArray, multipliers: FloatArray) -> None:
    """Solve one problem of many rows: rows that the solution of a working set violates join it until there are none.

    Args:
        x: (d,) the Euclidean solution, and multipliers: (n_rows,) its multipliers; both are overwritten.
    """
    start, weights = x.copy(), multipliers.copy()
    members = np.union1d(np.argsort(A @ x - b, kind="stable")[:_FIRST_WORKING_ROWS], np.flatnonzero(weights))
    for _ in range(_MAX_ROUNDS):
        x[:], part = start, weights[members]
        solve_power(np.ascontiguousarray(A[members]), b[members], p, part, x)
        multipliers[:] = 0.0
        multipliers[members] = part
        products = A @ x
        positive = members[b[members] > 0.0]
        smallest = float((products[positive] / b[positive]).min())
        slack = products - smallest * b
        outside = np.setdiff1d(np.flatnonzero(slack < -16.0 * EPS * float(np.linalg.norm(x))), members)
        if not len(outside):
            break
        members = np.union1d(members, outside[np.argsort(slack[outside], kind="stable")[:_ROWS_ADDED]])
