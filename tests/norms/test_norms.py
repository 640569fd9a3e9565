"""Norms: laws that hold for all points, what happens at ties and zeros, gradients in the log domain, and refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

import marginlens as ml
from marginlens.norms.choice import as_norm, direction_of, norm_named
from marginlens.risk import LogScaled
from random_examples import examples
from refusals import refused
from tolerances import ROUNDING

VECTOR_NORMS = [ml.L1(), ml.L2(), ml.LInf(), ml.Lp(1.2), ml.Lp(1.75), ml.Lp(3), ml.Lp(40)]
MATRIX_NORMS = [ml.Frobenius(), ml.Spectral(), ml.Nuclear(), ml.MaxRow()]
NORMS = VECTOR_NORMS + MATRIX_NORMS
RTOL = 1e-10

whole = st.integers(-3, 3).map(float)  # ties, zeros and dependent rows are common among whole numbers
real = st.floats(-10, 10).map(lambda x: 0.0 if abs(x) < 1e-3 else x)
matrices = array_shapes(min_dims=2, max_dims=2, max_side=4).flatmap(
    lambda shape: st.one_of(arrays(float, shape, elements=whole), arrays(float, shape, elements=real))
)


@examples(20)
@given(g=matrices, exponent=st.sampled_from([-200, -3, 0, 200]))
@pytest.mark.parametrize("norm", NORMS, ids=repr)
def test_steepest_directions_have_norm_one_and_attain_the_dual_norm(norm, g, exponent):
    s = norm.steepest(g * 10.0**exponent)
    assert s.shape == g.shape
    if not g.any():
        assert not s.any()
        assert norm.dual(g) == 0.0
        return
    assert norm.value(s) == pytest.approx(1.0, rel=RTOL, abs=ROUNDING)
    assert float(np.sum(g * s)) == pytest.approx(norm.dual(g), rel=RTOL, abs=ROUNDING)


@examples(12)
@given(g=matrices, data=st.data())
@pytest.mark.parametrize("norm", NORMS, ids=repr)
def test_no_point_of_the_unit_ball_beats_the_dual_norm(norm, g, data):
    x = data.draw(arrays(float, g.shape, elements=real))
    assert float(np.sum(g * x)) <= norm.dual(g) * norm.value(x) * (1.0 + RTOL) + 1e-300


@examples(12)
@given(g=matrices, log_scale=st.sampled_from([-1e5, -10.0, 0.0, 300.0, 1e5]))
@pytest.mark.parametrize("norm", NORMS, ids=repr)
def test_a_common_scale_changes_no_direction(norm, g, log_scale):
    plain = norm.steepest(g)
    assert np.allclose(direction_of(norm, LogScaled(g, np.asarray(log_scale), 2)), plain, rtol=0, atol=1e-12)
    pair = LogScaled(np.stack([g, g]), np.array([log_scale, 0.0]), 2)
    assert np.allclose(direction_of(norm, pair), plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", [ml.L1(), ml.LInf(), ml.Lp(1.75), ml.Lp(40), ml.Spectral(), ml.MaxRow()], ids=repr)
def test_rows_with_different_scales_keep_their_directions(norm):
    """At a spread of e^-30, where doubles hold the whole matrix, and at e^-3000, where they do not."""
    rng = np.random.default_rng(0)
    g = rng.normal(size=(3, 4))
    near = np.array([-30.0, 0.0, -15.0])
    scales = np.broadcast_to(near[:, None], g.shape)
    plain = norm.steepest(g * np.exp(scales))
    assert np.allclose(direction_of(norm, LogScaled(g, scales, 2)), plain, rtol=0, atol=1e-12)
    far = direction_of(norm, LogScaled(g, 100.0 * scales, 2))
    assert np.isfinite(far).all()
    assert norm.value(far) == pytest.approx(1.0, rel=RTOL, abs=ROUNDING)
    if isinstance(norm, ml.LInf | ml.MaxRow):
        assert np.allclose(far, plain, rtol=0, atol=1e-12)
    if isinstance(norm, ml.Spectral):  # each row, less what lies along larger ones
        u2, u3 = g[1], g[2] - g[2] @ g[1] / (g[1] @ g[1]) * g[1]
        u1 = g[0] - g[0] @ g[1] / (g[1] @ g[1]) * g[1] - g[0] @ u3 / (u3 @ u3) * u3
        rows = np.stack([u / np.linalg.norm(u) for u in (u1, u2, u3)])
        assert np.allclose(far, rows, rtol=0, atol=1e-12)
    if isinstance(norm, ml.Lp) and norm.p == 40:  # the 39th root of e^-3000 is not small
        k = np.argmax(np.abs(g[1]))
        assert far[0, 0] / far[1, k] == pytest.approx(
            np.sign(g[0, 0] * g[1, k]) * np.exp((np.log(abs(g[0, 0] / g[1, k])) - 3000) / 39), rel=RTOL, abs=ROUNDING
        )


def test_ties_and_zeros_have_defined_directions():
    assert np.array_equal(ml.L1().steepest([2.0, -3.0, 3.0]), [0.0, -1.0, 0.0])
    rounded = np.array([3.0 * (1.0 - 1e-15), 3.0, -1.0])  # equal but for rounding: still the first
    assert np.array_equal(ml.L1().steepest(rounded), [1.0, 0.0, 0.0])
    assert np.array_equal(direction_of(ml.L1(), LogScaled(rounded, np.asarray(-1e4))), [1.0, 0.0, 0.0])
    assert np.array_equal(ml.LInf().steepest([0.0, -0.0, -2.0, 1e-300]), [0.0, 0.0, -1.0, 1.0])
    assert np.array_equal(ml.MaxRow().steepest([[0.0, 0.0], [3.0, 4.0]]), [[0.0, 0.0], [0.6, 0.8]])
    assert np.array_equal(ml.Spectral().steepest([[2.0, 0.0], [0.0, 0.0]]), [[1.0, 0.0], [0.0, 0.0]])
    identity = ml.Nuclear().steepest(np.eye(3))
    assert np.array_equal(np.sort(identity.ravel()), [0, 0, 0, 0, 0, 0, 0, 0, 1])


def test_a_rounded_matrix_of_low_rank_gets_no_direction_from_rounding():
    rng = np.random.default_rng(1)
    u, v = rng.normal(size=(6, 2)), rng.normal(size=(7, 2))
    s = ml.Spectral().steepest(u @ v.T)
    values = np.linalg.svd(s, compute_uv=False)
    assert np.allclose(values, [1, 1, 0, 0, 0, 0], rtol=0, atol=1e-12)


def test_norms_are_found_by_name():
    for name, norm in {
        "l1": ml.L1(),
        "L2": ml.L2(),
        "l-inf": ml.LInf(),
        "linf": ml.LInf(),
        "l1.75": ml.Lp(1.75),
        "l3": ml.Lp(3),
        "l1.0": ml.L1(),
        "frobenius": ml.Frobenius(),
        "spectral": ml.Spectral(),
        "nuclear": ml.Nuclear(),
        "max-row": ml.MaxRow(),
    }.items():
        assert norm_named(name) == norm


@pytest.mark.parametrize("norm", [ml.Spectral(), ml.Nuclear(), ml.MaxRow()], ids=repr)
def test_norms_of_matrices_refuse_vectors(norm):
    for call in (norm.value, norm.dual, norm.steepest):
        with pytest.raises(ml.InputError) as caught:
            call(np.ones(3))
        assert caught.value.argument in ("x", "g")
        assert caught.value.got == "shape (3,)"

    with refused("gradient"):
        direction_of(norm, LogScaled(np.ones(3), np.asarray(0.0)))
    assert as_norm(norm, (3, 2)) is norm


def test_a_user_norm_needs_only_the_protocol():
    class Weighted:
        def value(self, x):
            return float(np.max(np.abs(x) * [1.0, 2.0]))

        def dual(self, g):
            return float(np.sum(np.abs(g) / [1.0, 2.0]))

        def steepest(self, g):
            return np.sign(g) / [1.0, 2.0]

    assert as_norm(norm := Weighted(), (2,)) is norm
    gradient = LogScaled(np.array([[1.0, -1.0], [0.0, 2.0]]), np.array([-1e4, 3.0]))
    assert np.array_equal(direction_of(norm, gradient), [[1.0, -0.5], [0.0, 0.5]])
