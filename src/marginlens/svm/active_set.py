"""A dual active-set method: rows enter one at a time, the shortest vector for the rows inside is always exact.

Goldfarb and Idnani's method for min ‖x‖²/2 s.t. A x >= b, with unit Hessian. The rows inside are kept as an orthonormal basis
Q and a triangular factor, updated by Gram–Schmidt with reorthogonalisation and by Givens rotations, so the accuracy depends on
the condition of the rows and not on its square. A row that cannot be satisfied yields a Farkas vector.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from marginlens.data.tokens import BoolArray, FloatArray, IntArray
from marginlens.svm.products import apply_rows, combine_rows

SOLVED, IMPOSSIBLE, STALLED = 0, 1, 2
_EPS = 2.0**-52
_DEPENDENT = 64 * _EPS        # a unit row this close to the span of others is inside it
_NEGLIGIBLE = 64 * _EPS       # a coefficient this small, relative to the largest, is rounding


@njit(cache=True, nogil=True)
def dual_active_set(A: FloatArray, b: FloatArray, weights: FloatArray) -> int:
    """Shortest x with A x >= b >= 0, for rows of norm one, or zero with floor zero.

    On SOLVED, x = Aᵀ weights with weights >= 0; on IMPOSSIBLE, weights >= 0 is a Farkas vector; on STALLED, weights is the
    last dual feasible point.
    """
    m, d = A.shape
    capacity = min(m, d)
    Q, L = np.empty((capacity, d)), np.empty((capacity, capacity))
    inside, entered = np.zeros(m, dtype=np.bool_), np.empty(capacity, dtype=np.int64)
    held, shift, turn = np.zeros(capacity), np.zeros(capacity), np.zeros(capacity)
    x, step, part, slack = np.zeros(d), np.empty(d), np.empty(d), np.empty(m)
    k, outcome = 0, STALLED
    weights[:] = 0.0
    for _ in range(20 * (m + d) + 100):
        new = _most_violated(A, b, x, inside, slack)
        if new < 0:
            stays = _restore(Q, L, k, b, entered, inside, held, shift, x)
            if stays == k:
                outcome = SOLVED
                break
            k = stays
            continue
        gained = 0.0
        while True:
            distance = _split(A[new], Q, k, shift, step, part, turn)
            _solve_upper(L, k, shift, turn)
            dependent = k == capacity or distance <= _DEPENDENT
            leaving, limit = _first_to_leave(held, turn, k, dependent)
            if dependent and leaving < 0:
                weights[new] = 1.0
                for j in range(k):
                    weights[entered[j]] = max(0.0, -turn[j])
                return IMPOSSIBLE
            full = np.inf if dependent else -slack[new] / distance**2
            amount = min(limit, full)
            for j in range(k):
                held[j] -= amount * turn[j]
            gained += amount
            if not dependent:
                for i in range(d):
                    x[i] += amount * step[i]
                slack[new] += amount * distance**2
            if full <= limit:
                for i in range(d):
                    Q[k, i] = step[i] / distance
                for j in range(k):
                    L[k, j] = shift[j]
                L[k, k] = distance
                held[k], entered[k], inside[new] = gained, new, True
                k += 1
                break
            inside[entered[leaving]] = False
            _leave(Q, L, k, leaving, entered, held)
            k -= 1
    for j in range(k):
        weights[entered[j]] = max(0.0, held[j])
    return outcome


@njit(cache=True, nogil=True)
def _most_violated(A: FloatArray, b: FloatArray, x: FloatArray, inside: BoolArray, slack: FloatArray) -> int:
    """The row outside that x misses by the largest distance, or -1; fills `slack`."""
    m, d = A.shape
    apply_rows(A, m, x, slack)
    length = 0.0
    for i in range(d):
        length += x[i] * x[i]
    worst, which = -_EPS * (8.0 + np.sqrt(d)) * np.sqrt(length), -1
    for r in range(m):
        slack[r] -= b[r]
        if slack[r] < worst and not inside[r]:
            worst, which = slack[r], r
    return which


@njit(cache=True, nogil=True)
def _split(a, Q, k, shift, step, part, more):  # type: ignore[no-untyped-def]
    """a = Qᵀ shift + step with step orthogonal to Q; returns ‖step‖."""
    d = len(a)
    for i in range(d):
        step[i] = a[i]
    for j in range(k):
        shift[j] = 0.0
    length = 1.0
    for _ in range(3):
        if k == 0:
            break
        apply_rows(Q, k, step, more)
        combine_rows(Q, k, more, part)
        total = 0.0
        for i in range(d):
            step[i] -= part[i]
            total += step[i] * step[i]
        for j in range(k):
            shift[j] += more[j]
        before, length = length, np.sqrt(total)
        if length > 0.25 * before or length <= _DEPENDENT:
            break
    return length


@njit(cache=True, nogil=True)
def _solve_upper(L: FloatArray, k: int, right: FloatArray, out: FloatArray) -> None:
    """out = L⁻ᵀ right."""
    for j in range(k):
        out[j] = right[j]
    for j in range(k - 1, -1, -1):
        out[j] /= L[j, j]
        for i in range(j):
            out[i] -= out[j] * L[j, i]


@njit(cache=True, nogil=True)
def _first_to_leave(held: FloatArray, turn: FloatArray, k: int, dependent: bool) -> tuple[int, float]:
    """Which multiplier reaches zero first along -turn, and after what step."""
    largest = 1.0
    for j in range(k):
        largest = max(largest, abs(turn[j]))
    threshold = largest * (_NEGLIGIBLE if dependent else _EPS)
    leaving, limit = -1, np.inf
    for j in range(k):
        if turn[j] > threshold and max(held[j], 0.0) / turn[j] < limit:
            leaving, limit = j, max(held[j], 0.0) / turn[j]
    return leaving, limit


@njit(cache=True, nogil=True)
def _leave(Q: FloatArray, L: FloatArray, k: int, leaving: int, entered: IntArray, held: FloatArray) -> None:
    """Take row `leaving` out of the factors: rotate the basis so that the rest stays triangular."""
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
        L[p, : p + 1] = L[p + 1, : p + 1]
        entered[p], held[p] = entered[p + 1], held[p + 1]


@njit(cache=True, nogil=True)
def _restore(Q, L, k, b, entered, inside, held, shift, x):  # type: ignore[no-untyped-def]
    """Recompute x and the multipliers from the factors, letting rows go whose multiplier is negative; returns how many stay."""
    while True:
        for j in range(k):
            total = b[entered[j]]
            for i in range(j):
                total -= L[j, i] * shift[i]
            shift[j] = total / L[j, j]
        _solve_upper(L, k, shift, held)
        combine_rows(Q, k, shift, x)
        lowest = -1
        for j in range(k):
            if held[j] < 0.0 and (lowest < 0 or held[j] < held[lowest]):
                lowest = j
        if lowest < 0:
            return k
        inside[entered[lowest]] = False
        _leave(Q, L, k, lowest, entered, held)
        k -= 1
