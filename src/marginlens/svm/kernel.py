"""One compiled pass over a slice of problems: scale, choose a method, solve, and prove the outcome."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from marginlens.data.tokens import BoolArray, FloatArray, IntArray
from marginlens.svm.active_set import IMPOSSIBLE, IMPOSSIBLE_BELOW, SOLVED, dual_active_set
from marginlens.svm.block_pivot import coordinate_guess, pivot_some
from marginlens.svm.certify import EPS, Answer, Problem, impossibility, measure, measure_slack, optimality
from marginlens.svm.gram_set import gram_active_set
from marginlens.svm.products import gram, row_squares, square_sum

OPTIMAL, INFEASIBLE, TRIVIAL, UNPROVED, UNSCALED = 0, 1, 2, 3, 4
FEW = 64                      # rows of which the Gram matrix is always worth its cost
SWEEPS = 60
CLEAN = 1e-13                 # residual up to which the quick methods are believed; beyond, rows enter one by one
PROVED = 1e-11                # residual below which a solution counts as proved, a decade inside the promised 1e-10
ROUNDING = 16 * EPS           # times the amplification: what double precision leaves at best
MOST_AMPLIFIED = 1e-4         # the largest residual that is ever excused by amplification
TIGHT = 1e-9                  # slack, relative to the floor, of a row that counts as tight
NOTHING = 1e-12               # slack, relative to the length of x, that is rounding


class Batch(NamedTuple):
    """Problems of one shape."""

    rows: FloatArray          # (batch, n_rows, d)
    floor: FloatArray         # (batch, n_rows)


class Found(NamedTuple):
    """What the kernel writes: x, multipliers or Farkas vectors, tight rows, and one of the codes above."""

    x: FloatArray             # (batch, d)
    weights: FloatArray       # (batch, n_rows)
    active: BoolArray         # (batch, n_rows)
    outcome: IntArray         # (batch,)


def empty_result(n_problems: int, n_rows: int, d: int) -> Found:
    """Room for the results of a batch."""
    shape = (n_problems, n_rows)
    return Found(np.zeros((n_problems, d)), np.zeros(shape), np.zeros(shape, dtype=bool), np.zeros(n_problems, dtype=np.int64))


@njit(cache=True, nogil=True)
def solve_slice(first: int, last: int, batch: Batch, found: Found) -> None:
    """Solve problems first..last-1 of a batch."""
    m, d = batch.rows.shape[1], batch.rows.shape[2]
    size, floor, slack = np.empty(m), np.empty(m), np.empty(m)
    few, everyone = d >= 2 * m or m <= FEW, np.arange(m)
    G = np.empty((m, m)) if few else np.empty((0, 0))
    for j in range(first, last):
        problem = Problem(batch.rows[j], size, floor)
        answer = Answer(found.x[j], found.weights[j], slack)
        if few:
            gram(problem.A, everyone, 0, G)
            for r in range(m):
                size[r] = G[r, r]
        else:
            row_squares(problem.A, size)
        scale = _prepare(problem, batch.floor[j])
        if scale < 0.0:
            found.outcome[j] = UNSCALED
            continue
        outcome = _quick_outcome(problem, answer)
        if outcome == UNPROVED:
            outcome = _block_outcome(problem, G, answer)
        if outcome == UNPROVED:
            outcome = _active_set_outcome(problem, answer)
        found.outcome[j] = outcome
        if outcome != INFEASIBLE:
            _mark_tight(problem, answer, found.active[j])
        for r in range(m):
            if size[r] > 0.0:
                answer.weights[r] *= (1.0 if outcome == INFEASIBLE else scale) / size[r]
        for i in range(d):
            answer.x[i] *= scale


@njit(cache=True, nogil=True)
def _prepare(problem: Problem, b: FloatArray) -> float:
    """Turn squared norms into norms and scale the floors; returns the scale of x, or -1 for numbers outside a safe range."""
    A, size, floor = problem
    scale = 0.0
    for r in range(len(b)):
        if not 1e-200 < size[r] < 1e200:
            if not np.all(A[r] == 0.0):
                return -1.0
            size[r] = 0.0
        if not 0.0 <= b[r] < 1e200:
            return -1.0
        if size[r] > 0.0:
            size[r] = np.sqrt(size[r])
            floor[r] = b[r] / size[r]
            scale = max(scale, floor[r])
        else:
            floor[r] = np.inf if b[r] > 0.0 else 0.0
    if scale > 0.0:
        for r in range(len(b)):
            floor[r] /= scale
    return scale


@njit(cache=True, nogil=True)
def _quick_outcome(problem: Problem, answer: Answer) -> int:
    """A zero row with a positive floor is impossible by itself; without positive floors x = 0 will do."""
    answer.x[:] = 0.0
    answer.weights[:] = 0.0
    answer.slack[:] = 0.0
    outcome = TRIVIAL
    for r in range(len(problem.floor)):
        if problem.floor[r] == np.inf:
            answer.weights[r] = 1.0
            return INFEASIBLE
        if problem.floor[r] > 0.0:
            outcome = UNPROVED
    return outcome


@njit(cache=True, nogil=True)
def _block_outcome(problem: Problem, G: FloatArray, answer: Answer) -> int:
    """Try whole sets of rows: from all rows where the problem is wide, from a guess otherwise."""
    m, d = problem.A.shape
    if len(G) > 0:
        done = gram_active_set(problem, G, d >= 2 * m, answer)
    else:
        chosen = np.empty(m, dtype=np.bool_)
        coordinate_guess(problem, SWEEPS, chosen)
        done = pivot_some(problem, chosen, answer)
    if not done:
        return UNPROVED
    residual, amplified = optimality(problem.floor, answer)
    return OPTIMAL if residual <= CLEAN and EPS * amplified <= CLEAN else UNPROVED


@njit(cache=True, nogil=True)
def _active_set_outcome(problem: Problem, answer: Answer) -> int:
    """Let rows enter one by one, in coordinates where they have norm one."""
    A, size, floor = problem
    m, d = A.shape
    unit = np.empty((m, d))
    for r in range(m):
        factor = 1.0 / size[r] if size[r] > 0.0 else 0.0
        for i in range(d):
            unit[r, i] = A[r, i] * factor
    code = dual_active_set(unit, floor, answer.x, answer.weights)
    if code == IMPOSSIBLE:
        return INFEASIBLE if impossibility(problem, answer.weights) <= IMPOSSIBLE_BELOW else UNPROVED
    accurate = answer.x.copy()
    measure(problem, answer)
    residual, amplified = optimality(floor, answer)
    if residual > PROVED:
        distance = 0.0
        for i in range(d):
            distance += (answer.x[i] - accurate[i]) ** 2
            answer.x[i] = accurate[i]
        measure_slack(problem, answer)
        residual, amplified = optimality(floor, answer)
        residual = max(residual, np.sqrt(distance / square_sum(accurate)))
    allowed = min(max(PROVED, ROUNDING * amplified), MOST_AMPLIFIED)
    return OPTIMAL if code == SOLVED and residual <= allowed else UNPROVED


@njit(cache=True, nogil=True)
def _mark_tight(problem: Problem, answer: Answer, active: BoolArray) -> None:
    """A row is tight when its slack is small against its floor, or is rounding against ‖x‖."""
    length = np.sqrt(square_sum(answer.x))
    for r in range(len(active)):
        near = answer.slack[r] <= TIGHT * problem.floor[r] + NOTHING * length
        active[r] = problem.size[r] > 0.0 and (near or answer.weights[r] > 0.0)
