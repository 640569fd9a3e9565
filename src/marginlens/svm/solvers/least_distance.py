"""The core problem behind every hard-margin SVM: the shortest vector that satisfies linear inequalities and equalities."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy

from marginlens import core
from marginlens.arithmetic.directions import length
from marginlens.arithmetic.rounding import EPS, exact_products
from marginlens.errors import InputError, float_array, index_array, n_axes, real_array
from marginlens.kinds import defining_class
from marginlens.norms import L2, Norm
from marginlens.norms.choice import as_norm
from marginlens.runtime.threads import parallel_over
from marginlens.svm.solution import MarginSolution, Status, refined
from marginlens.svm.solvers.batch import (
    INFEASIBLE,
    NEEDS_RECHECK,
    OPTIMAL,
    OUT_OF_RANGE,
    UNVERIFIED,
    Solved,
)
from marginlens.svm.solvers.norms import solve_in_norm
from marginlens.typing import ArrayLike, BoolArray, FloatArray

# The compiled methods.
BY_GRAM_MATRIX, BY_BLOCK_PIVOTS, BY_DUAL_ACTIVE_SET = range(3)
# With no more rows than this, the Gram matrix of all rows is worth its cost at any width.
MAX_GRAM_ROWS = 64
# Operations of one problem, by which threads are started: measured, and per entry of its rows.
SOLVING_COST, COST_PER_ENTRY = 4e3, 20.0
# Singular values, and parts of a row outside a span, that are smaller than so many roundoffs count as zero.
_RANK_ROUNDOFFS = 64
_MAX_EXACT_REFINEMENTS = 60
# Refinement ends when x and the multipliers change by less, far below their last digits.
_CONVERGED_RTOL = 2.0**-70
# Status by the outcome of the compiled solvers.
OUTCOME_STATUS = np.array([Status.OPTIMAL, Status.INFEASIBLE, Status.TRIVIAL, Status.INACCURATE], dtype=object)


def least_distance(
    A: ArrayLike,
    lower: ArrayLike,
    *,
    equalities: ArrayLike | None = None,
    norm: Norm = L2(),
    pairs: ArrayLike | None = None,
) -> MarginSolution:
    r"""Find the shortest vector above given lower bounds, with a proof that it is the shortest or that there is none.

    .. math:: \min_x \|x\| \ \text{s.t.}\ A x \ge b,\ C x = 0

    Args:
        A: (n_rows, d) for one problem or (batch, n_rows, d) for many; a zero row with lower bound 0 constrains nothing and may pad
            problems of different sizes. Other rows have norms between 1e-100 and 1e100.

        lower: the lower bounds b >= 0, (n_rows,) or (batch, n_rows).

        equalities: the matrix C, (n_equalities, d) for all problems or (batch, n_equalities, d).

        norm: the norm of x: `L2`, `L1`, `LInf`, `Lp` or your own; the same problems are infeasible in all norms.

        pairs: (…, n_rows, 3) the input, selected and other token behind each row; only stored.

    Returns:
        A `MarginSolution` with x = sum_r multipliers[r] * rows[r] + sum_k equality_multipliers[k] * equalities[k] and
        multipliers >= 0; `kkt_residual()` checks it, and `certificate_residual()` checks a claim that no x exists. In a norm
        other than the Euclidean one, `bracket()` contains the smallest norm, and `is_unique` says whether x is the only
        shortest vector.
    """
    expected = "of shape (n_rows, d) or (batch, n_rows, d)"
    # The compiled code notices numbers that are not finite.
    rows = float_array(A, "A", f"numbers {expected}")
    if rows.ndim not in (2, 3) or rows.shape[-1] == 0 or (rows.ndim == 3 and len(rows) == 0):
        raise InputError("A", f"{expected} with at least one problem and one coordinate", f"shape {rows.shape}")
    b = real_array(lower, "lower", rows.shape[:-1])
    if (b < 0.0).any():
        raise InputError("lower", "lower bounds of at least 0", f"{b.min():g}", "Leave such rows out or set them to 0.")
    if pairs is not None:
        shape = (*rows.shape[:-1], 3)
        pairs = index_array(pairs, "pairs", f"whole numbers of shape {shape}", shape)
    if equalities is None:
        return shortest_above(rows, b, norm=norm, pairs=pairs)
    axes: tuple[str | int, ...] = ("n_equalities", rows.shape[-1])
    if rows.ndim == 3 and n_axes(equalities) == 3:
        axes = (len(rows), *axes)
    C = real_array(equalities, "equalities", axes)
    C = np.broadcast_to(C, (*rows.shape[:-2], *C.shape[-2:]))
    if rows.ndim == 2:
        return _in_norm(replace(_solve_with_equalities(rows, b, C), pairs=pairs), norm)
    single = [_solve_with_equalities(*problem) for problem in zip(rows, b, C, strict=True)]
    nothing = np.full(b.shape[1], np.nan)
    certificates = np.stack([nothing if solution.certificate is None else solution.certificate for solution in single])
    x, multipliers, mu, active = (
        np.stack([getattr(solution, name) for solution in single])
        for name in ("x", "multipliers", "equality_multipliers", "active")
    )
    status = np.array([solution.status for solution in single], dtype=object)
    return _in_norm(MarginSolution(rows, b, C, x, status, multipliers, mu, active, certificates, pairs), norm)


# ---- inequalities


def shortest_above(rows: FloatArray, lower: FloatArray, *, norm: Norm = L2(), pairs: Any = None) -> MarginSolution:
    """Solve `least_distance` for arrays that are known to fit each other, such as those of `token_pairs`, without equalities.

    The rows of an unknown matrix are matrices too, (…, n_rows, *shape of x).
    """
    shape = rows.shape[lower.ndim :]
    solution = _solve(rows.reshape(*lower.shape, math.prod(shape)), lower, "A" if pairs is None else "data")
    x = solution.x.reshape(*lower.shape[:-1], *shape)
    return _in_norm(replace(solution, x=x, pairs=pairs), norm)


def _in_norm(euclidean: MarginSolution, norm: Norm) -> MarginSolution:
    """Solve the same problem in this norm."""
    shape = euclidean.x.shape[euclidean.lower.ndim - 1 :]
    is_euclidean = defining_class(as_norm(norm, shape)) is L2
    return replace(euclidean, norm=norm) if is_euclidean else solve_in_norm(euclidean, norm)


def _solve(A: FloatArray, b: FloatArray, argument: str = "A") -> MarginSolution:
    """Solve one problem or a batch without equalities; rows out of range are refused in the name of this argument."""
    is_single = A.ndim == 2
    rows, lower = (np.ascontiguousarray(array[None] if is_single else array) for array in (A, b))
    solved = _solve_batch(rows, lower, argument)
    infeasible = solved.outcome == INFEASIBLE
    certificate = np.full_like(solved.multipliers, np.nan)
    if infeasible.any():
        certificate[infeasible] = solved.multipliers[infeasible]
        solved.multipliers[infeasible], solved.x[infeasible] = np.nan, np.nan
    fields = (solved.x, OUTCOME_STATUS[solved.outcome], solved.multipliers, solved.active, certificate)
    x, status, multipliers, active, farkas = [field[0] for field in fields] if is_single else fields
    farkas = None if is_single and not infeasible[0] else farkas
    return MarginSolution(A, b, None, x, status, multipliers, None, active, farkas)


def _solve_batch(rows: FloatArray, lower: FloatArray, argument: str) -> Solved:
    """Apply the fast method for the shape, the careful one to what remains unverified, and check again if rows nearly cancel."""
    n_problems, n_rows, d = rows.shape
    solved = Solved.empty(n_problems, n_rows, d)
    few = n_rows <= MAX_GRAM_ROWS or 2 * n_rows <= d
    quick = BY_GRAM_MATRIX if few else BY_BLOCK_PIVOTS
    every, cost = np.arange(n_problems), SOLVING_COST + COST_PER_ENTRY * n_rows * d
    parallel_over(core.solve_margins, n_problems, every, quick, rows, lower, *solved, step_cost=cost)
    unverified = np.flatnonzero(solved.outcome == UNVERIFIED)
    if len(unverified):
        parallel_over(core.solve_margins, len(unverified), unverified, BY_DUAL_ACTIVE_SET, rows, lower, *solved)
    if solved.outcome.max() <= UNVERIFIED:
        return solved
    if (solved.outcome == OUT_OF_RANGE).any():
        beyond = rows[int(np.argmax(solved.outcome == OUT_OF_RANGE))]
        real_array(beyond, argument, beyond.shape)
        raise InputError(
            argument,
            f"{'rows' if argument == 'A' else 'keys with differences'} that are zero or have norms between 1e-100 and 1e+100",
            f"norms from {length(beyond).min():g} to {length(beyond).max():g}",
            "Rescale the problem.",
        )
    for j in np.flatnonzero(solved.outcome == NEEDS_RECHECK):
        A, b, support = rows[j], lower[j], solved.multipliers[j] > 0.0
        nearest = solve_equalities_exactly(A, b, support)
        if nearest is not None:
            solved.x[j], solved.multipliers[j, support] = nearest
        fields = (solved.x[j], Status.OPTIMAL, solved.multipliers[j], None, solved.active[j], None)
        solved.outcome[j] = OPTIMAL if MarginSolution(A, b, None, *fields).is_verified() else UNVERIFIED
    return solved


# ---- equalities


def _solve_with_equalities(A: FloatArray, b: FloatArray, C: FloatArray) -> MarginSolution:
    """Solve one problem in the null space of C, refined on the given rows; if that proves nothing, with C x >= 0 and -C x >= 0."""
    norms = length(C)
    norms = np.where(norms == 0.0, 1.0, norms)
    left, values, right = np.linalg.svd(C / norms[:, None], full_matrices=False)
    in_rank = values > _RANK_ROUNDOFFS * EPS * max(C.shape) * values.max(initial=0.0)
    left, values, basis = left[:, in_rank], values[in_rank], right[in_rank]
    projected = A
    for _ in range(2):
        projected = projected - (projected @ basis.T) @ basis
    # Rows in the span of C become exactly zero.
    inside = length(projected) <= _RANK_ROUNDOFFS * EPS * length(A)
    solved = _solve(np.where(inside[:, None], 0.0, projected), b)
    weights = solved.multipliers if solved.certificate is None else solved.certificate
    remainder = (0.0 if solved.certificate is not None else solved.x) - weights @ A
    mu = left @ ((basis @ remainder) / values) / norms
    solution = replace(solved, rows=A, equalities=C, equality_multipliers=mu)
    solution = refined(solution) if solution.status is Status.OPTIMAL else solution
    solution = solution.with_verified_status()
    return _as_inequalities(solution, A, b, C) if solution.status is Status.INACCURATE else solution


def _as_inequalities(solution: MarginSolution, A: FloatArray, b: FloatArray, C: FloatArray) -> MarginSolution:
    """Solve with every equality as two inequalities; return the old solution if that proves nothing.

    If a row nearly lies in the span of the equalities, little of it is left in their null space, and rounding decides its
    direction. The given rows still have the information.
    """
    n, m = len(A), len(C)
    solved = _solve(np.concatenate([A, C, -C]), np.concatenate([b, np.zeros(2 * m)]))
    if solved.status not in (Status.OPTIMAL, Status.INFEASIBLE):
        return solution
    weights = solved.multipliers if solved.certificate is None else solved.certificate
    candidate = replace(
        solution,
        x=solved.x,
        status=solved.status,
        multipliers=solved.multipliers[:n],
        equality_multipliers=weights[n : n + m] - weights[n + m :],
        active=solved.active[:n],
        certificate=None if solved.certificate is None else solved.certificate[:n],
    )
    verified = refined(candidate).with_verified_status()
    return solution if verified.status is Status.INACCURATE else verified


# ---- the nearest double


class ExactEqualities(NamedTuple):
    """The vector x (d,) and the multipliers (n_support,) of rows that hold with equality, each to the nearest double."""

    x: FloatArray
    multipliers: FloatArray


def solve_equalities_exactly(A: FloatArray, b: FloatArray, support: BoolArray) -> ExactEqualities | None:
    r"""Find the shortest x that satisfies the rows `support` (n_rows,) with equality; None if they are dependent up to rounding.

    .. math:: \begin{pmatrix} I & -R^\top \\ R & 0 \end{pmatrix} \begin{pmatrix} x \\ \lambda \end{pmatrix}
        = \begin{pmatrix} 0 \\ b \end{pmatrix}

    If rows nearly cancel, an active-set method in double precision leaves errors that depend on the order of the rows. Björck's
    refinement of this system, by the QR factors of Rᵀ and with residuals summed without rounding, removes them. The only error
    left is the rounding of x and the multipliers to doubles, which is the same for every order and machine.
    """
    exponent = np.frexp(np.abs(A[support]).max(axis=1, initial=0.0))[1]
    R, goal = np.ldexp(A[support], -exponent[:, None]), np.ldexp(b[support], -exponent)
    k, d = R.shape
    if not 0 < k <= d:
        return None
    Q, T = np.linalg.qr(R.T)
    if not np.abs(np.diag(T)).all():
        return None
    upper, lower = np.hstack([R.T, R.T, -np.eye(d), -np.eye(d)]), np.hstack([-R, -R])
    x, multipliers, previous = _Doubled(np.zeros(d), np.zeros(d)), _Doubled(np.zeros(k), np.zeros(k)), np.inf
    for _ in range(_MAX_EXACT_REFINEMENTS):
        # The residual Rᵀλ - x of the dual equation, and b - R x of the primal one.
        dual_residual = exact_products(upper, np.concatenate([*multipliers, *x]))
        primal_residual = exact_products(lower, np.concatenate(x), -goal)
        along = scipy.linalg.solve_triangular(T, primal_residual, trans="T", check_finite=False) - Q.T @ dual_residual
        x_change, multiplier_change = (
            dual_residual + Q @ along,
            scipy.linalg.solve_triangular(T, along, check_finite=False),
        )
        x, multipliers = x.plus(x_change), multipliers.plus(multiplier_change)
        change = max(_ratio(x_change, x.high), _ratio(multiplier_change, multipliers.high))
        if change <= _CONVERGED_RTOL:
            positive = (multipliers.high > 0.0).all()
            return ExactEqualities(x.high, np.ldexp(multipliers.high, -exponent)) if positive else None
        if not change < 0.5 * previous:
            return None
        previous = change
    return None


class _Doubled(NamedTuple):
    """Vectors as sums of two doubles each, the second below the last digit of the first."""

    high: FloatArray
    low: FloatArray

    def plus(self, change: FloatArray) -> _Doubled:
        total = self.high + change
        part = total - self.high
        low = self.low + ((self.high - (total - part)) + (change - part))
        high = total + low
        return _Doubled(high, low - (high - total))


def _ratio(change: FloatArray, whole: FloatArray) -> float:
    size = float(length(whole))
    return float(length(change)) / size if 0.0 < size < np.inf else np.inf
