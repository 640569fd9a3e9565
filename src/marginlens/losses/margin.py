r"""Losses ℓ of the signed margin u = Y f(X): value, derivative as sign and logarithm, and the constants of Assumption A.

Descent compares inputs by log|ℓ'|, which works even if ℓ' itself has underflowed, and by the sign of ℓ'. The sign is −1 for the
losses of the theorems; your own loss may have any sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeGuard

import numpy as np
import scipy

from marginlens.errors import NOT_NUMBERS, InputError, float_array, real_number
from marginlens.papers import implements
from marginlens.typing import ArrayLike, FloatArray

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
# Values below this have lost digits to underflow.
VISIBLE = 1e-290
# Panels of length one, beyond which a falling slope adds nothing to a double.
_PANELS = 48
# The logarithm of δ below which ℓ(u - δ) - ℓ(u) equals δ|ℓ'(u)| up to rounding.
_FIRST_ORDER = -37.0
# Steps of differences, relative to 1 + |u|, in the order in which they are tried.
_DIFFERENCE_STEPS = (1e-5, 1e-6, 1e-7, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 4.0)
# Steps, relative to 1 + |u|, at which differences of ℓ may be rounding.
_NEIGHBOUR_STEPS = (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)
# The methods that the code of a loss stands for.
_MARGIN_LOSS_METHODS = ("value", "derivative", "log_abs_derivative", "derivative_sign")
# Margins at which a user's loss is checked to decrease.
_MARGIN_GRID = 2_001
# Relative differences of two values that rounding alone may make.
_VALUE_ROUNDING = 32.0 * np.finfo(float).eps


class SignedLog(NamedTuple):
    """The numbers `sign · exp(log)`, which may be far below the smallest float64; both arrays have the same shape."""

    sign: FloatArray
    log: FloatArray


class ExactMargin(NamedTuple):
    r"""Margins :math:`u = \text{top} - \text{shortfall}\, e^{\text{log_unit}}`, which may be closer to `top` than a float64 can tell.

    `top` is the score of the token with the largest logit, so u and 1 - u are not formed as differences of numbers that nearly cancel.
    """

    top: FloatArray
    shortfall: FloatArray
    log_unit: FloatArray

    @property
    def delta(self) -> FloatArray:
        """The difference `top` - u, zero if it underflows."""
        return self.shortfall * np.exp(self.log_unit)

    @property
    def log_u(self) -> FloatArray:
        """The logarithm of u for scores that are not negative."""
        return _log_difference(self.top, self.shortfall, self.log_unit)

    @property
    def log_rest(self) -> FloatArray:
        """The logarithm of 1 - u for scores that are at most 1."""
        return _log_difference(1.0 - self.top, -self.shortfall, self.log_unit)


def _log_difference(start: FloatArray, shortfall: FloatArray, log_unit: FloatArray) -> FloatArray:
    """Return log(start - shortfall e^log_unit) for start ≥ 0, exact where start is zero or where the logarithm is near zero."""
    delta = shortfall * np.exp(log_unit)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        near = np.log(start) + np.log1p(-delta / start)
        far = np.log(start - delta)
        alone = np.log(np.abs(shortfall)) + log_unit
    return np.where(start == 0.0, alone, np.where(np.abs(delta) < 0.5 * start, near, far))


@dataclass(frozen=True)
class LossConstants:
    r"""Assumption A on an interval: :math:`\ell'` is `lipschitz`-Lipschitz (M₀) and `smallest` :math:`\le |\ell'| \le` `bound` (M₁).

    They are stored as logarithms, because even slopes of e^-1000 are compared. The plain numbers are 0.0 or inf if they leave
    the range.
    """

    log_lipschitz: float
    log_bound: float
    log_smallest: float
    decreasing: bool

    @property
    def lipschitz(self) -> float:
        """The Lipschitz constant M₀ of ℓ'."""
        return from_log(self.log_lipschitz)

    @property
    def bound(self) -> float:
        """The bound M₁ of |ℓ'|."""
        return from_log(self.log_bound)

    @property
    def smallest(self) -> float:
        """The smallest |ℓ'|."""
        return from_log(self.log_smallest)


class Loss:
    r"""A differentiable loss of the margin; subclass it to define your own.

    A subclass defines `value` and at least one of `derivative` and `log_abs_derivative`, from which the other follows. All are
    elementwise NumPy functions that return an array of the shape of u, without nan for margins up to ±1e6. Define
    `log_abs_derivative` if ℓ' may underflow. The sign of ℓ' is taken from `derivative` if you define it, otherwise from
    differences of `value`; define `derivative_sign` to give it directly. `constants` samples the interval unless you override
    it.
    """

    # The branch of the compiled loop that evaluates log|ℓ'|; with -1 the loop runs in NumPy.
    code: ClassVar[int] = -1
    # The smallest and the largest score for which the loss is defined.
    domain: ClassVar[tuple[float, float]] = (-np.inf, np.inf)

    def value(self, u: ArrayLike) -> FloatArray:
        """Return ℓ(u)."""
        raise lacking(self, "value(u)")

    def log_abs_derivative(self, u: ArrayLike) -> FloatArray:
        """Return `log |ℓ'(u)|`, -inf if ℓ'(u) is zero."""
        if not _defines(self, "derivative"):
            raise lacking(self, "derivative(u) or log_abs_derivative(u)")
        with np.errstate(divide="ignore"):
            return np.log(np.abs(_evaluate(self, "derivative", float_array(u, "u"))))

    def derivative(self, u: ArrayLike) -> FloatArray:
        """Return ℓ'(u)."""
        if not _defines(self, "log_abs_derivative"):
            raise lacking(self, "derivative(u) or log_abs_derivative(u)")
        u = float_array(u, "u")
        return self.derivative_sign(u) * np.exp(_evaluate(self, "log_abs_derivative", u))

    def derivative_sign(self, u: ArrayLike) -> FloatArray:
        """Return the sign of ℓ'(u): -1, 0 or 1."""
        u = float_array(u, "u")
        if not _defines(self, "derivative"):
            return _sign_from_values(self, u)
        sign = np.sign(_evaluate(self, "derivative", u))
        # Zeros may come from underflow.
        hidden = sign == 0.0
        if _defines(self, "log_abs_derivative") and hidden.any():
            sign = np.array(sign)
            sign[hidden] = _sign_from_values(self, u[hidden])
        return sign

    def rise(self, u: ArrayLike, delta: ArrayLike) -> FloatArray:
        r"""Return :math:`\ell(u - \delta) - \ell(u)`, without cancellation when δ is small."""
        u, delta = _together(u=u, delta=delta)
        nodes = u[..., None] - delta[..., None] * (0.5 + 0.5 * _NODES)
        slope = slope_of(self, nodes)
        integral = delta * 0.5 * np.sum(_WEIGHTS * (-slope.sign * np.exp(slope.log)), axis=-1)
        return np.where(np.abs(delta) <= 1.0, integral, value_of(self, u - delta) - value_of(self, u))

    def signed_log_rise(self, u: ArrayLike, log_delta: ArrayLike, sign: ArrayLike) -> SignedLog:
        r"""Return :math:`\ell(u - \delta) - \ell(u)` as sign and logarithm, for :math:`\delta = \text{sign}\, e^{\text{log_delta}}`.

        Both are accurate even if δ underflows. For a decreasing loss the sign of the rise is that of δ.
        """
        u, log_delta, sign = _together(u=u, log_delta=log_delta, sign=sign)
        small = self._small_rise(u, log_delta, sign)
        large = log_delta > _FIRST_ORDER
        delta = sign * np.exp(np.where(large, log_delta, 0.0))
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            ends = np.abs(value_of(self, u - delta)), np.abs(value_of(self, u))
            rise = self.rise(u, delta)
            exact = np.log(np.abs(rise))
        lost = large & ~(np.isfinite(exact) & (np.maximum(*ends) > VISIBLE))
        rise_sign = np.sign(rise)
        if np.any(lost):
            integral = self._log_integral(u, delta)
            rise_sign, exact = np.where(lost, integral.sign, rise_sign), np.where(lost, integral.log, exact)
        return SignedLog(np.where(large, rise_sign, small.sign), np.where(large, exact, small.log))

    def _small_rise(self, u: FloatArray, log_delta: FloatArray, sign: FloatArray) -> SignedLog:
        """Return -ℓ'(u) δ; for a user's own loss also add ℓ''(u) δ²/2, which is the leading term if ℓ'(u) is zero."""
        slope = slope_of(self, u)
        first = SignedLog(-slope.sign * sign, slope.log + log_delta)
        if compiled_code(self) >= 0:
            return first
        curvature = second_of(self, u)
        with np.errstate(divide="ignore"):
            second = np.log(np.abs(curvature)) - np.log(2.0) + 2.0 * log_delta
        if not np.any(second > first.log + _FIRST_ORDER):
            return first
        logs = np.stack([first.log, second])
        weights = np.stack([first.sign, np.where(sign == 0.0, 0.0, np.sign(curvature))])
        total, total_sign = scipy.special.logsumexp(logs, axis=0, b=weights, return_sign=True)
        return SignedLog(np.asarray(total_sign), np.asarray(total))

    def _log_integral(self, u: FloatArray, delta: FloatArray) -> SignedLog:
        """Return -∫ ℓ' from u to u - δ, by panels of length one from the end where |ℓ'| is larger: the rest is below rounding."""
        low, high, span = np.minimum(u - delta, u), np.maximum(u - delta, u), np.abs(delta)
        from_low = slope_of(self, low).log >= slope_of(self, high).log
        first = np.where(from_low, low, high)
        start = np.minimum(np.arange(_PANELS), span[..., None])  # (…, n_panels)
        size = np.minimum(span[..., None] - start, 1.0)
        inside = start[..., None] + size[..., None] * (0.5 + 0.5 * _NODES)
        at = first[..., None, None] + np.where(from_low, 1.0, -1.0)[..., None, None] * inside
        slope = slope_of(self, at)
        with np.errstate(divide="ignore"):
            logs = slope.log + np.log(0.5 * size[..., None] * _WEIGHTS)
        if np.all(slope.sign == -1.0):
            return SignedLog(np.sign(delta), np.asarray(scipy.special.logsumexp(logs, axis=(-2, -1))))
        with np.errstate(divide="ignore"):
            total, sign = scipy.special.logsumexp(logs, axis=(-2, -1), b=-slope.sign, return_sign=True)
        return SignedLog(np.asarray(sign) * np.sign(delta), np.asarray(total))

    @implements("A", "Assumption A")
    def constants(self, low: float, high: float) -> LossConstants:
        r"""Estimate the constants of Assumption A on [low, high] from a fine grid: close from below, not a proof.

        .. math:: M_0 = \sup \frac{|\ell'(u) - \ell'(w)|}{|u - w|}, \quad M_1 = \sup |\ell'(u)|
        """
        low, high = _interval(low, high)
        u = np.linspace(low, high, 20_001)
        sign, log_slope = slope_of(self, u)
        log_bound, log_smallest = float(np.max(log_slope)), float(np.min(log_slope))
        if not high > low:
            return LossConstants(-np.inf, log_bound, log_smallest, bool(np.all(sign < 0.0)))
        relative = sign * np.exp(log_slope - max(log_bound, -1e300))
        steepest = float(np.max(np.abs(np.diff(relative)) / np.diff(u)))
        log_lipschitz = float(np.log(steepest)) + log_bound if steepest > 0.0 else -np.inf
        return LossConstants(log_lipschitz, log_bound, log_smallest, self._decreases(u))

    def _decreases(self, u: FloatArray) -> bool:
        """Return whether the values at ascending u fall, up to differences that rounding or underflow hides."""
        with np.errstate(over="ignore", invalid="ignore"):
            value = np.asarray(self.value(u))
            hidden = 4.0 * np.finfo(float).eps * np.maximum(np.abs(value[1:]), np.abs(value[:-1])) + VISIBLE
            falls = (np.diff(value) < 0.0) | (np.abs(np.diff(value)) <= hidden) | (value[:-1] == np.inf)
        return bool(np.all(falls))


class _DecreasingLoss(Loss):
    """A loss whose slope is negative everywhere."""

    def derivative_sign(self, u: ArrayLike) -> FloatArray:
        """Return -1 everywhere."""
        return np.full_like(float_array(u, "u"), -1.0)


@dataclass(frozen=True)
class Logistic(_DecreasingLoss):
    r"""The loss :math:`\ell(u) = \log(1 + e^{-u})`.

    Examples:
        >>> import marginlens as ml
        >>> ml.Logistic().value([0.0, 2.0]).round(4).tolist()
        [0.6931, 0.1269]
        >>> ml.Logistic().log_abs_derivative([1000.0]).tolist()
        [-1000.0]
    """

    code: ClassVar[int] = 0

    def value(self, u: ArrayLike) -> FloatArray:
        """Return log(1 + e^-u), without overflow on either side."""
        return np.logaddexp(0.0, -float_array(u, "u"))

    def log_abs_derivative(self, u: ArrayLike) -> FloatArray:
        """Return -log(1 + e^u)."""
        return -np.logaddexp(0.0, float_array(u, "u"))

    def signed_log_rise(self, u: ArrayLike, log_delta: ArrayLike, sign: ArrayLike) -> SignedLog:
        r"""Compute the rise exactly: :math:`\ell(u - \delta) - \ell(u) = \log(1 + z)` with :math:`z = |\ell'(u)| (e^\delta - 1)`."""
        # A subclass that has a slope of its own.
        if compiled_code(self) < 0:
            return super().signed_log_rise(u, log_delta, sign)
        u, log_delta, sign = _together(u=u, log_delta=log_delta, sign=sign)
        slope = -np.logaddexp(0.0, u)
        with np.errstate(divide="ignore", over="ignore"):
            size = np.exp(log_delta)
            log_z = (
                slope + np.where(size > VISIBLE, np.log(-np.expm1(-size)), log_delta) + np.where(sign > 0.0, size, 0.0)
            )
            # Equals -log(1 + z) if δ < 0 and z is near -1.
            rest = -np.logaddexp(-np.logaddexp(0.0, -u), slope - size)
            fall = np.where(log_z > -np.log(2.0), rest, -np.log1p(-np.exp(np.minimum(log_z, -np.log(2.0)))))
            log_rise = np.log(np.where(sign > 0.0, np.logaddexp(0.0, log_z), fall))
        return SignedLog(np.array(sign), np.where(log_z > _FIRST_ORDER, log_rise, log_z))

    def constants(self, low: float, high: float) -> LossConstants:
        """Compute the exact constants: `|ℓ'|` decreases from `low` to `high`, and `ℓ'' = |ℓ'|(1 - |ℓ'|)` peaks at 0."""
        low, high = _interval(low, high)
        nearest = abs(min(max(0.0, low), high))
        log_curvature = float(self.log_abs_derivative(nearest) + self.log_abs_derivative(-nearest))
        log_largest, log_smallest = self.log_abs_derivative(np.array([low, high]))
        return LossConstants(log_curvature, float(log_largest), float(log_smallest), True)


@dataclass(frozen=True)
class Exponential(_DecreasingLoss):
    r"""The loss :math:`\ell(u) = e^{-u}`. Its value overflows to inf for margins below -709; its log-derivative never does.

    Examples:
        >>> import marginlens as ml
        >>> ml.Exponential().value([0.0, 1.0]).round(4).tolist()
        [1.0, 0.3679]
    """

    code: ClassVar[int] = 1

    def value(self, u: ArrayLike) -> FloatArray:
        """Return e^-u."""
        with np.errstate(over="ignore"):
            return np.exp(-float_array(u, "u"))

    def log_abs_derivative(self, u: ArrayLike) -> FloatArray:
        """Return -u."""
        return -float_array(u, "u")

    def derivative(self, u: ArrayLike) -> FloatArray:
        """Return -e^-u."""
        return -self.value(u)

    def constants(self, low: float, high: float) -> LossConstants:
        """Compute the exact constants: every derivative is largest in modulus at `low`."""
        low, high = _interval(low, high)
        return LossConstants(-low, -low, -high, True)


@dataclass(frozen=True)
class CorrelationLoss(_DecreasingLoss):
    r"""The loss :math:`\ell(u) = -u`: every input pulls with the same force.

    Examples:
        >>> import marginlens as ml
        >>> ml.losses.CorrelationLoss().value([0.0, 1.0]).tolist()
        [-0.0, -1.0]
    """

    code: ClassVar[int] = 2

    def value(self, u: ArrayLike) -> FloatArray:
        """Return -u."""
        return -float_array(u, "u")

    def log_abs_derivative(self, u: ArrayLike) -> FloatArray:
        """Return 0."""
        return np.zeros_like(float_array(u, "u"))

    def constants(self, low: float, high: float) -> LossConstants:
        """Return the exact constants of a constant slope of -1."""
        _interval(low, high)
        return LossConstants(-np.inf, 0.0, 0.0, True)


class LossWithPoles(_DecreasingLoss):
    """A loss whose slope is infinite at an end of its domain, where margins saturate: it is formed from an `ExactMargin`."""

    def value_at(self, at: ExactMargin) -> FloatArray:
        """Return ℓ(u)."""
        raise NotImplementedError

    def log_faint_value_at(self, at: ExactMargin) -> FloatArray:
        """Return log ℓ(u) where ℓ(u) underflows."""
        raise NotImplementedError

    def slope_at(self, at: ExactMargin) -> SignedLog:
        """Return ℓ'(u)."""
        raise NotImplementedError

    def curvature_at(self, at: ExactMargin) -> SignedLog:
        """Return ℓ''(u); its `sign` is any factor."""
        raise NotImplementedError

    def rise_to(self, at: ExactMargin, start: FloatArray, log_delta: FloatArray, sign: FloatArray) -> SignedLog:
        """Return ℓ(u) - ℓ(start) for u = start - sign · exp(log_delta)."""
        raise NotImplementedError

    def signed_log_rise(self, u: ArrayLike, log_delta: ArrayLike, sign: ArrayLike) -> SignedLog:
        r"""Compute :math:`\ell(u - \delta) - \ell(u)` as sign and logarithm, from the exact margin."""
        if compiled_code(self) < 0:
            return super().signed_log_rise(u, log_delta, sign)
        u, log_delta, sign = _together(u=u, log_delta=log_delta, sign=sign)
        return self.rise_to(ExactMargin(u, sign, log_delta), u, log_delta, sign)


@dataclass(frozen=True)
class LogProbability(LossWithPoles):
    r"""The loss :math:`\ell(u) = -\log u`. If one token scores 1 and the others 0, it is the cross-entropy of that token.

    It is defined for scores that are at least 0. Every input needs a token with a positive score: its loss is finite at every
    point, but tends to infinity as all of its attention goes to tokens with score 0.

    Examples:
        >>> import marginlens as ml
        >>> ml.losses.LogProbability().value([0.5, 1.0]).round(4).tolist()
        [0.6931, -0.0]
    """

    code: ClassVar[int] = 3
    domain: ClassVar[tuple[float, float]] = (0.0, np.inf)

    def value(self, u: ArrayLike) -> FloatArray:
        """Return -log u."""
        with np.errstate(divide="ignore"):
            return -np.log(float_array(u, "u"))

    def log_abs_derivative(self, u: ArrayLike) -> FloatArray:
        """Return -log u."""
        return self.value(u)

    def value_at(self, at: ExactMargin) -> FloatArray:
        """Return -log u."""
        return -at.log_u

    def log_faint_value_at(self, at: ExactMargin) -> FloatArray:
        """Return log(1 - u), the logarithm of -log u for u near 1."""
        with np.errstate(divide="ignore"):
            return np.where(at.top == 1.0, np.log(np.abs(at.shortfall)) + at.log_unit, -np.inf)

    def slope_at(self, at: ExactMargin) -> SignedLog:
        """Return -1/u."""
        log_u = at.log_u
        return SignedLog(np.full_like(log_u, -1.0), -log_u)

    def curvature_at(self, at: ExactMargin) -> SignedLog:
        """Return 1/u²."""
        log_u = at.log_u
        return SignedLog(np.ones_like(log_u), -2.0 * log_u)

    def rise_to(self, at: ExactMargin, start: FloatArray, log_delta: FloatArray, sign: FloatArray) -> SignedLog:
        """Return -log(u/start), minus infinity from a start of 0."""
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            log_start = np.log(start)
            log_share = log_delta - log_start
            share = sign * np.exp(log_share)
            rise = np.where(share < 0.5, -np.log1p(-share), log_start - at.log_u)
            log = np.where(log_share > _FIRST_ORDER, np.log(np.abs(rise)), log_share)
        return SignedLog(np.where(start == 0.0, -1.0, sign), np.where(start == 0.0, np.inf, log))

    def constants(self, low: float, high: float) -> LossConstants:
        """Compute the exact constants: every derivative is largest in modulus at `low`, and infinite if that is 0."""
        low, high = _interval_within(self, low, high)
        log_bound, log_smallest = self.value(np.array([low, high])).tolist()
        return LossConstants(2.0 * log_bound, log_bound, log_smallest, True)


@dataclass(frozen=True)
class ArcsineLoss(LossWithPoles):
    r"""The loss :math:`\ell(u) = -2 \arcsin \sqrt u`, defined for scores from 0 to 1.

    If u is the probability of a right answer, its slope is that of -u divided by the standard deviation of being right. The
    slope is infinite at 0 and 1, so that inputs keep pulling as their attention saturates.

    Examples:
        >>> import marginlens as ml
        >>> ml.losses.ArcsineLoss().value([0.5, 1.0]).round(4).tolist()
        [-1.5708, -3.1416]
    """

    code: ClassVar[int] = 4
    domain: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def value(self, u: ArrayLike) -> FloatArray:
        """Return -2 arcsin √u."""
        u = float_array(u, "u")
        with np.errstate(invalid="ignore"):
            return -2.0 * np.arctan2(np.sqrt(u), np.sqrt(1.0 - u))

    def log_abs_derivative(self, u: ArrayLike) -> FloatArray:
        """Return -log(u(1 - u))/2."""
        u = float_array(u, "u")
        with np.errstate(divide="ignore", invalid="ignore"):
            return -0.5 * (np.log(u) + np.log1p(-u))

    def value_at(self, at: ExactMargin) -> FloatArray:
        """Return -2 arcsin √u."""
        return -2.0 * np.arctan2(np.exp(0.5 * at.log_u), np.exp(0.5 * at.log_rest))

    def log_faint_value_at(self, at: ExactMargin) -> FloatArray:
        """Return minus infinity, for the value 0 of an input whose scores are all 0."""
        return np.full_like(at.top, -np.inf)

    def slope_at(self, at: ExactMargin) -> SignedLog:
        """Return -1/√(u(1 - u)), and -1 for an input whose scores are all 0 or all 1: its margin does not move."""
        log_variance = at.log_u + at.log_rest
        log_variance = np.where(log_variance == -np.inf, 0.0, log_variance)
        return SignedLog(np.full_like(log_variance, -1.0), -0.5 * log_variance)

    def curvature_at(self, at: ExactMargin) -> SignedLog:
        """Return (u - 1/2)/(u(1 - u))^(3/2) with the opposite sign."""
        return SignedLog(0.5 - (at.top - at.delta), 3.0 * self.slope_at(at).log)

    def rise_to(self, at: ExactMargin, start: FloatArray, log_delta: FloatArray, sign: FloatArray) -> SignedLog:
        r"""Return twice the angle between the points with sines :math:`\sqrt{\text{start}}` and √u, from its sine and cosine."""
        with np.errstate(divide="ignore", invalid="ignore"):  # a sine of nan is that of no difference
            from_u, from_rest, to_u, to_rest = np.log(start), np.log1p(-start), at.log_u, at.log_rest
            log_sine = log_delta - np.logaddexp(0.5 * (from_u + to_rest), 0.5 * (to_u + from_rest))
            cosine = np.exp(np.logaddexp(0.5 * (from_rest + to_rest), 0.5 * (from_u + to_u)))
            log_angle = np.where(log_sine > _FIRST_ORDER, np.log(np.arctan2(np.exp(log_sine), cosine)), log_sine)
        return SignedLog(np.array(sign), np.log(2.0) + log_angle)

    def constants(self, low: float, high: float) -> LossConstants:
        """Compute the exact constants: slopes are smallest next to 1/2, and steepest and most curved at the end farther from it."""
        low, high = _interval_within(self, low, high)
        nearest = min(max(0.5, low), high)
        far = low if 0.5 - low >= high - 0.5 else high
        log_bound, log_smallest = self.log_abs_derivative(np.array([far, nearest])).tolist()
        bend = abs(0.5 - far)
        log_lipschitz = float(np.log(bend)) + 3.0 * log_bound if bend > 0.0 else -np.inf
        return LossConstants(log_lipschitz, log_bound, log_smallest, True)


def _interval_within(loss: Loss, low: float, high: float) -> tuple[float, float]:
    low, high = _interval(low, high)
    if not (loss.domain[0] <= low and high <= loss.domain[1]):
        raise InputError("low, high", f"numbers {_within(loss)}", f"({low}, {high})")
    return low, high


def _within(loss: Loss) -> str:
    """Return the domain of a loss in words."""
    low, high = loss.domain
    return f"from {low:g} to {high:g}" if np.isfinite(high) else f"of at least {low:g}"


def check_domain(loss: Loss, scores: FloatArray | None, mask: Any) -> None:
    """Raise if margins can leave the domain of a loss: for scores (…, n_inputs, n_tokens) beyond it, or None for a nonlinear head.

    Padded tokens, whose mask is False, are left out.
    """
    if loss.domain == Loss.domain:
        return
    name = type(loss).__name__
    if scores is None:
        raise InputError("head", f"linear for {name}, so that margins stay between the scores", "a nonlinear one")
    low, high = (reduce(scores, where=mask, initial=start) for reduce, start in ((np.min, np.inf), (np.max, -np.inf)))
    if not (loss.domain[0] <= low and high <= loss.domain[1]):
        outside = float(low if low < loss.domain[0] else high)
        raise InputError("scores", f"numbers {_within(loss)} for {name}", f"{outside!r} among them")
    if isinstance(loss, LogProbability):
        best = np.max(scores, axis=-1, where=mask, initial=-np.inf)
        if not np.all(best > 0.0):
            expected = f"a positive score in every input for {name}"
            raise InputError("scores", expected, f"none in input {int(np.argwhere(~(best > 0.0))[0][-1])}")


def refuse_poles(loss: Loss, risk: str) -> None:
    """Raise for a loss with a domain in a risk whose margins may leave it, or are not known exactly."""
    if loss.domain != Loss.domain:
        raise InputError("loss", f"one that is defined at every margin, for {risk}", type(loss).__name__)


def has_poles(loss: Loss) -> TypeGuard[LossWithPoles]:
    """Return whether a loss is formed from exact margins: one with poles whose functions no subclass overrides."""
    return isinstance(loss, LossWithPoles) and compiled_code(loss) >= 0


def slope_at(loss: Loss, at: ExactMargin, margin: FloatArray) -> SignedLog:
    """Return ℓ' as sign and logarithm, at exact margins if the loss has poles, otherwise at the rounded ones."""
    return loss.slope_at(at) if has_poles(loss) else slope_of(loss, margin)


def compiled_code(loss: Loss) -> int:
    """Return `loss.code`, or -1 for a subclass that overrides the coded functions and so must be evaluated by NumPy."""
    classes = type(loss).__mro__
    coded = next(k for k, family in enumerate(classes) if "code" in vars(family))
    overridden = any(name in vars(family) for family in classes[:coded] for name in _MARGIN_LOSS_METHODS)
    return -1 if overridden else loss.code


def value_of(loss: Loss, u: FloatArray) -> FloatArray:
    """Return ℓ(u); raise if a user's loss does not return one finite number for each margin."""
    return _evaluate(loss, "value", u)


def slope_of(loss: Loss, u: FloatArray) -> SignedLog:
    """Return ℓ'(u) as sign and logarithm, -inf if the sign is zero; raise if a user's loss returns anything else."""
    log, sign = _evaluate(loss, "log_abs_derivative", u), np.sign(_evaluate(loss, "derivative_sign", u))
    return SignedLog(sign, np.where(sign == 0.0, -np.inf, log))


def second_of(loss: Loss, u: FloatArray) -> FloatArray:
    """Return ℓ''(u) by a central difference of ℓ'; zero if it underflows."""
    h = 1e-5 * (1.0 + np.abs(u))
    ahead, behind = slope_of(loss, u + h), slope_of(loss, u - h)
    with np.errstate(over="ignore", invalid="ignore"):
        return (ahead.sign * np.exp(ahead.log) - behind.sign * np.exp(behind.log)) / ((u + h) - (u - h))


def rising_margin(loss: Loss, low: float, high: float) -> float | None:
    """Find a margin of [low, high] at which ℓ increases; None if a fine grid finds none."""
    if compiled_code(loss) >= 0:
        return None
    u = np.linspace(*_interval(low, high), _MARGIN_GRID)
    rising = slope_of(loss, u).sign > 0.0
    return float(u[np.argmax(rising)]) if rising.any() else None


def _evaluate(loss: Loss, method: str, u: FloatArray) -> FloatArray:
    """Return `loss.method(u)` as a float64 array; the result of a user's loss is checked for finite u."""
    if compiled_code(loss) >= 0:
        return np.asarray(getattr(loss, method)(u))
    array = numbers_from(loss, method, getattr(loss, method)(u), np.shape(u))
    wrong = np.isnan(array) | (array == np.inf) | ((array == -np.inf) & (method != "log_abs_derivative"))
    wrong &= np.isfinite(u)
    if np.any(wrong):
        margin = float(np.asarray(u)[wrong][0])
        got = f"{array[wrong][0]} from {type(loss).__name__} at u = {margin:.6g}"
        raise InputError("loss", f"a loss whose {method}(u) is a finite number at every margin", got)
    return array


def numbers_from(loss: object, method: str, given: object, shape: tuple[int, ...]) -> FloatArray:
    """Return what a method of a user's loss gave as a float64 array of this shape; anything else is refused."""
    try:
        array = np.asarray(given)
    except NOT_NUMBERS:
        array = np.empty(0, dtype=object)
    numbers = array.dtype.kind in "fiub"
    if not numbers or array.shape != shape:
        got = f"shape {array.shape}" if numbers else type(given).__name__
        expected = f"a loss whose {method} gives an array of real numbers of shape {shape}"
        raise InputError("loss", expected, f"{got} from {type(loss).__name__}")
    return array.astype(np.float64, copy=False)


def _defines(loss: Loss, method: str) -> bool:
    """Return whether the class of a loss overrides a method."""
    return getattr(type(loss), method) is not getattr(Loss, method)


def lacking(loss: object, method: str) -> InputError:
    return InputError("loss", f"a loss that defines {method}", f"{type(loss).__name__}, which does not")


def _sign_from_values(loss: Loss, u: FloatArray) -> FloatArray:
    """Return the sign of ℓ'(u) for a loss that gives only ℓ and log|ℓ'|: that of ℓ(u + h) - ℓ(u - h), if this is 2h|ℓ'| to a factor two.

    Near a zero of ℓ' such differences are rounding, and ℓ' is interpolated between neighbours whose signs are known. If ℓ has
    saturated, the first difference that exceeds rounding decides.
    """
    flat = np.ravel(u)
    log = np.ravel(_evaluate(loss, "log_abs_derivative", u))
    sign, visible_once, confirmed = _difference_signs(loss, flat, log)
    flat_slope = (log == -np.inf) | ~np.isfinite(flat)
    sign[flat_slope] = 0.0
    undecided = np.flatnonzero(~(confirmed | flat_slope))
    for step in _NEIGHBOUR_STEPS:
        if not len(undecided):
            break
        h = step * (1.0 + np.abs(flat[undecided]))
        points = np.stack([flat[undecided] - h, flat[undecided] + h])
        logs = _evaluate(loss, "log_abs_derivative", points)
        signs, _, known = _difference_signs(loss, points.ravel(), logs.ravel())
        signs, known = signs.reshape(points.shape), known.reshape(points.shape).all(axis=0)
        middle = np.sum(signs * np.exp(logs - np.max(logs, axis=0)), axis=0)
        sign[undecided[known]], visible_once[undecided[known]] = np.sign(middle[known]), True
        undecided = undecided[~known]
    hidden = ~(visible_once | flat_slope)
    if hidden.any():
        at = f"{type(loss).__name__}.value has no slope around u = {float(flat[hidden][0]):.6g}, where log_abs_derivative is finite"
        raise InputError("loss", "one whose value(u) shows the sign of its slope", at, "Define derivative_sign(u).")
    return sign.reshape(np.shape(u))


def _difference_signs(loss: Loss, u: FloatArray, log: FloatArray) -> tuple[FloatArray, Any, Any]:
    """Return the signs of central differences of ℓ at margins (m,), which of them exceed rounding, and which agree with log|ℓ'| (m,)."""
    sign, visible_once, confirmed = np.zeros(len(u)), np.zeros(len(u), dtype=bool), ~np.isfinite(u)
    for step in _DIFFERENCE_STEPS:
        undecided = np.flatnonzero(~confirmed)
        if not len(undecided):
            break
        at = u[undecided]
        h = step * (1.0 + np.abs(at))
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            ahead, behind = (numbers_from(loss, "value", loss.value(point), np.shape(at)) for point in (at + h, at - h))
            change = ahead - behind
            visible = np.isfinite(change) & (np.abs(change) > _VALUE_ROUNDING * (np.abs(ahead) + np.abs(behind)))
            ratio = np.log(np.abs(change)) - np.log((at + h) - (at - h)) - log[undecided]
            agrees = visible & (np.abs(ratio) < np.log(2.0))
        new = visible & (agrees | ~visible_once[undecided])
        sign[undecided[new]] = np.sign(change[new])
        visible_once[undecided] |= visible
        confirmed[undecided] |= agrees
    return sign, visible_once, confirmed


def _together(**given: Any) -> list[FloatArray]:
    """Broadcast numbers and arrays against each other to arrays of one shape."""
    arrays = [float_array(value, name) for name, value in given.items()]
    try:
        return list(np.broadcast_arrays(*arrays))
    except ValueError as problem:
        shapes = " and ".join(str(array.shape) for array in arrays)
        raise InputError(", ".join(given), "arrays that broadcast against each other", f"shapes {shapes}") from problem


def from_log(logarithm: float) -> float:
    """Return e to a power, 0.0 or inf if that leaves the range of a double."""
    with np.errstate(over="ignore"):
        return float(np.exp(logarithm))


def _interval(low: float, high: float) -> tuple[float, float]:
    low, high = real_number(low, "low", "a finite number"), real_number(high, "high", "a finite number")
    if not (np.isfinite(low) and np.isfinite(high) and low <= high):
        raise InputError("low, high", "finite numbers with low ≤ high", f"({low}, {high})")
    return low, high


def as_loss(loss: object) -> Loss:
    """Return `loss` if it is a `Loss` with the required methods, otherwise raise."""
    if not isinstance(loss, Loss):
        what = f"the class {loss.__name__}" if isinstance(loss, type) else type(loss).__name__
        raise InputError(
            "loss", "a loss such as ml.Logistic() or an instance of your own subclass of ml.losses.Loss", what
        )
    if not _defines(loss, "value"):
        raise lacking(loss, "value(u)")
    if not (_defines(loss, "derivative") or _defines(loss, "log_abs_derivative")):
        raise lacking(loss, "derivative(u) or log_abs_derivative(u)")
    return loss
