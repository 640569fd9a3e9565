"""Datasets and runs as sequences: some problems of a batch, one run of many, and what is refused."""

import numpy as np
import pytest

import marginlens as ml
from refusals import raised, refused


def test_runs_compare_hash_and_have_length():
    data, v = ml.data.sphere_tokens(3, 2, 3, 4, 0)
    run, other = (ml.descend(data, v, n_steps=9, record=ml.Record(keep=("x", "excess_risk"))) for _ in range(2))
    assert run == run
    assert run == other
    assert run[0] != other[1]
    assert len({run, other}) == 1
    assert len(run) == 3
    assert np.array_equal(run[-1].final, run.final[-1])
    assert np.array_equal(run[1].saved["x"], run.saved["x"][1])
    assert run[0].saved["excess_risk"].log.shape == (10,)
    with pytest.raises(IndexError):
        run[3]
    long = ml.descend(ml.data.acyclic_sequences(6, 4, 40, 3, 0), n_steps=2)
    assert "40 in all" in repr(long)
    assert len(repr(long)) < 120


SOME = {
    "slice": (slice(2), [0, 1]),
    "mask": (np.array([True, False, False, True, False]), [0, 3]),
    "list": ([4, -4], [4, 1]),
    "backwards": (slice(None, None, -2), [4, 2, 0]),
}


def joint_runs():
    data, _ = ml.data.sphere_tokens(5, 3, 3, 4, 0)
    return ml.descend(
        ml.JointRisk(data), n_steps=6, record=ml.Record(2, keep=("x", "margin", "attention", "excess_risk"))
    )


@pytest.mark.parametrize("case", SOME)
@pytest.mark.parametrize("kind", ["p", "joint"])
def test_a_slice_of_runs_is_a_batch(case, kind):
    data, v = ml.data.sphere_tokens(5, 2, 3, 4, 0)
    run = (
        ml.descend(data, v, n_steps=6, record=ml.Record(2, keep=("x", "excess_risk"))) if kind == "p" else joint_runs()
    )
    index, numbers = SOME[case]
    some = run[index]
    assert type(some) is type(run)
    assert len(some) == len(numbers)
    for name in ("final", "norm", "attention", "selected", "status", "steps_taken"):
        assert np.array_equal(getattr(some, name), getattr(run, name)[numbers]), name
    for name, value in run.saved.items():
        expected, found = (value.log, some.saved[name].log) if name == "excess_risk" else (value, some.saved[name])
        assert np.array_equal(found, expected[numbers])
    assert np.array_equal(some[0].status, run[numbers[0]].status)
    with raised(ml.InputError, "run.final"):
        some.resume(2)


def test_joint_runs_have_length_and_index():
    run = joint_runs()
    assert len(run) == 5
    assert np.array_equal(run[-1].split().v, run.split().v[-1])
    assert np.array_equal(run[1].saved["margin"], run.saved["margin"][1])
    assert run[0].saved["excess_risk"].log.shape == (4,)
    assert not run[0].is_batch
    assert len(run[0]) == 1
    assert run[0][0].split().p.shape == (4,)
    with pytest.raises(IndexError):
        run[5]
    with refused("index"):
        run[0][:1]


@pytest.mark.parametrize("case", SOME)
def test_a_slice_of_solutions_is_a_batch(case):
    data, _ = ml.data.sphere_tokens(5, 3, 4, 3, 1)
    svm = ml.att_svm(data, np.zeros((5, 3), dtype=int))
    assert {ml.Status.OPTIMAL, ml.Status.INFEASIBLE} <= set(svm.status)
    index, numbers = SOME[case]
    some = svm[index]
    assert some.is_batch
    assert len(some) == len(numbers)
    assert list(some.status) == [svm.status[j] for j in numbers]
    for name in ("x", "multipliers", "active", "certificate", "pairs", "margin"):
        np.testing.assert_array_equal(getattr(some, name), getattr(svm, name)[numbers])
    np.testing.assert_array_equal(some.kkt_residual(), svm.kkt_residual()[numbers])
    np.testing.assert_array_equal(some.certificate_residual(), svm.certificate_residual()[numbers])


def test_a_mask_selects_solutions_by_status():
    data, _ = ml.data.sphere_tokens(5, 3, 4, 3, 1)
    svm = ml.att_svm(data, np.zeros((5, 3), dtype=int))
    solved = svm[svm.status == ml.Status.OPTIMAL]
    assert set(solved.status) == {ml.Status.OPTIMAL}
    assert np.isfinite(solved.x).all()
    for wrong in (svm.status == "OPTIMAL", "a", 1.5, np.ones(3, dtype=bool), slice(0, 0)):
        with refused("index"):
            svm[wrong]
    with pytest.raises(IndexError):
        svm[[0, 7]]
    assert svm[0][0] is not None
    with refused("index"):
        svm[0][:1]
