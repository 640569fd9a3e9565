"""Margin problems in a norm other than the Euclidean one: scale, hand over to the norm's solver, and let the bracket decide."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from marginlens.directions import length
from marginlens.errors import reject
from marginlens.norms import Norm
from marginlens.runtime.threads import n_threads
from marginlens.svm.solution import ACTIVE_SLACK_RTOL, ROUNDOFF_RTOL, MarginSolution, Status
from marginlens.typing import FloatArray

MAX_NORM_ENTRIES = 64_000_000  # of rows that are formed for the solver of a norm


class NormProblem(NamedTuple):
    """One problem min ‖x‖ s.t. A x >= b as solvers of norms get it: feasible, not trivial, rows of Euclidean norm one, max b = 1."""

    rows: FloatArray  # (n_rows, d) the matrix A, C-contiguous
    lower: FloatArray  # (n_rows,) the lower bounds b, from 0 to 1
    shape: tuple[int, ...]  # of x: (d,), or (d_query, d_model) with d = d_query d_model
    x: FloatArray  # (d,) the Euclidean solution
    multipliers: FloatArray  # (n_rows,) its multipliers
    n_equalities: int = 0  # the last 2 n_equalities rows are these, and after them their negatives, with lower bound 0


class NormSolved(NamedTuple):
    """What a solver of a norm gives back; the scale of either is free, since the bracket does not depend on it."""

    x: FloatArray  # (d,) or in the problem's shape
    multipliers: FloatArray  # (n_rows,) >= 0, with bᵀλ / ‖Aᵀλ‖_* close to the optimum


NormSolver = Callable[[NormProblem, Any], NormSolved]  # of a problem and its norm

SOLVERS: dict[type, NormSolver] = {}  # by the class of the norm

_Solution = TypeVar("_Solution", bound=MarginSolution)


def solver_of(norm: Any) -> NormSolver:
    """The solver of margin problems in this norm; a norm without one is refused."""
    solver = SOLVERS.get(type(norm))
    if solver is None:
        names = ", ".join(["L2() or Frobenius()", *sorted(kind.__name__ for kind in SOLVERS)])
        raise reject("norm", f"one whose margin problems are solved: {names}", repr(norm))
    return solver


def solve_in_norm(euclidean: _Solution, norm: Norm) -> _Solution:
    r"""The problem of a Euclidean solution, or of each of a batch, solved in another norm.

    .. math:: \min_x \|x\| \ \text{s.t.}\ A x \ge b,\ C x = 0

    Infeasible and trivial problems stay what they are, with the same proof. Elsewhere the norm's solver gets the rows scaled to
    Euclidean norm one, equalities as pairs of rows of opposite sign with lower bound zero, and the Euclidean solution to start from. x
    comes back scaled such that no row is violated, the multipliers such that Aᵀλ + Cᵀμ has the dual norm ‖x‖, and the `gap` of
    the solution's `bracket` alone says whether it is OPTIMAL.
    """
    solver_of(norm)
    if not euclidean.is_batch:
        return _solve_single(euclidean, norm)
    with ThreadPoolExecutor(min(n_threads(), len(euclidean))) as pool:  # compiled solvers release the interpreter lock
        solved = list(pool.map(lambda j: _solve_single(euclidean[j], norm), range(len(euclidean))))
    stacked = {
        name: np.stack([getattr(solution, name) for solution in solved])
        for name in ("x", "multipliers", "active", "equality_multipliers")
        if getattr(euclidean, name) is not None
    }
    status = np.array([solution.status for solution in solved], dtype=object)
    return replace(euclidean, **stacked, status=status, norm=norm)


def _solve_single(euclidean: _Solution, norm: Norm) -> _Solution:
    if euclidean.status in (Status.INFEASIBLE, Status.TRIVIAL):
        return replace(euclidean, norm=norm)
    n_entries = (len(euclidean.lower) + 2 * _count(euclidean.equalities)) * euclidean.x.size
    if n_entries > MAX_NORM_ENTRIES:
        raise reject("norm", f"L2() or Frobenius() where rows have more than {MAX_NORM_ENTRIES} entries", repr(norm))
    A, C = np.asarray(euclidean.rows), np.zeros((0, euclidean.x.size))
    if euclidean.equalities is not None:
        C = np.asarray(euclidean.equalities)
    mu = euclidean.equality_multipliers if euclidean.equality_multipliers is not None else np.zeros(len(C))
    rows = np.concatenate([A, C, -C])
    norms = length(rows)
    lower = np.concatenate([euclidean.lower, np.zeros(2 * len(C))]) / np.where(norms == 0.0, 1.0, norms)
    scale, constraining = float(lower.max()), np.flatnonzero(norms)
    start = np.concatenate([euclidean.multipliers, np.maximum(mu, 0.0), np.maximum(-mu, 0.0)]) * norms / scale
    problem = NormProblem(
        np.ascontiguousarray(rows[constraining] / norms[constraining, None]),
        lower[constraining] / scale,
        euclidean.x.shape,
        euclidean.x.reshape(-1) / scale,
        start[constraining],
        int(np.count_nonzero(norms[len(A) : len(A) + len(C)])),
    )
    solved = solver_of(norm)(problem, norm)
    weights = np.zeros(len(rows))
    weights[constraining] = np.maximum(solved.multipliers, 0.0) / norms[constraining]
    n, m = len(A), len(C)
    return _assembled(
        replace(
            euclidean,
            x=(scale * solved.x).reshape(euclidean.x.shape),
            multipliers=weights[:n],
            equality_multipliers=None if euclidean.equalities is None else weights[n : n + m] - weights[n + m :],
            norm=norm,
        )
    )


def _assembled(solution: _Solution) -> _Solution:
    """x scaled until its tightest row holds with equality, the multipliers until Aᵀλ + Cᵀμ has the dual norm ‖x‖; active rows, status."""
    products = np.asarray(solution.rows) @ solution.x.reshape(-1)
    positive = solution.lower > 0.0
    smallest = float(np.min(products[positive] / solution.lower[positive], initial=np.inf))
    x = solution.x / smallest if 0.0 < smallest < np.inf else solution.x
    solution = replace(solution, x=x, status=Status.INACCURATE)
    size, dual = solution.norm.value(x), solution.norm.dual(solution._combined(solution.multipliers).reshape(x.shape))
    factor = size / dual if dual > 0.0 else 0.0
    mu = solution.equality_multipliers
    solution = replace(
        solution,
        multipliers=solution.multipliers * factor,
        equality_multipliers=None if mu is None else mu * factor,
    )
    row_norms = length(np.asarray(solution.rows))
    slack = np.asarray(solution.rows) @ x.reshape(-1) - solution.lower
    near = slack <= ACTIVE_SLACK_RTOL * solution.lower + ROUNDOFF_RTOL * float(length(x.reshape(-1))) * row_norms
    active = (row_norms > 0.0) & (near | (solution.multipliers > 0.0))
    return replace(solution, active=active, status=Status.OPTIMAL if solution.is_verified() else Status.INACCURATE)


def _count(rows: Any) -> int:
    return 0 if rows is None else len(rows)
