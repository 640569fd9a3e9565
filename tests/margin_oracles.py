"""The shortest x with A x ≥ b and C x = 0 by solvers that are not the library's."""

from __future__ import annotations

import numpy as np
import quadprog
from scipy.linalg import null_space
from scipy.optimize import nnls

import tolerances


def by_nnls(A: np.ndarray, b: np.ndarray, C: np.ndarray | None = None) -> np.ndarray | None:
    """One nonnegative least squares in the null space of the equalities; None where its residual vanishes, which is infeasibility."""
    basis = null_space(C) if C is not None and len(C) else np.eye(A.shape[1])
    inside = A @ basis
    size = np.linalg.norm(inside, axis=1)
    if size.min(initial=np.inf) < tolerances.SVM_ORACLE:
        return None
    scale = np.max(b / size)
    stacked = np.vstack([(inside / size[:, None]).T, b / size / scale])
    target = np.zeros(len(stacked))
    target[-1] = 1.0
    u, distance = nnls(stacked, target, maxiter=1000 * len(b))
    residual = stacked @ u - target
    return None if distance < tolerances.SVM_ORACLE else -scale * basis @ residual[:-1] / residual[-1]


def by_quadprog(A: np.ndarray, b: np.ndarray, C: np.ndarray | None = None) -> np.ndarray | None:
    """Goldfarb and Idnani, with equalities that are independent; None where there is no solution."""
    ties = np.empty((0, A.shape[1]))
    if C is not None and len(C):
        _, values, right = np.linalg.svd(C, full_matrices=False)
        ties = right[values > tolerances.ROUNDING * values[0]]
    n, lower = A.shape[1], np.concatenate([np.zeros(len(ties)), b])
    try:
        return quadprog.solve_qp(np.eye(n), np.zeros(n), np.vstack([ties, A]).T, lower, meq=len(ties))[0]
    except ValueError:
        return None
