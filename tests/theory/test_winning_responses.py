"""Which of all responses wins after training on preferences: against another solver and runs, and when it is not called proved."""

import numpy as np
import pytest
from scipy.optimize import nnls

import marginlens as ml
from marginlens.theory.outcome import input_fact
from refusals import refused


def problem(seed, n_prompts=6, n_responses=7, width=9):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n_prompts, n_responses, width))
    chosen, rejected = np.stack([rng.permutation(n_responses)[:2] for _ in range(n_prompts)], axis=-1)
    return features, chosen, rejected, rng.normal(size=width)


def shortest(rows):
    """The shortest x with rows @ x >= 1, by non-negative least squares (Lawson and Hanson)."""
    weights, _ = nnls(np.vstack([rows.T, np.ones(len(rows))]), np.append(np.zeros(rows.shape[1]), 1.0), maxiter=10_000)
    left = np.append(np.zeros(rows.shape[1]), 1.0) - np.vstack([rows.T, np.ones(len(rows))]) @ weights
    return -left[:-1] / left[-1]


@pytest.mark.statement("X R3")
@pytest.mark.parametrize("seed", range(8))
def test_winners_are_those_of_another_solver_and_of_runs(seed):
    features, chosen, rejected, theta = problem(300 + seed)
    risk = ml.risk.preferences(features, chosen, rejected, reference=features @ theta)
    found = ml.theory.winning_responses(features, risk)
    x = shortest(features[np.arange(6), chosen] - features[np.arange(6), rejected])
    assert np.linalg.norm(found.direction - x / np.linalg.norm(x)) <= found.error + 1e-9
    logits = np.sort(features @ (x / np.linalg.norm(x)), axis=-1)
    assert found.winners.tolist() == np.argmax(features @ x, axis=-1).tolist()
    assert np.allclose(found.leads, logits[:, -1] - logits[:, -2], rtol=0, atol=1e-6)
    assert found.proved
    end = ml.descend(risk, start=theta, optimizer=ml.NormalizedGD(1.0), n_steps=30_000).final
    assert found.winners.tolist() == np.argmax(features @ end, axis=-1).tolist()


def test_neither_beta_nor_the_reference_changes_the_winners():
    features, chosen, rejected, theta = problem(310)
    found = [
        ml.theory.winning_responses(features, ml.risk.preferences(features, chosen, rejected, **given))
        for given in ({}, {"beta": 3.0}, {"reference": features @ theta})
    ]
    assert found[0].winners.tolist() == found[1].winners.tolist() == found[2].winners.tolist()


def test_the_outcome_of_a_run_is_proved_in_words_of_pairs_and_agrees():
    features, chosen, rejected, theta = problem(316)
    risk = ml.risk.preferences(features, chosen, rejected, reference=features @ theta, beta=1.0)
    found = ml.theory.winning_responses(features, risk)
    outcome = ml.predict_limit(risk, start=theta, optimizer=ml.NormalizedGD(0.2)).outcome
    assert outcome.proved
    assert np.linalg.norm(outcome.direction - found.direction) <= 2.0 * found.error
    assert str(outcome.ends_at).startswith("“chosen” wins in pair 0, “chosen” in pair 1")
    assert str(found.answer.ends_at).startswith(f"response {found.winners[0]} wins for prompt 0")


def test_what_rounding_decides_and_what_no_theorem_covers_is_not_called_proved():
    features, chosen, rejected, theta = problem(311)
    risk = ml.risk.preferences(features, chosen, rejected)
    same = np.concatenate([features, features], axis=1)
    tied = ml.theory.winning_responses(same, risk)
    assert not tied.decided.any()
    assert not tied.proved
    assert tied.answer.proof.code == "outcome.verdict.computed"
    wide, _, _, theta = problem(312, n_prompts=6, width=3)
    order = np.argsort(wide @ theta, axis=-1)
    pairs = {"chosen": order[:, -1], "rejected": order[:, 0]}
    for reference, has_theorem in ((wide @ theta, True), (np.random.default_rng(1).normal(size=(6, 7)), False)):
        found = ml.theory.winning_responses(wide, ml.risk.preferences(wide, reference=reference, **pairs))
        assert found.decided.all()
        assert found.proved == found.has_theorem == has_theorem


def test_other_prompts_show_what_the_policy_generalises_to():
    features, chosen, rejected, _ = problem(313)
    risk = ml.risk.preferences(features, chosen, rejected)
    direction = ml.theory.winning_responses(features, risk).direction
    new = [np.random.default_rng(2).normal(size=(n, 9)) for n in (1, 3)]
    found = ml.theory.winning_responses(new, risk)
    assert found.winners.tolist() == [0, int(np.argmax(new[1] @ direction))]
    assert found.runners_up[0] == -1
    assert "for prompt 0" in str(found)
    assert str(input_fact(2, risk.data.kind)) == "in pair 2"
    assert found.to_frame()["winner"].tolist() == found.winners.tolist()


def test_pairs_that_contradict_each_other_are_refused_and_named():
    features, _, _, _ = problem(314)
    circle = ml.risk.preferences(features, [0, 1, 2, 3], [1, 2, 0, 4], prompts=[0, 0, 0, 0])
    with refused("risk"):
        ml.theory.winning_responses(features, circle)
    found = ml.att_svm(circle.data, [0] * 4).contradiction
    assert sorted(found.pairs[:, 0].tolist()) == [0, 1, 2]
    rows = features[0][[0, 1, 2]] - features[0][[1, 2, 0]]
    by_pair = dict(zip(found.pairs[:, 0].tolist(), found.weights.tolist(), strict=True))
    sizes = np.linalg.norm(rows, axis=-1)
    assert np.allclose([by_pair[i] for i in range(3)], sizes / sizes.sum(), rtol=1e-12, atol=0)
    assert len(ml.att_svm(circle.data.take_inputs([0, 1]), [0, 0]).contradiction.pairs) == 0


def test_what_is_not_a_risk_of_preferences_is_refused():
    features, chosen, rejected, _ = problem(315)
    risk = ml.risk.preferences(features, chosen, rejected)
    with refused("risk"):
        ml.theory.winning_responses(features, ml.SoftmaxRisk(features, np.zeros((6, 7))))
    with refused("features"):
        ml.theory.winning_responses(features[..., :4], risk)
