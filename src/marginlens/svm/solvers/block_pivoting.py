"""Block pivoting, whole sets of rows at a time: guess which rows are active, solve for them by one Cholesky factor, correct the guess.

Much faster than letting rows enter one by one, but it squares the condition number and cannot prove infeasibility; whoever
calls it checks the result and falls back on the active-set method.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.kernels.linalg import dot, gram, solve_lower, solve_upper
from marginlens.runtime.compilation import njit
from marginlens.svm.solvers.gram_active_set import VIOLATION_RTOL, Candidate, Problem, drop_negative, evaluate
from marginlens.typing import BoolArray, FloatArray, IntArray

_MAX_ROUNDS = 12


@njit(cache=True, nogil=True)
def guess_active_rows(problem: Problem, n_sweeps: int, in_set: BoolArray) -> None:
    """Mark the rows whose multiplier is positive after sweeps of dual coordinate ascent, fewer once the set settles.

    Rows that were satisfied without a multiplier are looked at in every fourth sweep only.
    """
    A, row_norms, lower = problem
    m, d = A.shape
    x, multipliers, idle = np.zeros(d), np.zeros(m), row_norms == 0.0
    in_set[:] = False
    n_settled = 0
    for sweep in range(n_sweeps):
        all_rows, changed = sweep % 4 == 0, 0
        for r in range(m):
            if row_norms[r] == 0.0 or (idle[r] and not all_rows):
                continue
            missing = lower[r] - dot(A[r], x) / row_norms[r]
            change = max(-multipliers[r], missing)
            idle[r] = change == 0.0
            if change != 0.0:
                multipliers[r] += change
                changed += in_set[r] != (multipliers[r] > 0.0)
                in_set[r] = multipliers[r] > 0.0
                factor, row = change / row_norms[r], A[r]
                for i in range(d):
                    x[i] += factor * row[i]
        n_settled = n_settled + 1 if changed * 1000 <= m else 0
        if n_settled >= 4:
            break


@njit(cache=True, nogil=True)
def block_pivoting(problem: Problem, in_set: BoolArray, candidate: Candidate) -> bool:
    """Solve from the Gram matrix of a growing set of rows, starting with the marked ones active.

    Returns whether no row is violated at the end; `candidate` then holds x, its multipliers and the slack of every row.
    """
    A, row_norms, lower = problem
    m, d = A.shape
    set_rows = np.flatnonzero(in_set)
    n = len(set_rows)
    n_known: Any = np.int64(0)
    capacity = min(m, n + n // 4 + 16)
    if n > d:
        return False
    G, L = np.empty((capacity, capacity)), np.empty((capacity, capacity))
    set_rows = np.concatenate((set_rows, np.zeros(capacity - n, dtype=np.int64)))
    bounds, member_multipliers, is_active = np.empty(capacity), np.empty(capacity), np.ones(capacity, dtype=np.bool_)
    members = np.empty(capacity, dtype=np.int64)
    for _ in range(_MAX_ROUNDS):
        gram(A, set_rows[:n], n_known, G)
        for i in range(n_known, n):
            bounds[i] = lower[set_rows[i]]
            for j in range(i + 1):
                G[i, j] /= row_norms[set_rows[i]] * row_norms[set_rows[j]]
        n_known = n
        k = drop_negative(G, bounds[:n], is_active, members, L, member_multipliers)
        candidate.multipliers[:] = 0.0
        for i in range(k):
            candidate.multipliers[set_rows[members[i]]] = member_multipliers[i]
        evaluate(problem, candidate)
        tolerance = VIOLATION_RTOL * np.sum(member_multipliers[:k])
        if not _refine(problem, candidate, set_rows[members[:k]], L, tolerance):
            return False
        finished = True
        for i in range(n):
            in_set[set_rows[i]] = True
            if not is_active[i] and candidate.slack[set_rows[i]] < -tolerance:
                is_active[i], finished = True, False
        for r in range(m):
            if not in_set[r] and candidate.slack[r] < -tolerance:
                if n == capacity:
                    return False
                set_rows[n], is_active[n] = r, True
                n, finished = n + 1, False
        if finished:
            return True
    return False


@njit(cache=True, nogil=True)
def _refine(problem: Problem, candidate: Candidate, members: IntArray, L: FloatArray, tolerance: float) -> bool:
    """Correct the multipliers until the members are active on the original rows; returns whether they became so."""
    k = len(members)
    correction = np.empty(k)
    for attempt in range(3):
        worst = 0.0
        for i in range(k):
            correction[i] = -candidate.slack[members[i]]
            worst = max(worst, abs(correction[i]))
        if worst <= tolerance:
            return True
        if attempt == 2:
            break
        solve_lower(L, k, correction)
        solve_upper(L, k, correction)
        for i in range(k):
            candidate.multipliers[members[i]] += correction[i]
            if candidate.multipliers[members[i]] < 0.0:
                return False
        evaluate(problem, candidate)
    return False
