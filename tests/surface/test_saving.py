"""Runs and margin solutions come back from files as they were."""

import itertools

import numpy as np
import pytest

import marginlens as ml
from marginlens.dynamics import Trajectory
from marginlens.svm import MarginSolution
from refusals import refused


def runs():
    data, head = ml.data.sphere_tokens(3, 2, 4, 6, 0)
    everything = ml.Record(steps=5, keep=("x", "norm", "attention", "selected", "margin", "risk", "excess_risk"))
    yield "a batch", ml.descend(data, head, n_steps=20, record=everything)
    yield "one run", ml.descend(data[0], head[0], n_steps=20, record=everything)
    yield "nothing recorded", ml.descend(data[0], head[0], n_steps=3)
    yield "weights of next tokens", ml.descend(ml.data.cyclic_sequences(5, 6, 5, 4, 0), n_steps=3)


RUNS = dict(runs())


@pytest.mark.parametrize("name", RUNS)
def test_a_saved_run_is_read_unchanged(name, tmp_path):
    run = RUNS[name]
    run.save(tmp_path / "run.npz")
    again = Trajectory.load(tmp_path / "run.npz", run.risk)
    assert again == run
    assert repr(again) == repr(run)
    np.testing.assert_array_equal(again.attention, run.attention)
    np.testing.assert_array_equal(again.saved.steps, run.saved.steps)
    assert list(again.saved) == list(run.saved)
    for quantity, value in run.saved.items():
        if quantity == "excess_risk":
            np.testing.assert_array_equal(again.saved[quantity].sign, value.sign)
            np.testing.assert_array_equal(again.saved[quantity].log, value.log)
        else:
            np.testing.assert_array_equal(again.saved[quantity], value)


def solutions():
    data, _ = ml.data.sphere_tokens(3, 2, 4, 6, 0)
    infeasible, _ = ml.data.sphere_tokens(40, 3, 5, 2, 1)
    ragged = ml.TokenDataset([np.eye(3), np.eye(3)[:1]], [1, 1])
    yield "a batch", ml.att_svm(data, np.zeros((3, 2), dtype=int))
    yield "some infeasible", ml.att_svm(infeasible, np.zeros((40, 3), dtype=int))
    yield "one problem", ml.att_svm(data[0], [1, 2])
    yield "one token in an input", ml.att_svm(ragged, [1, 0])
    yield "another norm", ml.att_svm(data[0], [1, 2], norm=ml.Lp(1.75))
    yield "nothing to separate", ml.att_svm(ml.TokenDataset(np.ones((1, 1, 2)), [1]), [0])
    yield "next tokens", ml.graph_svm(ml.data.cyclic_sequences(5, 6, 5, 4, 0))
    yield "next tokens in another norm", ml.graph_svm(ml.data.figure_2(), norm=ml.Nuclear())


SOLUTIONS = dict(solutions())


@pytest.mark.parametrize("name", SOLUTIONS)
def test_a_saved_solution_is_read_with_its_proof(name, tmp_path):
    solution = SOLUTIONS[name]
    solution.save(tmp_path / "proof.npz")
    again = MarginSolution.load(tmp_path / "proof.npz")
    assert type(again) is type(solution)
    assert repr(again) == repr(solution)
    assert again.to_dict() == solution.to_dict()
    np.testing.assert_array_equal(again.kkt_residual(), solution.kkt_residual())
    np.testing.assert_array_equal(again.bracket(), solution.bracket())


@pytest.mark.parametrize(
    ("name", "field"), [("a batch", "x"), ("some infeasible", "certificate"), ("next tokens", "x")]
)
def test_an_invalid_saved_proof_is_detected(name, field, tmp_path):
    SOLUTIONS[name].save(tmp_path / "proof.npz")
    with np.load(tmp_path / "proof.npz") as archive:
        arrays = dict(archive)
    arrays[field] = arrays[field] + 0.01
    np.savez(tmp_path / "forged.npz", **arrays)
    forged, was = MarginSolution.load(tmp_path / "forged.npz"), SOLUTIONS[name]
    of = ml.Status.INFEASIBLE if field == "certificate" else ml.Status.OPTIMAL
    claimed = np.atleast_1d(np.asarray(was.status == of))
    assert claimed.any()
    assert (np.atleast_1d(np.asarray(forged.status))[claimed] == ml.Status.INACCURATE).all()


def test_runs_with_equal_ends_are_equal():
    assert RUNS["a batch"][0] == RUNS["one run"]
    assert RUNS["a batch"][1] != RUNS["one run"]
    assert RUNS["one run"] != "one run"


def test_a_file_of_another_kind_is_refused(tmp_path):
    RUNS["one run"].save(tmp_path / "run.npz")
    SOLUTIONS["one problem"].save(tmp_path / "proof.npz")
    with np.load(tmp_path / "proof.npz") as archive:
        np.savez(tmp_path / "short.npz", **{**archive, "lower": archive["lower"][:-1]})
    (tmp_path / "text.npz").write_text("no archive")
    np.savez(tmp_path / "other.npz", final=np.ones(3))
    np.savez(tmp_path / "pickled.npz", final=np.array([{}], dtype=object))
    others = ("text.npz", "other.npz", "pickled.npz", "absent.npz", "short.npz")
    for kind, name in (*itertools.product((Trajectory, MarginSolution), others), (MarginSolution, "run.npz")):
        with refused("path"):
            kind.load(tmp_path / name)
    with pytest.raises(ml.InputError):
        RUNS["one run"].save(tmp_path / "run.json")
