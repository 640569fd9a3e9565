"""Whole sets of rows at a time: guess which rows are tight, solve for them by one Cholesky factor, correct the guess.

Much faster than letting rows enter one by one, but it squares the condition number and cannot prove infeasibility; whoever
calls it checks the result and falls back on the active-set method.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.data.tokens import BoolArray, FloatArray, IntArray
from marginlens.kernels.linalg import dot, gram, solve_lower, solve_upper
from marginlens.runtime.compilation import njit
from marginlens.svm.solvers.gram_active_set import TIGHT, Answer, Problem, measure, settle

_ROUNDS = 12


@njit(cache=True, nogil=True)
def coordinate_guess(problem: Problem, n_sweeps: int, chosen: BoolArray) -> None:
    """Mark the rows whose multiplier is positive after sweeps of dual coordinate ascent, fewer once the set is quiet.

    Rows that were satisfied without a multiplier are looked at in every fourth sweep only.
    """
    A, size, floor = problem
    m, d = A.shape
    x, weights, idle = np.zeros(d), np.zeros(m), size == 0.0
    chosen[:] = False
    quiet = 0
    for sweep in range(n_sweeps):
        everyone, changed = sweep % 4 == 0, 0
        for r in range(m):
            if size[r] == 0.0 or (idle[r] and not everyone):
                continue
            missing = floor[r] - dot(A[r], x) / size[r]
            change = max(-weights[r], missing)
            idle[r] = change == 0.0
            if change != 0.0:
                weights[r] += change
                changed += chosen[r] != (weights[r] > 0.0)
                chosen[r] = weights[r] > 0.0
                factor, row = change / size[r], A[r]
                for i in range(d):
                    x[i] += factor * row[i]
        quiet = quiet + 1 if changed * 1000 <= m else 0
        if quiet >= 4:
            break


@njit(cache=True, nogil=True)
def pivot_some(problem: Problem, chosen: BoolArray, answer: Answer) -> bool:
    """Solve from the Gram matrix of a growing set of rows, starting with the marked ones tight.

    Returns whether no row is violated at the end; `answer` then holds x, its multipliers and the slack of every row.
    """
    A, size, floor = problem
    m, d = A.shape
    base = np.flatnonzero(chosen)
    n = len(base)
    known: Any = np.int64(0)
    room = min(m, n + n // 4 + 16)
    if n > d:
        return False
    G, L = np.empty((room, room)), np.empty((room, room))
    base = np.concatenate((base, np.zeros(room - n, dtype=np.int64)))
    low, held, tight = np.empty(room), np.empty(room), np.ones(room, dtype=np.bool_)
    members = np.empty(room, dtype=np.int64)
    for _ in range(_ROUNDS):
        gram(A, base[:n], known, G)
        for i in range(known, n):
            low[i] = floor[base[i]]
            for j in range(i + 1):
                G[i, j] /= size[base[i]] * size[base[j]]
        known = n
        k = settle(G, low[:n], tight, members, L, held)
        answer.weights[:] = 0.0
        for i in range(k):
            answer.weights[base[members[i]]] = held[i]
        measure(problem, answer)
        tolerance = TIGHT * np.sum(held[:k])
        if not _refine(problem, answer, base[members[:k]], L, tolerance):
            return False
        finished = True
        for i in range(n):
            chosen[base[i]] = True
            if not tight[i] and answer.slack[base[i]] < -tolerance:
                tight[i], finished = True, False
        for r in range(m):
            if not chosen[r] and answer.slack[r] < -tolerance:
                if n == room:
                    return False
                base[n], tight[n] = r, True
                n, finished = n + 1, False
        if finished:
            return True
    return False


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
