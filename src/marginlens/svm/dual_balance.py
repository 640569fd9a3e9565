"""Dual solutions of a margin problem that residual attention can show: the rows that carry a multiplier, and the point at which
the rows balance.
"""

from __future__ import annotations

import numpy as np
import scipy

from marginlens.typing import BoolArray, FloatArray

# Singular values of the active rows below this share of the largest count as zero.
ACTIVE_RANK_RTOL = 1e-10
# The balance counts as solved when its slope is this small relative to its terms.
BALANCE_RTOL = 1e-12
MAX_NEWTON_STEPS = 200
# How far multipliers may be enlarged to show that another one can be positive.
LARGEST_SCALE = 1e6


def can_carry(rows: FloatArray, multipliers: FloatArray) -> BoolArray:
    r"""Find the rows with a positive multiplier in some dual solution, given one dual solution: a mask (n_rows,).

    .. math:: \{ r : \mu_r > 0 \text{ for some } \mu \ge 0 \text{ with } A^\top \mu = A^\top \lambda \}
    """
    carries = multipliers > 0.0
    if carries.all():
        return carries
    _, singular, span = np.linalg.svd(rows, full_matrices=False)
    n, rank = len(rows), int(np.sum(singular > ACTIVE_RANK_RTOL * singular[0]))
    if rank == n:
        return carries
    A = rows @ span[:rank].T / singular[0]
    # unknowns: μ ≥ 0, shares s in [0, 1] with s ≤ μ, and the scale τ of λ: the largest sum of shares has s = 1 wherever μ can be positive
    equal = np.concatenate([A.T, np.zeros((rank, n)), -(A.T @ multipliers)[:, None]], axis=1)
    below = np.concatenate([-np.eye(n), np.eye(n), np.zeros((n, 1))], axis=1)
    bounds = [(0.0, None)] * n + [(0.0, 1.0)] * n + [(0.0, LARGEST_SCALE)]
    cost = np.concatenate([np.zeros(n), -np.ones(n), np.zeros(1)])
    found = scipy.optimize.linprog(cost, A_ub=below, b_ub=np.zeros(n), A_eq=equal, b_eq=np.zeros(rank), bounds=bounds)
    return carries | (found.x[n : 2 * n] > 0.5) if found.success else carries


def balance(rows: FloatArray, log_c: FloatArray, multipliers: FloatArray) -> FloatArray | None:
    r"""Find the point (d,) of the rows' span at which residual attention is a dual solution; None if Newton's method does not converge.

    .. math:: z = \arg\min \sum_r c_r e^{-\langle a_r, z \rangle} + \Big\langle \sum_r \lambda_r a_r, z \Big\rangle

    Args:
        rows: (n_rows, d).

        log_c: (n_rows,).

        multipliers: (n_rows,) a dual solution, not necessarily one that is positive everywhere.
    """
    _, singular, span = np.linalg.svd(rows, full_matrices=False)
    span = span[singular > ACTIVE_RANK_RTOL * singular[0]]
    # Coordinates in the span of the rows (n_rows, rank), so that no curvature is zero.
    rows = rows @ span.T

    def gram(weights: FloatArray) -> FloatArray:
        return rows.T @ (weights[:, None] * rows)

    target = rows.T @ multipliers
    positive = np.maximum(multipliers, 1e-3 * multipliers.max())
    length = np.abs(rows).sum(axis=1)

    def at(z: FloatArray) -> tuple[float, FloatArray]:
        with np.errstate(over="ignore"):
            weights = np.exp(log_c - rows @ z)
        return float(weights.sum() + target @ z), weights

    try:
        z = scipy.linalg.cho_solve(
            scipy.linalg.cho_factor(gram(positive)), rows.T @ (positive * (log_c - np.log(positive)))
        )
        value, weights = at(z)
        for _ in range(MAX_NEWTON_STEPS):
            slope = target - rows.T @ weights
            if np.linalg.norm(slope) <= BALANCE_RTOL * float(weights @ length + multipliers @ length):
                return z @ span
            step = scipy.linalg.cho_solve(scipy.linalg.cho_factor(gram(weights)), -slope)
            share, promised = 1.0, float(slope @ step)
            trial, trial_weights = at(z + step)
            while not trial <= value + 1e-4 * share * promised + 1e-14 * abs(value) and share > 1e-12:
                share *= 0.5
                trial, trial_weights = at(z + share * step)
            if share <= 1e-12:
                return None
            z, value, weights = z + share * step, trial, trial_weights
    except (np.linalg.LinAlgError, ValueError):
        return None
    return None
