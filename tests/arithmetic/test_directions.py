"""Cosines and angles."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.arithmetic import directions
from refusals import refused
from tolerances import ROUNDING, SIX_DIGITS


def test_cosine_of_a_batch_never_exceeds_one():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(50, 6)), rng.normal(size=(50, 6))
    expected = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
    assert np.allclose(ml.correlation(a, b), expected, rtol=0, atol=ROUNDING)
    assert isinstance(ml.correlation(a[0], b[0]), float)
    assert np.all(ml.correlation(a, 3 * a) <= 1.0)
    assert np.allclose(ml.correlation(a, b[0]), [ml.correlation(row, b[0]) for row in a], rtol=ROUNDING, atol=0.0)
    assert ml.correlation(1e300 * a[0], 1e-300 * b[0]) == pytest.approx(expected[0], rel=SIX_DIGITS, abs=ROUNDING)


def test_correlation_of_matrices_uses_all_axes_on_request():
    A, B = np.random.default_rng(1).normal(size=(2, 4, 3, 3))
    cosines, angles = ml.correlation(A, B, axes=2), ml.angle(A, B, axes=2)
    np.testing.assert_allclose(cosines, ml.correlation(A.reshape(4, 9), B.reshape(4, 9)), rtol=ROUNDING, atol=0.0)
    np.testing.assert_array_equal(angles, ml.angle(A.reshape(4, 9), B.reshape(4, 9)))
    np.testing.assert_allclose(np.cos(angles), cosines, rtol=0.0, atol=1e-12)
    assert isinstance(ml.correlation(A[0], B[0], axes=2), float)
    for argument, given in (("b", (A, B[..., :2])), ("a", (A[0, 0], B)), ("b", (A, B[:, :2]))):
        for function in (ml.correlation, ml.angle):
            with refused(argument):
                function(*given, axes=2)


def test_norm_of_vectors_at_any_scale_does_not_overflow():
    assert directions.length([3.0, 4.0]) == 5.0
    x = np.array(
        [[3e200, 4e200], [3e-200, 4e-200], [0.0, 0.0], [5e-324, 0.0], [np.inf, 1.0], [np.nan, 1.0], [3.0, 4.0]]
    )
    expected = [5e200, 5e-200, 0.0, 5e-324, np.inf, np.nan, 5.0]
    np.testing.assert_allclose(directions.length(x), expected, rtol=ROUNDING, atol=0.0)
    assert directions.length(np.ones((2, 0))).tolist() == [0.0, 0.0]


def test_direction_of_zero_and_nonfinite_vectors_is_nan_and_tiny_angles_are_kept():
    endless = np.full(5, 1.6e308)
    assert np.isnan(directions.unit(endless)).all()
    for nowhere in (endless, np.zeros(5)):
        assert np.isnan(ml.correlation(nowhere, np.ones(5)))
    assert np.isnan(ml.angle(np.stack([endless, np.ones(5)]), np.ones(5))).tolist() == [True, False]
    a = np.array([1.0, 0.0])
    assert ml.angle(a, np.array([1.0, 1e-12])) == pytest.approx(1e-12, rel=1e-9, abs=0.0)
    assert ml.angle(a, -a) == pytest.approx(np.pi, rel=SIX_DIGITS, abs=ROUNDING)
