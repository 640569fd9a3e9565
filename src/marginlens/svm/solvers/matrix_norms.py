"""Margin problems in the spectral, nuclear and max-row norm, for the interior-point method of `core/margin/matrix_norms.h`.

The method works on W in the span of the rows. If there are many inequalities, it gets a working set, to which the rows that W
violates are added.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from marginlens import core
from marginlens.kinds import defining_class
from marginlens.norms import MaxRow, Nuclear
from marginlens.norms.protocol import Norm
from marginlens.runtime.threads import n_threads
from marginlens.svm.solvers.batch import NormBatch
from marginlens.typing import FloatArray

# A solution is good enough when its bracket is this narrow, relative to its lower end.
BARRIER_GAP_RTOL = 1e-9
# Eigenvalues of Σ A_rᵀ A_r below this share of the largest count as zero.
_SPAN_EIGENVALUE_RTOL = 1e-13
# What may then be lost of rows of norm one.
_SPAN_ATOL = 1e-13
# Rows are left out if their multiplier is below such a share of their slack; the shares are tried in turn.
_IDLE_SHARES = (1.0, 1e-2, 1e-4, 1e-6)
# What leaving rows out may cost.
_IDLE_LOSS_RTOL = 3e-9
# Rows added at a time, if there are many.
_MIN_ADDED_ROWS = 60
# Gaps to which working rows are solved in turn.
_ROUND_GAPS = (1e-4, BARRIER_GAP_RTOL)
# Rounds of adding rows.
_MAX_ROW_ROUNDS = 12


class Cone(NamedTuple):
    """One margin problem: rows of unit norm, the inequalities first, over W cut into blocks of `height` rows and `width` columns."""

    rows: FloatArray  # (n_rows + n_equalities, n_unknowns)
    # (n_rows + n_equalities, height) for the nuclear norm if every row is an outer product; else (0,
    # height).
    left: FloatArray
    right: FloatArray  # (n_rows + n_equalities, width)
    lower: FloatArray  # (n_rows,)
    # Which norm it is; max-row is spectral with a block for every row.
    nuclear: bool


def solve_matrix_norms(batch: NormBatch, norm: Norm) -> None:
    """Solve a batch of problems whose x is a matrix, in the spectral, nuclear or max-row norm, in parallel compiled code."""
    workers = min(n_threads(), len(batch.indices))
    if workers <= 1:
        for j in batch.indices:
            _solve_single(batch, j, norm)
        return
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda j: _solve_single(batch, j, norm), batch.indices))


def _solve_single(batch: NormBatch, j: int, norm: Norm) -> None:
    """Solve problem j, by its nonzero rows.

    W is sought in the span of the rows' left vectors (except for the max-row norm, which depends on the basis) and of their
    right vectors; anything outside only makes it longer. A projection makes equalities hold exactly at the end.
    """
    used = np.flatnonzero(batch.rows[j].any(axis=1))
    n_ties = int(np.count_nonzero(used >= batch.lower.shape[1] - 2 * batch.n_equalities)) // 2
    n, m = len(used), len(used) - 2 * n_ties
    rows = batch.rows[j][used[: n - n_ties]].reshape(-1, *batch.shape)
    right = _span(rows.reshape(-1, batch.shape[1]))
    by_row = defining_class(norm) is MaxRow
    left = np.eye(batch.shape[0]) if by_row else _span(rows.transpose(0, 2, 1).reshape(-1, batch.shape[0]))
    # All norms of singular values are equal for a matrix of rank one.
    if not by_row and min(left.shape[1], right.shape[1]) == 1:
        return
    reduced = np.ascontiguousarray((rows if by_row else left.T @ rows) @ right)
    size = float(np.linalg.norm(batch.x[j]))
    start = left.T @ (batch.x[j].reshape(batch.shape) / size) @ right
    weights = batch.multipliers[j, used]
    multipliers = np.concatenate([weights[:m], _difference(weights[m:])])
    nuclear, height = defining_class(norm) is Nuclear, 1 if by_row else left.shape[1]
    factors = _rank_one_factors(reduced) if nuclear else (np.empty((0, height)), np.empty((0, right.shape[1])))
    cone = Cone(reduced.reshape(len(rows), -1), *factors, batch.lower[j, used[:m]] / size, nuclear)
    x, solved = _over_working_rows(cone, start.reshape(-1), multipliers)
    if n_ties:
        x = x - np.linalg.lstsq(cone.rows[m:], cone.rows[m:] @ x)[0]
    solved = _without_idle_rows(cone, x, solved)
    ties = (np.maximum(solved[m:], 0.0), np.maximum(-solved[m:], 0.0))
    batch.x[j] = (left @ x.reshape(start.shape) @ right.T * size).reshape(-1)
    batch.multipliers[j, used] = np.concatenate([solved[:m], *ties])


def _over_working_rows(cone: Cone, start: FloatArray, multipliers: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Find W and the multipliers; if there are many inequalities, by a working set, to which the rows that W violates are added."""
    m, n_all = len(cone.lower), len(cone.rows)
    n_added = max(_MIN_ADDED_ROWS, cone.rows.shape[1] // 2)
    x, solved = start.copy(), multipliers.copy()
    if m <= 4 * n_added:
        core.solve_matrix_norm(*cone, start, multipliers, BARRIER_GAP_RTOL, x, solved)
        return x, solved
    ties = np.arange(m, n_all)
    slack = cone.rows[:m] @ start - cone.lower
    working = np.sort(np.argsort(np.where(multipliers[:m] > 0.0, -1.0, slack), kind="stable")[: 2 * n_added])
    for gap in _ROUND_GAPS:
        for _ in range(_MAX_ROW_ROUNDS):
            indices = np.concatenate([working, ties])
            part = Cone(
                cone.rows[indices],
                cone.left[indices] if len(cone.left) else cone.left,
                cone.right[indices] if len(cone.right) else cone.right,
                cone.lower[working],
                cone.nuclear,
            )
            weights = multipliers[indices]
            core.solve_matrix_norm(*part, start, multipliers[indices], gap, x, weights)
            solved = np.zeros(n_all)
            solved[indices] = weights
            shortfall = cone.lower * (1.0 - 0.5 * gap) - cone.rows[:m] @ x
            violated = np.flatnonzero(shortfall > 0.0)
            if not len(violated):
                break
            worst = violated[np.argsort(-shortfall[violated], kind="stable")[:n_added]]
            working = np.union1d(working, worst)
    return x, solved


def _rank_one_factors(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Find left (n, height) and right (n, width) with rows[r] = left[r] right[r]ᵀ; empty if a row has a higher rank."""
    n, height, width = rows.shape
    at = np.argmax(np.abs(rows.reshape(n, -1)), axis=1)
    right = np.ascontiguousarray(rows[np.arange(n), at // width])
    left = rows[np.arange(n), :, at % width] / rows[np.arange(n), at // width, at % width][:, None]
    if np.abs(rows - left[:, :, None] * right[:, None, :]).max(initial=0.0) > _SPAN_ATOL:
        return np.empty((0, height)), np.empty((0, width))
    return np.ascontiguousarray(left), right


def _without_idle_rows(cone: Cone, x: FloatArray, multipliers: FloatArray) -> FloatArray:
    """Set multipliers to zero for rows that x satisfies with ample slack, as many as hardly change the bracket."""
    m = len(cone.lower)
    slack = cone.rows[:m] @ x - cone.lower
    value = cone.lower @ multipliers[:m] / _dual_norm(cone, multipliers)
    for share in _IDLE_SHARES:
        active = multipliers.copy()
        active[:m][multipliers[:m] < share * slack] = 0.0
        dual = _dual_norm(cone, active)
        if cone.lower @ active[:m] >= (1.0 - _IDLE_LOSS_RTOL) * value * dual:
            return active
    return multipliers


def _dual_norm(cone: Cone, multipliers: FloatArray) -> float:
    """Compute the dual norm of M = Σ_r λ_r A_r: the largest singular value for the nuclear norm, else the sum of singular
    values over all blocks.
    """
    norms = np.empty(2)
    core.norms_of_matrices((multipliers @ cone.rows).reshape(-1, cone.left.shape[1], cone.right.shape[1]), norms)
    return float(norms[0 if cone.nuclear else 1])


def _span(rows: FloatArray) -> FloatArray:
    """Return an orthonormal basis (d, rank) of the span of rows (n, d); of the whole space if that would lose part of a row."""
    values, vectors = np.linalg.eigh(rows.T @ rows)
    basis: FloatArray = vectors[:, values > _SPAN_EIGENVALUE_RTOL * values[-1]]
    if basis.shape[1] < len(values) and np.abs(rows - (rows @ basis) @ basis.T).max() <= _SPAN_ATOL:
        return basis
    return np.eye(len(values))


def _difference(pairs: FloatArray) -> FloatArray:
    """Compute the multipliers of equalities from those of each as two inequalities."""
    positive, negative = np.split(pairs, 2)
    return np.asarray(positive - negative)
