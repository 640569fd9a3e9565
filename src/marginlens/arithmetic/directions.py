"""Directions: cosines and angles between weights, without the cancellation in 1 - cosine."""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.errors import InputError, float_array, whole_number
from marginlens.typing import ArrayLike, FloatArray

_SQUARES = 1e-250, 1e250  # sums of squares between them have lost nothing to underflow or overflow


def length(x: ArrayLike) -> FloatArray:
    """Compute the norm over the last axis, without overflow or underflow on the way."""
    array = _weights(x, "x")
    squares = np.einsum("...d,...d->...", array, array)  # which raises no floating-point flags
    norms = np.sqrt(squares)
    if squares.size and squares.min() > _SQUARES[0] and squares.max() < _SQUARES[1]:
        return norms
    extreme, norms = np.asarray(~((squares > _SQUARES[0]) & (squares < _SQUARES[1]))), np.asarray(norms)
    norms[extreme] = _scaled_length(array[extreme])
    return norms[()]


def _scaled_length(array: FloatArray) -> FloatArray:
    """Compute the norm over the last axis of vectors whose squares leave the range, by dividing by their largest entries first."""
    scale = np.max(np.abs(array), axis=-1, keepdims=True, initial=0.0)
    safe = np.where((scale == 0.0) | ~np.isfinite(scale), 1.0, scale)
    with np.errstate(over="ignore"):  # a norm may lie beyond all numbers whose entries do not: it is infinite
        return np.linalg.norm(array / safe, axis=-1) * safe[..., 0]


def unit(x: ArrayLike) -> FloatArray:
    """Divide `x` by its norm over the last axis; nan if the norm is zero or not finite."""
    array = _weights(x, "x")
    norms = np.asarray(length(array))[..., None]
    with np.errstate(invalid="ignore", divide="ignore"):
        return array / np.where(np.isfinite(norms), norms, np.nan)


def correlation(a: ArrayLike, b: ArrayLike, *, axes: int = 1) -> Any:
    r"""Compute the cosine between weights, batch by batch.

    .. math:: \frac{\langle a, b\rangle}{\|a\|\,\|b\|}

    Args:
        a: a vector (d,) or a batch of vectors (batch, d); with `axes=2`, a matrix (d, d) or a batch (batch, d, d).

        b: weights that broadcast against `a` batch by batch.

        axes: the number of trailing axes that make up one weight.

    Returns:
        A float if there is no batch axis, otherwise an array (batch,); nan if a norm is zero.
    """
    # 1 - |a - b|²/2 of unit vectors: two rounding errors near 1 instead of a sum that may exceed it
    gap = np.subtract(*_units(*_flattened(a, b, axes)))
    return as_scalar(1.0 - 0.5 * np.einsum("...d,...d->...", gap, gap))


def _flattened(a: ArrayLike, b: ArrayLike, axes: int) -> tuple[FloatArray, FloatArray]:
    """Merge the last `axes` axes of both, which must match, into one."""
    first, second, axes = _weights(a, "a"), _weights(b, "b"), whole_number(axes, "axes", at_least=1)
    if first.ndim < axes:
        raise InputError("a", f"weights of at least {axes} axes", f"shape {first.shape}")
    if min(first.ndim, second.ndim) < axes or first.shape[-axes:] != second.shape[-axes:]:
        expected = (
            f"weights whose last {axes} axes match a's shape {first.shape}"
            if axes > 1
            else (f"weights whose last axis matches a's shape {first.shape}")
        )
        raise InputError("b", expected, f"shape {second.shape}")
    return first.reshape(*first.shape[:-axes], -1), second.reshape(*second.shape[:-axes], -1)


def angle(a: ArrayLike, b: ArrayLike, *, axes: int = 1) -> Any:
    r"""Compute the angle in radians between weights, accurate for tiny angles too (Kahan's formula).

    As in `correlation`, the last `axes` axes make up one weight. For matrices (d, d), `axes=2` gives the angle between the
    matrices, one number; the default gives the angles between their rows.
    """
    first, second = _units(*_flattened(a, b, axes))
    return as_scalar(2.0 * np.arctan2(np.linalg.norm(first - second, axis=-1), np.linalg.norm(first + second, axis=-1)))


def _units(a: FloatArray, b: FloatArray) -> list[FloatArray]:
    """Return both as unit vectors of one shape."""
    try:
        return list(np.broadcast_arrays(unit(a), unit(b)))
    except ValueError as problem:
        raise InputError("b", f"weights that broadcast against a's shape {a.shape}", f"shape {b.shape}") from problem


def _weights(x: ArrayLike, argument: str) -> FloatArray:
    """Return `x` as an array with a last axis to measure along."""
    array = float_array(x, argument)
    if array.ndim == 0:
        raise InputError(argument, "a vector or an array of vectors", f"the number {array}")
    return array


def as_scalar(values: ArrayLike) -> Any:
    """Return a zero-dimensional array as the Python number it holds, and other arrays as they are."""
    return np.asarray(values).item() if np.ndim(values) == 0 else np.asarray(values)
