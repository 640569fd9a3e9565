"""The elementary functions of the core against long arithmetic, and at every double against NumPy."""

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marginlens import core
from random_examples import examples

EXP, LOG, LOG1P, EXPM1, TANH, POW, EXP_OF_EIGHT, EXP_OF_FOUR, LOG_OF_FOUR, POW_OF_FOUR = range(10)


def elementary(code, x, power=0.0):
    out = np.empty(np.shape(x))
    core.elementary(code, np.asarray(x, dtype=np.float64), power, out)
    return out


def ulps(value, exact):
    """How many units in its last place a double is from an exact number."""
    return abs((mpmath.mpf(value) - exact) / mpmath.mpf(float(np.spacing(abs(float(exact))))))


def arguments(rng):
    """Numbers whose exponentials are everywhere from the smallest subnormal number to the largest double."""
    return np.concatenate([rng.uniform(-744.0, 709.7, 400), rng.uniform(-1.0, 1.0, 400), 1e-9 * rng.normal(size=96)])


@pytest.mark.parametrize(
    ("code", "exact", "allowed"),
    [
        (EXP, mpmath.exp, 1.1),
        (LOG, mpmath.log, 1.1),
        (LOG1P, mpmath.log1p, 4.0),
        (EXPM1, mpmath.expm1, 4.0),
        (TANH, mpmath.tanh, 4.0),
    ],
)
def test_functions_agree_with_long_arithmetic(code, exact, allowed):
    x = arguments(np.random.default_rng(code))
    x = np.exp(x) if code in (LOG, LOG1P) else x
    with mpmath.workdps(400 if code == TANH else 40):
        assert max(ulps(y, exact(mpmath.mpf(t))) for t, y in zip(x, elementary(code, x), strict=True)) <= allowed


@pytest.mark.parametrize("power", [0.5, 1.0 / 3.0, 1.5, 4.0 / 3.0, 3.0, -1.75, 17.3, 0.01])
def test_powers_agree_with_long_arithmetic(power):
    x = np.exp(np.random.default_rng(int(100 * abs(power))).uniform(-230.0, 230.0, 300) / max(abs(power), 1.0))
    with mpmath.workdps(40):
        exact = [mpmath.power(mpmath.mpf(t), mpmath.mpf(power)) for t in x]
        assert max(ulps(y, value) for y, value in zip(elementary(POW, x, power), exact, strict=True)) <= 4.0


@examples(200)
@given(st.floats(), st.floats(-30.0, 30.0))
def test_every_special_double_has_numpys_value(x, power):
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(elementary(EXP, [x]), np.exp(x), rtol=1e-15, atol=5e-324)
        np.testing.assert_allclose(elementary(LOG, [x]), np.log(x), rtol=1e-15, atol=0.0)
        np.testing.assert_allclose(elementary(LOG1P, [x]), np.log1p(x), rtol=1e-15, atol=5e-324)
        np.testing.assert_allclose(elementary(EXPM1, [x]), np.expm1(x), rtol=1e-15, atol=5e-324)
        np.testing.assert_allclose(elementary(TANH, [x]), np.tanh(x), rtol=1e-15, atol=5e-324)
        # a subnormal power has the rounding of its logarithm times the power, of up to 745
        expected = np.abs(x) ** power
        rtol = 2e-13 if expected < np.finfo(float).tiny else 2e-14
        np.testing.assert_allclose(elementary(POW, [abs(x)], power), expected, rtol=rtol, atol=5e-324)


@pytest.mark.parametrize("several", [(EXP, EXP_OF_FOUR), (EXP, EXP_OF_EIGHT), (LOG, LOG_OF_FOUR), (POW, POW_OF_FOUR)])
def test_vectorized_values_have_the_bits_of_single_ones(several):
    rng = np.random.default_rng(several[1])
    extreme = [0.0, np.inf, np.nan, 5e-324, 1e-310, 1.7e308, 1.0, 0.5]
    x = np.concatenate([100.0 * rng.normal(size=37), np.exp(100.0 * rng.normal(size=40)), extreme, -np.array(extreme)])
    x = np.abs(x) if POW in several else x
    for power in (0.5, -3.7, 0.0):
        single, several_at_once = (elementary(code, x, power) for code in several)
        assert np.array_equal(single, several_at_once, equal_nan=True)
