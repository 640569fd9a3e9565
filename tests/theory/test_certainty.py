"""What is called certain or proved: nothing before `verify` confirms it, from which point on, and with rounding that may decide said."""

from dataclasses import replace

import numpy as np
import pytest

import marginlens as ml
from marginlens.theory import Certificate, MinimumCertificate, outcome
from marginlens.words import Fact
from plain_losses import OwnLogistic
from refusals import refused

WEAK = ml.NormalizedGD(0.3)


def symmetric(first, height, second):
    """Three tokens of score 1 whose keys are the shifts of one, a token of score 0 on the axis of the shifts, and an input on that axis.

    Shifting coordinates changes nothing, so exact descent from zero stays on the axis for ever and prefers none of the three.
    """
    keys = [
        np.array([*(np.roll(first, k) for k in range(3)), np.full(3, height)]),
        np.array([np.full(3, second), np.zeros(3)]),
    ]
    scores = [np.array([1.0, 1.0, 1.0, 0.0]), np.array([1.0, 0.0])]
    tokens = [np.column_stack(pair) for pair in zip(keys, scores, strict=True)]
    return ml.TokenDataset(tokens, [1, 1], K=keys), np.array([0.0, 0.0, 0.0, 1.0])


@pytest.mark.statement("X Thm 1")
@pytest.mark.parametrize("rule", [None, ml.NormalizedGD(0.7), WEAK], ids=repr)
def test_runs_off_a_symmetry_by_rounding_are_not_certain(rule):
    tubes = 0
    for first, height, second in (
        ((-0.1, 1.5, -1.8), 0.0, 2.0),
        ((1.0, -1.0, -0.8), -0.28, -1.0),
        ((0.4, 2.0, -1.1), 0.1, 1.5),
    ):
        data, v = symmetric(first, height, second)
        answer = ml.predict_limit(data, v, optimizer=rule)
        tubes += isinstance(answer.certificate, Certificate)
        assert "Certain" not in answer.why
        assert answer.direction is None
        assert not answer.outcome.proved
        assert answer.outcome.proof.code != "outcome.verdict.proved"
        assert answer.outcome.ends_at.code != "outcome.ends_at.direction"
    assert tubes > 0  # proofs of the points that were computed


@pytest.mark.parametrize("size", [0.8, 2.5])
def test_rounding_of_plain_steps_counts_for_the_following_flow(size):
    angles = 0.6 + 0.5 * np.pi * np.arange(4)
    keys = np.concatenate([1.1 * np.column_stack([np.cos(angles), np.sin(angles)]), np.zeros((1, 2))])[None]
    tokens = np.concatenate([keys, [[[1.5], [1.5], [1.5], [1.5], [0.5]]]], axis=-1)
    end = ml.predict_limit(ml.TokenDataset(tokens, [1], K=keys), [0, 0, 1], optimizer=ml.GradientDescent(size)).outcome
    assert end.by_flow  # no step in exact arithmetic leaves zero
    assert end.error > 0.1
    assert not end.is_repeatable
    assert end.ends_at.code in ("outcome.ends_at.amplified", "outcome.ends_at.unknown")


@pytest.mark.statement("X Thm 1")
@pytest.mark.parametrize("rule", [None, ml.NormalizedGD(0.6)], ids=repr)
def test_certainty_starts_at_a_point_and_the_run_to_it_is_computed(rule):
    data, v = ml.data.sphere_tokens(6, 2, 5, 7, 41)
    start = 0.5 * np.random.default_rng(41).standard_normal((6, 7))
    certain = 0
    for prediction in ml.predict(ml.AttentionRisk(data, v), start=start, optimizer=rule):
        end = prediction.outcome
        if prediction.direction is None:
            assert not end.proved or end.finite
            continue
        certain += 1
        assert end.verdict.applies
        assert end.error <= end.certificate.tolerance
        assert prediction.from_norm == end.norm
        assert prediction.certain == Fact("certainty.from_norm", {"norm": end.norm})
        (reason,) = prediction.reasons
        assert reason.code == "reason.from_a_point"
        assert reason.numbers["norm"] == end.norm
        assert end.details[-1].code == ("outcome.way.flow" if rule is None else "outcome.way.steps")
        assert end.details[-1].numbers.get("steps", 0) == end.n_steps
    assert certain >= 4


def test_the_flow_into_a_minimum_is_computed_not_proved():
    data, v = ml.data.sphere_tokens(12, 2, 4, 3, 77)
    ends = [prediction.outcome for prediction in ml.predict(ml.AttentionRisk(data, v))]
    minima = [end for end in ends if isinstance(end.certificate, MinimumCertificate)]
    assert minima
    for end in minima:
        assert end.proved
        assert end.proof == Fact("outcome.verdict.proved")
        *_, claim, way = end.details
        assert claim.numbers["statement"].code == "outcome.statement.x_thm_2"
        assert way.code == "outcome.way.flow"


def test_everything_proved_is_confirmed_by_verify(monkeypatch):
    data, v = (batch[0] for batch in ml.data.sphere_tokens(1, 3, 4, 5, 19))
    asked = []
    verify = Certificate.verify

    def refusing(self, *arguments):
        asked.append(self)
        return replace(verify(self, *arguments), conditions=(ml.theory.Check("condition.step_size", False),))

    for rule in (None, ml.NormalizedGD(1.0), ml.GradientDescent(0.5)):
        assert ml.predict_limit(data, v, optimizer=rule).outcome.verdict.applies
        with monkeypatch.context() as patched:
            patched.setattr(Certificate, "verify", refusing)
            answer = ml.predict_limit(data, v, optimizer=rule)
        assert asked
        assert asked.clear() is None
        assert not answer.outcome.proved
        assert answer.certificate is None
        assert answer.direction is None
        assert answer.outcome.missing == Fact("outcome.missing.refused", {"condition": "step size"})
        assert answer.outcome.proof.code == "outcome.verdict.computed"
        assert "Certain" not in answer.why


@pytest.mark.parametrize(("shape", "verified"), [((6, 33, 12), True), ((67, 3, 40), False)])
def test_proofs_up_to_two_hundred_tokens_are_verified_at_once(shape, verified):
    data, v = (batch[0] for batch in ml.data.sphere_tokens(1, *shape, 8))
    answer = ml.predict_limit(data, v, optimizer=ml.NormalizedGD(0.4), max_problems=1)
    assert isinstance(answer.certificate, Certificate)
    assert answer.outcome.proved == verified
    assert (answer.outcome.verdict is None) != verified


@pytest.mark.parametrize(("limit", "value"), [("VERIFIED_TOKENS", 11), ("VERIFIED_WIDTH", 2)])
def test_proofs_too_large_to_verify_are_found_not_proved(monkeypatch, limit, value):
    seed, shape = (19, (3, 4, 5)) if limit == "VERIFIED_TOKENS" else (77, (2, 4, 3))
    data, v = ml.data.sphere_tokens(12, *shape, seed)
    kind = Certificate if limit == "VERIFIED_TOKENS" else MinimumCertificate
    monkeypatch.setattr(outcome, limit, value)
    found = [answer for answer in ml.predict(ml.AttentionRisk(data, v)) if isinstance(answer.certificate, kind)]
    assert found
    for answer in found:
        assert answer.outcome.verdict is None
        assert not answer.outcome.proved
        assert answer.outcome.proof.numbers["reason"].code == "outcome.missing.unverified"
        assert answer.direction is None
        assert "Certain" not in answer.why
        assert answer.certificate.verify().applies


class Bold(ml.NormalizedGD):
    def update(self, gradient, state):
        step, state = super().update(gradient, state)
        return np.sign(step), state


def test_runs_that_are_not_followed_have_a_reason():
    data, v = (batch[0] for batch in ml.data.sphere_tokens(1, 2, 5, 4, 3))
    many = ml.TokenDataset(np.random.default_rng(0).standard_normal((2, 600, 4)), [1, 1])
    asked = (
        (data, v, {"loss": OwnLogistic()}, "not_followed.loss"),
        (many, v, {"max_problems": 1, "optimizer": ml.NormalizedGD(0.1)}, "not_followed.tokens"),
        (data, 1e4 * v, {}, "not_followed.range"),
    )
    for problem, head, options, code in asked:
        answer = ml.predict_limit(problem, head, **options)
        assert answer.outcome is None
        assert answer.not_followed.code == code
        assert answer.not_followed in answer.notes
        assert str(answer.not_followed) in str(answer)


def test_every_prediction_without_an_outcome_has_a_reason():
    data, v = (batch[0] for batch in ml.data.sphere_tokens(1, 3, 4, 3, 88))
    risk = ml.AttentionRisk(data, v)
    unasked = ml.predict(risk, prove=False)
    assert unasked.not_followed == Fact("not_followed.not_asked")
    others = (
        ml.risk.JointRisk(data),
        risk.as_factors(np.eye(3), 2),
        ml.risk.MulticlassRisk(np.eye(3), [0, 1, 2]),
        ml.risk.NextTokenRisk(ml.SequenceDataset([[0, 1], [2, 1, 2]], [1, 2], np.eye(3))),
    )
    for other in others:
        found = ml.predict(other)
        assert found.outcome is None
        assert found.not_followed == Fact("not_followed.risk")
    assert ml.predict(risk).not_followed is None


@pytest.mark.parametrize(
    "rule",
    [ml.GradientDescent(0.2, momentum=0.4), ml.GradientDescent(0.2, weight_decay=0.1), ml.NormalizedGD(1.0)],
    ids=["momentum", "decay", "batches"],
)
def test_optimizers_outside_the_theorems_are_named(rule):
    data, v = (batch[0] for batch in ml.data.sphere_tokens(1, 3, 4, 5, 52))
    batches = 2 if isinstance(rule, ml.NormalizedGD) else None
    found = ml.predict(ml.AttentionRisk(data, v), optimizer=rule, batch_size=batches)
    named = "mini-batches of 2" if batches else "momentum 0.4" if rule.momentum else "weight decay 0.1"
    said = str(found.not_followed if batches else found.outcome.proof)
    assert named in said
    assert type(rule).__name__ in said
    assert "Unproved" not in str(found)


def test_no_theorem_is_cited_for_a_subclass_with_own_steps():
    class Renamed(ml.NormalizedGD):
        pass

    data, v = (batch[0] for batch in ml.data.sphere_tokens(1, 2, 4, 3, 66))
    found = ml.predict_limit(data, v, optimizer=Bold(0.1))
    assert found.bias is None
    assert found.observed is None
    assert "Bold" in str(found.outcome.proof)
    assert not found.outcome.proved
    assert "A-F1" not in str(found)
    assert "normalised" not in found.why
    with refused("optimizer"):  # attention weights have no parts
        ml.predict_limit(data, v, optimizer=ml.optimizers.Blockwise(Bold(0.1)))
    assert "A-F1a" in str(ml.predict_limit(data, v, optimizer=Renamed(0.1)))


@pytest.mark.statement("X Thm 1")
@pytest.mark.parametrize("rule", [None, ml.NormalizedGD(2.0), ml.GradientDescent(0.7)], ids=repr)
def test_training_ends_where_it_starts_if_no_output_depends_on_the_weights(rule):
    one_token = ml.TokenDataset(np.array([[[1.0, -2.0, 0.5]], [[0.3, 4.0, 1.0]]]), [1, -1])
    keys = np.repeat(np.array([[[0.5, 2.0]], [[1.0, 0.0]]]), 4, axis=1)
    one_key = ml.TokenDataset(np.random.default_rng(6).standard_normal((2, 4, 3)), [-1, 1], K=keys)
    keys = np.random.default_rng(7).standard_normal((1, 3, 2))
    one_score = ml.TokenDataset(np.repeat([[[1.0, 0.0, 3.0]]], 3, axis=1), [1], K=keys)
    mixed = ml.TokenDataset(
        [[[2.0, 1.0, 0.0]], [[1.0, 2.0, 0.0], [1.0, 2.0, 0.0]]], [1, 1], K=[[[1.0, 2.0]], [[0.5, 1.0], [3.0, 0.0]]]
    )
    v = np.array([1.0, -0.5, 0.25])
    for data in (one_token, one_key, one_score, mixed):
        start = np.linspace(-1.0, 2.0, data.d_key)
        found = ml.predict_limit(data, v, optimizer=rule, start=start)
        end = found.outcome
        assert end.constant
        assert end.proved
        assert end.point.tolist() == start.tolist()
        assert end.ends_at == Fact("outcome.ends_at.nothing")
        assert end.because == (Fact("outcome.because.nothing"),)
        assert end.proof == Fact("outcome.verdict.proved")
        assert end.details == (Fact("outcome.claim.constant"),)
        assert found.reasons == (Fact("reason.constant"),)
        assert found.direction is None
        run = ml.descend(data, v, optimizer=rule or ml.GradientDescent(1.0), n_steps=7, start=start)
        assert run.final.tolist() == start.tolist()
    of_w = ml.predict(ml.AttentionRisk(one_token, v).as_matrix([0.5, 1.0]), optimizer=rule)
    assert of_w.outcome.constant
    both, heads = ml.data.sphere_tokens(2, 2, 3, 3, 15)
    X = np.stack([both.X[0], np.repeat(both.X[1][:, :1], 3, axis=1)])  # the second problem has one token three times
    first, second = ml.predict(ml.AttentionRisk(ml.TokenDataset(X, both.y), heads), optimizer=rule)
    assert not first.outcome.constant
    assert second.outcome.constant


@pytest.mark.statement("A Assumption B", "A Thm 2", "X Thm 1")
@pytest.mark.parametrize("rule", [None, ml.NormalizedGD(0.8), ml.GradientDescent(0.3)], ids=repr)
def test_scores_within_rounding_are_undecided_and_exact_ties_are_not(rule):
    def asked(gap):
        keys = np.array([[[1.0, 0.0], [0.0, 0.5]], [[0.0, 2.0], [1.0, 0.0]]])
        tokens = np.concatenate([keys, [[[2.0], [0.0]], [[3.0 + gap], [3.0]]]], axis=-1)
        return ml.predict_limit(ml.TokenDataset(tokens, [1, -1], K=keys), [0.0, 0.0, 1.0], optimizer=rule)

    near, tied = asked(3e-13), asked(0.0)
    assert near.reasons[0].code == "reason.condition"
    left_out = near.reasons[0].numbers["condition"]
    assert (left_out.code, left_out.holds, left_out.numbers) == ("condition.inputs_left_out", None, {"input": 1})
    assert not any(verdict.applies for verdict in near.verdicts)
    assert near.direction is None
    assert near.path_direction is None
    assert not near.outcome.proved
    assert near.outcome.missing.code == "outcome.missing.rounding_decides"
    assert near.outcome.ends_at.code == "outcome.ends_at.unknown"
    assert tied.outcome.proved or isinstance(rule, ml.GradientDescent)
    assert any(verdict.applies for verdict in tied.verdicts)


@pytest.mark.statement("A Assumption B", "A Thm 8")
def test_equal_scores_in_theorems_are_exactly_equal():
    keys = np.array([[[0.0, 2.0], [1.0, 0.0], [0.3, -0.2], [-1.0, 0.1]]])
    for best, others, citation in (
        ([2.0], [0.5, 0.5, 0.5], "A Thm 2"),
        ([2.0, 2.0], [0.25, -1.0], "A Thm 8"),
    ):
        for near in (0.0, 1e-13):
            scores = np.array([*best, *others])
            scores[len(best) if citation == "A Thm 2" else 0] += near
            tokens = np.concatenate([keys, scores[None, :, None]], axis=-1)
            found = ml.predict_limit(ml.TokenDataset(tokens, [1], K=keys), [0.0, 0.0, 1.0], prove=False)
            verdict = next(one for one in found.verdicts if one.citation == citation)
            assert verdict.applies == (near == 0.0)
            if near:
                assert verdict.failed[0].holds is None
