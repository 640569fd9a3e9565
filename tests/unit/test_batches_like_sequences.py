"""Datasets and runs as sequences: some problems of a batch, one run of many, and what is refused."""

import numpy as np
import pytest

import marginlens as ml


def test_some_problems_of_a_batch_are_a_batch():
    data, v = ml.data.sphere_tokens(5, 2, 3, 4, 0)
    mask = np.array([True, False, False, True, False])
    for index, numbers in (
        (slice(2), [0, 1]),
        (mask, [0, 3]),
        ([4, 1], [4, 1]),
        (np.array([2]), [2]),
        (slice(-2, None), [3, 4]),
    ):
        some = data[index]
        assert some.is_batch
        assert np.array_equal(some.X, data.X[numbers])
        assert np.array_equal(
            ml.descend(some, v[numbers], n_steps=9).final, ml.descend(data, v, n_steps=9).final[numbers]
        )
    assert not data[np.int64(2)].is_batch
    for wrong in ("a", 1.5, mask[:3], slice(0, 0), np.zeros(5, dtype=bool)):
        with pytest.raises(ml.InputError, match="'index' argument must be"):
            data[wrong]
    with pytest.raises(IndexError):
        data[[7]]


def test_runs_compare_hash_and_count_like_other_results():
    data, v = ml.data.sphere_tokens(3, 2, 3, 4, 0)
    run, other = (ml.descend(data, v, n_steps=9, record=ml.Record(keep=("p", "excess_risk"))) for _ in range(2))
    assert run == run
    assert run != other
    assert len({run, other}) == 2
    assert len(run) == 3
    assert np.array_equal(run[-1].final, run.final[-1])
    assert np.array_equal(run[1].saved["p"], run.saved["p"][1])
    assert run[0].saved["excess_risk"].log.shape == (10,)
    with pytest.raises(IndexError):
        run[3]
    long = ml.descend_nexttoken(ml.data.acyclic_sequences(6, 4, 40, 3, 0), n_steps=2)
    assert "40 in all" in repr(long)
    assert len(repr(long)) < 120


def test_what_would_be_ignored_is_refused():
    class Own(ml.NormalizedStep):
        pass

    data, v = ml.data.figure_1a()
    with pytest.raises(ml.InputError, match="'step' argument must be"):
        ml.descend(data, v, step=Own(1.0))
    with pytest.raises(ml.InputError, match=r"'v' argument must be a vector.*the class int"):
        ml.descend(data, int, n_steps=2)
    with pytest.raises(ml.InputError, match=r"'path' argument must be the path of a file; got 1\.5"):
        ml.data.read_problem(1.5)
