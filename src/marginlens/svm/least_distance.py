"""The core problem behind every hard-margin SVM here: the shortest vector that satisfies linear inequalities."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import nnls

from marginlens.data.tokens import FloatArray
from marginlens.errors import real_array, reject
from marginlens.svm.solution import MarginSolution, Status


def least_distance(rows: Any, floor: Any, *, equalities: Any = None, pairs: Any = None) -> MarginSolution:
    r"""Shortest vector above given floors, with a proof that it is the shortest or that there is none.

    .. math:: \min_x \|x\| \ \text{s.t.}\ A x \ge b,\ C x = 0

    Args:
        rows: the matrix A, (n_rows, d) for one problem or (batch, n_rows, d) for many; a zero row with floor 0
            constrains nothing and may pad problems of different sizes.
        floor: the lower bounds b >= 0, (n_rows,) or (batch, n_rows).
        equalities: the matrix C, (n_equalities, d) for all problems or (batch, n_equalities, d).
        pairs: (…, n_rows, 3) the input, selected and other token behind each row; only stored.
    Returns:
        A `MarginSolution` with x = sum_r multipliers[r] * rows[r] + sum_k equality_multipliers[k] * equalities[k] and
        multipliers >= 0; `kkt_residual()` checks it, `certificate_residual()` checks a claim that no x exists.
    """
    A = real_array(rows, "rows", ("batch", "n_rows", "d") if np.ndim(rows) == 3 else ("n_rows", "d"))
    b = real_array(floor, "floor", A.shape[:-1])
    if (b < 0.0).any():
        raise reject("floor", "lower bounds of at least 0", f"{b.min():g}", "Leave such rows out or set them to 0.")
    C = None
    if equalities is not None:
        axes = (len(A), "n_equalities", A.shape[-1]) if np.ndim(equalities) == 3 else ("n_equalities", A.shape[-1])
        C = real_array(equalities, "equalities", axes)
        C = np.broadcast_to(C, (*A.shape[:-2], *C.shape[-2:]))
    if A.ndim == 2:
        return _one(A, b, C, pairs)
    if len(A) == 0:
        raise reject("rows", "at least one problem", f"shape {A.shape}")
    each = [_one(A[j], b[j], None if C is None else C[j], None) for j in range(len(A))]
    status = np.empty(len(A), dtype=object)
    status[:] = [one.status for one in each]
    nothing = np.full(A.shape[1], np.nan)
    return MarginSolution(
        rows=A,
        floor=b,
        equalities=C,
        x=np.stack([one.x for one in each]),
        status=status,
        multipliers=np.stack([one.multipliers for one in each]),
        equality_multipliers=None if C is None else np.stack([one.equality_multipliers for one in each]),
        active=np.stack([one.active for one in each]),
        certificate=np.stack([nothing if one.certificate is None else one.certificate for one in each]),
        pairs=None if pairs is None else np.asarray(pairs),
    )


def _one(A: FloatArray, b: FloatArray, C: FloatArray | None, pairs: Any) -> MarginSolution:
    projected = A
    if C is not None:
        _, s, Vt = np.linalg.svd(C, full_matrices=False)
        basis = Vt[s > 1e-12 * max(s.max(initial=0.0), 1e-300)]
        projected = A - (A @ basis.T) @ basis
    size = np.linalg.norm(A, axis=1)
    projected = np.where(np.linalg.norm(projected, axis=1, keepdims=True) <= 1e-13 * size[:, None], 0.0, projected)
    unit = np.where(size == 0.0, 1.0, size)
    scale = np.max(b / unit, initial=0.0)
    x, weights, y, status = np.zeros(A.shape[1]), np.zeros(len(A)), None, Status.TRIVIAL
    if scale > 0.0:
        target = np.zeros(A.shape[1] + 1)
        target[-1] = 1.0
        stacked = np.vstack([(projected / unit[:, None]).T, b / unit / scale])
        u, distance = nnls(stacked, target, maxiter=100 * stacked.shape[1])
        residual = stacked @ u - target
        if distance <= 1e-12:
            status, y = Status.INFEASIBLE, u / unit
            x, weights = np.full_like(x, np.nan), np.full_like(weights, np.nan)
        else:
            status, weights = Status.OPTIMAL, u / -residual[-1] / unit * scale
            x = weights @ projected
    mu = None
    if C is not None:
        mu = np.linalg.lstsq(C.T, -(weights if y is None else y) @ (A - projected), rcond=None)[0]
    slack = A @ x - b
    active = (size > 0.0) & (slack <= 1e-9 * b + 1e-12 * size * np.linalg.norm(x)) & (status is not Status.INFEASIBLE)
    stored = None if pairs is None else np.asarray(pairs)
    return MarginSolution(A, b, C, x, status, weights, mu, active, y, stored)
