r"""Margin problems in ℓp, 1 < p < ∞: Newton's method on the dual below p = 2, an interior-point method above.

.. math:: \min_x \{\|x\|_p : A x \ge b\}, \qquad \max_{\lambda \ge 0} b^\top\lambda - \tfrac12 \|A^\top\lambda\|_q^2, \quad 1/p + 1/q = 1

At the optimum x is the dual vector of g = Aᵀλ: x_j = ‖g‖_q^(2-q) sign(g_j) |g_j|^(q-1). Below p = 2 that map is smooth, and a
few projected Newton steps in λ are enough. Above p = 2 its inverse is smooth, and x and λ move together through the interior;
each entry is linearised at the larger of x_j and the dual vector's entry. Far from p = 2, the solution is reached by a sequence
of powers. Of all iterates, the x with the smallest upper bound and the λ with the largest lower bound are returned. Random
problems end with a bracket below 1e-12 for p from 1.02 to 8; outside this range, more and more end at 1e-7 to 1e-5 and are
called inaccurate.
"""

from __future__ import annotations

import numpy as np

from marginlens import core
from marginlens.arithmetic.rounding import EPS
from marginlens.norms import Lp
from marginlens.runtime.threads import parallel_over
from marginlens.svm.solution import power_norms
from marginlens.svm.solvers.batch import COST_PER_ENTRY, MAX_ROWS_TOGETHER, NormBatch, over_working_rows
from marginlens.typing import FloatArray, IntArray

# Entries below this share of ‖x‖ count as this if their curvature would grow beyond bounds.
_MIN_ENTRY = 1e-12
# The least curvature, relative to the largest one.
_MIN_CURVATURE = 1e-13
# A row is polished if its multiplier exceeds this share of the largest one, and its slack does not.
_MIN_MULTIPLIER, _MAX_SLACK = 1e-12, 1e-4
_MAX_POLISHES = 4
# Beyond the first gap a solution is polished, and beyond the second the other method is tried.
_POLISHED_GAP, _RETRIED_GAP = 1e-12, 1e-10
# A large power of the norm, or of its dual, is approached by smaller ones: the first of them, and the factor between two.
_NEWTON_POWERS = (5.0, 1.7)
_INTERIOR_POWERS = (3.0, 1.25)


def solve_power_norms(batch: NormBatch, norm: Lp) -> None:
    """Solve a batch of problems in ℓp."""
    if batch.lower.shape[1] <= MAX_ROWS_TOGETHER:
        _solve_rows(batch.rows, batch.lower, batch.indices, norm.p, batch.x, batch.multipliers)
        return
    for j in batch.indices:
        _solve_many_rows(batch.rows[j], batch.lower[j], norm.p, batch.x[j], batch.multipliers[j])


def _solve_rows(
    rows: FloatArray, lower: FloatArray, indices: IntArray, p: float, x: FloatArray, multipliers: FloatArray
) -> None:
    """Solve the problems with all their rows; if one method leaves a gap, polish x, then try the other method."""
    gaps = np.zeros(len(rows))
    first_x, first_multipliers = x.copy(), multipliers.copy()
    q, by_newton = p / (p - 1.0), p < 2.0
    powers = (q, *_NEWTON_POWERS) if by_newton else (p, *_INTERIOR_POWERS)
    fields = (rows, lower, indices, by_newton, *powers, x, multipliers, gaps)
    parallel_over(core.solve_power_norms, len(indices), *fields, step_cost=COST_PER_ENTRY * rows[0].size)
    for j in indices[~(gaps[indices] <= _POLISHED_GAP)]:
        A, b = rows[j], lower[j]
        x[j] = polished(A, b, p, multipliers[j], x[j])
        gap = _gap(A, b, p, multipliers[j], x[j])
        if gap <= _RETRIED_GAP:
            continue
        if not by_newton:
            first_multipliers[j] = multipliers[j]
        # The other method starts at the power itself, without smaller ones.
        powers = (p, p, 2.0) if by_newton else (q, q, 2.0)
        retried = (rows, lower, np.array([j]), not by_newton, *powers, first_x, first_multipliers, gaps)
        core.solve_power_norms(0, 1, *retried)
        first_x[j] = polished(A, b, p, first_multipliers[j], first_x[j])
        if _gap(A, b, p, first_multipliers[j], first_x[j]) < gap:
            x[j], multipliers[j] = first_x[j], first_multipliers[j]


def _solve_many_rows(A: FloatArray, b: FloatArray, p: float, x: FloatArray, multipliers: FloatArray) -> None:
    """Solve one problem through working sets, each solved again from the Euclidean x and multipliers."""
    start, weights = x.copy(), multipliers.copy()

    def solve(members: IntArray) -> float:
        x[:], part = start, weights[None, members]
        _solve_rows(A[None, members], b[None, members], np.zeros(1, dtype=np.int64), p, x[None], part)
        multipliers[:] = 0.0
        multipliers[members] = part[0]
        positive = members[b[members] > 0.0]
        return float(((A @ x)[positive] / b[positive]).min())

    over_working_rows(A, b, x, np.flatnonzero(weights), solve)


# ---- what rounding leaves


def polished(A: FloatArray, b: FloatArray, p: float, multipliers: FloatArray, x: FloatArray) -> FloatArray:
    """Correct x (d,) by the rows that it should satisfy with equality, in the metric of the norm's curvature, if that shortens it.

    If rows nearly cancel, they determine x better than the dual vector of Aᵀλ does.
    """
    upper = _upper_bound(b, A @ x, _norm(x, p))
    if not np.isfinite(upper):
        return x
    near = np.abs(A @ x - b) <= _MAX_SLACK * b.max()
    members = np.flatnonzero(near & (multipliers > _MIN_MULTIPLIER * multipliers.max()))
    weights = np.maximum(np.abs(x) / np.abs(x).max(), _MIN_ENTRY) ** (2.0 - p)
    weights = np.maximum(weights / weights.max(), _MIN_CURVATURE)
    roots = np.sqrt(weights)
    best = x
    for _ in range(_MAX_POLISHES):
        step = np.linalg.lstsq(A[members] * roots, b[members] - A[members] @ best)[0]
        point = best + roots * step
        bound = _upper_bound(b, A @ point, _norm(point, p))
        if not bound < upper:
            break
        best, upper = point, bound
    return best


def _gap(A: FloatArray, b: FloatArray, p: float, multipliers: FloatArray, x: FloatArray) -> float:
    """Compute the gap of the bracket."""
    lower = float(b @ multipliers) / _norm(multipliers @ A, p / (p - 1.0))
    upper = _upper_bound(b, A @ x, _norm(x, p))
    return upper / lower - 1.0 if lower > 0.0 else np.inf


def _norm(x: FloatArray, p: float) -> float:
    return float(power_norms(x, p))


def _upper_bound(b: FloatArray, products: FloatArray, norm: float) -> float:
    """Compute ‖x‖ divided by the smallest a_r·x/b_r; infinite if a sign is wrong."""
    positive = b > 0.0
    smallest = (products[positive] / b[positive]).min(initial=np.inf)
    wrong = (products[~positive] < -16.0 * EPS * norm).any()
    return np.inf if wrong or not smallest > 0.0 else float(norm / smallest)
