"""A dual active-set method: rows enter one at a time, the shortest vector for the rows inside is always exact.

Goldfarb and Idnani's method for min ‖x‖²/2 s.t. A x >= b, with unit Hessian. The rows inside are kept as an orthonormal basis
Q and a triangular factor L, updated by Gram–Schmidt with reorthogonalisation and by Givens rotations, so the accuracy depends
on the condition of the rows and not on its square. A row that cannot be satisfied yields a Farkas vector.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marginlens.data.tokens import BoolArray, FloatArray, IntArray
from marginlens.kernels.linalg import EPS, dot, matvec, solve_lower, solve_upper, vecmat
from marginlens.runtime.compilation import njit

SOLVED, IMPOSSIBLE, STALLED = 0, 1, 2
IMPOSSIBLE_BELOW = 1e-14  # unit rows, with weights that sum to one, that cancel to this contradict each other
_DEPENDENT = 16 * EPS  # a combination of unit rows this small, relative to its weights, is zero
_NEGLIGIBLE = 64 * EPS  # a coefficient this small, relative to the largest, is rounding
_MOST_DRIFT = 64  # steps after which x and the multipliers are recomputed from the factors


class Inside(NamedTuple):
    """The rows inside: the first k hold A[entered] = L Q with Q orthonormal and L lower triangular."""

    Q: FloatArray  # (capacity, d)
    L: FloatArray  # (capacity, capacity)
    entered: IntArray  # (capacity,) which row each is
    held: FloatArray  # (capacity,) their multipliers
    marked: BoolArray  # (n_rows,) whether a row is inside


class Split(NamedTuple):
    """A row as a = Qᵀ shift + step with step orthogonal to Q; turn = L⁻ᵀ shift are its coefficients on the rows inside."""

    shift: FloatArray  # (capacity,)
    turn: FloatArray  # (capacity,)
    step: FloatArray  # (d,)
    part: FloatArray  # (d,) scratch


@njit(cache=True, nogil=True)
def dual_active_set(A: FloatArray, b: FloatArray, x: FloatArray, weights: FloatArray) -> int:
    """Shortest x with A x >= b >= 0, for rows of norm one, or zero with floor zero.

    On SOLVED, x = Aᵀ weights with weights >= 0, where x is more accurate than the sum when rows nearly cancel; on IMPOSSIBLE,
    weights >= 0 is a Farkas vector; on STALLED, both are where the method stood.
    """
    m, d = A.shape
    capacity = min(m, d)
    inside = Inside(
        np.empty((capacity, d)),
        np.empty((capacity, capacity)),
        np.empty(capacity, dtype=np.int64),
        np.zeros(capacity),
        np.zeros(m, dtype=np.bool_),
    )
    split = Split(np.empty(capacity), np.empty(capacity), np.empty(d), np.empty(d))
    held, turn, slack = inside.held, split.turn, np.empty(m)
    weights[:] = 0.0
    x[:] = 0.0
    k: Any = np.int64(0)  # typed: a literal would compile all that takes it twice
    drift, rotated, outcome = 0, False, STALLED
    for _ in range(20 * (m + d) + 100):
        new = _most_violated(A, b, x, inside.marked, slack)
        if new < 0 and drift == 0:
            outcome = SOLVED
            break
        if new < 0 or drift == _MOST_DRIFT:
            if new < 0:
                k, rotated = _rebuild(A, inside, k, split), False
            stays = _restore(b, inside, k, split.shift, x)
            rotated = rotated or stays < k
            k, drift = stays, 0
            continue
        gained, drift = 0.0, drift + 1
        while True:
            distance = _divide(A[new], inside.Q, k, split)
            total = 1.0
            for j in range(k):
                turn[j] = split.shift[j]
            solve_upper(inside.L, k, turn)
            for j in range(k):
                total += abs(turn[j])
            dependent = k == capacity or distance <= _DEPENDENT * total
            leaving, limit = _first_to_leave(held, turn, k, dependent)
            if leaving < 0 and (dependent or distance <= IMPOSSIBLE_BELOW * total):
                if rotated:
                    k, rotated = _rebuild(A, inside, k, split), False
                    continue
                weights[new] = 1.0
                for j in range(k):
                    weights[inside.entered[j]] = max(0.0, -turn[j])
                return IMPOSSIBLE
            full = np.inf if dependent else -slack[new] / distance**2
            amount = min(limit, full)
            for j in range(k):
                held[j] -= amount * turn[j]
            gained += amount
            if not dependent:
                for i in range(d):
                    x[i] += amount * split.step[i]
                slack[new] += amount * distance**2
            if full <= limit:
                inside.entered[k], held[k], inside.marked[new] = new, gained, True
                _append(inside, k, split, distance)
                k += 1
                break
            _leave(inside, k, leaving)
            k, rotated = k - 1, True
    for j in range(k):
        weights[inside.entered[j]] = max(0.0, held[j])
    return outcome


@njit(cache=True, nogil=True)
def _most_violated(A: FloatArray, b: FloatArray, x: FloatArray, marked: BoolArray, slack: FloatArray) -> int:
    """The row outside that x misses by the largest distance, or -1; fills `slack`."""
    m, d = A.shape
    matvec(A[:m], x, slack)
    worst, which = -EPS * (8.0 + np.sqrt(d)) * np.sqrt(dot(x, x)), -1
    for r in range(m):
        slack[r] -= b[r]
        if slack[r] < worst and not marked[r]:
            worst, which = slack[r], r
    return which


@njit(cache=True, nogil=True)
def _divide(a: FloatArray, Q: FloatArray, k: int, split: Split) -> float:
    """Fill in shift and step for the row a, orthogonalising again while much cancels; returns ‖step‖."""
    shift, more, step, part = split
    for i in range(len(a)):
        step[i] = a[i]
    for j in range(k):
        shift[j] = 0.0
    length = 1.0
    for _ in range(3 if k > 0 else 0):
        matvec(Q[:k], step, more)
        vecmat(more, Q[:k], part)
        square = 0.0
        for i in range(len(a)):
            step[i] -= part[i]
            square += step[i] * step[i]
        for j in range(k):
            shift[j] += more[j]
        before, length = length, np.sqrt(square)
        if length > 0.25 * before or length <= EPS:
            break
    return length


@njit(cache=True, nogil=True)
def _append(inside: Inside, k: int, split: Split, distance: float) -> None:
    """Let the divided row be the k-th of the basis and of the factor."""
    for i in range(len(split.step)):
        inside.Q[k, i] = split.step[i] / distance
    for j in range(k):
        inside.L[k, j] = split.shift[j]
    inside.L[k, k] = distance


@njit(cache=True, nogil=True)
def _first_to_leave(held: FloatArray, turn: FloatArray, k: int, dependent: bool) -> tuple[int, float]:
    """Which multiplier reaches zero first along -turn, and after what step."""
    largest = 1.0
    for j in range(k):
        largest = max(largest, abs(turn[j]))
    threshold = largest * (_NEGLIGIBLE if dependent else EPS)
    leaving: Any = np.int64(-1)
    limit = np.inf
    for j in range(k):
        if turn[j] > threshold and max(held[j], 0.0) / turn[j] < limit:
            leaving, limit = j, max(held[j], 0.0) / turn[j]
    return leaving, limit


@njit(cache=True, nogil=True)
def _leave(inside: Inside, k: int, leaving: int) -> None:
    """Take one row out of the factors: rotate the basis so that the rest stays triangular."""
    Q, L, entered, held, marked = inside
    marked[entered[leaving]] = False
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
        entered[p], held[p] = entered[p + 1], held[p + 1]


@njit(cache=True, nogil=True)
def _restore(b: FloatArray, inside: Inside, k: int, shift: FloatArray, x: FloatArray) -> int:
    """Recompute x and multipliers from the factors, letting rows with negative ones go; returns how many stay."""
    while True:
        for j in range(k):
            shift[j] = b[inside.entered[j]]
        solve_lower(inside.L, k, shift)
        vecmat(shift, inside.Q[:k], x)
        lowest: Any = np.int64(-1)
        for j in range(k):
            inside.held[j] = shift[j]
        solve_upper(inside.L, k, inside.held)
        for j in range(k):
            if inside.held[j] < 0.0 and (lowest < 0 or inside.held[j] < inside.held[lowest]):
                lowest = j
        if lowest < 0:
            return k
        _leave(inside, k, lowest)
        k -= 1


@njit(cache=True, nogil=True)
def _rebuild(A: FloatArray, inside: Inside, k: int, split: Split) -> int:
    """Factor the rows inside afresh, free of the rounding of past updates; returns how many stay."""
    kept: Any = np.int64(0)
    for j in range(k):
        row = inside.entered[j]
        distance = _divide(A[row], inside.Q, kept, split)
        if distance <= EPS:
            inside.marked[row] = False
            continue
        _append(inside, kept, split, distance)
        inside.entered[kept], inside.held[kept] = row, inside.held[j]
        kept += 1
    return kept
