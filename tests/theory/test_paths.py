"""Regularisation paths: global minima of the risk over balls and cones, and where they go as the radius grows."""

import numpy as np
import pytest

from marginlens.data import figures
from marginlens.dynamics import Cone, regularization_path
from marginlens.theory import globally_optimal_direction


@pytest.mark.statement("A Thm 1", "A Eq. (2)")
def test_path_reaches_the_globally_optimal_direction():
    data, v = figures.figure_1b()
    best = globally_optimal_direction(data, v)
    path = regularization_path(data, v, np.geomspace(1.0, 1e4, 5) / best.margin)
    assert path.distance(best.direction)[-1] < 1e-3
    assert path.kkt_residual().max() < 1e-8


@pytest.mark.statement("A Eq. (9)", "A Eq. (66)")
def test_local_path_stays_in_its_cone():
    data, v = figures.figure_1b()
    path = regularization_path(data, v, [10.0, 100.0], cone=Cone([1.0, 0.0], 0.1, 5.0))
    assert np.all(path.correlation([1.0, 0.0]) >= 0.9 - 1e-12)
