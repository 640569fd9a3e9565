r"""Losses ℓ of the signed margin u = Y f(X): value, derivative, log|derivative|, and the constants of Assumption A.

Every theorem here needs a strictly decreasing ℓ, so the derivative is negative and `log_abs_derivative` carries all of it: descent
compares inputs by it even when the derivative itself has underflowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from marginlens.errors import float_array, real_number, reject
from marginlens.papers import implements

FloatArray = npt.NDArray[np.float64]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
VISIBLE = 1e-290  # values below this have lost digits to underflow
_PANELS = 48  # of length one, beyond which a falling slope adds nothing to a double
_FIRST_ORDER = -37.0  # log δ below which ℓ(u - δ) - ℓ(u) equals δ|ℓ'(u)| to rounding


@dataclass(frozen=True)
class LossConstants:
    r"""Assumption A on an interval: :math:`\ell'` is `lipschitz`-Lipschitz (M₀) and `smallest` :math:`\le |\ell'| \le` `bound` (M₁).

    They are kept as logarithms, because slopes of e^-1000 still compare; the plain numbers are 0.0 or inf where they leave the range.
    """

    log_lipschitz: float
    log_bound: float
    log_smallest: float
    decreasing: bool

    @property
    def lipschitz(self) -> float:
        """M₀."""
        return from_log(self.log_lipschitz)

    @property
    def bound(self) -> float:
        """M₁."""
        return from_log(self.log_bound)

    @property
    def smallest(self) -> float:
        """The smallest |ℓ'|."""
        return from_log(self.log_smallest)


class Loss:
    r"""A differentiable loss of the margin; subclass it to plug in your own.

    A subclass gives `value` and `log_abs_derivative` as NumPy functions, elementwise and finite for margins up to ±1e6;
    `derivative` follows from the latter because the loss must decrease. `constants` samples the interval unless overridden.
    """

    code: ClassVar[int] = -1  # which branch of the compiled loop evaluates log|ℓ'|; -1: none, the loop runs in NumPy

    def value(self, u: Any) -> FloatArray:
        """ℓ(u)."""
        raise TypeError(f"{type(self).__name__} must define value(u)")

    def log_abs_derivative(self, u: Any) -> FloatArray:
        """log |ℓ'(u)|."""
        raise TypeError(f"{type(self).__name__} must define log_abs_derivative(u)")

    def derivative(self, u: Any) -> FloatArray:
        """ℓ'(u), which is negative."""
        return -np.exp(self.log_abs_derivative(u))

    def rise(self, u: Any, delta: Any) -> FloatArray:
        r""":math:`\ell(u - \delta) - \ell(u)`, without cancellation when δ is small."""
        u, delta = _together(u=u, delta=delta)
        nodes = u[..., None] - delta[..., None] * (0.5 + 0.5 * _NODES)
        integral = delta * 0.5 * np.sum(_WEIGHTS * np.exp(self.log_abs_derivative(nodes)), axis=-1)
        return np.where(np.abs(delta) <= 1.0, integral, self.value(u - delta) - self.value(u))

    def log_rise(self, u: Any, log_delta: Any, sign: Any) -> FloatArray:
        r""":math:`\log|\ell(u - \delta) - \ell(u)|` for :math:`\delta = \text{sign}\, e^{\text{log_delta}}`, finite when δ underflows.

        The sign of the rise is the sign of δ, because the loss decreases.
        """
        u, log_delta, sign = _together(u=u, log_delta=log_delta, sign=sign)
        first_order = np.asarray(self.log_abs_derivative(u)) + log_delta
        large = log_delta > _FIRST_ORDER
        delta = sign * np.exp(np.where(large, log_delta, 0.0))
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            ends = np.abs(self.value(u - delta)), np.abs(self.value(u))
            exact = np.log(np.abs(self.rise(u, delta)))
        lost = ~(np.isfinite(exact) & (np.maximum(*ends) > VISIBLE))
        logs = np.where(lost & large, self._log_integral(u, delta), exact) if np.any(lost & large) else exact
        return np.where(large, logs, first_order)

    def _log_integral(self, u: FloatArray, delta: FloatArray) -> FloatArray:
        """log |∫ ℓ'| between u - δ and u, by panels of length one from the end where |ℓ'| is larger: the rest is below rounding."""
        low, high, span = np.minimum(u - delta, u), np.maximum(u - delta, u), np.abs(delta)
        from_low = np.asarray(self.log_abs_derivative(low)) >= np.asarray(self.log_abs_derivative(high))
        first = np.where(from_low, low, high)
        start = np.minimum(np.arange(_PANELS), span[..., None])  # (…, n_panels)
        size = np.minimum(span[..., None] - start, 1.0)
        inside = start[..., None] + size[..., None] * (0.5 + 0.5 * _NODES)
        at = first[..., None, None] + np.where(from_low, 1.0, -1.0)[..., None, None] * inside
        with np.errstate(divide="ignore"):
            logs = np.asarray(self.log_abs_derivative(at)) + np.log(0.5 * size[..., None] * _WEIGHTS)
        return np.asarray(logsumexp(logs, axis=(-2, -1)))

    @implements("A", "Assumption A")
    def constants(self, low: float, high: float) -> LossConstants:
        r"""Constants of Assumption A on [low, high], taken from a fine grid: close from below, not a proof.

        .. math:: M_0 = \sup \frac{|\ell'(u) - \ell'(w)|}{|u - w|}, \quad M_1 = \sup |\ell'(u)|
        """
        low, high = _interval(low, high)
        u = np.linspace(low, high, 20_001)
        log_slope, slope = np.asarray(self.log_abs_derivative(u)), self.derivative(u)
        log_bound, log_smallest = float(np.max(log_slope)), float(np.min(log_slope))
        if not high > low:
            return LossConstants(
                -np.inf, log_bound, log_smallest, bool(np.all(slope <= 0.0)) and log_smallest > -np.inf
            )
        relative = np.where(slope > 0.0, 1.0, -1.0) * np.exp(log_slope - max(log_bound, -1e300))
        steepest = float(np.max(np.abs(np.diff(relative)) / np.diff(u)))
        log_lipschitz = float(np.log(steepest)) + log_bound if steepest > 0.0 else -np.inf
        return LossConstants(log_lipschitz, log_bound, log_smallest, self._decreases(u))

    def _decreases(self, u: FloatArray) -> bool:
        """Whether the values at ascending u fall, up to differences that rounding or underflow hides."""
        with np.errstate(over="ignore", invalid="ignore"):
            value = np.asarray(self.value(u))
            hidden = 4.0 * np.finfo(float).eps * np.maximum(np.abs(value[1:]), np.abs(value[:-1])) + VISIBLE
            falls = (np.diff(value) < 0.0) | (np.abs(np.diff(value)) <= hidden) | (value[:-1] == np.inf)
        return bool(np.all(falls))


@dataclass(frozen=True)
class Logistic(Loss):
    r""":math:`\ell(u) = \log(1 + e^{-u})`."""

    code: ClassVar[int] = 0

    def value(self, u: Any) -> FloatArray:
        """log(1 + e^-u), without overflow on either side."""
        return np.logaddexp(0.0, -float_array(u, "u"))

    def log_abs_derivative(self, u: Any) -> FloatArray:
        """-log(1 + e^u)."""
        return -np.logaddexp(0.0, float_array(u, "u"))

    def constants(self, low: float, high: float) -> LossConstants:
        """Exact: |ℓ'| falls from `low` to `high`; ℓ'' = |ℓ'|(1 - |ℓ'|) peaks at 0."""
        low, high = _interval(low, high)
        nearest = abs(min(max(0.0, low), high))
        log_curvature = float(self.log_abs_derivative(nearest) + self.log_abs_derivative(-nearest))
        log_largest, log_smallest = self.log_abs_derivative(np.array([low, high]))
        return LossConstants(log_curvature, float(log_largest), float(log_smallest), True)


@dataclass(frozen=True)
class Exponential(Loss):
    r""":math:`\ell(u) = e^{-u}`; its value overflows to inf for margins below -709, its log-derivative never does."""

    code: ClassVar[int] = 1

    def value(self, u: Any) -> FloatArray:
        """e^-u."""
        with np.errstate(over="ignore"):
            return np.exp(-float_array(u, "u"))

    def log_abs_derivative(self, u: Any) -> FloatArray:
        """-u."""
        return -float_array(u, "u")

    def derivative(self, u: Any) -> FloatArray:
        """-e^-u."""
        return -self.value(u)

    def constants(self, low: float, high: float) -> LossConstants:
        """Exact: every derivative is largest in modulus at `low`."""
        low, high = _interval(low, high)
        return LossConstants(-low, -low, -high, True)


@dataclass(frozen=True)
class Correlation(Loss):
    r""":math:`\ell(u) = -u`: every input pulls with the same force."""

    code: ClassVar[int] = 2

    def value(self, u: Any) -> FloatArray:
        """-u."""
        return -float_array(u, "u")

    def log_abs_derivative(self, u: Any) -> FloatArray:
        """0."""
        return np.zeros_like(float_array(u, "u"))

    def constants(self, low: float, high: float) -> LossConstants:
        """Exact: a constant slope of -1."""
        _interval(low, high)
        return LossConstants(-np.inf, 0.0, 0.0, True)


def _together(**given: Any) -> list[FloatArray]:
    """Arrays of one shape from numbers and arrays that broadcast against each other."""
    arrays = [float_array(value, name) for name, value in given.items()]
    try:
        return list(np.broadcast_arrays(*arrays))
    except ValueError as problem:
        shapes = " and ".join(str(one.shape) for one in arrays)
        raise reject(", ".join(given), "arrays that broadcast against each other", f"shapes {shapes}") from problem


def from_log(logarithm: float) -> float:
    """e to a power, 0.0 or inf where that leaves the range of a double."""
    with np.errstate(over="ignore"):
        return float(np.exp(logarithm))


def _interval(low: float, high: float) -> tuple[float, float]:
    low, high = real_number(low, "low", "a finite number"), real_number(high, "high", "a finite number")
    if not (np.isfinite(low) and np.isfinite(high) and low <= high):
        raise reject("low, high", "finite numbers with low ≤ high", f"({low}, {high})")
    return low, high


def as_loss(loss: Any) -> Loss:
    """`loss` if it is a Loss, else the sentence that says what is expected."""
    if not isinstance(loss, Loss):
        what = f"the class {loss.__name__}" if isinstance(loss, type) else type(loss).__name__
        raise reject("loss", "a loss such as ml.Logistic() or an instance of your own subclass of ml.Loss", what)
    return loss
