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

from marginlens.kernels.linalg import COMPILED
from marginlens.runtime.compilation import njit

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # the former times any exponent is exact
_ROUNDING = 1.5 * 2.0**52  # a number plus this is a whole number, which stands in the last bits
_SCALING = _ROUNDING + 1023.0  # the same, with the bias of exponents
_LOWEST, _HIGHEST = -746.0, 710.0  # e^x is 0 below and infinite above
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
def exp(x: float) -> float:
    """e^x."""
    x = _LOWEST if x < _LOWEST else x
    x = _HIGHEST if x > _HIGHEST else x
    k = (x * _LOG2_E + _ROUNDING) - _ROUNDING
    half = k * 0.5 + _SCALING  # 2^k as a product of two powers, neither of which is subnormal
    other = (k - (half - _SCALING)) + _SCALING
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    r2 = r * r
    r4 = r2 * r2
    low = (0.5000000000000001 + 0.16666666666666669 * r) + r2 * (0.041666666666623824 + 0.008333333333330039 * r)
    high = (0.0013888888917367081 + 0.00019841269863171557 * r) + r2 * (
        2.4801521057868204e-05 + 2.7557268276905696e-06 * r
    )
    q = low + r4 * (high + r4 * (2.7620201591031547e-07 + 2.5100472505694996e-08 * r))
    y = 1.0 + (r + r2 * q)
    return y * float_of_bits(bits_of_float(half) << _EXPONENT) * float_of_bits(bits_of_float(other) << _EXPONENT)


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
