"""Sums of products without rounding, and the solution of a set of tight rows to the nearest double.

Where rows nearly cancel, an active-set method in double precision leaves errors in x and the multipliers that depend on the order in which
it met the rows. Refinement with residuals that are summed without rounding removes them: what remains is that x and the multipliers are
doubles, which is the same in every order and on every machine.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from marginlens.data.tokens import BoolArray, FloatArray
from marginlens.directions import length

_SPLIT = 2.0**27 + 1.0  # Veltkamp's, which parts a double into two halves
_ROUNDS = 60
_SETTLED = 2.0**-70  # relative change of x and the multipliers, far below their last digits, at which refinement ends


def exact_products(matrix: FloatArray, vector: FloatArray, minus: FloatArray | None = None) -> FloatArray:
    """(n,) matrix (n, m) @ vector (m,) - minus (n,), each rounded once; as NumPy adds where a product is not finite."""
    rest = np.zeros(len(matrix)) if minus is None else minus
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        product = matrix * vector
        (a, b), (c, d) = _halves(matrix), _halves(vector)
        error = ((a * c - product) + a * d + b * c) + b * d
        terms = np.concatenate([product, error, -rest[:, None]], axis=1)
        if not np.isfinite(terms).all():
            return np.asarray(matrix @ vector - rest)
    return np.array([math.fsum(row) for row in terms.tolist()])


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


def _halves(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    high = _SPLIT * values - (_SPLIT * values - values)
    return high, values - high


def _ratio(change: FloatArray, whole: FloatArray) -> float:
    size = float(length(whole))
    return float(length(change)) / size if 0.0 < size < np.inf else np.inf
