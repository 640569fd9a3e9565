r"""The exponential and the logarithm without branches or calls, so that the compiler forms those of several numbers at once in a loop.

Both are polynomials on a short interval and exact powers of two beyond it: :math:`e^x = 2^k e^r` with :math:`|r| \le \tfrac12 \log 2` and
:math:`\log x = k \log 2 + \log(1 + f)` with :math:`\sqrt{1/2} \le 1 + f < \sqrt 2`. Their results are within 1.1 units in the last
place of the exact ones, subnormal numbers included; zero, infinities and nan are as in NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from marginlens.kernels.lanes import power_of_two, where_greater
from marginlens.kernels.linalg import COMPILED
from marginlens.runtime.compilation import njit

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # the former times any exponent is exact
_ROUNDING = 1.5 * 2.0**52  # a number plus this is a whole number, which stands in the last bits
_SCALING = _ROUNDING + 1023.0  # the same, with the bias of exponents
_LOWEST, _HIGHEST = -746.0, 710.0  # e^x is 0 below and infinite above
_LOWEST_NORMAL = -707.0  # e^x is subnormal not far below
_EXPONENT = np.uint64(52)  # bits below the exponent
_HALF_ROOT_OFFSET = np.uint64(0x3FF0000000000000 - 0x3FE6A09E667F3BCD)  # from sqrt(1/2) to 1, in bits
_HALF_ROOT_BITS = np.uint64(0x3FE6A09E667F3BCD)
_MANTISSA = np.uint64(2**52 - 1)
_WHOLE = np.uint64(0x4330000000000000)  # the bits of 2^52
_SMALLEST_NORMAL, _UP = 2.0**-1022, 2.0**54


@intrinsic
def float_of_bits(typing_context: Any, bits: Any) -> Any:
    """The double with these bits (uint64)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.uint64), generate


@intrinsic
def bits_of_float(typing_context: Any, x: Any) -> Any:
    """The bits of a double, as uint64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.uint64(types.float64), generate


@njit(**COMPILED)
def exp(x: Any) -> Any:
    """e^x of a number or of lanes."""
    x = where_greater(_LOWEST, x, _LOWEST, where_greater(x, _HIGHEST, _HIGHEST, x))
    k = (x * _LOG2_E + _ROUNDING) - _ROUNDING
    half = k * 0.5 + _SCALING  # 2^k as a product of two powers, neither of which is subnormal
    other = (k - (half - _SCALING)) + _SCALING
    return _near_one(x, k) * power_of_two(half) * power_of_two(other)


@njit(**COMPILED)
def exp_of_nonpositive(x: Any) -> Any:
    """e^x of a number or of lanes that are not above zero; 0 where that is below 1e-307."""
    shifted = x * _LOG2_E + _SCALING
    return where_greater(x, _LOWEST_NORMAL, _near_one(x, shifted - _SCALING) * power_of_two(shifted), 0.0)


@njit(**COMPILED)
def _near_one(x: Any, k: Any) -> Any:
    """e^(x - k log 2) where k is the whole number next to x / log 2: a polynomial, whose short sums do not wait for each other."""
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    r2 = r * r
    r4 = r2 * r2
    low = (0.5000000000000001 + 0.16666666666666669 * r) + r2 * (0.041666666666623824 + 0.008333333333330039 * r)
    middle = (0.0013888888917367081 + 0.00019841269863171557 * r) + r2 * (
        2.4801521057868204e-05 + 2.7557268276905696e-06 * r
    )
    high = 2.7620201591031547e-07 + 2.5100472505694996e-08 * r
    return 1.0 + (r + r2 * (low + r4 * (middle + r4 * high)))


@njit(**COMPILED)
def log(x: float) -> float:
    """The natural logarithm of x; -inf at 0 and nan below."""
    tiny = x < _SMALLEST_NORMAL
    bits = bits_of_float(x * _UP if tiny else x) + _HALF_ROOT_OFFSET
    k = float_of_bits((bits >> _EXPONENT) | _WHOLE) - (2.0**52 + (1023.0 + 54.0 if tiny else 1023.0))
    f = float_of_bits((bits & _MANTISSA) + _HALF_ROOT_BITS) - 1.0
    s = f / (2.0 + f)
    z = s * s
    q = 0.13088034850927555
    q = q * z + 0.13268638369266825
    q = q * z + 0.15386244737621665
    q = q * z + 0.18181795547521137
    q = q * z + 0.22222222392581045
    q = q * z + 0.28571428570799784
    q = q * z + 0.40000000000000885
    q = q * z + 0.6666666666666666
    half = 0.5 * f * f
    y = k * _LN2_HIGH - ((half - (s * (half + z * q) + k * _LN2_LOW)) - f)
    y = y if x > 0.0 else (-np.inf if x == 0.0 else np.nan)
    return y if x < np.inf else x


@njit(**COMPILED)
def exponentials(x: Any, out: Any) -> None:
    """out = e^x, entry by entry; `out` may be x."""
    for k in range(x.shape[0]):
        out[k] = exp(x[k])


@njit(**COMPILED)
def logarithms(x: Any, out: Any) -> None:
    """out = log x, entry by entry; `out` may be x."""
    for k in range(x.shape[0]):
        out[k] = log(x[k])
