"""Initial values of embeddings, and arguments that are refused in one sentence."""

import numpy as np
import pytest

from marginlens.embeddings import (
    directional_slope,
    first_step_errors,
    initial_concentration,
    initial_parameters,
    loss_and_gradients,
)
from marginlens.embeddings.models import Parameters
from marginlens.errors import InputError

SEQUENCES, Y = [[0, 1, 2], [1, 0]], [1, -1]
START = initial_parameters(3, 4, 0, np.float64)
BROKEN = Parameters(START.E, START.p * np.nan, START.v)


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


REFUSED = {
    "no tokens": (lambda: initial_parameters(0, 4, 0, "float64"), "'n_vocabulary' .*a whole number of at least 1"),
    "dtype": (lambda: initial_parameters(3, 4, 0, "int64"), "'dtype' argument must be float32 or float64; got 'int64'"),
    "spread": (lambda: initial_parameters(3, 4, 0, "float64", -1.0), "'spread' argument must be a positive number"),
    "start": (
        lambda: initial_concentration(None, 0.1),
        "'start' argument must be Parameters with E, p and v; got None",
    ),
    "nan": (lambda: initial_concentration(BROKEN, 0.1), "'start.p' argument must be an array of finite numbers"),
    "delta": (lambda: initial_concentration(START, 1.5), "'delta' .*a probability between 0 and 1; got 1.5"),
    "model": (lambda: directional_slope("E", np.ones(4), SEQUENCES, Y), "'model' argument must be Parameters with E"),
    "step": (lambda: first_step_errors(None, 0.1), "'step' argument must be a FirstStep.*got NoneType"),
    "too few": (lambda: loss_and_gradients(START.E[:2], START.p, START.v, SEQUENCES, Y), "'E' .*at least 3 rows"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_of_another_kind_is_refused(case):
    make, sentence = REFUSED[case]
    with pytest.raises(InputError, match=f"^The {sentence}"):
        make()
