r"""Uniqueness of solutions of margin problems in ℓ1 and ℓ∞.

With multipliers λ that prove x, every other solution has equality on the rows with λ_r > 0 and lies on the same face of the
norm's ball: entries outside the support of the maxima of |g|, g = Aᵀλ, are zero (ℓ1); entries with g_j ≠ 0 are ±‖x‖ (ℓ∞). So x
is the only solution if the cone of remaining directions, given by linear equations and inequalities, is the point zero.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from marginlens.typing import BoolArray, FloatArray

# Entries of g, x and λ, and singular values, that count as zero, relative to the largest.
_ZERO_RTOL = 1e-9


class OptimalFace(NamedTuple):
    """The data of one problem at its optimum."""

    # (n_rows, d) of Euclidean norm one.
    rows: FloatArray
    equalities: FloatArray  # (n_equalities, d)
    active: BoolArray  # (n_rows,)
    # (n_rows,) for rows of Euclidean norm one.
    multipliers: FloatArray
    x: FloatArray  # (d,)
    # (d,) Aᵀλ + Cᵀμ.
    g: FloatArray


def is_only_solution(face: OptimalFace, *, is_l1: bool) -> bool:
    """Return whether x is the only solution of a problem in ℓ1, or in ℓ∞: whether no direction stays on the face."""
    size, entries = np.abs(face.g), np.abs(face.x)
    if is_l1:
        movable = size >= (1.0 - _ZERO_RTOL) * size.max()
        inward = np.where(entries <= _ZERO_RTOL * entries.max(), np.sign(face.g), 0.0)
    else:
        movable = size <= _ZERO_RTOL * size.max()
        inward = np.where(entries >= (1.0 - _ZERO_RTOL) * entries.max(), -np.sign(face.x), 0.0)
    # `inward` is the sign that an entry may move to, 0 for both
    tight = face.multipliers > _ZERO_RTOL * face.multipliers.max(initial=0.0)
    equations = np.concatenate([face.rows[tight], face.equalities])[:, movable]
    signs = np.diag(inward)[(inward != 0.0) & movable]
    inequalities = np.concatenate([face.rows[face.active & ~tight], signs])[:, movable]
    kernel = _kernel(equations)
    if not kernel.shape[1]:
        return True
    rays = inequalities @ kernel
    if _kernel(rays).shape[1]:
        return False
    total = rays.sum(axis=0)
    answer = scipy.optimize.linprog(
        -total,
        A_ub=np.vstack([-rays, total]),
        b_ub=np.append(np.zeros(len(rays)), 1.0),
        bounds=(None, None),
        method="highs",
    )
    # The product is 0, or 1 on a ray.
    return answer.x is not None and float(total @ answer.x) < 0.5


def _kernel(matrix: FloatArray) -> FloatArray:
    """Return an orthonormal basis (d, n) of the kernel of the matrix (m, d)."""
    return np.asarray(scipy.linalg.null_space(matrix, rcond=_ZERO_RTOL)) if matrix.size else np.eye(matrix.shape[1])
