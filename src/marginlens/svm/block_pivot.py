"""Whole sets of rows at a time: guess which rows are tight, solve for them by one Cholesky factor, correct the guess.

Much faster than letting rows enter one by one, but it squares the condition number and cannot prove infeasibility; whoever
calls it checks the result and falls back on the active-set method.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from marginlens.data.tokens import BoolArray, FloatArray, IntArray
from marginlens.svm.certify import Answer, Problem, measure
from marginlens.svm.cholesky import solve_lower, solve_upper
from marginlens.svm.gram_set import settle
from marginlens.svm.products import gram, row_dot, square_sum

_ROUNDS = 12
_TIGHT = 1e-13                # a distance, relative to ‖x‖, that counts as none


@njit(cache=True, nogil=True)
def pivot_some(problem: Problem, chosen: BoolArray, answer: Answer) -> bool:
    """Solve from the Gram matrices of chosen rows only, starting with the marked ones tight.

    Returns whether no row is violated at the end; `answer` then holds x, its multipliers and the slack of every row.
    """
    A, size, floor = problem
    m, d = A.shape
    base = np.flatnonzero(chosen)
    G, low, tight = np.empty((0, 0)), np.empty(0), np.empty(0, dtype=np.bool_)
    L, members, held = np.empty((0, 0)), base, np.empty(0)
    stale = True
    for _ in range(_ROUNDS):
        if stale:
            base = np.flatnonzero(chosen)
            n = len(base)
            if n > d:
                return False
            G, L = np.empty((n, n)), np.empty((n, n))
            members, held, tight = np.empty(n, dtype=np.int64), np.empty(n), np.ones(n, dtype=np.bool_)
            low = floor[base]
            gram(A, base, G)
            for i in range(n):
                for j in range(i + 1):
                    G[i, j] /= size[base[i]] * size[base[j]]
        k = settle(G, low, tight, members, L, held)
        answer.weights[:] = 0.0
        for i in range(k):
            answer.weights[base[members[i]]] = held[i]
        measure(problem, answer)
        tolerance = _TIGHT * np.sqrt(square_sum(answer.x))
        if not _refine(problem, answer, base[members[:k]], L, tolerance):
            return False
        chosen[:] = False
        for i in range(k):
            chosen[base[members[i]]] = True
        n_tight, stale = k, False
        for r in range(m):
            if answer.slack[r] < -tolerance and not chosen[r]:
                chosen[r], stale = True, True
                n_tight += 1
        if n_tight == k:
            return True
        if stale:
            stale = False
            for i in range(len(base)):
                tight[i] = chosen[base[i]]
                n_tight -= chosen[base[i]]
            stale = n_tight > 0
    return False


@njit(cache=True, nogil=True)
def coordinate_guess(problem: Problem, n_sweeps: int, chosen: BoolArray) -> None:
    """Mark the rows whose multiplier is positive after some sweeps of dual coordinate ascent, fewer once the set is quiet."""
    A, size, floor = problem
    m, d = A.shape
    x, weights = np.zeros(d), np.zeros(m)
    chosen[:] = False
    quiet = 0
    for _ in range(n_sweeps):
        changed = 0
        for r in range(m):
            if size[r] == 0.0:
                continue
            change = max(-weights[r], floor[r] - row_dot(A, r, x) / size[r])
            if change != 0.0:
                weights[r] += change
                changed += chosen[r] != (weights[r] > 0.0)
                chosen[r] = weights[r] > 0.0
                factor, row = change / size[r], A[r]
                for i in range(d):
                    x[i] += factor * row[i]
        quiet = quiet + 1 if changed * 200 <= m else 0
        if quiet == 3:
            break


@njit(cache=True, nogil=True)
def _refine(problem: Problem, answer: Answer, members: IntArray, L: FloatArray, tolerance: float) -> bool:
    """Correct the multipliers until the members are tight on the original rows; returns whether they became so."""
    k = len(members)
    correction = np.empty(k)
    for attempt in range(3):
        worst = 0.0
        for i in range(k):
            correction[i] = -answer.slack[members[i]]
            worst = max(worst, abs(correction[i]))
        if worst <= tolerance:
            return True
        if attempt == 2:
            break
        solve_lower(L, k, correction)
        solve_upper(L, k, correction)
        for i in range(k):
            answer.weights[members[i]] += correction[i]
            if answer.weights[members[i]] < 0.0:
                return False
        measure(problem, answer)
    return False
