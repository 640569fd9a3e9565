"""A dual active-set method: rows enter one at a time, and the shortest vector for the active rows is always exact.

Goldfarb and Idnani's method for min ‖x‖²/2 s.t. A x >= b, with unit Hessian. The active rows are factored into an orthonormal basis
Q and a triangular L, updated by Gram–Schmidt with reorthogonalisation and by Givens rotations, so the accuracy depends on the condition
of the rows and not on its square. A row that cannot be satisfied yields a Farkas vector.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marginlens.kernels.linalg import EPS, dot, matvec, solve_lower, solve_upper, vecmat
from marginlens.runtime.compilation import njit
from marginlens.typing import BoolArray, FloatArray, IntArray

OPTIMAL, INFEASIBLE, TRIVIAL, UNVERIFIED, OUT_OF_RANGE, NEEDS_RECHECK = 0, 1, 2, 3, 4, 5  # outcomes of compiled solvers
FARKAS_RTOL = 1e-14  # unit rows, with weights that sum to one, that cancel to this contradict each other
_DEPENDENT_RTOL = 16 * EPS  # a combination of unit rows this small, relative to its weights, is zero
COEFFICIENT_RTOL = 64 * EPS  # a coefficient this small, relative to the largest, is rounding
_MAX_UPDATES = 64  # steps after which x and the multipliers are recomputed from the factors


class ActiveSet(NamedTuple):
    """The active rows: the first k satisfy A[rows] = L Q with Q orthonormal and L lower triangular."""

    Q: FloatArray  # (capacity, d)
    L: FloatArray  # (capacity, capacity)
    rows: IntArray  # (capacity,)
    multipliers: FloatArray  # (capacity,)
    is_active: BoolArray  # (n_rows,)


class RowProjection(NamedTuple):
    """A row as a = Qᵀ inner + residual with residual orthogonal to Q; coefficients = L⁻ᵀ inner are those on the active rows."""

    inner: FloatArray  # (capacity,)
    coefficients: FloatArray  # (capacity,)
    residual: FloatArray  # (d,)
    scratch: FloatArray  # (d,)


@njit(cache=True, nogil=True)
def dual_active_set(A: FloatArray, b: FloatArray, x: FloatArray, all_multipliers: FloatArray) -> int:
    """Shortest x with A x >= b >= 0, for rows of norm one, or zero with lower bound zero.

    On OPTIMAL, x = Aᵀ λ with λ = all_multipliers >= 0, where x is more accurate than the sum when rows nearly cancel; on INFEASIBLE,
    all_multipliers is a Farkas vector; on UNVERIFIED, both are the last iterate.
    """
    m, d = A.shape
    capacity = min(m, d)
    active = ActiveSet(
        np.empty((capacity, d)),
        np.empty((capacity, capacity)),
        np.empty(capacity, dtype=np.int64),
        np.zeros(capacity),
        np.zeros(m, dtype=np.bool_),
    )
    projection = RowProjection(np.empty(capacity), np.empty(capacity), np.empty(d), np.empty(d))
    multipliers, coefficients, slack = active.multipliers, projection.coefficients, np.empty(m)
    all_multipliers[:] = 0.0
    x[:] = 0.0
    k: Any = np.int64(0)  # typed: a literal would compile all that takes it twice
    n_updates, rotated, outcome = 0, False, UNVERIFIED
    for _ in range(20 * (m + d) + 100):
        new = _most_violated(A, b, x, active.is_active, slack)
        if new < 0 and n_updates == 0:
            outcome = OPTIMAL
            break
        if new < 0 or n_updates == _MAX_UPDATES:
            if new < 0:
                k, rotated = _rebuild(A, active, k, projection), False
            n_active = _recompute(b, active, k, projection.inner, x)
            rotated = rotated or n_active < k
            k, n_updates = n_active, 0
            continue
        entering, n_updates = 0.0, n_updates + 1
        while True:
            distance = _project(A[new], active.Q, k, projection)
            magnitude = 1.0
            for j in range(k):
                coefficients[j] = projection.inner[j]
            solve_upper(active.L, k, coefficients)
            for j in range(k):
                magnitude += abs(coefficients[j])
            is_dependent = k == capacity or distance <= _DEPENDENT_RTOL * magnitude
            leaving, limit = _first_to_leave(multipliers, coefficients, k, is_dependent)
            if leaving < 0 and (is_dependent or distance <= FARKAS_RTOL * magnitude):
                if rotated:
                    k, rotated = _rebuild(A, active, k, projection), False
                    continue
                all_multipliers[new] = 1.0
                for j in range(k):
                    all_multipliers[active.rows[j]] = max(0.0, -coefficients[j])
                return INFEASIBLE
            full = np.inf if is_dependent else -slack[new] / distance**2
            amount = min(limit, full)
            for j in range(k):
                multipliers[j] -= amount * coefficients[j]
            entering += amount
            if not is_dependent:
                for i in range(d):
                    x[i] += amount * projection.residual[i]
                slack[new] += amount * distance**2
            if full <= limit:
                active.rows[k], multipliers[k], active.is_active[new] = new, entering, True
                _append(active, k, projection, distance)
                k += 1
                break
            _remove(active, k, leaving)
            k, rotated = k - 1, True
    for j in range(k):
        all_multipliers[active.rows[j]] = max(0.0, multipliers[j])
    return outcome


@njit(cache=True, nogil=True)
def _most_violated(A: FloatArray, b: FloatArray, x: FloatArray, is_active: BoolArray, slack: FloatArray) -> int:
    """The inactive row that x violates by the largest distance, or -1; fills `slack`."""
    m, d = A.shape
    matvec(A[:m], x, slack)
    worst, which = -EPS * (8.0 + np.sqrt(d)) * np.sqrt(dot(x, x)), -1
    for r in range(m):
        slack[r] -= b[r]
        if slack[r] < worst and not is_active[r]:
            worst, which = slack[r], r
    return which


@njit(cache=True, nogil=True)
def _project(a: FloatArray, Q: FloatArray, k: int, projection: RowProjection) -> float:
    """Fill in inner and residual for the row a, orthogonalising again while much cancels; returns ‖residual‖."""
    inner, inner_change, residual, scratch = projection
    for i in range(len(a)):
        residual[i] = a[i]
    for j in range(k):
        inner[j] = 0.0
    length = 1.0
    for _ in range(3 if k > 0 else 0):
        matvec(Q[:k], residual, inner_change)
        vecmat(inner_change, Q[:k], scratch)
        square = 0.0
        for i in range(len(a)):
            residual[i] -= scratch[i]
            square += residual[i] * residual[i]
        for j in range(k):
            inner[j] += inner_change[j]
        before, length = length, np.sqrt(square)
        if length > 0.25 * before or length <= EPS:
            break
    return length


@njit(cache=True, nogil=True)
def _append(active: ActiveSet, k: int, projection: RowProjection, distance: float) -> None:
    """Let the projected row be the k-th of the basis and of the factor."""
    for i in range(len(projection.residual)):
        active.Q[k, i] = projection.residual[i] / distance
    for j in range(k):
        active.L[k, j] = projection.inner[j]
    active.L[k, k] = distance


@njit(cache=True, nogil=True)
def _first_to_leave(multipliers: FloatArray, coefficients: FloatArray, k: int, is_dependent: bool) -> tuple[int, float]:
    """Which multiplier reaches zero first along -coefficients, and after what step."""
    largest = 1.0
    for j in range(k):
        largest = max(largest, abs(coefficients[j]))
    threshold = largest * (COEFFICIENT_RTOL if is_dependent else EPS)
    leaving: Any = np.int64(-1)
    limit = np.inf
    for j in range(k):
        if coefficients[j] > threshold and max(multipliers[j], 0.0) / coefficients[j] < limit:
            leaving, limit = j, max(multipliers[j], 0.0) / coefficients[j]
    return leaving, limit


@njit(cache=True, nogil=True)
def _remove(active: ActiveSet, k: int, leaving: int) -> None:
    """Take one row out of the factors: rotate the basis so that the rest stays triangular."""
    Q, L, rows, multipliers, is_active = active
    is_active[rows[leaving]] = False
    for p in range(leaving, k - 1):
        a, c = L[p + 1, p], L[p + 1, p + 1]
        h = np.hypot(a, c)
        cos, sin = a / h, c / h
        for i in range(p + 1, k):
            u, w = L[i, p], L[i, p + 1]
            L[i, p], L[i, p + 1] = cos * u + sin * w, cos * w - sin * u
        for i in range(Q.shape[1]):
            u, w = Q[p, i], Q[p + 1, i]
            Q[p, i], Q[p + 1, i] = cos * u + sin * w, cos * w - sin * u
        for i in range(p + 1):
            L[p, i] = L[p + 1, i]
        rows[p], multipliers[p] = rows[p + 1], multipliers[p + 1]


@njit(cache=True, nogil=True)
def _recompute(b: FloatArray, active: ActiveSet, k: int, inner: FloatArray, x: FloatArray) -> int:
    """Recompute x and multipliers from the factors, dropping rows with negative ones; returns how many stay."""
    while True:
        for j in range(k):
            inner[j] = b[active.rows[j]]
        solve_lower(active.L, k, inner)
        vecmat(inner, active.Q[:k], x)
        lowest: Any = np.int64(-1)
        for j in range(k):
            active.multipliers[j] = inner[j]
        solve_upper(active.L, k, active.multipliers)
        for j in range(k):
            if active.multipliers[j] < 0.0 and (lowest < 0 or active.multipliers[j] < active.multipliers[lowest]):
                lowest = j
        if lowest < 0:
            return k
        _remove(active, k, lowest)
        k -= 1


@njit(cache=True, nogil=True)
def _rebuild(A: FloatArray, active: ActiveSet, k: int, projection: RowProjection) -> int:
    """Factor the active rows afresh, free of the rounding of past updates; returns how many stay."""
    n_kept: Any = np.int64(0)
    for j in range(k):
        row = active.rows[j]
        distance = _project(A[row], active.Q, n_kept, projection)
        if distance <= EPS:
            active.is_active[row] = False
            continue
        _append(active, n_kept, projection, distance)
        active.rows[n_kept], active.multipliers[n_kept] = row, active.multipliers[j]
        n_kept += 1
    return n_kept
