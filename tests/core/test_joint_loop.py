"""The compiled joint descent at the edges of what arrays can hold; its numbers are compared in tests/dynamics/test_joint_descent.py."""

import numpy as np
import pytest

from marginlens import core
from refusals import refused

NORMALIZED, LOGISTIC = (1, 0.1, 2.0), 0


def arguments(batch=2, n=3, T=2, d=2, d_key=3, value=1.0):
    """Everything after first and last: problems, rule, kept steps, state and results; ends and v come back too."""
    rng = np.random.default_rng(0)
    problem = (rng.normal(size=(batch, n, T, d)), rng.normal(size=(batch, n, T, d_key)), np.ones((batch, n)))
    v, p, ends = np.full((batch, d), value), np.full((batch, d_key), value), np.zeros((batch, 2), dtype=np.int64)
    saved = (np.zeros((batch, 2, d)), np.zeros((batch, 2, d_key)))
    lengths, save = np.full((batch, n), T), np.array([0, 5])
    return [*problem, lengths, *NORMALIZED, LOGISTIC, 5, 5, save, v, p, ends, *saved]


def test_runs_take_all_steps_and_keep_the_first_and_the_last_point():
    given = arguments()
    core.descend_jointly(0, 2, *given)
    v, ends, heads = given[11], given[13], given[14]
    assert ends.tolist() == [[0, 5], [0, 5]]
    assert np.array_equal(heads[:, 0], np.ones((2, 2)))
    assert np.array_equal(heads[:, 1], v)
    assert (np.linalg.norm(v - 1.0, axis=1) < 0.5 + 1e-12).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e308])
def test_a_nonfinite_or_overflowing_point_ends_the_run(value):
    given = arguments(value=value)
    core.descend_jointly(0, 2, *given)
    assert given[13].tolist() == [[2, 0], [2, 0]]


@pytest.mark.parametrize("sizes", [{"n": 0}, {"d": 0}, {"d_key": 0}, {"batch": 1, "T": 1, "n": 1}])
def test_empty_and_single_axes_are_accepted(sizes):
    given = arguments(**sizes)
    core.descend_jointly(0, given[0].shape[0], *given)
    assert set(given[13][:, 0].tolist()) <= {0, 1}


def test_lengths_out_of_bounds_are_refused():
    given = arguments()
    given[3][0, 0] = 3
    with refused("lengths"):
        core.descend_jointly(0, 2, *given)
