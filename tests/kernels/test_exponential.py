"""The exponential and the logarithm of compiled loops against long arithmetic."""

import mpmath
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from marginlens.kernels.exponential import exp, exponentials, log, logarithms

MAX_ULPS = 1.1


def ulps(value, exact):
    """How many units in its last place a double is from an exact number."""
    return abs((mpmath.mpf(value) - exact) / mpmath.mpf(float(np.spacing(abs(float(exact))))))


def arguments(rng):
    """Numbers whose exponentials are everywhere from the smallest subnormal number to the largest double."""
    return np.concatenate([rng.uniform(-744.0, 709.7, 400), rng.uniform(-1.0, 1.0, 400), 1e-9 * rng.normal(size=100)])


def test_exponentials_are_within_about_one_unit_in_the_last_place():
    x = arguments(np.random.default_rng(0))
    values = np.empty_like(x)
    exponentials(x, values)
    with mpmath.workdps(40):
        assert max(ulps(y, mpmath.exp(mpmath.mpf(t))) for t, y in zip(x, values, strict=True)) <= MAX_ULPS


def test_logarithms_are_within_about_one_unit_in_the_last_place():
    x = np.exp(arguments(np.random.default_rng(1)))
    values = np.empty_like(x)
    logarithms(x, values)
    with mpmath.workdps(40):
        assert max(ulps(y, mpmath.log(mpmath.mpf(t))) for t, y in zip(x, values, strict=True)) <= MAX_ULPS


@settings(deadline=None, max_examples=200)
@given(st.floats())
def test_every_double_has_the_values_numpy_gives_it(x):
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(exp(x), np.exp(x), rtol=1e-15, atol=5e-324)
        np.testing.assert_allclose(log(x), np.log(x), rtol=1e-15, atol=0.0)


def test_arrays_may_be_overwritten_and_have_any_length():
    rng = np.random.default_rng(2)
    for length in (0, 1, 2, 3, 7, 24):
        x = rng.normal(size=length)
        y = x.copy()
        exponentials(y, y)
        np.testing.assert_allclose(y, np.exp(x), rtol=1e-15)
        logarithms(y, y)
        np.testing.assert_allclose(y, x, rtol=1e-14, atol=1e-15)
