"""Norms of matrices: Frobenius, spectral, nuclear, and the largest Euclidean norm of a row."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from marginlens import core
from marginlens.arithmetic.directions import length
from marginlens.arithmetic.log_scaled import LogScaled
from marginlens.errors import InputError, float_array
from marginlens.norms.entrywise import L2
from marginlens.typing import ArrayLike, FloatArray

# Codes of the steepest directions of these norms, as in core/norms.h.
SPECTRAL, NUCLEAR, MAX_ROW = 10, 11, 12


@dataclass(frozen=True)
class Frobenius(L2):
    """The Euclidean norm of a matrix's entries; another name for `L2`, for margin problems whose variable is a matrix.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> ml.Frobenius().value(np.diag([3.0, 4.0]))
        5.0
    """


@dataclass(frozen=True)
class Spectral:
    r"""The largest singular value of a matrix, whose dual is the nuclear norm.

    Its steepest direction is the polar factor :math:`\sum_k u_k v_k^\top` over the singular values of G that are not zero: the step of Muon
    without momentum. If G does not have full rank, there are longer maximisers; this is the shortest, which moves only along
    singular vectors of G. A singular value counts as zero if rows of G depend on larger rows up to a relative 1e-12, so
    rounding adds no direction.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> ml.Spectral().value(np.diag([3.0, 4.0]))
        4.0
        >>> ml.Spectral().steepest(np.diag([3.0, 4.0])).round(6).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """

    code: ClassVar[int] = SPECTRAL
    needs_matrix: ClassVar[bool] = True

    def value(self, x: FloatArray) -> float:
        """Return the largest singular value."""
        return _schatten(x, "x", 2)

    def dual(self, g: FloatArray) -> float:
        """Return the sum of the singular values."""
        return _schatten(g, "g", "nuc")

    def steepest(self, g: FloatArray) -> FloatArray:
        """Return U Vᵀ of the singular value decomposition of g, over the singular values that are not zero."""
        return _direction(_matrix(g, "g"), _polar)

    def direction_of(self, gradient: LogScaled) -> FloatArray:
        """Return the steepest directions of gradients (…, n_rows, n_columns), small singular values included."""
        return _for_each(gradient, _polar)


@dataclass(frozen=True)
class Nuclear:
    r"""The sum of a matrix's singular values, whose dual is the spectral norm.

    Its steepest direction is :math:`u_1 v_1^\top` of the largest singular value; if several are equal up to rounding, one of them is taken.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> round(ml.Nuclear().value(np.diag([3.0, 4.0])), 6)
        7.0
    """

    code: ClassVar[int] = NUCLEAR
    needs_matrix: ClassVar[bool] = True

    def value(self, x: FloatArray) -> float:
        """Return the sum of the singular values."""
        return _schatten(x, "x", "nuc")

    def dual(self, g: FloatArray) -> float:
        """Return the largest singular value."""
        return _schatten(g, "g", 2)

    def steepest(self, g: FloatArray) -> FloatArray:
        """Return u vᵀ of the largest singular value of g; zero if g is zero."""
        return _direction(_matrix(g, "g"), _leading)

    def direction_of(self, gradient: LogScaled) -> FloatArray:
        """Return the steepest directions of gradients (…, n_rows, n_columns)."""
        return _for_each(gradient, _leading)


@dataclass(frozen=True)
class MaxRow:
    r"""The largest Euclidean norm of a row, :math:`\max_i \|x_i\|_2`, whose dual is :math:`\sum_i \|g_i\|_2`.

    Its steepest direction divides every row by its norm. A zero row of g stays zero, although any row in the unit ball would do.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> ml.MaxRow().value(np.diag([3.0, 4.0]))
        4.0
    """

    code: ClassVar[int] = MAX_ROW
    needs_matrix: ClassVar[bool] = True

    def value(self, x: FloatArray) -> float:
        """Return the largest norm of a row."""
        return float(np.max(length(_matrix(x, "x")), initial=0.0))

    def dual(self, g: FloatArray) -> float:
        """Return the sum of the norms of the rows."""
        return float(np.sum(length(_matrix(g, "g"))))

    def steepest(self, g: FloatArray) -> FloatArray:
        """Return g with its rows divided by their norms."""
        return _unit_rows(_matrix(g, "g"))

    def direction_of(self, gradient: LogScaled) -> FloatArray:
        """Return the steepest directions of gradients (…, n_rows, n_columns), each row in its own scale."""
        return _unit_rows(row_scaled(gradient)[0])


def row_scaled(gradient: LogScaled) -> tuple[FloatArray, FloatArray]:
    """Return gradients (…, n_rows, n_columns) as an array of that shape and scales (…, n_rows), one for each row."""
    array, log_scale = _matrix(gradient.array, "gradient", gradient.axes), np.asarray(gradient.log_scale)
    if log_scale.ndim < array.ndim:
        return array, np.broadcast_to(np.expand_dims(log_scale, -1), array.shape[:-1])
    used = np.where(array != 0.0, log_scale, -np.inf)
    largest = np.max(used, axis=-1)
    safe = np.where(np.isfinite(largest), largest, 0.0)
    return array * np.exp(np.minimum(used - safe[..., None], 0.0)), safe


def _matrix(x: ArrayLike, argument: str, axes: int | None = None) -> FloatArray:
    """Return `x` as a matrix, or as several matrices if `axes` is 2."""
    array = float_array(x, argument)
    if (array.ndim if axes is None else axes) != 2:
        raise InputError(argument, "a matrix, which this norm measures", f"shape {array.shape}")
    return array


def _schatten(x: ArrayLike, argument: str, order: Any) -> float:
    """Compute a norm of the singular values, of a matrix scaled to a largest entry of one."""
    matrix = _matrix(x, argument)
    largest = float(np.max(np.abs(matrix), initial=0.0))
    if largest == 0.0 or not np.isfinite(largest):
        return largest
    return largest * float(np.linalg.norm(matrix / largest, order))


def _unit_rows(matrix: FloatArray) -> FloatArray:
    """Divide every row by its Euclidean norm; zero rows stay zero."""
    sizes = length(matrix)[..., None]
    return np.divide(matrix, sizes, out=np.zeros_like(matrix), where=sizes != 0.0)


def _direction(
    matrix: FloatArray, directions: Callable[[FloatArray, FloatArray, FloatArray], FloatArray]
) -> FloatArray:
    """Return the direction of a matrix, as a sum of rank-one terms e_i row_iᵀ."""
    found: FloatArray = directions(np.eye(len(matrix))[None], matrix[None], np.zeros((1, len(matrix))))[0]
    return found


def _for_each(
    gradient: LogScaled, directions: Callable[[FloatArray, FloatArray, FloatArray], FloatArray]
) -> FloatArray:
    """Return the direction of each matrix of a batch, from its rank-one terms if they are known."""
    shape = gradient.array.shape
    if gradient.terms is None:
        right, scales = row_scaled(gradient)
        left = np.eye(shape[-2])[None]
    else:
        left, right, scales = gradient.terms.left, gradient.terms.right, gradient.terms.log_scale
        left = left.reshape(-1, *left.shape[-2:])
    count = math.prod(shape[:-2])
    found = directions(left, right.reshape(count, *right.shape[-2:]), scales.reshape(count, scales.shape[-1]))
    return np.asarray(found).reshape(shape)


def _polar(left: FloatArray, right: FloatArray, log_scale: FloatArray) -> FloatArray:
    """Return Σ_k u_k v_kᵀ, (batch, d_left, d_right), of terms left (batch, m, d_left) or (1, m, d_left), right and log_scale (batch, m)."""
    out = np.empty((len(right), left.shape[2], right.shape[2]))
    core.polar_factors(left, right, log_scale, out, np.empty(len(right), dtype=np.int64))
    return out


def _leading(left: FloatArray, right: FloatArray, log_scale: FloatArray) -> FloatArray:
    """Return u vᵀ of the largest singular value of each sum of terms."""
    count, (q, d) = len(right), (left.shape[2], right.shape[2])
    U, V, logs = (np.empty((count, max(1, min(q, d)), *size)) for size in ((q,), (d,), ()))
    core.singular_triplets(left, right, log_scale, U, V, logs, np.empty(count, dtype=np.int64))
    return np.asarray(U[:, 0, :, None] * V[:, 0, None, :])
