"""Equality constraints C x = 0: solve in their null space, then say with which multipliers they push back."""

from __future__ import annotations

import numpy as np

from marginlens.data.tokens import FloatArray
from marginlens.directions import length
from marginlens.svm.certify import EPS
from marginlens.svm.kernel import INFEASIBLE, Found

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
