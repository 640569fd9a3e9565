"""Regularisation paths of every kind of risk: resuming, a user's own risk, results, and arguments they cannot use."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import marginlens as ml
from marginlens.data import TokenDataset, figure_1b
from marginlens.dynamics import Binding, Cone, CyclicPart
from quadratic_risk import Quadratic

GENERAL_KKT = 1e-5  # what is left of the conditions where second derivatives are estimated
SAME_LOG_RISK = 1e-6  # difference of log risks between the general search and the special ones


def problem(seed):
    rng = np.random.default_rng(seed)
    return TokenDataset(rng.normal(size=(2, 3, 2)), [1.0, -1.0]), rng.normal(size=2)


def risks():
    data, v = problem(0)
    yield "p", ml.AttentionRisk(data, v), {"restarts": 4}, [1.0, 5.0, 30.0]
    yield "joint", ml.JointRisk(data), {"restarts": 4}, np.array([[1.0, 1.0], [5.0, 2.0], [5.0, 9.0]])
    yield "next token", ml.NextTokenRisk(ml.data.cyclic_sequences(4, 4, 5, 4, 0)), {}, [1.0, 5.0, 30.0]
    yield "W", ml.AttentionRisk(data, v).as_matrix([2.0]), {"restarts": 1}, [0.5, 2.0, 9.0]
    yield "own", Quadratic(), {"restarts": 2}, [0.5, 1.0, 9.0]


RISKS = {name: rest for name, *rest in risks()}


@pytest.mark.statement("A Eq. (2)", "C Algo-RP")
@pytest.mark.parametrize("name", RISKS)
def test_a_path_is_followed_further_as_if_it_had_never_stopped(name):
    risk, options, radii = RISKS[name]
    reports = []
    whole = ml.path(risk, radii, rng=3, progress=lambda *report: reports.append(report), **options)
    assert [done for done, _ in reports] == list(range(1, reports[-1][1] + 1))
    begun = ml.path(risk, radii[:1], rng=3, **options)
    for path in (begun.resume(radii[1:]), begun.resume(radii[1:2]).resume(radii[2:])):
        assert np.array_equal(path.points, whole.points)
        assert np.array_equal(path.log_excess, whole.log_excess, equal_nan=True)
        assert path.binding.tolist() == whole.binding.tolist()
    with pytest.raises(ml.InputError, match="'radii' argument must be larger than the last radius"):
        begun.resume(radii[:1])
    assert whole.norm.shape == whole.radii.shape == np.shape(radii)
    assert np.all(whole.norm <= whole.radii * (1.0 + 1e-12))
    assert whole.points.shape == (3, *risk.shape)
    assert whole.selected.shape[0] == len(whole) == 3
    assert np.all(np.diff(whole.value()) <= 1e-12)
    assert whole.kkt_residual().max() < GENERAL_KKT
    assert "\n" not in repr(whole)
    assert set(whole.to_dict()) == {"radii", "points", "selected", "log_excess", "excess_sign", "binding"}
    assert whole.plot().get_xlabel() == "radius"


@pytest.mark.statement("A Lemma 1")
def test_the_path_of_a_matrix_is_that_of_its_vector():
    data, v = problem(1)
    u = np.array([1.0, -2.0])
    radii = np.array([0.5, 8.0])
    of_W = ml.path(ml.AttentionRisk(data, v).as_matrix(u), radii, restarts=2)
    of_p = ml.path(data, radii * np.linalg.norm(u), head=v, restarts=2)
    assert np.log(of_W.value()) == pytest.approx(np.log(of_p.value()), abs=SAME_LOG_RISK)


def test_a_risk_of_ones_own_is_minimised_inside_and_on_the_ball():
    path = ml.path(Quadratic(), [0.5, 1.0, 9.0], restarts=2)
    assert path.binding.tolist() == [Binding.BALL, Binding.BALL, Binding.NONE]
    assert path.points[-1] == pytest.approx(np.ones(3), abs=GENERAL_KKT)
    assert path.distance(np.ones(3))[:2] == pytest.approx([0.0, 0.0], abs=GENERAL_KKT)
    with pytest.raises(ml.InputError, match="'region' argument must be left out for Quadratic"):
        ml.path(Quadratic(), [1.0], region=Cone(np.ones(3), 0.1, 0.5))


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 1000), st.permutations(range(2)), st.floats(0.1, 10.0))
def test_paths_do_not_depend_on_the_order_of_inputs_and_scale_with_the_keys(seed, order, scale):
    data, v = problem(seed)
    path = ml.path(data, [2.0, 20.0], head=v, restarts=8)
    mixed = ml.path(TokenDataset(data.X[list(order)], data.y[list(order)]), [2.0, 20.0], head=v, restarts=8)
    scaled = TokenDataset(data.X, data.y, K=scale * data.K)
    other = ml.path(scaled, np.array([2.0, 20.0]) / scale, head=v, restarts=8)
    assert mixed.value() == pytest.approx(path.value(), rel=1e-9)
    assert other.value() == pytest.approx(path.value(), rel=1e-9)


@pytest.mark.parametrize("radii", [[0.0, 1.0], [-2.0], [1.0, 3.0, 2.0], [1.0, 1.0], [], [1.0, np.nan], "a", None])
def test_radii_must_be_positive_and_increase(radii):
    data, v = figure_1b()
    with pytest.raises(ml.InputError, match=r"^The 'radii' argument must be "):
        ml.path(data, radii, head=v)


@pytest.mark.parametrize(
    ("axis", "mu", "radius"),
    [([1.0, 0.0], 0.0, 1.0), ([1.0, 0.0], 2.0, 1.0), ([0.0, 0.0], 0.1, 1.0), ([1.0], 0.1, 0.0)],
)
def test_a_cone_needs_an_axis_a_width_and_a_radius(axis, mu, radius):
    with pytest.raises(ml.InputError, match=r"^The 'cone\.\w+' argument must be "):
        Cone(axis, mu, radius)


def test_unusable_arguments_are_named():
    data, v = figure_1b()
    for region, words in (
        (Cone([1.0, 0.0, 0.0], 0.1, 1.0), "'region' argument must be a Cone with an axis of length 2"),
        (0.1, "'region' argument must be a Cone .*got float"),
        (Cone([1.0, 0.0], 0.1, 6.0), "'radii' argument must be at least the cone's radius 6; got 5"),
    ):
        with pytest.raises(ml.InputError, match=words):
            ml.path(data, [5.0], head=v, region=region)
    with pytest.raises(ml.InputError, match="'problem' argument must be one problem; got a batch of 1"):
        ml.path(data.as_batch(), [1.0], head=v)
    with pytest.raises(ml.InputError, match=r"'norm' argument must be ml.L2\(\)"):
        ml.path(data, [1.0], head=v, norm="l2")
    with pytest.raises(ml.InputError, match="'region' argument must be left out for a joint risk"):
        ml.path(ml.JointRisk(data), (1.0, 1.0), region=CyclicPart(np.eye(2)))
    with pytest.raises(ml.InputError, match="'direction' argument"):
        ml.path(data, 1.0, head=v, restarts=0).distance([1.0, 0.0, 0.0])
    with pytest.raises(ml.InputError, match="one whose points have parts"):
        ml.path(data, 1.0, head=v, restarts=0).split()

    def enough(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ml.path(data, [1.0], head=v, progress=enough)


def test_nothing_to_select_leaves_the_origin():
    data = TokenDataset([[[1.0, 2.0]], [[0.5, 1.0]]], [1.0, -1.0])
    path = ml.path(data, [1.0, 2.0], head=[1.0, 1.0])
    np.testing.assert_array_equal(path.points, 0.0)
    assert path.binding[-1] is Binding.NONE
    assert path.kkt_residual().max() == 0.0


def test_a_cone_on_the_line_keeps_its_side():
    data = TokenDataset([[[1.0], [-1.0]]], [1.0])
    path = ml.path(data, [2.0, 5.0], head=[1.0], region=Cone([-1.0], 1.5, 1.0))
    np.testing.assert_allclose(path.points[:, 0], -1.0)  # the smallest norm on the wrong side of the optimal token
    assert path.binding[-1] is Binding.CONE
    np.testing.assert_allclose(path.distance([-3.0]), [1.0 - 1.0 / 2.0, 1.0 - 1.0 / 5.0])  # of p̄(R)/R, not of its unit
    np.testing.assert_allclose(path.correlation([-3.0]), 1.0)
