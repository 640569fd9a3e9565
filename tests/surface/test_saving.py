"""Runs and datasets come back from files as they were."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.dynamics import Trajectory


def runs():
    data, head = ml.data.sphere_tokens(3, 2, 4, 6, 0)
    everything = ml.Record(steps=5, keep=("x", "norm", "attention", "selected", "margin", "risk", "excess_risk"))
    yield "a batch", ml.descend(data, head, n_steps=20, record=everything)
    yield "one run", ml.descend(data[0], head[0], n_steps=20, record=everything)
    yield "nothing recorded", ml.descend(data[0], head[0], n_steps=3)
    yield "weights of next tokens", ml.descend(ml.data.cyclic_sequences(5, 6, 5, 4, 0), n_steps=3)


RUNS = dict(runs())


@pytest.mark.parametrize("name", RUNS)
def test_a_run_comes_back_as_it_was(name, tmp_path):
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


def test_runs_are_equal_where_they_ended_alike():
    assert RUNS["a batch"][0] == RUNS["one run"]
    assert RUNS["a batch"][1] != RUNS["one run"]
    assert RUNS["one run"] != "one run"


def test_a_file_of_another_kind_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "text.npz").write_text("no archive")
    np.savez(tmp_path / "other.npz", final=np.ones(3))
    np.savez(tmp_path / "pickled.npz", final=np.array([{}], dtype=object))
    for name in ("text.npz", "other.npz", "pickled.npz", "absent.npz"):
        with pytest.raises(ml.InputError, match=r"a \.npz file that Trajectory.save wrote"):
            Trajectory.load(tmp_path / name)
    with pytest.raises(ml.InputError, match=r"a name that ends in \.npz"):
        RUNS["one run"].save(tmp_path / "run.json")
