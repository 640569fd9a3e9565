"""Compiled passes over slices of a batch: scale a problem, solve it by one method, and verify the outcome or leave it open."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marginlens.kernels.linalg import EPS, dot, gram, squared_row_norms
from marginlens.runtime.compilation import njit
from marginlens.svm.solution import ACTIVE_SLACK_RTOL, MAX_KKT_RTOL, ROUNDOFF_RTOL
from marginlens.svm.solvers.block_pivoting import block_pivoting, guess_active_rows
from marginlens.svm.solvers.dual_active_set import (
    FARKAS_RTOL,
    INFEASIBLE,
    NEEDS_RECHECK,
    OPTIMAL,
    OUT_OF_RANGE,
    TRIVIAL,
    UNVERIFIED,
    dual_active_set,
)
from marginlens.svm.solvers.gram_active_set import (
    Candidate,
    Problem,
    evaluate,
    evaluate_slack,
    farkas_residual,
    gram_active_set,
    optimality_residual,
)
from marginlens.typing import BoolArray, FloatArray, IntArray

FAST_PATH_RTOL = 1e-13  # residual up to which the quick methods are believed; beyond, rows enter one by one
MIN_SQUARED_NORM, MAX_SQUARED_NORM = 1e-200, 1e200  # of rows that are not zero
_GUESS_SWEEPS = 60
VERIFIED_RTOL = 1e-11  # residual below which a solution counts as proved, a decade inside the promised 1e-10
AMPLIFIED_EPS = 16 * EPS  # times the amplification: what double precision leaves at best


class Batch(NamedTuple):
    """Problems of one shape."""

    rows: FloatArray  # (batch, n_rows, d)
    lower: FloatArray  # (batch, n_rows)


class Solved(NamedTuple):
    """What the compiled code writes: x, multipliers or Farkas vectors, active rows, and an outcome."""

    x: FloatArray  # (batch, d)
    multipliers: FloatArray  # (batch, n_rows)
    active: BoolArray  # (batch, n_rows)
    outcome: IntArray  # (batch,)

    @classmethod
    def empty(cls, n_problems: int, n_rows: int, d: int) -> Solved:
        """Arrays for the results of a batch."""
        multipliers, active = np.zeros((n_problems, n_rows)), np.zeros((n_problems, n_rows), dtype=bool)
        return cls(np.zeros((n_problems, d)), multipliers, active, np.zeros(n_problems, dtype=np.int64))


@njit(cache=True, nogil=True)
def gram_active_set_slice(first: int, last: int, batch: Batch, solved: Solved) -> None:
    """Problems first..last-1 through the Gram matrix of all their rows: for few rows, or rows much wider than many."""
    m, d = batch.rows.shape[1:]
    row_norms, lower, slack = np.empty(m), np.empty(m), np.empty(m)
    G, all_rows = np.empty((m, m)), np.arange(m)
    for j in range(first, last):
        problem = Problem(batch.rows[j], row_norms, lower)
        candidate = Candidate(solved.x[j], solved.multipliers[j], slack)
        gram(problem.A, all_rows, np.int64(0), G)
        for r in range(m):
            row_norms[r] = G[r, r]
        scale, outcome = _prepare(problem, batch.lower[j], candidate)
        if outcome == UNVERIFIED and gram_active_set(problem, G, d >= 2 * m, candidate):
            outcome = _fast_path_outcome(problem, candidate)
        _write(problem, candidate, scale, outcome, solved, j)


@njit(cache=True, nogil=True)
def block_pivoting_slice(first: int, last: int, batch: Batch, solved: Solved) -> None:
    """Problems first..last-1 through a guess of the active rows and block pivots: for many rows."""
    m = batch.rows.shape[1]
    row_norms, lower, slack = np.empty(m), np.empty(m), np.empty(m)
    in_set = np.empty(m, dtype=np.bool_)
    for j in range(first, last):
        problem = Problem(batch.rows[j], row_norms, lower)
        candidate = Candidate(solved.x[j], solved.multipliers[j], slack)
        squared_row_norms(problem.A, row_norms)
        scale, outcome = _prepare(problem, batch.lower[j], candidate)
        if outcome == UNVERIFIED:
            guess_active_rows(problem, _GUESS_SWEEPS, in_set)
            if block_pivoting(problem, in_set, candidate):
                outcome = _fast_path_outcome(problem, candidate)
        _write(problem, candidate, scale, outcome, solved, j)


@njit(cache=True, nogil=True)
def dual_active_set_slice(first: int, last: int, unverified: IntArray, batch: Batch, solved: Solved) -> None:
    """The unverified problems at places first..last-1 of their list: rows enter one by one, and infeasibility is proved."""
    m, d = batch.rows.shape[1:]
    row_norms, lower, slack = np.empty(m), np.empty(m), np.empty(m)
    unit = np.empty((m, d))
    for position in range(first, last):
        j = unverified[position]
        problem = Problem(batch.rows[j], row_norms, lower)
        candidate = Candidate(solved.x[j], solved.multipliers[j], slack)
        squared_row_norms(problem.A, row_norms)
        scale, outcome = _prepare(problem, batch.lower[j], candidate)
        for r in range(m):
            factor = 1.0 / row_norms[r] if row_norms[r] > 0.0 else 0.0
            for i in range(d):
                unit[r, i] = problem.A[r, i] * factor
        code = dual_active_set(unit, lower, candidate.x, candidate.multipliers)
        if code == OPTIMAL:
            outcome = _verified_outcome(problem, candidate)
        elif code == INFEASIBLE and farkas_residual(problem, candidate.multipliers) <= FARKAS_RTOL:
            outcome = INFEASIBLE
        else:
            evaluate_slack(problem, candidate)
        _write(problem, candidate, scale, outcome, solved, j)


@njit(cache=True, nogil=True)
def _prepare(problem: Problem, b: FloatArray, candidate: Candidate) -> tuple[float, int]:
    """Turn squared norms into norms and scale the lower bounds; returns the scale of x and what is known without solving."""
    A, row_norms, lower = problem
    candidate.x[:] = 0.0
    candidate.multipliers[:] = 0.0
    candidate.slack[:] = 0.0
    scale, unsatisfiable = 0.0, -1
    for r in range(len(b)):
        if not MIN_SQUARED_NORM < row_norms[r] < MAX_SQUARED_NORM:
            for i in range(A.shape[1]):
                if A[r, i] != 0.0:
                    return 1.0, OUT_OF_RANGE
            row_norms[r] = 0.0
        if not b[r] < 1e100:
            return 1.0, OUT_OF_RANGE
        if row_norms[r] > 0.0:
            row_norms[r] = np.sqrt(row_norms[r])
            lower[r] = b[r] / row_norms[r]
            scale = max(scale, lower[r])
        else:
            lower[r] = 0.0
            if b[r] > 0.0:
                unsatisfiable = r
    if unsatisfiable >= 0:
        candidate.multipliers[unsatisfiable] = 1.0
        return 1.0, INFEASIBLE
    if scale == 0.0:
        return 1.0, TRIVIAL
    for r in range(len(b)):
        lower[r] /= scale
    return scale, UNVERIFIED


@njit(cache=True, nogil=True)
def _fast_path_outcome(problem: Problem, candidate: Candidate) -> int:
    """Whether a candidate of the quick methods is accurate enough to need no second look."""
    residual, amplified = optimality_residual(problem.lower, candidate)
    return OPTIMAL if residual <= FAST_PATH_RTOL and EPS * amplified <= FAST_PATH_RTOL else UNVERIFIED


@njit(cache=True, nogil=True)
def _verified_outcome(problem: Problem, candidate: Candidate) -> int:
    """Whether x = Aᵀ multipliers is optimal; where rows nearly cancel, the x of the active set, which is more accurate."""
    accurate = candidate.x.copy()
    evaluate(problem, candidate)
    residual, amplified = optimality_residual(problem.lower, candidate)
    if residual > VERIFIED_RTOL:
        distance = 0.0
        for i in range(len(accurate)):
            distance += (candidate.x[i] - accurate[i]) ** 2
            candidate.x[i] = accurate[i]
        evaluate_slack(problem, candidate)
        residual, amplified = optimality_residual(problem.lower, candidate)
        residual = max(residual, np.sqrt(distance / dot(accurate, accurate)))
    if residual > max(VERIFIED_RTOL, AMPLIFIED_EPS * amplified):
        return UNVERIFIED
    return (
        OPTIMAL if AMPLIFIED_EPS * amplified <= MAX_KKT_RTOL else NEEDS_RECHECK
    )  # where the order of additions may decide


@njit(cache=True, nogil=True)
def _write(problem: Problem, candidate: Candidate, scale: float, outcome: int, solved: Solved, j: int) -> None:
    """Write down the outcome and the active rows, and give x and the multipliers their own scale back.

    A row is active when its slack is small against its lower bound, or is rounding against ‖x‖.
    """
    solved.outcome[j] = outcome
    if outcome == OUT_OF_RANGE:
        return
    length = np.sqrt(dot(candidate.x, candidate.x))
    for r in range(len(problem.row_norms)):
        near = candidate.slack[r] <= ACTIVE_SLACK_RTOL * problem.lower[r] + ROUNDOFF_RTOL * length
        active = problem.row_norms[r] > 0.0 and (near or candidate.multipliers[r] > 0.0)
        solved.active[j, r] = active and outcome != INFEASIBLE
        if problem.row_norms[r] > 0.0:
            candidate.multipliers[r] *= (1.0 if outcome == INFEASIBLE else scale) / problem.row_norms[r]
    for i in range(len(candidate.x)):
        candidate.x[i] *= scale
