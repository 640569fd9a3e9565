"""Which theorem of paper C applies, condition by condition, and that training goes where it says."""

from dataclasses import dataclass

import numpy as np
import pytest

import marginlens as ml
from marginlens.data import acyclic_sequences, cyclic_sequences
from marginlens.nexttoken import LabelLoss, check_head, check_loss
from plain_losses import Decay
from tolerances import ROUNDING

A, B, C, D = range(4)


def applying(prediction):
    return {one.citation for one in prediction.verdicts if one.applies}


@pytest.mark.statement("C Thm 1", "C Thm 3")
def test_acyclic_data_satisfy_every_theorem_and_descent_goes_there():
    ds = acyclic_sequences(8, 8, 4, 6, 0)
    found = ml.predict_limit(ds)
    assert applying(found) == {"C Thm 1", "C Thm 2", "C Thm 3"}
    assert np.linalg.norm(found.direction) == pytest.approx(1.0, abs=ROUNDING, rel=0.0)
    assert not np.any(found.details.correction)
    run = ml.descend(ds, n_steps=20_000)
    assert ml.correlation(run.final, found.direction, axes=2) > 0.995
    assert ml.correlation(run.final, found.direction.T, axes=2) < 0.9
    assert "Certain" in str(found)


@pytest.mark.statement("C Thm 2", "C Thm 3")
def test_cyclic_data_satisfy_all_theorems_but_the_first():
    ds = cyclic_sequences(6, 8, 6, 4, 1)
    found = ml.predict_limit(ds)
    assert applying(found) == {"C Thm 2", "C Thm 3"}
    assert [check.code for check in found.verdicts[0].failed] == ["next_token.acyclic"]
    run = ml.descend(ds, n_steps=4000)
    inside = found.details.mix.subspace.project(run.final)
    assert np.linalg.norm(inside - found.details.correction) < 0.02  # normalised steps of .01 circle W^cyc
    assert np.linalg.norm(found.details.correction) > 0.02


def test_the_step_is_compared_with_the_smoothness():
    ds = acyclic_sequences(6, 8, 5, 4, 2)
    limit = 1.0 / ml.NextTokenRisk(ds).smoothness()
    assert ml.predict_limit(ds, optimizer=ml.GradientDescent(0.99 * limit)).direction is not None
    refused = ml.predict_limit(ds, optimizer=ml.GradientDescent(1.01 * limit))
    assert refused.direction is None
    assert refused.path_direction is not None
    assert [check.code for check in refused.verdicts[2].failed] == ["step_size.plain"]
    assert ml.predict_limit(ds, optimizer=ml.NormalizedGD(0.01)).direction is None


def test_other_heads_and_losses_fail_where_the_proofs_need_them():
    ds = acyclic_sequences(6, 8, 5, 4, 3)
    general = ml.predict_limit(ds, head=ds.E)
    assert applying(general) == {"C Thm 1"}
    wrong = ml.predict_limit(ds, head=-ds.E)
    assert not applying(wrong)
    assert wrong.verdicts[0].failed[0].code == "next_token.argmax"
    assert wrong.verdicts[0].failed[0].numbers["gap"] < 0.0
    for loss in (ml.SquaredLoss(), ml.CrossEntropy()):
        assert not applying(ml.predict_limit(ds, loss=loss))
    assert check_loss(ds, loss=ml.SquaredLoss()).fact.code == "loss_check.zero_slope"
    assert check_loss(ds, loss=ml.CrossEntropy()).fact.code == "loss_check.other_outputs"


@dataclass(frozen=True)
class Power(LabelLoss):
    """ℓ(u) = -u^exponent on u ≥ 0, odd beyond."""

    exponent: float

    def scalar(self, u):
        with np.errstate(divide="ignore", invalid="ignore"):
            size = np.abs(u)
            return -np.sign(u) * size**self.exponent, -self.exponent * size ** (self.exponent - 1), np.zeros_like(u)


@pytest.mark.statement("C Assumption 1", "C Thm 1")
@pytest.mark.parametrize(
    ("loss", "scale"),
    [(Power(1.0), None), (Decay(1.0), None), (Decay(2.0), 1.0), (ml.SquaredLoss(), 0.5), (Power(1.0), 1.0)],
)
def test_losses_that_satisfy_assumption_1_get_theorem_1_and_the_path_agrees(loss, scale):
    ds = acyclic_sequences(6, 8, 5, 4, 0)
    head = None if scale is None else scale * ds.E
    assert check_loss(ds, head, loss)
    found = ml.predict_limit(ds, head=head, loss=loss)
    assert "C Thm 1" in applying(found)
    assert ("C Thm 2" in applying(found)) == (scale is None)
    assert found.why.startswith("Certain for the regularisation path")
    path = ml.path(ds, [1e4 / found.details.priority.margin], head=head, loss=loss, restarts=1)
    assert path.correlation(found.path_direction)[-1] > 0.9999


@pytest.mark.statement("C Thm 2")
def test_theorem_2_needs_a_unique_minimizer_with_a_reason():
    shared = [[A, B, C]] * 3
    for loss, applies, said in (
        (Decay(2.0), True, "of 9 starts"),
        (Power(1.0), False, "a finite minimum"),
        (None, True, "convex"),
    ):
        found = ml.predict_limit(ml.SequenceDataset(shared, [A, A, B], np.eye(3)), loss=loss)
        assert ("C Thm 2" in applying(found)) == applies
        condition = found.verdicts[1].conditions[-1]
        assert condition.code == "next_token.unique_mix"
        assert any(part in condition.sentence for part in said.split("|"))
    flat = ml.predict_limit(ml.SequenceDataset(shared[:2], [A, B], np.eye(3)), loss=Power(1.0))
    assert "C Thm 2" not in applying(flat)
    # all that the text asks for holds
    assert [check.holds for check in flat.verdicts[1].conditions] == [True] * 5 + [False]
    assert flat.details.correction is None


@pytest.mark.statement("C Assumption 4", "C Eq. (17)")
def test_theorems_without_a_head_apply_by_equation_17():
    ds = cyclic_sequences(9, 6, 7, 4, 1)
    found = ml.predict_limit(ds)
    assert applying(found) == {"C Thm 2, under Eq. (17) alone", "C Thm 3, under Eq. (17) alone"}
    assert found.direction is not None
    identity = next(check for check in found.verdicts[1].conditions if check.code == "next_token.identity")
    assert (identity.numbers["n_vocabulary"], identity.numbers["d_model"]) == (9, 6)
    assert found.notes[1].code == "next_token.not_as_stated"
    assert "✓ C Assumption 4" not in str(found)
    assert "by C Thm 3, under Eq. (17) alone" in found.why
    path = ml.path(ds, [1e5])
    assert path.correlation(found.direction)[-1] > 0.999
    same = np.eye(4)
    same[1] = 2.0 * same[0]
    assert not check_head(
        ml.SequenceDataset([[A, C]], [C], same)
    ).exists  # as many dimensions as tokens, but two are parallel
    assert check_head(ml.SequenceDataset([[A, C]], [C], np.eye(4))).assumption_4


def test_trivial_and_infeasible_data_are_distinguished():
    nothing = ml.predict_limit(ml.SequenceDataset([[A, B], [A, B]], [A, B], np.eye(3)))
    assert not applying(nothing)
    assert "does not diverge" in nothing.why
    line = np.array([[0.0], [1.0], [2.0], [3.0]])
    impossible = ml.predict_limit(ml.SequenceDataset([[A, B, C, D]], [B], line))
    assert not applying(impossible)
    assert impossible.direction is None
    assert "No vector satisfies every constraint" in impossible.why


def test_predict_takes_sequences():
    ds = cyclic_sequences(6, 8, 6, 4, 5)
    assert ml.predict_limit(ds, ds.E).direction is None  # a head that is not the identity
    both = ml.predict_limit([ds, ds], [None, ds.E])
    assert np.array_equal(both[0].direction, ml.predict_limit(ds).direction)
    assert both[1].direction is None


@pytest.mark.statement("C Eq. (2)", "C Eq. (3)", "C Thm 3")
@pytest.mark.parametrize("size", [0.0, 3.0])
def test_constant_steps_from_a_start_have_both_limits(size):
    ds = ml.SequenceDataset([[A, B, C]] * 3, [A, A, B], np.eye(3))
    found = ml.predict_limit(ds, optimizer=ml.GradientDescent(1.0 / ml.NextTokenRisk(ds).smoothness()))
    assert "C Thm 3" in applying(found)
    start = size * np.random.default_rng(0).standard_normal((3, 3))
    gaps, turns = [], []
    for n_steps in (2_000, 20_000):
        step = ml.GradientDescent(1.0 / ml.NextTokenRisk(ds).smoothness())
        W = ml.descend(ds, start=start, optimizer=step, n_steps=n_steps).final
        gaps.append(np.linalg.norm(found.details.mix.subspace.project(W) - found.details.correction))
        turns.append(1.0 - ml.correlation(W, found.direction, axes=2))
    assert gaps[1] < 0.2 * gaps[0]  # like 1/τ
    assert gaps[1] < 1e-2
    assert turns[1] < turns[0]
    assert turns[1] < (0.02 if size == 0.0 else 0.6)  # the norm grows like log τ, so a far start is forgotten slowly


def test_a_prediction_for_another_optimizer_names_the_claim_that_measured_it():
    rng = np.random.default_rng(77)
    data = next(
        drawn
        for drawn in (acyclic_sequences(7, 9, 5, 4, rng) for _ in range(50))
        if ml.graph_svm(drawn).status is ml.Status.OPTIMAL
    )
    for optimizer, measured in ((ml.Adam(0.02), True), (ml.Muon(0.02), True), (ml.CoordinateDescent(0.1), False)):
        prediction = ml.predict_limit(data, optimizer=optimizer)
        assert ("C-O" in prediction.answer.in_full) == measured
        assert ("C-O" in str(prediction.why)) == measured
    plain = ml.predict_limit(data, optimizer=ml.GradientDescent(1e-3))
    assert plain.direction is not None
    assert "C-O" not in str(plain.why)
