"""Which theorem of paper C applies, condition by condition, and that training goes where it says."""

import numpy as np
import pytest

from marginlens import (
    ConstantStep,
    CrossEntropy,
    NormalizedStep,
    SequenceDataset,
    SquaredLoss,
    correlation,
    predict_limit,
)
from marginlens.data import acyclic_sequences, cyclic_sequences
from marginlens.nexttoken import descend_nexttoken
from marginlens.nexttoken.smoothness import nexttoken_smoothness
from marginlens.theory.nexttoken_limits import predict_nexttoken_limit
from tolerances import ROUNDING

A, B, C, D = range(4)


def applying(prediction):
    return {one.citation for one in prediction.verdicts if one.applies}


@pytest.mark.statement("C Thm 1", "C Thm 3")
def test_acyclic_data_satisfy_every_theorem_and_descent_goes_there():
    ds = acyclic_sequences(8, 8, 4, 6, 0)
    found = predict_nexttoken_limit(ds)
    assert applying(found) == {"C Thm 1", "C Thm 2", "C Thm 3"}
    assert np.linalg.norm(found.direction) == pytest.approx(1.0, abs=ROUNDING)
    assert not np.any(found.correction)
    run = descend_nexttoken(ds, n_steps=20_000)
    assert correlation(run.final, found.direction, axes=2) > 0.995
    assert correlation(run.final, found.direction.T, axes=2) < 0.9
    assert "Certain" in str(found)


@pytest.mark.statement("C Thm 2", "C Thm 3")
def test_cyclic_data_leave_theorem_1_and_keep_the_others():
    ds = cyclic_sequences(6, 8, 6, 4, 1)
    found = predict_nexttoken_limit(ds)
    assert applying(found) == {"C Thm 2", "C Thm 3"}
    assert "in one component" in str(found.verdicts[0])
    run = descend_nexttoken(ds, n_steps=4000)
    inside = found.mix.subspace.project(run.final)
    assert np.linalg.norm(inside - found.correction) < 0.02  # normalised steps of .01 circle W^cyc
    assert np.linalg.norm(found.correction) > 0.02


def test_the_step_is_held_against_the_smoothness():
    ds = acyclic_sequences(6, 8, 5, 4, 2)
    limit = 1.0 / nexttoken_smoothness(ds)
    assert predict_nexttoken_limit(ds, step=ConstantStep(0.99 * limit)).direction is not None
    refused = predict_nexttoken_limit(ds, step=ConstantStep(1.01 * limit))
    assert refused.direction is None
    assert refused.path_direction is not None
    assert "open for gradient descent" in refused.why
    assert predict_nexttoken_limit(ds, step=NormalizedStep(0.01)).direction is None


def test_other_heads_and_losses_fail_where_the_proofs_need_them():
    ds = acyclic_sequences(6, 8, 5, 4, 3)
    general = predict_nexttoken_limit(ds, head=ds.E)
    assert applying(general) == {"C Thm 1"}
    wrong = predict_nexttoken_limit(ds, head=-ds.E)
    assert not applying(wrong)
    assert "scores token" in str(wrong.verdicts[0])
    for loss in (SquaredLoss(), CrossEntropy()):
        assert not applying(predict_nexttoken_limit(ds, loss=loss))


def test_trivial_and_infeasible_data_are_told_apart():
    nothing = predict_nexttoken_limit(SequenceDataset([[A, B], [A, B]], [A, B], np.eye(3)))
    assert not applying(nothing)
    assert "does not diverge" in nothing.why
    line = np.array([[0.0], [1.0], [2.0], [3.0]])
    impossible = predict_nexttoken_limit(SequenceDataset([[A, B, C, D]], [B], line))
    assert not applying(impossible)
    assert impossible.direction is None
    assert "No vector satisfies every constraint" in impossible.why


def test_the_one_question_takes_sequences_too():
    ds = cyclic_sequences(6, 8, 6, 4, 5)
    assert np.array_equal(predict_limit(ds).direction, predict_nexttoken_limit(ds).direction)
    assert predict_limit(ds, ds.E).direction is None  # a head that is not the identity
