r"""Cutting planes for margin problems in any norm, given only by its value, its dual norm and its steepest directions.

The largest margin over the unit ball is, by duality,

.. math:: \max_{\|x\| \le 1} \min_r a_r^\top x / b_r = \min_{\lambda \ge 0,\ b^\top\lambda = 1} \|A^\top\lambda\|_*

Points s_1, …, s_k of the unit ball bound it from below by their best mixture. A linear programme finds this mixture, together
with a λ that is optimal as far as these points can tell. λ bounds the margin from above, and the steepest direction at Aᵀλ is
the next point. With the programme's λ alone the bounds meet slowly if the ball is round, so each round also takes the steepest
direction close to the best λ so far.
"""

from __future__ import annotations

import numpy as np
import scipy

from marginlens.norms.protocol import Norm
from marginlens.svm.solvers.batch import NormBatch
from marginlens.typing import FloatArray

# Weight of the best λ so far in the second question of a round.
CLOSE_TO_THE_BEST = 0.9
# The bounds have met when their distance is this share of the lower one.
_BOUNDS_RTOL = 1e-9
# HiGHS takes no smaller tolerance; its default of 1e-7 is above the distance that the bounds are to reach.
_HIGHS_ATOL = 1e-10
_MAX_CUTS = 500


def solve_by_cutting_planes(batch: NormBatch, norm: Norm) -> None:
    """Solve a batch of problems, one after the other."""
    for j in batch.indices:
        used = np.flatnonzero(batch.rows[j].any(axis=1))
        found = _solve_single(batch.rows[j][used], batch.lower[j, used], norm, batch.x[j].reshape(batch.shape))
        batch.x[j], batch.multipliers[j] = found[0].reshape(-1), 0.0
        batch.multipliers[j, used] = found[1]


def _solve_single(rows: FloatArray, lower: FloatArray, norm: Norm, start: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return x in the shape of `start`, which selects the tokens, and multipliers (n_rows,), both at any scale."""
    points = [start / norm.value(start)]
    # A s of every point s.
    values = [rows @ points[0].reshape(-1)]
    x, smallest, best, largest = start, 0.0, np.zeros(len(lower)), np.inf
    for step in range(_MAX_CUTS):
        mixture, multipliers = _best_mixture(np.stack(values, axis=-1), lower)
        if multipliers is None:
            break
        candidate = np.tensordot(mixture, np.stack(points), axes=1)
        margin = _margin(rows @ candidate.reshape(-1), lower) / norm.value(candidate)
        if margin > smallest:
            x, smallest = candidate, margin
        for weight in (0.0, CLOSE_TO_THE_BEST) if step else (0.0,):
            weights = weight * best + (1.0 - weight) * multipliers
            gradient = (weights @ rows).reshape(start.shape)
            bound = norm.dual(gradient)
            if bound < largest:
                best, largest = weights, bound
            if np.any(gradient):
                points.append(norm.steepest(gradient))
                values.append(rows @ points[-1].reshape(-1))
        if largest - smallest <= _BOUNDS_RTOL * smallest:
            break
    return x, best


def _best_mixture(values: FloatArray, lower: FloatArray) -> tuple[FloatArray, FloatArray | None]:
    """Find shares (k,) of the points whose mixture has the largest margin, and the multipliers with bᵀλ = 1 that prove it; None
    if there are none.

    Args:
        values: (n_rows, k) a_r · s_j of every point s_j.
    """
    n_rows, k = values.shape
    answer = scipy.optimize.linprog(
        # The margin t is the last unknown and is maximised.
        np.append(np.zeros(k), -1.0),
        A_ub=np.column_stack([-values, lower]),
        b_ub=np.zeros(n_rows),
        A_eq=np.append(np.ones(k), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0.0, None)] * k + [(None, None)],
        method="highs",
        options={"primal_feasibility_tolerance": _HIGHS_ATOL, "dual_feasibility_tolerance": _HIGHS_ATOL},
    )
    if answer.x is None:
        return np.zeros(k), None
    multipliers = np.maximum(-answer.ineqlin.marginals, 0.0)
    total = lower @ multipliers
    return np.maximum(answer.x[:-1], 0.0), multipliers / total if total > 0.0 else None


def _margin(values: FloatArray, lower: FloatArray) -> float:
    """Return the largest t with `values` ≥ t b; below zero if a row with b = 0 is violated."""
    counts = lower > 0.0
    if np.any(values[~counts] < 0.0):
        return -np.inf
    return float(np.min(values[counts] / lower[counts], initial=np.inf))
