"""What a regularisation path says to arguments it cannot use, and what its results look like."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.data import figure_1b
from marginlens.data.tokens import TokenDataset
from marginlens.dynamics import Binding, Cone
from marginlens.errors import InputError


@pytest.mark.parametrize(
    ("radii", "words"),
    [
        ([0.0, 1.0], r"The 'radii' argument must be positive numbers.*got 0 instead\.$"),
        ([-2.0], r"The 'radii' argument .*got -2 instead\.$"),
        ([1.0, 3.0, 2.0], r"The 'radii' argument .*got radii that do not increase instead\.$"),
        ([1.0, 1.0], r"The 'radii' argument .*got radii that do not increase instead\.$"),
        ([], r"The 'radii' argument .*got none instead\.$"),
        ([1.0, np.nan], r"The 'radii' argument .*nan at index"),
    ],
)
def test_radii_must_be_positive_and_increase(radii, words):
    data, v = figure_1b()
    with pytest.raises(InputError, match=words):
        ml.path(data, radii, head=v)


@pytest.mark.parametrize("mu", [0.0, -0.1, 2.0, 3.0, np.nan])
def test_cone_width_must_be_between_zero_and_two(mu):
    with pytest.raises(InputError, match=r"^The 'cone\.mu' argument must be a .*instead\.$"):
        Cone([1.0, 0.0], mu, 1.0)


def test_cone_needs_an_axis_and_a_radius():
    with pytest.raises(InputError, match=r"'cone\.axis' argument must be a vector that is not zero"):
        Cone([0.0, 0.0], 0.1, 1.0)
    with pytest.raises(InputError, match=r"'cone\.radius' argument must be a positive number"):
        Cone([1.0, 0.0], 0.1, 0.0)


def test_cone_must_fit_the_problem_and_the_radii():
    data, v = figure_1b()
    with pytest.raises(
        InputError, match=r"'region' argument must be a Cone with an axis of length 2; got an axis of length 3"
    ):
        ml.path(data, [5.0], head=v, region=Cone([1.0, 0.0, 0.0], 0.1, 1.0))
    with pytest.raises(InputError, match=r"'region' argument must be a Cone .*got float instead"):
        ml.path(data, [5.0], head=v, region=0.1)
    with pytest.raises(InputError, match=r"'radii' argument must be at least the cone's radius 6; got 5"):
        ml.path(data, [5.0], head=v, region=Cone([1.0, 0.0], 0.1, 6.0))


def test_a_batch_and_a_wrong_direction_are_refused():
    data, v = figure_1b()
    with pytest.raises(InputError, match=r"'problem' argument must be one problem; got a batch of 1"):
        ml.path(data.as_batch(), [1.0], head=v)
    path = ml.path(data, [1.0], head=v, restarts=0)
    with pytest.raises(InputError, match=r"'direction' argument"):
        path.distance([1.0, 0.0, 0.0])


def test_results_fit_on_a_line():
    data, v = figure_1b()
    path = ml.path(data, [1.0, 10.0], head=v, restarts=2)
    assert "\n" not in repr(path)
    assert len(path) == 2
    assert repr(Cone([2.0, 0.0], 0.1, 3.0)) == "Cone(d_key=2, mu=0.1, radius=3)"
    assert path.points.shape == (2, 2)
    assert path.binding.shape == path.norm.shape == (2,)
    np.testing.assert_allclose(path.norm, path.radii)


def test_one_radius_may_be_a_number():
    data, v = figure_1b()
    assert ml.path(data, 4.0, head=v, restarts=2).radii.tolist() == [4.0]


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
    np.testing.assert_allclose(
        path.distance([-3.0]), [1.0 - 1.0 / 2.0, 1.0 - 1.0 / 5.0]
    )  # of p̄(R)/R, not of p̄(R)/‖p̄(R)‖
    np.testing.assert_allclose(path.correlation([-3.0]), 1.0)
