"""predict follows the run of every optimizer: tokens proved by X Theorem 4, computed with the reason, or a finite minimum."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.lab.problem_files import LabProblem
from marginlens.theory import SteepestCertificate
from marginlens.theory.optimality import directional_margin
from marginlens.words import Fact

DECAY = ml.optimizers.PowerDecay(0.4, 0.5)
COVERED = {
    "sign": ml.SignDescent(0.004),
    "coordinate": ml.CoordinateDescent(0.01),
    "l3": ml.SteepestDescent(ml.Lp(3.0), 0.01),
    "falling steps": ml.SignDescent(DECAY),
    "sign with momentum": ml.SignDescent(0.001, momentum=0.8),
    "nesterov": ml.SignDescent(0.001, momentum=0.8, nesterov=True),
    "normalised with momentum": ml.NormalizedGD(0.005, momentum=0.7),
    "falling l2": ml.SteepestDescent(ml.L2(), DECAY),
}
UNCOVERED = {
    "adam": ml.Adam(0.02),
    "adam with a short memory": ml.Adam(0.01, betas=(0.9, 0.9)),
    "other schedules": ml.SignDescent(lambda t: 0.01),
}


@pytest.mark.parametrize("size", [0.012, 0.016])
def test_a_proof_with_momentum_remembers_all_of_the_run(size):
    keys, scores = [[[2.0, 0.0], [0.0, 1.0], [0.0, -1.0]], [[0.0, 3.0], [1.0, 1.0]]], [[1.0, 0.0, 0.5], [0.0, 1.0]]
    optimizer = {"name": "sign-descent", "size": size, "momentum": 0.9}
    problem = LabProblem.from_dict({"keys": keys, "scores": scores, "start": [1.0, -0.5], "optimizer": optimizer})
    found = ml.predict_limit(problem.data, problem.head, start=problem.start, optimizer=problem.optimizer).outcome
    assert found.n_steps > 64
    steps = ml.Record(range(found.n_steps))
    run = ml.descend(
        problem.risk, start=problem.start, optimizer=problem.optimizer, n_steps=found.n_steps, record=steps
    )
    ages = 0.9 ** np.arange(found.n_steps)[::-1]
    gradients = np.array([problem.risk.gradient(p).value() for p in run.saved["x"]])
    np.testing.assert_allclose(found.certificate.memory, -ages @ gradients, rtol=1e-9, atol=1e-15)


class Turning(ml.SignDescent):
    """Steps of its own."""

    def update(self, gradient, state):
        step, state = super().update(gradient, state)
        return 0.5 * step, state


def drawn(seed, shape=(3, 4, 6)):
    data, heads = ml.data.sphere_tokens(1, *shape, seed)
    return data[0], heads[0]


@pytest.mark.statement("X Thm 4")
@pytest.mark.parametrize("rule", COVERED)
def test_tokens_are_proved_for_steps_that_the_theorem_covers(rule):
    proved = 0
    for seed in (11, 12, 13, 14, 15, 16):
        data, v = drawn(seed)
        answer = ml.predict_limit(data, v, optimizer=COVERED[rule])
        found = answer.outcome
        assert found is not None
        if not found.proved:
            assert found.proof.numbers["reason"] == found.missing
            assert answer.selected is None
            continue
        proved += 1
        assert isinstance(answer.certificate, SteepestCertificate)
        assert found.verdict.applies
        assert found.direction is None
        assert answer.selected.tolist() == found.selected.tolist()
        assert answer.reasons[0].code == "reason.tokens_from_a_point"
        assert found.ends_at.code == "outcome.ends_at.direction"
        assert [rival.selected for rival in found.rivals] == found.selected.tolist()
        end = ml.descend(ml.AttentionRisk(data, v), optimizer=COVERED[rule], n_steps=4 * found.n_steps + 5_000).final
        assert directional_margin(data, end).selected.tolist() == found.selected.tolist()
    assert proved >= 3


@pytest.mark.parametrize("rule", UNCOVERED)
def test_outcomes_of_other_optimizers_are_computed_and_name_them(rule):
    settled = 0
    for seed in (21, 22, 23):
        data, v = drawn(seed)
        found = ml.predict_limit(data, v, optimizer=UNCOVERED[rule]).outcome
        assert found.certificate is None
        assert not found.proved
        assert found.missing.code == "outcome.missing.uncovered"
        assert type(UNCOVERED[rule]).__name__ in str(found.proof)
        if found.settled:
            settled += 1
            end = ml.descend(ml.AttentionRisk(data, v), optimizer=UNCOVERED[rule], n_steps=2 * found.n_steps).final
            assert directional_margin(data, end).selected.tolist() == found.selected.tolist()
    assert settled >= 2


@pytest.mark.statement("X Thm 4")
@pytest.mark.parametrize(
    "rule",
    [
        ml.Muon(0.02, momentum=0.0, nesterov=False),
        ml.SteepestDescent(ml.MaxRow(), 0.02),
        ml.SteepestDescent(ml.Frobenius(), 0.02),
        ml.SignDescent(0.005),
    ],
    ids=["muon", "max-row", "frobenius", "sign"],
)
@pytest.mark.parametrize("one_query", [True, False])
def test_runs_of_matrices_are_followed_in_their_own_norm(rule, one_query):
    proved = 0
    for seed in (31, 32, 33, 34):
        rng = np.random.default_rng(seed)
        X, v = rng.normal(size=(2, 3, 4)), rng.normal(size=4)
        query = rng.normal(size=3) if one_query else rng.normal(size=(2, 3))
        risk = ml.AttentionRisk(ml.TokenDataset(X, [1, 1]), v).as_matrix(query)
        answer = ml.predict(risk, optimizer=rule)
        found = answer.outcome
        if found.proved:
            proved += 1
            assert found.certificate.shape == (3, 4)
            assert found.certificate.steepest_in == rule.norm
            end = ml.descend(risk, optimizer=rule, n_steps=4 * found.n_steps + 4_000).final
            logits = risk.logits(end)
            assert np.argmax(logits, axis=-1).tolist() == found.selected.tolist()
        if one_query:
            assert answer.verdicts  # what the theorems say of p
    assert proved >= 2


def test_a_batch_is_followed_problem_by_problem():
    data, v = ml.data.sphere_tokens(3, 2, 3, 4, 41)
    together = ml.predict(ml.AttentionRisk(data, v), optimizer=ml.SignDescent(0.01))
    for j, answer in enumerate(together):
        alone = ml.predict_limit(data[j], v[j], optimizer=ml.SignDescent(0.01))
        assert np.array_equal(alone.outcome.point, answer.outcome.point)
        assert alone.outcome.proof == answer.outcome.proof


def test_a_finite_minimum_is_found_whatever_the_steps():
    data, heads = ml.data.sphere_tokens(12, 2, 4, 3, 0)
    for optimizer in (ml.SignDescent(0.001), ml.Adam(0.001)):
        found = ml.predict_limit(data[11], heads[11], optimizer=optimizer).outcome
        assert found.finite
        assert not found.proved  # the flow ends there, and steps of one length circle around it
        assert found.proof == Fact("outcome.verdict.in_part", {"reason": Fact("outcome.gap.circling")})
        assert found.details[-1].code == "outcome.way.circling"
    decayed = ml.predict_limit(data[11], heads[11], optimizer=ml.SignDescent(0.001, weight_decay=0.1)).outcome
    assert not decayed.finite


def test_steps_of_your_own_are_followed_and_nothing_is_claimed_of_them():
    data, v = drawn(51)
    found = ml.predict_limit(data, v, optimizer=Turning(0.1)).outcome
    assert not found.proved
    assert found.missing.code == "outcome.missing.uncovered"
    assert "Turning" in str(found.proof)


def test_outputs_that_depend_on_nothing_stay_where_they_start():
    one_key = ml.TokenDataset(np.ones((1, 3, 2)), [1])
    found = ml.predict_limit(one_key, [1.0, 2.0], optimizer=ml.SignDescent(0.1)).outcome
    assert found.constant
    assert found.proved


def test_progress_reaches_its_total():
    data, v = drawn(61)
    seen = []
    ml.predict_limit(data, v, optimizer=ml.SignDescent(0.01), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] > 0
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
