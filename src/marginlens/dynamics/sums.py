"""Compiled sums of products that the loops are made of: products with a matrix, norms, centred keys."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from marginlens.compilation import njit

COMPILED: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
SUMMING: dict[str, Any] = {**COMPILED, "fastmath": {"contract", "reassoc"}}  # in any order, so that sums vectorise


@njit(**SUMMING)
def times(matrix: Any, x: Any, out: Any) -> None:
    """out = matrix x, four rows at a time so that each load of x serves four sums."""
    rows, columns = matrix.shape
    k = 0
    while k + 4 <= rows:
        s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
        for j in range(columns):
            y = x[j]
            s0 += matrix[k, j] * y
            s1 += matrix[k + 1, j] * y
            s2 += matrix[k + 2, j] * y
            s3 += matrix[k + 3, j] * y
        out[k], out[k + 1], out[k + 2], out[k + 3] = s0, s1, s2, s3
        k += 4
    while k < rows:
        out[k] = dot(matrix[k], x)
        k += 1


@njit(**SUMMING)
def dot(x: Any, y: Any) -> float:
    total = 0.0
    for k in range(x.shape[0]):
        total += x[k] * y[k]
    return total


@njit(**COMPILED)
def largest(x: Any) -> float:
    """The largest modulus among the entries of an array."""
    found = 0.0
    for entry in x.flat:
        found = max(found, abs(entry))
    return found


@njit(**COMPILED)
def norm(x: Any) -> float:
    """‖x‖ without overflow or underflow."""
    scale = largest(x)
    if scale == 0.0 or not math.isfinite(scale):
        return scale
    return scale * math.sqrt(dot(x / scale, x / scale))


@njit(**SUMMING)
def dot_and_size(x: Any, y: Any) -> tuple[float, float]:
    """Σ x y and Σ |x y|; their ratio shows how much cancelled."""
    total, size = 0.0, 0.0
    for k in range(x.shape[0]):
        total += x[k] * y[k]
        size += abs(x[k] * y[k])
    return total, size


@njit(**SUMMING)
def finite(x: Any) -> bool:
    total = 0.0
    for k in range(x.shape[0]):
        total += x[k] * 0.0  # nan as soon as one entry is not finite
    return total == 0.0


@njit(**COMPILED)
def centred(keys: Any, lengths: Any) -> Any:
    """Keys (m, d) less the mean key of their input, which changes no softmax and no gradient but keeps the Gram matrix accurate."""
    n, T, d = keys.shape
    rows = np.zeros((n * T, d))
    for i in range(n):
        mean = np.zeros(d)
        for t in range(lengths[i]):
            for k in range(d):
                mean[k] += keys[i, t, k] / lengths[i]
        for t in range(lengths[i]):
            for k in range(d):
                rows[i * T + t, k] = keys[i, t, k] - mean[k]
    return rows
