"""What the theory and the files of trained embeddings cannot use, refused in one sentence that names the argument."""

import numpy as np
import pytest

from marginlens.embeddings import (
    RankCorrelations,
    TrainingSettings,
    directional_slope,
    first_step,
    first_step_errors,
    first_step_loss,
    first_step_norms,
    initial_concentration,
    initial_parameters,
    read_labelled,
    token_statistics,
    write_labelled,
)
from marginlens.embeddings.models import Parameters
from marginlens.errors import InputError
from marginlens_papers.archive import archive_run, archived_runs, read_run

SEQUENCES, Y = [[0, 1, 2], [1, 0]], [1, -1]
START = initial_parameters(3, 4, 0, np.float64)
STEP = first_step(START, 1.0, SEQUENCES, Y)
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


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: initial_parameters(0, 4, 0, "float64"), "'n_vocabulary' argument must be a whole number of at least 1"),
        (lambda: initial_parameters(3, None, 0, "float64"), "'d_model' argument must be a whole number of at least 1"),
        (lambda: initial_parameters(3, 4, None, "float64"), "'rng' argument must be a numpy.random.Generator"),
        (lambda: initial_parameters(3, 4, 0, None), "'dtype' argument must be float32 or float64; got None"),
        (lambda: initial_parameters(3, 4, 0, "int64"), "'dtype' argument must be float32 or float64; got 'int64'"),
        (lambda: initial_parameters(3, 4, 0, "nonsense"), "'dtype' argument must be float32 or float64"),
        (lambda: initial_parameters(3, 4, 0, "float64", -1.0), "'spread' argument must be a positive number"),
        (lambda: initial_concentration(None, 0.1), "'start' argument must be Parameters with E, p and v; got NoneType"),
        (lambda: initial_concentration(BROKEN, 0.1), "'start.p' argument must be an array of finite numbers"),
        (lambda: initial_concentration(START, None), "'delta' argument must be a probability between 0 and 1; got None"),
        (lambda: initial_concentration(START, 1.5), "'delta' argument must be a probability between 0 and 1; got 1.5"),
        (lambda: first_step(None, 1.0, SEQUENCES, Y), "'start' argument must be Parameters with E, p and v"),
        (lambda: directional_slope("E", np.ones(4), SEQUENCES, Y), "'model' argument must be Parameters with E, p"),
        (lambda: first_step_errors(None, 0.1), "'step' argument must be a FirstStep.*got NoneType"),
        (lambda: first_step_norms(START, 0.1), "'step' argument must be a FirstStep.*got Parameters"),
        (lambda: first_step_loss([], 0.1), "'step' argument must be a FirstStep.*got list"),
        (lambda: first_step_errors(STEP, "x"), "'delta' argument must be a probability between 0 and 1; got 'x'"),
        (lambda: RankCorrelations(None), "'statistics' argument must be TokenStatistics.*got NoneType"),
        (lambda: RankCorrelations(token_statistics(SEQUENCES, Y), -1), "'at_least' argument must be a whole number"),
        (lambda: TrainingSettings(layers=np.ones(2)), "'layers' argument must be 1 or 2"),
        (lambda: TrainingSettings(dtype=np.ones(2)), "'dtype' argument must be float32 or float64"),
        (lambda: archived_runs(None, 1), "'source' argument must be the name of data.*got NoneType"),
        (lambda: archived_runs("imdb", None), "'layers' argument must be a whole number of at least 1; got None"),
        (lambda: archive_run(None, "a"), "'folder' argument must be a folder with.*got NoneType"),
        (lambda: archive_run("x", None), "'name' argument must be a name in letters, digits.*got NoneType"),
        (lambda: read_run(3), "'path' argument must be a file that archive_run wrote; got int"),
        (lambda: read_labelled(None), "'path' argument must be a .npz file.*got NoneType"),
        (lambda: write_labelled(None, STEP.data), "'path' argument must be a file to write; got NoneType"),
        (lambda: write_labelled("x", SEQUENCES), "'data' argument must be LabelledSequences; got list"),
        (lambda: write_labelled("x", STEP.data, [["a"], ["b", "c"]]), "'names' argument must be a list of names"),
        (lambda: write_labelled("x", STEP.data, split=[["a"], ["b", "c"]]), "'split' argument must be a list of names"),
    ],
)  # fmt: skip
def test_what_is_of_another_kind_is_refused(make, sentence):
    with pytest.raises(InputError, match=f"^The {sentence}"):
        make()
