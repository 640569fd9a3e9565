"""Initial values of embeddings, and arguments that are refused in one sentence."""

import numpy as np
import pytest

from marginlens.embeddings import (
    initial_parameters,
)

SEQUENCES, Y = [[0, 1, 2], [1, 0]], [1, -1]
START = initial_parameters(3, 4, 0, np.float64)


def test_a_whole_number_seeds_the_initial_values():
    again = initial_parameters(3, 4, np.random.default_rng(0), "float64")
    assert np.array_equal(START.E, again.E)
    assert np.array_equal(START.p, again.p)
    assert np.array_equal(START.v, again.v)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_initial_values_have_the_size_they_are_asked_for(dtype):
    for d in (3, 400):
        start = initial_parameters(2000, d, 1, dtype, 0.25)
        assert np.linalg.norm(start.v) == pytest.approx(1.0, rel=1e-6)
        assert np.mean(start.E**2) * d == pytest.approx(0.25**2, rel=0.06)
    assert np.linalg.norm(start.p) == pytest.approx(0.25, rel=0.12)
    assert {one.dtype for one in vars(start).values()} == {np.dtype(dtype)}
