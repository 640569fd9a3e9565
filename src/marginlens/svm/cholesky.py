"""Cholesky factors of small dense matrices in compiled code: factor, extend by a row, solve."""

from __future__ import annotations

import numpy as np

from marginlens.data.tokens import FloatArray
from marginlens.kernels.linalg import dot_4
from marginlens.runtime.compilation import njit


@njit(cache=True, nogil=True)
def cholesky(L: FloatArray, n: int, smallest: float) -> int:
    """Factor the leading n × n block, given by its lower triangle, in place as L Lᵀ.

    Returns -1, or the first index whose pivot is not above `smallest`, where the factorisation stopped.
    """
    for j in range(n):
        for i in range(j, n, 4):
            i1, i2, i3 = min(i + 1, n - 1), min(i + 2, n - 1), min(i + 3, n - 1)
            s0, s1, s2, s3 = dot_4(L, (i, i1, i2, i3), L[j], j)
            t0, t1, t2, t3 = L[i, j] - s0, L[i1, j] - s1, L[i2, j] - s2, L[i3, j] - s3
            if i == j:
                if not t0 > smallest:
                    return j
                pivot = np.sqrt(t0)
                inverse = 1.0 / pivot
            L[i, j], L[i1, j], L[i2, j], L[i3, j] = t0 * inverse, t1 * inverse, t2 * inverse, t3 * inverse
        L[j, j] = pivot
    return -1


@njit(cache=True, nogil=True)
def solve_lower(L: FloatArray, n: int, right: FloatArray) -> None:
    """right[:n] becomes L⁻¹ right[:n]."""
    for i in range(n):
        total = right[i]
        for j in range(i):
            total -= L[i, j] * right[j]
        right[i] = total / L[i, i]


@njit(cache=True, nogil=True)
def solve_upper(L: FloatArray, n: int, right: FloatArray) -> None:
    """right[:n] becomes L⁻ᵀ right[:n]."""
    for i in range(n - 1, -1, -1):
        right[i] /= L[i, i]
        for j in range(i):
            right[j] -= L[i, j] * right[i]
