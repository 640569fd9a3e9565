"""Rounding: the spacing of doubles, and matrix-vector products that are rounded only once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from marginlens.typing import FloatArray

EPS = 2.0**-52  # spacing of doubles at one
_SPLIT = 2.0**27 + 1.0  # Veltkamp's, which parts a double into two halves


def exact_products(matrix: FloatArray, vector: FloatArray, minus: FloatArray | None = None) -> Any:
    """Compute matrix (n, m) @ vector (m,) - minus (n,) with each entry (n,) rounded once; if a product is not finite, as NumPy adds."""
    rest = np.zeros(len(matrix)) if minus is None else minus
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        product = matrix * vector
        (a, b), (c, d) = _halves(matrix), _halves(vector)
        error = ((a * c - product) + a * d + b * c) + b * d
        terms = np.concatenate([product, error, -rest[:, None]], axis=1)
        if not np.isfinite(terms).all():
            return np.asarray(matrix @ vector - rest)
    return np.array([math.fsum(row) for row in terms.tolist()])


def _halves(values: FloatArray) -> tuple[Any, Any]:
    high = _SPLIT * values - (_SPLIT * values - values)
    return high, values - high
