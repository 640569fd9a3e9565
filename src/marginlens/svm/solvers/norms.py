"""Margin problems in a norm other than the Euclidean one: scale, call the norm's solver, and let the bracket decide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from marginlens.arithmetic.directions import length
from marginlens.errors import InputError
from marginlens.kinds import defining_class
from marginlens.norms import L1, LInf, Lp, MaxRow, Norm, Nuclear, Spectral
from marginlens.svm.solution import MarginSolution, Status
from marginlens.svm.solvers.batch import NormBatch
from marginlens.svm.solvers.cutting_planes import solve_by_cutting_planes
from marginlens.svm.solvers.linear_programs import solve_by_highs, solve_linear_programs
from marginlens.svm.solvers.matrix_norms import solve_matrix_norms
from marginlens.svm.solvers.power_norm import solve_power_norms
from marginlens.typing import BoolArray, FloatArray

# Entries of rows that are formed for the solver of a norm.
MAX_NORM_ENTRIES = 64_000_000
# Takes a batch and its norm, and fills in the solutions.
BatchSolver = Callable[[NormBatch, Any], None]
BATCH_SOLVERS: dict[type, BatchSolver] = {
    L1: solve_linear_programs,
    LInf: solve_linear_programs,
    Lp: solve_power_norms,
    Spectral: solve_matrix_norms,
    Nuclear: solve_matrix_norms,
    MaxRow: solve_matrix_norms,
}

_Solution = TypeVar("_Solution", bound=MarginSolution)


def solve_in_norm(euclidean: _Solution, norm: Norm) -> _Solution:
    r"""Solve the problem of a Euclidean solution, or of each of a batch, in another norm, including a user's own.

    .. math:: \min_x \|x\| \ \text{s.t.}\ A x \ge b,\ C x = 0

    Infeasible and trivial problems remain so, with the same proof. For the others, the norm's solver gets the rows scaled to
    Euclidean norm one, equalities as pairs of rows of opposite sign with lower bound zero, and the Euclidean solution to start
    from. The returned x is scaled so that no row is violated, and the multipliers so that Aᵀλ + Cᵀμ has the dual norm ‖x‖. Only
    the `gap` of the solution's `bracket` decides whether it is OPTIMAL.
    """
    kind = defining_class(norm)
    _check_size(euclidean, norm)
    batched = (len(euclidean), euclidean.lower.shape[-1])
    rows = np.asarray(euclidean.rows).reshape(*batched, euclidean.x.size // len(euclidean))
    lower, weights = euclidean.lower.reshape(batched), euclidean.multipliers.reshape(batched)
    if euclidean.equalities is not None:
        C = np.asarray(euclidean.equalities)
        C = C.reshape(len(rows), C.shape[-2], rows.shape[-1])
        mu = np.asarray(euclidean.equality_multipliers).reshape(C.shape[:2])
        rows, lower = np.concatenate([rows, C, -C], axis=1), np.concatenate([lower, 0.0 * mu, 0.0 * mu], axis=1)
        weights = np.concatenate([weights, np.maximum(mu, 0.0), np.maximum(-mu, 0.0)], axis=1)
    norms = length(rows)
    unit = np.where(norms == 0.0, 1.0, norms)
    lower = lower / unit
    scale = lower.max(axis=1, initial=0.0, keepdims=True)
    scale[scale == 0.0] = 1.0
    status = np.atleast_1d(np.asarray(euclidean.status))
    open_problems = np.flatnonzero((status != Status.INFEASIBLE) & (status != Status.TRIVIAL))
    if not len(open_problems):
        return replace(euclidean, norm=norm)
    x = euclidean.x.reshape(len(rows), rows.shape[-1]) / scale
    shape, m = euclidean.x.shape[euclidean.lower.ndim - 1 :], (rows.shape[1] - euclidean.lower.shape[-1]) // 2
    batch = NormBatch(rows / unit[..., None], lower / scale, x, weights * unit / scale, open_problems, shape, m)
    BATCH_SOLVERS.get(kind, solve_by_cutting_planes)(batch, norm)
    solution = _unscaled(euclidean, norm, batch, unit, scale)
    unproved = np.flatnonzero(np.atleast_1d(solution.status == Status.INACCURATE))
    if not len(unproved) or kind not in (L1, LInf):
        return solution
    for j in unproved:
        second = solve_by_highs(batch.rows[j], batch.lower[j], kind is L1)
        if second is not None:
            batch.x[j], batch.multipliers[j] = second
    again = _unscaled(euclidean, norm, batch, unit, scale)
    better = np.asarray(again.bracket().gap < solution.bracket().gap)
    return solution if not better.any() else _mixed(solution, again, better)


def _check_size(euclidean: MarginSolution, norm: Norm) -> None:
    n_rows = euclidean.lower.size
    if euclidean.equalities is not None:
        n_rows += 2 * euclidean.equalities.shape[-2] * len(euclidean)
    if n_rows * (euclidean.x.size // len(euclidean)) > MAX_NORM_ENTRIES:
        raise InputError("norm", f"L2 or Frobenius where rows have more than {MAX_NORM_ENTRIES} entries", repr(norm))


def _unscaled(euclidean: _Solution, norm: Norm, batch: NormBatch, unit: FloatArray, scale: FloatArray) -> _Solution:
    """Rescale the solution of scaled problems to the given problems; `unit` (batch, n_rows) are the norms of rows."""
    n, m = euclidean.lower.shape[-1], batch.n_equalities
    weights = np.where(np.isnan(batch.multipliers), np.nan, np.maximum(batch.multipliers, 0.0)) / unit * scale
    fields = (batch.x * scale, weights[:, :n], weights[:, n : n + m] - weights[:, n + m :])
    x, multipliers, mu = fields if euclidean.is_batch else [field[0] for field in fields]
    return euclidean.in_norm(norm, x, multipliers, None if euclidean.equalities is None else mu)


def _mixed(first: _Solution, second: _Solution, use_second: BoolArray) -> _Solution:
    """Take the fields of the second solution where `use_second`, () or (batch,), is true."""
    names = ("x", "multipliers", "equality_multipliers", "active", "status")
    chosen: dict[str, Any] = {}
    for name in names:
        value = getattr(first, name)
        if value is not None:
            mask = use_second.reshape(use_second.shape + (1,) * (np.ndim(value) - use_second.ndim))
            value = np.where(mask, getattr(second, name), value)
            chosen[name] = value if value.ndim else value.item()
    return replace(first, **chosen)
