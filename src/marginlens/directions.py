"""Directions: cosines and angles between weights, without the cancellation that 1 - cosine suffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from marginlens.errors import reject

FloatArray = npt.NDArray[np.float64]


def length(x: Any) -> FloatArray:
    """Norm over the last axis, without overflow or underflow on the way."""
    array = np.asarray(x, dtype=np.float64)
    scale = np.max(np.abs(array), axis=-1, keepdims=True, initial=0.0)
    safe = np.where((scale == 0.0) | ~np.isfinite(scale), 1.0, scale)
    return np.linalg.norm(array / safe, axis=-1) * safe[..., 0]


def unit(x: Any) -> FloatArray:
    """`x` divided by its norm over the last axis; nan where the norm is zero or not finite."""
    array = np.asarray(x, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return array / length(array)[..., None]


def correlation(a: Any, b: Any, *, axes: int = 1) -> Any:
    r"""Cosine between weights, batch by batch.

    .. math:: \frac{\langle a, b\rangle}{\|a\|\,\|b\|}

    Args:
        a: a vector (d,) or a batch of vectors (batch, d); with `axes=2` a matrix (d, d) or a batch (batch, d, d).
        b: weights that broadcast against `a` batch by batch.
        axes: how many trailing axes make up one weight.
    Returns:
        A float where there is no batch axis, an array (batch,) otherwise; nan where a norm is zero.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if min(first.ndim, second.ndim) < axes or first.shape[-axes:] != second.shape[-axes:]:
        expected = (
            f"weights whose last {axes} axes match a's shape {first.shape}"
            if axes > 1
            else (f"weights whose last axis matches a's shape {first.shape}")
        )
        raise reject("b", expected, f"shape {second.shape}")
    first, second = first.reshape(*first.shape[:-axes], -1), second.reshape(*second.shape[:-axes], -1)
    # 1 - |a - b|²/2 of unit vectors: two rounding errors near 1 instead of a sum that may exceed it
    gap = unit(first) - unit(second)
    return _scalar(1.0 - 0.5 * np.einsum("...d,...d->...", gap, gap))


def angle(a: Any, b: Any) -> Any:
    r"""Angle in radians between weights over the last axis, accurate for tiny angles too (Kahan's formula)."""
    first, second = unit(a), unit(b)
    return _scalar(2.0 * np.arctan2(np.linalg.norm(first - second, axis=-1), np.linalg.norm(first + second, axis=-1)))


def _scalar(values: Any) -> Any:
    return float(values) if np.ndim(values) == 0 else values
