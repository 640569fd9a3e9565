"""The core problem behind every hard-margin SVM here: the shortest vector that satisfies linear inequalities."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from scipy.linalg import solve_triangular

from marginlens.data.tokens import BoolArray, FloatArray, IntArray
from marginlens.directions import length
from marginlens.errors import array_of_any, float_array, n_axes, real_array, reject
from marginlens.kernels.linalg import EPS, exact_products
from marginlens.runtime.threads import over_problems
from marginlens.svm.solution import ACCURATE, CONTRADICTION, MarginSolution, Status, refined
from marginlens.svm.solvers.batch import (
    INFEASIBLE,
    OPTIMAL,
    SHAKY,
    UNPROVED,
    UNSCALED,
    Batch,
    Found,
    block_slice,
    careful_slice,
    empty_result,
    gram_slice,
)

FEW_ROWS = 64  # up to so many, the Gram matrix of all rows is worth its cost at any width
_Solution = TypeVar("_Solution", bound=MarginSolution)
_STATUS = np.array([Status.OPTIMAL, Status.INFEASIBLE, Status.TRIVIAL, Status.INACCURATE], dtype=object)


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
    A, b = _problem(rows, floor)
    C = _equalities(equalities, A)
    names = _names(pairs, A)
    many = (A, b) if A.ndim == 3 else (A[None], b[None])
    if C is None:
        found, mu = _solve(*many, A), None
    else:
        space = NullSpace(C if C.ndim == 3 else C[None])
        found = _solve(space.project(many[0]), many[1], A)
        mu = space.multipliers(many[0], found)
    solution = _solution((A, b, C), found, mu, names)
    return solution if C is None else _without_projection(held_to_proof(_refined_by_equalities(solution)))


def _solve(A: FloatArray, b: FloatArray, given: FloatArray) -> Found:
    """Every problem of the batch; rows `given` that are not finite are refused by name.

    The compiled code notices when a problem's numbers leave its range; they are then rescaled by powers of two.
    """
    found = _in_range(A, b)
    if found.outcome.max() <= UNPROVED:
        return found
    extreme = np.flatnonzero(found.outcome == UNSCALED)
    if len(extreme):
        real_array(given, "rows", given.shape)
    for j in extreme:
        largest = np.abs(A[j]).max(axis=1)
        exponent = np.frexp(np.where(largest > 0.0, largest, 1.0))[1]
        with np.errstate(over="ignore"):
            bounds = np.ldexp(b[j], -exponent)
        if not np.isfinite(bounds).all():  # rows so short that no solution is a number
            found.x[j], found.weights[j], found.outcome[j] = np.nan, np.nan, UNPROVED
            continue
        common = np.frexp(np.max(bounds, initial=0.0))[1]
        one = _in_range(np.ldexp(A[j], -exponent[:, None])[None], np.ldexp(b[j], -exponent - common)[None])
        shift = np.where(one.outcome == INFEASIBLE, 0, common)
        with np.errstate(over="ignore", under="ignore"):
            found.x[j] = np.ldexp(one.x[0], common)
            found.weights[j] = np.ldexp(one.weights[0], shift - exponent)
        found.active[j], found.outcome[j] = one.active[0], one.outcome[0]
        kept = np.isfinite(found.weights[j]) & ((found.weights[j] != 0.0) == (one.weights[0] != 0.0))
        if not kept.all():  # the proof itself is beyond the range of double precision
            found.outcome[j] = UNPROVED
    for j in np.flatnonzero(found.outcome == SHAKY):
        tight = found.weights[j] > 0.0
        nearest = solve_tight(A[j], b[j], tight)
        if nearest is not None:
            found.x[j], found.weights[j, tight] = nearest.x, nearest.multipliers
        proof = (found.x[j], Status.OPTIMAL, found.weights[j], None, found.active[j], None)
        found.outcome[j] = OPTIMAL if MarginSolution(A[j], b[j], None, *proof).keeps_promise() else UNPROVED
    return found


def _in_range(A: FloatArray, b: FloatArray) -> Found:
    """The quick method that suits the shape, and the careful one for what it leaves unproved."""
    n_problems, n_rows, d = A.shape
    batch, found = Batch(np.ascontiguousarray(A), np.ascontiguousarray(b)), empty_result(*A.shape)
    quick = gram_slice if n_rows <= FEW_ROWS or 2 * n_rows <= d else block_slice
    over_problems(quick, n_problems, batch, found)
    doubtful = np.flatnonzero(found.outcome == UNPROVED)
    if len(doubtful):
        over_problems(careful_slice, len(doubtful), doubtful, batch, found)
    return found


def _solution(
    problem: tuple[FloatArray, FloatArray, FloatArray | None],
    found: Found,
    mu: FloatArray | None,
    names: IntArray | None,
) -> MarginSolution:
    """The public form: nan where there is no solution, no batch axis for one problem."""
    impossible = found.outcome == INFEASIBLE
    certificate = np.full_like(found.weights, np.nan)
    if impossible.any():
        certificate[impossible] = found.weights[impossible]
        found.weights[impossible], found.x[impossible] = np.nan, np.nan
    status = _STATUS[found.outcome]
    if problem[0].ndim == 3:
        return MarginSolution(*problem, found.x, status, found.weights, mu, found.active, certificate, names)
    only = None if mu is None else mu[0]
    farkas = certificate[0] if impossible[0] else None
    return MarginSolution(*problem, found.x[0], status[0], found.weights[0], only, found.active[0], farkas, names)


def _refined_by_equalities(solution: MarginSolution) -> MarginSolution:
    """The solution with every x refined on the rows as given: projected rows carry the rounding of the projection."""
    if not solution.is_batch:
        return refined(solution) if solution.status is Status.OPTIMAL else solution
    solved = (solution.status == Status.OPTIMAL) & (solution.kkt_residual() > ACCURATE)
    for j in np.flatnonzero(solved):
        solution.x[j] = refined(solution[int(j)]).x
    return solution


def _without_projection(solution: MarginSolution) -> MarginSolution:
    """The solution with what is INACCURATE solved once more, every equality as two inequalities.

    Where a row nearly lies in the span of the equalities, little is left of it in their null space, and rounding decides which way that
    points; the rows as given still tell.
    """
    if not solution.is_batch:
        return _by_inequalities(solution) if solution.status is Status.INACCURATE else solution
    for j in np.flatnonzero(solution.status == Status.INACCURATE):
        found = _by_inequalities(solution[int(j)])
        for name in ("x", "status", "multipliers", "equality_multipliers", "active"):
            getattr(solution, name)[j] = getattr(found, name)
        if found.certificate is not None and solution.certificate is not None:
            solution.certificate[j] = found.certificate
    return solution


def _by_inequalities(solution: MarginSolution) -> MarginSolution:
    """What C x >= 0 and -C x >= 0 among the rows prove of one problem; the solution as it was where that is nothing."""
    A, b, C = solution.rows, solution.floor, np.asarray(solution.equalities)
    n, m = len(A), len(C)
    found = least_distance(np.concatenate([A, C, -C]), np.concatenate([b, np.zeros(2 * m)]))
    if found.status not in (Status.OPTIMAL, Status.INFEASIBLE):
        return solution
    weights = found.multipliers if found.certificate is None else found.certificate
    proved = held_to_proof(
        refined(
            replace(
                solution,
                x=found.x,
                status=found.status,
                multipliers=found.multipliers[:n],
                equality_multipliers=weights[n : n + m] - weights[n + m :],
                active=found.active[:n],
                certificate=None if found.certificate is None else found.certificate[:n],
            )
        )
    )
    return solution if proved.status is Status.INACCURATE else proved


def held_to_proof(solution: _Solution) -> _Solution:
    """The solution, called proved only where its own residual says so: equalities and extreme scales may cost it its digits."""
    lost = np.where(
        solution.status == Status.INFEASIBLE,
        ~np.asarray(solution.certificate_residual() <= CONTRADICTION),
        (solution.status == Status.OPTIMAL) & ~np.asarray(solution.keeps_promise()),
    )
    if not solution.is_batch:
        return replace(solution, status=Status.INACCURATE) if lost else solution
    solution.status[lost] = Status.INACCURATE
    return solution


def _problem(rows: Any, floor: Any) -> tuple[FloatArray, FloatArray]:
    """A and b checked; the kernel finds out by itself whether A is finite."""
    expected = "of shape (n_rows, d) or (batch, n_rows, d)"
    A = float_array(rows, "rows", f"numbers {expected}")
    if A.ndim not in (2, 3) or A.shape[-1] == 0 or (A.ndim == 3 and len(A) == 0):
        raise reject("rows", f"{expected} with at least one problem and one coordinate", f"shape {A.shape}")
    b = real_array(floor, "floor", A.shape[:-1])
    if (b < 0.0).any():
        raise reject("floor", "lower bounds of at least 0", f"{b.min():g}", "Leave such rows out or set them to 0.")
    return A, b


def _equalities(equalities: Any, A: FloatArray) -> FloatArray | None:
    if equalities is None:
        return None
    axes: tuple[str | int, ...] = ("n_equalities", A.shape[-1])
    if A.ndim == 3 and n_axes(equalities) == 3:
        axes = (len(A), *axes)
    C = real_array(equalities, "equalities", axes)
    return np.broadcast_to(C, (*A.shape[:-2], *C.shape[-2:]))


def _names(pairs: Any, A: FloatArray) -> IntArray | None:
    if pairs is None:
        return None
    shape = (*A.shape[:-1], 3)
    names = pairs if isinstance(pairs, np.ndarray) else array_of_any(pairs, "pairs", f"whole numbers of shape {shape}")
    if names.dtype.kind not in "iu" or names.shape != shape:
        raise reject("pairs", f"whole numbers of shape {shape}", f"shape {names.shape} of {names.dtype}")
    return names


_INSIDE = 64 * EPS  # a row whose part outside the span of C is this small, relative to it, lies inside


class NullSpace:
    """The vectors orthogonal to the rows of C, for each problem of a batch.

    Args:
        C: (batch, n_equalities, d). Rows may be zero or depend on each other; singular values of the normalised rows below
            64 max(n_equalities, d) roundoffs of the largest count as zero.
    """

    def __init__(self, C: FloatArray) -> None:
        size = length(C)
        self._size = np.where(size == 0.0, 1.0, size)
        left, values, right = np.linalg.svd(C / self._size[..., None], full_matrices=False)
        limit = 64 * EPS * max(C.shape[1:]) * values.max(axis=-1, initial=0.0, keepdims=True)
        kept = values > limit
        self._basis = right * kept[..., None]  # (batch, rank, d)
        self._inverse = left * np.where(kept, 1.0 / np.where(kept, values, 1.0), 0.0)[:, None, :]

    def project(self, rows: FloatArray) -> FloatArray:
        """`rows` (batch, n_rows, d) without their parts in the span of C; rows inside that span become exactly zero."""
        outside = rows
        for _ in range(2):
            outside = outside - (outside @ np.swapaxes(self._basis, -1, -2)) @ self._basis
        size, left = length(rows), length(outside)
        return np.where((left <= _INSIDE * size)[..., None], 0.0, outside)

    def multipliers(self, rows: FloatArray, found: Found) -> FloatArray:
        """mu (batch, n_equalities) that comes closest to x = Aᵀ weights + Cᵀ mu, or to 0 for a Farkas vector."""
        goal = np.where((found.outcome == INFEASIBLE)[:, None], 0.0, found.x)
        with np.errstate(all="ignore"):  # weights and mu may leave double precision
            wanted = goal - (found.weights[:, None, :] @ rows)[:, 0]
            return (self._inverse @ (self._basis @ wanted[..., None]))[..., 0] / self._size


_ROUNDS = 60
_SETTLED = 2.0**-70  # relative change of x and the multipliers, far below their last digits, at which refinement ends


class Tight(NamedTuple):
    """x (d,) and the multipliers (n_tight,) of rows that hold with equality, each to the nearest double."""

    x: FloatArray
    multipliers: FloatArray


def solve_tight(A: FloatArray, b: FloatArray, tight: BoolArray) -> Tight | None:
    r"""The shortest x that satisfies the rows marked in `tight` (n_rows,) with equality; None where they are dependent to rounding.

    .. math:: \begin{pmatrix} I & -R^\top \\ R & 0 \end{pmatrix} \begin{pmatrix} x \\ \lambda \end{pmatrix}
        = \begin{pmatrix} 0 \\ b \end{pmatrix}

    Björck's refinement of this system, by the QR factors of Rᵀ, loses only the condition of R where the normal equations lose its square.
    """
    exponent = np.frexp(np.abs(A[tight]).max(axis=1, initial=0.0))[1]
    R, goal = np.ldexp(A[tight], -exponent[:, None]), np.ldexp(b[tight], -exponent)
    k, d = R.shape
    if not 0 < k <= d:
        return None
    Q, T = np.linalg.qr(R.T)
    if not np.abs(np.diag(T)).all():
        return None
    upper, lower = np.hstack([R.T, R.T, -np.eye(d), -np.eye(d)]), np.hstack([-R, -R])
    x, pushes, before = _Doubled.zero(d), _Doubled.zero(k), np.inf
    for _ in range(_ROUNDS):
        across = exact_products(upper, np.concatenate([*pushes, *x]))  # Rᵀλ - x
        missing = exact_products(lower, np.concatenate(x), -goal)  # b - R x
        along = solve_triangular(T, missing, trans="T", check_finite=False) - Q.T @ across
        x, pushes = x.plus(across + Q @ along), pushes.plus(change := solve_triangular(T, along, check_finite=False))
        moved = max(_ratio(across + Q @ along, x.high), _ratio(change, pushes.high))
        if moved <= _SETTLED:
            return Tight(x.high, np.ldexp(pushes.high, -exponent)) if (pushes.high > 0.0).all() else None
        if not moved < 0.5 * before:
            return None
        before = moved
    return None


class _Doubled(NamedTuple):
    """Vectors as sums of two doubles each, the second below the last digit of the first."""

    high: FloatArray
    low: FloatArray

    @classmethod
    def zero(cls, n: int) -> _Doubled:
        return cls(np.zeros(n), np.zeros(n))

    def plus(self, change: FloatArray) -> _Doubled:
        total = self.high + change
        part = total - self.high
        low = self.low + ((self.high - (total - part)) + (change - part))
        high = total + low
        return _Doubled(high, low - (high - total))


def _ratio(change: FloatArray, whole: FloatArray) -> float:
    size = float(length(whole))
    return float(length(change)) / size if 0.0 < size < np.inf else np.inf
