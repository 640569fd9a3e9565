r"""Norms of a point's entries: ℓ1, ℓ2, ℓ∞ and ℓp, for points of any shape.

A matrix counts as the vector of its entries. Steepest descent in ℓ1 moves one coordinate at a time; in ℓ∞ it is sign descent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marginlens.arithmetic.directions import length
from marginlens.arithmetic.log_scaled import LogScaled
from marginlens.errors import InputError, float_array, real_number
from marginlens.typing import FloatArray

# Codes of the steepest directions of L1, L2, LInf and Lp, as in core/norms.h.
LARGEST_ENTRY, EUCLIDEAN, SIGN, POWER = range(4)
# Entries whose moduli are this close to the largest, relative to it, count as equal to it, so that rounding decides no tie.
ENTRY_TIE_RTOL = 1e-12


@dataclass(frozen=True)
class L1:
    r"""The norm :math:`\|x\|_1 = \sum_j |x_j|`, whose dual is :math:`\|g\|_\infty`.

    Its steepest direction is ±1 in the first entry of the largest modulus and zero elsewhere. Entries within a relative 1e-12
    of the largest count as largest: rounding then does not decide between entries that symmetry makes equal.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> norm = ml.L1()
        >>> norm.value([3.0, -4.0])
        7.0
        >>> norm.steepest([3.0, -4.0]).tolist()
        [0.0, -1.0]
    """

    code: ClassVar[int] = LARGEST_ENTRY
    power: ClassVar[float] = 1.0

    def value(self, x: FloatArray) -> float:
        """Return ‖x‖₁."""
        return _power_norm(x, "x", 1.0)

    def dual(self, g: FloatArray) -> float:
        """Return ‖g‖∞."""
        return _power_norm(g, "g", math.inf)

    def steepest(self, g: FloatArray) -> FloatArray:
        """Return `sign(g_k) e_k` of the first k with `|g_k| = ‖g‖∞`; zero if g is zero."""
        return self.direction_of(_single(g))

    def direction_of(self, gradient: LogScaled) -> FloatArray:
        """Return the steepest directions of gradients `(…, *shape)`, with entries compared by their logarithms."""
        flat, scales = entries(gradient)
        with np.errstate(divide="ignore"):
            logs = np.log(np.abs(flat)) + scales
        largest = np.max(logs, axis=-1, keepdims=True, initial=-np.inf)
        first = np.argmax(logs >= largest - ENTRY_TIE_RTOL, axis=-1)[..., None]
        direction = np.zeros_like(flat)
        np.put_along_axis(direction, first, np.sign(np.take_along_axis(flat, first, -1)), -1)
        return direction.reshape(gradient.array.shape)


@dataclass(frozen=True)
class L2:
    r"""The Euclidean norm :math:`\|x\|_2 = (\sum_j x_j^2)^{1/2}` over all entries of a point; it is its own dual.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> norm = ml.L2()
        >>> norm.value([3.0, -4.0])
        5.0
        >>> norm.steepest([3.0, -4.0]).tolist()
        [0.6, -0.8]
    """

    code: ClassVar[int] = EUCLIDEAN
    power: ClassVar[float] = 2.0

    def value(self, x: FloatArray) -> float:
        """Return ‖x‖₂, without overflow or underflow on the way."""
        return float(length(float_array(x, "x").ravel()))

    def dual(self, g: FloatArray) -> float:
        """Return ‖g‖₂."""
        return float(length(float_array(g, "g").ravel()))

    def steepest(self, g: FloatArray) -> FloatArray:
        """Return g/‖g‖₂; zero if g is zero."""
        gradient = float_array(g, "g")
        largest = float(np.max(np.abs(gradient), initial=0.0))
        if largest == 0.0:
            return np.zeros_like(gradient)
        scaled = gradient / largest
        return scaled / self.value(scaled)

    def direction_of(self, gradient: LogScaled) -> FloatArray:
        """Return the steepest directions of gradients `(…, *shape)`."""
        return gradient.direction()


@dataclass(frozen=True)
class LInf:
    r"""The norm :math:`\|x\|_\infty = \max_j |x_j|`, whose dual is :math:`\|g\|_1`.

    Its steepest direction is sign(g). If an entry of g is zero, any number in [-1, 1] attains the maximum, and zero is taken:
    the shortest maximiser, which moves only entries with a nonzero gradient.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> norm = ml.LInf()
        >>> norm.dual([3.0, -4.0])
        7.0
        >>> norm.steepest([3.0, -4.0]).tolist()
        [1.0, -1.0]
    """

    code: ClassVar[int] = SIGN
    power: ClassVar[float] = math.inf

    def value(self, x: FloatArray) -> float:
        """Return ‖x‖∞."""
        return _power_norm(x, "x", math.inf)

    def dual(self, g: FloatArray) -> float:
        """Return ‖g‖₁."""
        return _power_norm(g, "g", 1.0)

    def steepest(self, g: FloatArray) -> FloatArray:
        """Return sign(g), entry by entry, with sign(0) = 0."""
        return np.sign(float_array(g, "g"))

    def direction_of(self, gradient: LogScaled) -> FloatArray:
        """Return the signs of the entries `(…, *shape)`, which no scale changes."""
        flat, _ = entries(gradient)
        return np.sign(flat).reshape(gradient.array.shape)


@dataclass(frozen=True)
class Lp:
    r"""The norm :math:`\|x\|_p = (\sum_j |x_j|^p)^{1/p}` with :math:`1 < p < \infty`, whose dual is ℓq with 1/p + 1/q = 1.

    Its steepest direction :math:`\operatorname{sign}(g_j) (|g_j| / \|g\|_q)^{1/(p-1)}` is the only maximiser. For p = 1 and p =
    ∞ use `L1()` and `LInf()`.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> norm = ml.Lp(3.0)
        >>> round(norm.value([3.0, -4.0]), 6)
        4.497941
        >>> round(norm.dual([3.0, -4.0]), 6)
        5.58425
    """

    p: float
    code: ClassVar[int] = POWER

    def __post_init__(self) -> None:
        expected = "a number p above 1"
        p = real_number(self.p, "p", expected)
        if p == 1.0:
            raise InputError("p", expected, "1", "The norm of p = 1 is ml.L1().")
        if p == math.inf:
            raise InputError("p", expected, "inf", "The norm of p = inf is ml.LInf().")
        if not p > 1.0:
            raise InputError("p", expected, f"{p:g}", "Below 1 there is no norm." if p < 1.0 else "")
        object.__setattr__(self, "p", p)

    @property
    def power(self) -> float:
        """The power p, under the name that the compiled loops use."""
        return self.p

    def value(self, x: FloatArray) -> float:
        """Return ‖x‖_p."""
        return _power_norm(x, "x", self.p)

    def dual(self, g: FloatArray) -> float:
        """Return ‖g‖_q, q = p/(p − 1)."""
        return _power_norm(g, "g", self.p / (self.p - 1.0))

    def steepest(self, g: FloatArray) -> FloatArray:
        """Return `sign(g_j) (|g_j|/‖g‖_q)^(1/(p − 1))`; zero if g is zero."""
        return self.direction_of(_single(g))

    def direction_of(self, gradient: LogScaled) -> FloatArray:
        """Return the steepest directions of gradients `(…, *shape)`, with the roots of entries taken from their logarithms."""
        flat, scales = entries(gradient)
        with np.errstate(divide="ignore"):
            logs = np.log(np.abs(flat)) + scales
        largest = np.max(logs, axis=-1, keepdims=True, initial=-np.inf)
        sizes = np.exp((logs - np.where(largest == -np.inf, 0.0, largest)) / (self.p - 1.0))
        norms = np.sum(sizes**self.p, axis=-1, keepdims=True) ** (1.0 / self.p)
        direction = np.divide(np.sign(flat) * sizes, norms, out=np.zeros_like(flat), where=norms != 0.0)
        return direction.reshape(gradient.array.shape)


def entries(gradient: LogScaled) -> tuple[FloatArray, FloatArray]:
    """Return the entries of each point as one axis, (…, n), and the logarithm of each entry's own scale."""
    array, log_scale = gradient.array, np.asarray(gradient.log_scale, dtype=np.float64)
    # A scale that all entries share changes no direction.
    if log_scale.ndim < array.ndim:
        log_scale = np.zeros(array.shape)
    flat = (*array.shape[: array.ndim - gradient.axes], -1)
    return np.ascontiguousarray(array.reshape(flat)), np.ascontiguousarray(log_scale.reshape(flat))


def _power_norm(x: FloatArray, argument: str, power: float) -> float:
    """Return (Σ |x_j|^p)^(1/p), computed relative to the largest modulus to avoid overflow."""
    sizes = np.abs(float_array(x, argument)).ravel()
    largest = float(np.max(sizes, initial=0.0))
    if power == math.inf or largest == 0.0 or not math.isfinite(largest):
        return largest
    return largest * float(np.sum((sizes / largest) ** power)) ** (1.0 / power)


def _single(g: FloatArray) -> LogScaled:
    gradient = float_array(g, "g")
    return LogScaled(gradient, np.zeros(()), gradient.ndim)
