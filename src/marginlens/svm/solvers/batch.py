"""Compiled passes over slices of a batch: scale a problem, solve it by one method, and prove the outcome or leave it open."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marginlens.data.tokens import BoolArray, FloatArray, IntArray
from marginlens.kernels.linalg import EPS, dot, gram, squared_row_norms
from marginlens.runtime.compilation import njit
from marginlens.svm.solution import MOST_AMPLIFIED
from marginlens.svm.solvers.block_pivoting import coordinate_guess, pivot_some
from marginlens.svm.solvers.dual_active_set import IMPOSSIBLE, IMPOSSIBLE_BELOW, SOLVED, dual_active_set
from marginlens.svm.solvers.gram_active_set import (
    Answer,
    Problem,
    gram_active_set,
    impossibility,
    measure,
    measure_slack,
    optimality,
)

OPTIMAL, INFEASIBLE, TRIVIAL, UNPROVED, UNSCALED, SHAKY = 0, 1, 2, 3, 4, 5
SWEEPS = 60
CLEAN = 1e-13  # residual up to which the quick methods are believed; beyond, rows enter one by one
PROVED = 1e-11  # residual below which a solution counts as proved, a decade inside the promised 1e-10
ROUNDING = 16 * EPS  # times the amplification: what double precision leaves at best
TIGHT = 1e-9  # slack, relative to the floor, of a row that counts as tight
NOTHING = 1e-12  # slack, relative to the length of x, that is rounding


class Batch(NamedTuple):
    """Problems of one shape."""

    rows: FloatArray  # (batch, n_rows, d)
    floor: FloatArray  # (batch, n_rows)


class Found(NamedTuple):
    """What the kernel writes: x, multipliers or Farkas vectors, tight rows, and one of the codes above."""

    x: FloatArray  # (batch, d)
    weights: FloatArray  # (batch, n_rows)
    active: BoolArray  # (batch, n_rows)
    outcome: IntArray  # (batch,)


def empty_result(n_problems: int, n_rows: int, d: int) -> Found:
    """Room for the results of a batch."""
    shape = (n_problems, n_rows)
    return Found(
        np.zeros((n_problems, d)), np.zeros(shape), np.zeros(shape, dtype=bool), np.zeros(n_problems, dtype=np.int64)
    )


@njit(cache=True, nogil=True)
def gram_slice(first: int, last: int, batch: Batch, found: Found) -> None:
    """Problems first..last-1 through the Gram matrix of all their rows: for few rows, or rows much wider than many."""
    m, d = batch.rows.shape[1:]
    size, floor, slack = np.empty(m), np.empty(m), np.empty(m)
    G, everyone = np.empty((m, m)), np.arange(m)
    for j in range(first, last):
        problem = Problem(batch.rows[j], size, floor)
        answer = Answer(found.x[j], found.weights[j], slack)
        gram(problem.A, everyone, np.int64(0), G)
        for r in range(m):
            size[r] = G[r, r]
        scale, outcome = _prepare(problem, batch.floor[j], answer)
        if outcome == UNPROVED and gram_active_set(problem, G, d >= 2 * m, answer):
            outcome = _believed(problem, answer)
        _finish(problem, answer, scale, outcome, found, j)


@njit(cache=True, nogil=True)
def block_slice(first: int, last: int, batch: Batch, found: Found) -> None:
    """Problems first..last-1 through a guess of the tight rows and block pivots: for many rows."""
    m = batch.rows.shape[1]
    size, floor, slack = np.empty(m), np.empty(m), np.empty(m)
    chosen = np.empty(m, dtype=np.bool_)
    for j in range(first, last):
        problem = Problem(batch.rows[j], size, floor)
        answer = Answer(found.x[j], found.weights[j], slack)
        squared_row_norms(problem.A, size)
        scale, outcome = _prepare(problem, batch.floor[j], answer)
        if outcome == UNPROVED:
            coordinate_guess(problem, SWEEPS, chosen)
            if pivot_some(problem, chosen, answer):
                outcome = _believed(problem, answer)
        _finish(problem, answer, scale, outcome, found, j)


@njit(cache=True, nogil=True)
def careful_slice(first: int, last: int, doubtful: IntArray, batch: Batch, found: Found) -> None:
    """The doubtful problems at places first..last-1 of their list: rows enter one by one, and infeasibility is proved."""
    m, d = batch.rows.shape[1:]
    size, floor, slack = np.empty(m), np.empty(m), np.empty(m)
    unit = np.empty((m, d))
    for place in range(first, last):
        j = doubtful[place]
        problem = Problem(batch.rows[j], size, floor)
        answer = Answer(found.x[j], found.weights[j], slack)
        squared_row_norms(problem.A, size)
        scale, outcome = _prepare(problem, batch.floor[j], answer)
        for r in range(m):
            factor = 1.0 / size[r] if size[r] > 0.0 else 0.0
            for i in range(d):
                unit[r, i] = problem.A[r, i] * factor
        code = dual_active_set(unit, floor, answer.x, answer.weights)
        if code == SOLVED:
            outcome = _proved(problem, answer)
        elif code == IMPOSSIBLE and impossibility(problem, answer.weights) <= IMPOSSIBLE_BELOW:
            outcome = INFEASIBLE
        else:
            measure_slack(problem, answer)
        _finish(problem, answer, scale, outcome, found, j)


@njit(cache=True, nogil=True)
def _prepare(problem: Problem, b: FloatArray, answer: Answer) -> tuple[float, int]:
    """Turn squared norms into norms and scale the floors; returns the scale of x and what is known without solving."""
    A, size, floor = problem
    answer.x[:] = 0.0
    answer.weights[:] = 0.0
    answer.slack[:] = 0.0
    scale, impossible = 0.0, -1
    for r in range(len(b)):
        if not 1e-200 < size[r] < 1e200:
            for i in range(A.shape[1]):
                if A[r, i] != 0.0:
                    return 1.0, UNSCALED
            size[r] = 0.0
        if not b[r] < 1e200:
            return 1.0, UNSCALED
        if size[r] > 0.0:
            size[r] = np.sqrt(size[r])
            floor[r] = b[r] / size[r]
            scale = max(scale, floor[r])
        else:
            floor[r] = 0.0
            if b[r] > 0.0:
                impossible = r
    if impossible >= 0:
        answer.weights[impossible] = 1.0
        return 1.0, INFEASIBLE
    if scale == 0.0:
        return 1.0, TRIVIAL
    for r in range(len(b)):
        floor[r] /= scale
    return scale, UNPROVED


@njit(cache=True, nogil=True)
def _believed(problem: Problem, answer: Answer) -> int:
    """Whether an answer of the quick methods is clean enough to need no second look."""
    residual, amplified = optimality(problem.floor, answer)
    return OPTIMAL if residual <= CLEAN and EPS * amplified <= CLEAN else UNPROVED


@njit(cache=True, nogil=True)
def _proved(problem: Problem, answer: Answer) -> int:
    """Whether x = Aᵀ weights is optimal; where rows nearly cancel, the x of the active set, which is more accurate."""
    accurate = answer.x.copy()
    measure(problem, answer)
    residual, amplified = optimality(problem.floor, answer)
    if residual > PROVED:
        distance = 0.0
        for i in range(len(accurate)):
            distance += (answer.x[i] - accurate[i]) ** 2
            answer.x[i] = accurate[i]
        measure_slack(problem, answer)
        residual, amplified = optimality(problem.floor, answer)
        residual = max(residual, np.sqrt(distance / dot(accurate, accurate)))
    if residual > max(PROVED, ROUNDING * amplified):
        return UNPROVED
    return (
        OPTIMAL if ROUNDING * amplified <= MOST_AMPLIFIED else SHAKY
    )  # beyond, another order of additions may say otherwise


@njit(cache=True, nogil=True)
def _finish(problem: Problem, answer: Answer, scale: float, outcome: int, found: Found, j: int) -> None:
    """Write down the outcome and the tight rows, and give x and the multipliers their own scale back.

    A row is tight when its slack is small against its floor, or is rounding against ‖x‖.
    """
    found.outcome[j] = outcome
    if outcome == UNSCALED:
        return
    length = np.sqrt(dot(answer.x, answer.x))
    for r in range(len(problem.size)):
        near = answer.slack[r] <= TIGHT * problem.floor[r] + NOTHING * length
        tight = problem.size[r] > 0.0 and (near or answer.weights[r] > 0.0)
        found.active[j, r] = tight and outcome != INFEASIBLE
        if problem.size[r] > 0.0:
            answer.weights[r] *= (1.0 if outcome == INFEASIBLE else scale) / problem.size[r]
    for i in range(len(answer.x)):
        answer.x[i] *= scale
