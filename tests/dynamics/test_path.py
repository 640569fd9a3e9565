"""Regularisation paths of every kind of risk: resuming, a user's own risk, results, and arguments they cannot use."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import marginlens as ml
import tolerances
from marginlens.data import TokenDataset
from marginlens.dynamics import Cone
from marginlens.dynamics.paths.path import Binding
from marginlens.risk import matrix_from_vector
from quadratic_risk import Quadratic
from random_examples import examples
from refusals import refused

GENERAL_KKT = 1e-5  # what is left of the conditions where second derivatives are estimated
MATRIX_TANGENT = (
    1e-7  # of the gradient along the sphere at an exact point, which logits of a thousand round at about 1e-12 each
)
SAME_LOG_RISK = 1e-6  # difference of log risks between the general search and the special ones


def problem(seed):
    rng = np.random.default_rng(seed)
    return TokenDataset(rng.normal(size=(2, 3, 2)), [1.0, -1.0]), rng.normal(size=2)


def risks():
    data, v = problem(0)
    yield "p", ml.AttentionRisk(data, v), {"restarts": 2}, [1.0, 5.0, 30.0]
    yield "joint", ml.JointRisk(data), {"restarts": 2}, np.array([[1.0, 1.0], [5.0, 2.0], [5.0, 9.0]])
    yield "next token", ml.NextTokenRisk(ml.data.cyclic_sequences(4, 4, 5, 4, 0)), {}, [1.0, 5.0, 30.0]
    yield "W", ml.AttentionRisk(data, v).as_matrix([2.0]), {"restarts": 1}, [0.5, 2.0, 9.0]
    yield "own", Quadratic(), {"restarts": 2}, [0.5, 1.0, 9.0]


RISKS = {name: rest for name, *rest in risks()}


@pytest.mark.statement("A Eq. (2)", "C Algo-RP")
@pytest.mark.parametrize("name", RISKS)
def test_a_resumed_path_equals_the_uninterrupted_one(name):
    risk, options, radii = RISKS[name]
    reports = []
    whole = ml.path(risk, radii, rng=3, progress=lambda *report: reports.append(report), **options)
    assert [done for done, _ in reports] == list(range(1, reports[-1][1] + 1))
    begun = ml.path(risk, radii[:1], rng=3, **options)
    for path in (begun.resume(radii[1:]), begun.resume(radii[1:2]).resume(radii[2:])):
        assert np.array_equal(path.points, whole.points)
        assert np.array_equal(path.log_excess, whole.log_excess, equal_nan=True)
        assert path.binding.tolist() == whole.binding.tolist()
    with refused("radii"):
        begun.resume(radii[:1])
    with pytest.raises(ZeroDivisionError):  # what progress raises ends a path
        ml.path(risk, radii[:1], progress=lambda done, total: 1 / 0, **options)
    assert whole.norm.shape == whole.radii.shape == np.shape(radii)
    assert np.all(whole.norm <= whole.radii * (1.0 + 1e-12))
    assert whole.points.shape == (3, *risk.shape)
    assert whole.selected.shape[0] == len(whole) == 3
    assert np.all(np.diff(whole.value()) <= 1e-12)
    assert whole.kkt_residual().max() < GENERAL_KKT
    assert "\n" not in repr(whole)
    assert set(whole.to_dict()) == {"radii", "points", "selected", "log_excess", "excess_sign", "binding", "trusted"}
    assert whole.trusted.all()
    assert "trusted" not in repr(whole)
    assert whole.plot().get_xlabel() == "radius"


def of_matrix(seed, shape, lengths=None):
    """A risk of W with a query for each input, of (n_inputs, n_tokens, d_model, d_query), and the same as a risk of p with formed keys."""
    n, n_tokens, d_model, d_query = shape
    rng = np.random.default_rng(seed)
    X = [rng.normal(size=(length, d_model)) for length in lengths or [n_tokens] * n]
    y, v, queries = rng.choice([-1.0, 1.0], n), rng.normal(size=d_model), rng.normal(size=(n, d_query))
    formed = [np.einsum("q,td->tqd", u, x).reshape(len(x), -1) for u, x in zip(queries, X, strict=True)]
    vector = ml.AttentionRisk(TokenDataset(X, y, K=formed), v)
    return ml.AttentionRisk(TokenDataset(X, y), v).as_matrix(queries), vector


def tangential(risk, x):
    """The part along the sphere of the gradient at a point on it, relative to all of it."""
    g, u = risk.gradient(x).direction().ravel(), x.ravel() / np.linalg.norm(x)
    return np.linalg.norm(g - (g @ u) * u)


@pytest.mark.parametrize(
    ("seed", "shape", "lengths"), [(31, (2, 3, 3, 2), None), (32, (4, 3, 2, 5), None), (33, (3, 4, 3, 3), [4, 2, 3])]
)
def test_the_path_of_w_is_that_of_p_with_product_keys(seed, shape, lengths):
    risk, vector = of_matrix(seed, shape, lengths)
    radii = np.array([0.5, 20.0, 900.0])
    of_W, of_p = ml.path(risk, radii, restarts=3), ml.path(vector, radii, restarts=6)
    np.testing.assert_allclose(of_W.points.reshape(3, -1), of_p.points, rtol=0.0, atol=1e-9 * radii[-1])
    np.testing.assert_array_equal(of_W.selected, of_p.selected)
    np.testing.assert_array_equal(of_W.selected, [risk.select(W) for W in of_W.points])
    np.testing.assert_allclose(of_W.log_excess, of_p.log_excess, rtol=1e-9, atol=0.0)
    assert of_W.binding.tolist() == of_p.binding.tolist()
    on_ball = of_W.binding == Binding.BALL
    assert max(tangential(risk, W) for W in of_W.points[on_ball]) < MATRIX_TANGENT
    # the max-margin W of the same norm is no better
    best = ml.att_svm(risk.of_p.data, of_W.selected[-1], query=risk.query)
    same_norm = radii[-1] * best.x / np.linalg.norm(best.x)
    assert of_W.log_excess[-1] < risk.excess(same_norm, of_W.selected[-1]).log
    assert of_W.correlation(best.x)[-1] > 0.99
    with refused("risk"):
        of_W.split()


@pytest.mark.statement("A Lemma 1")
@pytest.mark.parametrize("seed", [41, 42])
def test_the_path_of_w_with_one_query_is_that_of_p(seed):
    data, v = problem(seed)
    u = np.array([1.0, -2.0, 0.5])
    radii = np.array([0.5, 8.0, 600.0])
    of_W = ml.path(ml.AttentionRisk(data, v).as_matrix(u), radii, restarts=3)
    of_p = ml.path(data, radii * np.linalg.norm(u), head=v, restarts=3)
    np.testing.assert_allclose(of_W.points, matrix_from_vector(of_p.points, u), rtol=0.0, atol=1e-9 * radii[-1])
    np.testing.assert_allclose(of_W.log_excess, of_p.log_excess, rtol=1e-9, atol=0.0)
    np.testing.assert_array_equal(of_W.selected, of_p.selected)
    formed = ml.path(ml.AttentionRisk(data, v).as_matrix(np.tile(u, (2, 1))), radii, restarts=3)  # one for each input
    np.testing.assert_allclose(of_W.points, formed.points, rtol=0.0, atol=1e-7 * radii[-1])


@pytest.mark.parametrize("shared", [False, True])
def test_the_path_of_a_matrix_stays_in_a_cone(shared):
    """The axis is no u pᵀ, so that with one query too the path needs matrices of rank two."""
    risk, _ = of_matrix(51, (2, 3, 2, 2))
    risk = risk.of_p.as_matrix(risk.query[0]) if shared else risk
    axis, radii = np.array([[0.3, -1.0], [0.8, 0.5]]), [2.0, 50.0]
    path = ml.path(risk, radii, region=Cone(axis.ravel(), 0.05, 1.0), restarts=4)
    assert path.points.shape == (2, 2, 2)
    assert path.correlation(axis).min() >= 0.95 - 1e-12
    others = np.random.default_rng(5).normal(size=(4000, 2, 2)) * 0.3 + axis / np.linalg.norm(axis)
    others *= radii[-1] / np.linalg.norm(others, axis=(1, 2), keepdims=True)
    others = others[ml.correlation(others.reshape(-1, 4), axis.ravel()) >= 0.95]
    assert len(others) > 100
    assert path.value()[-1] <= min(risk.value(W) for W in others) + 1e-15
    with refused("region"):
        ml.path(risk, radii, region=Cone(axis[0], 0.05, 1.0))


class Unknown:
    """A risk of a user's own: that of another, of which nothing but the protocol is known."""

    def __init__(self, risk):
        self.shape, self.select = risk.shape, risk.select
        self.value, self.log_value, self.gradient = risk.value, risk.log_value, risk.gradient
        self.margin_rows, self.smoothness = risk.margin_rows, risk.smoothness


@pytest.mark.parametrize("seed", [61, 62])
def test_a_user_risk_at_far_radii_is_not_trusted(seed):
    risk, _ = of_matrix(seed, (2, 3, 3, 2))
    exact = ml.path(risk, [2.0, 4000.0], restarts=3)
    path = ml.path(Unknown(risk), [2.0, 4000.0], restarts=2)
    assert path.trusted.tolist() == [True, False]
    assert "1 not trusted" in repr(path)
    assert "1 not trusted" in path._repr_html_()
    assert np.log(path.value()[0]) == pytest.approx(np.log(exact.value()[0]), abs=SAME_LOG_RISK, rel=0.0)
    assert path.kkt_residual()[0] < GENERAL_KKT
    wrong = exact.points + 0.3 * exact.radii[:, None, None] * unit_matrix(seed, risk.shape)
    wrong *= (exact.radii / np.linalg.norm(wrong, axis=(1, 2)))[:, None, None]
    planted = dataclasses.replace(path, _state=path._state._replace(points=tuple(wrong)))
    assert planted.kkt_residual().min() > 0.05
    inside = dataclasses.replace(path, _state=path._state._replace(points=tuple(0.7 * wrong)))  # nothing keeps it there
    assert inside.kkt_residual().min() > 0.05
    right = dataclasses.replace(path, _state=path._state._replace(points=tuple(exact.points)))
    assert right.kkt_residual().max() < MATRIX_TANGENT


def unit_matrix(seed, shape):
    matrix = np.random.default_rng(seed).normal(size=shape)
    return matrix / np.linalg.norm(matrix)


def test_a_user_risk_is_minimized_inside_and_on_the_ball():
    path = ml.path(Quadratic(), [0.5, 1.0, 9.0], restarts=2)
    assert path.binding.tolist() == [Binding.BALL, Binding.BALL, Binding.NONE]
    assert path.points[-1] == pytest.approx(np.ones(3), abs=GENERAL_KKT, rel=0.0)
    assert path.distance(np.ones(3))[:2] == pytest.approx([0.0, 0.0], abs=GENERAL_KKT, rel=0.0)
    with refused("region"):
        ml.path(Quadratic(), [1.0], region=Cone(np.ones(3), 0.1, 0.5))


@examples(3)
@given(st.integers(0, 1000), st.permutations(range(2)), st.floats(0.1, 10.0))
def test_paths_are_invariant_to_input_order_and_scale_with_keys(seed, order, scale):
    data, v = problem(seed)
    path = ml.path(data, [2.0, 20.0], head=v, restarts=4)
    mixed = ml.path(TokenDataset(data.X[list(order)], data.y[list(order)]), [2.0, 20.0], head=v, restarts=4)
    scaled = TokenDataset(data.X, data.y, K=scale * data.K)
    other = ml.path(scaled, np.array([2.0, 20.0]) / scale, head=v, restarts=4)
    assert mixed.value() == pytest.approx(path.value(), rel=1e-9, abs=tolerances.ROUNDING)
    assert other.value() == pytest.approx(path.value(), rel=1e-9, abs=tolerances.ROUNDING)


def test_a_path_without_choices_stays_at_the_origin():
    data = TokenDataset([[[1.0, 2.0]], [[0.5, 1.0]]], [1.0, -1.0])
    path = ml.path(data, [1.0, 2.0], head=[1.0, 1.0])
    np.testing.assert_array_equal(path.points, 0.0)
    assert path.binding[-1] is Binding.NONE
    assert path.kkt_residual().max() == 0.0


def test_a_one_dimensional_cone_keeps_its_side():
    data = TokenDataset([[[1.0], [-1.0]]], [1.0])
    path = ml.path(data, [2.0, 5.0], head=[1.0], region=Cone([-1.0], 1.5, 1.0))
    np.testing.assert_allclose(
        path.points[:, 0], -1.0, rtol=tolerances.PATH_KKT, atol=0.0
    )  # the smallest norm on the wrong side of the optimal token
    assert path.binding[-1] is Binding.CONE
    np.testing.assert_allclose(
        path.distance([-3.0]), [1.0 - 1.0 / 2.0, 1.0 - 1.0 / 5.0], rtol=tolerances.PATH_KKT, atol=0.0
    )  # of p̄(R)/R, not of its unit
    np.testing.assert_allclose(path.correlation([-3.0]), 1.0, rtol=tolerances.ROUNDING, atol=0.0)
