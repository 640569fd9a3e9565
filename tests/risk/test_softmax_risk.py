"""The risk of given scores with offsets of the logits: against decimals, its face for tokens, proofs, files, and what refuses offsets."""

import numpy as np
import pytest

import marginlens as ml
from decimal_oracle import gradient, matrix_gradient
from marginlens.dynamics.loops import StepwiseLoop, compiled_loop
from marginlens.errors import InputError
from marginlens.losses import CorrelationLoss
from marginlens.theory import Certificate, certify

LENGTHS = (4, 2, 3)


def random_risk(seed, loss=None, scale=2.0, width=5):
    """Inputs with different numbers of choices, and offsets of the size `scale`."""
    rng = np.random.default_rng(seed)
    keys = [rng.normal(size=(n, width)) for n in LENGTHS]
    scores, offsets = ([rng.normal(size=n).tolist() for n in LENGTHS] for _ in range(2))
    return ml.SoftmaxRisk(keys, scores, [[scale * b for b in row] for row in offsets], loss)


@pytest.mark.parametrize("loss", [ml.Logistic(), ml.losses.Exponential(), CorrelationLoss()])
@pytest.mark.parametrize("size", [0.3, 20.0, 1e4])
def test_gradients_are_those_of_decimals(loss, size):
    risk = random_risk(41, loss)
    p = size * np.random.default_rng(42).normal(size=5)
    direction, log_norm = gradient(risk.data, risk.head, p, type(loss).__name__)
    found = risk.gradient(p)
    assert np.allclose(found.direction(), direction, rtol=0, atol=1e-12)
    assert found.log_norm == pytest.approx(log_norm, rel=1e-12, abs=1e-11)


@pytest.mark.parametrize("size", [0.3, 1e4])
def test_gradients_in_a_matrix_are_those_of_decimals(size):
    """Keys need not be tokens, and queries have a width of their own."""
    risk, rng = random_risk(43), np.random.default_rng(44)
    queries, W = rng.normal(size=(3, 2)), size * rng.normal(size=(2, 5))
    dense, log_norm, _ = matrix_gradient(risk.data, risk.head, W, queries, "Logistic")
    found = risk.as_matrix(queries).gradient(W)
    assert np.allclose(found.direction(), dense, rtol=0, atol=1e-12)
    assert found.log_norm == pytest.approx(log_norm, rel=1e-12, abs=1e-11)


def test_scores_of_tokens_make_the_risk_of_attention():
    """AttentionRisk is a SoftmaxRisk whose scores are those of a head."""
    rng = np.random.default_rng(45)
    data, head = ml.TokenDataset(rng.normal(size=(2, 3, 4)), [1, -1]), rng.normal(size=4)
    of_tokens, of_scores = ml.AttentionRisk(data, head), ml.SoftmaxRisk(data.K, data.scores(head))
    p = rng.normal(size=4)
    assert isinstance(of_tokens, ml.SoftmaxRisk)
    assert of_scores.value(p) == pytest.approx(of_tokens.value(p), rel=1e-14, abs=0)
    assert np.allclose(of_scores.gradient(p).value(), of_tokens.gradient(p).value(), rtol=1e-13, atol=0)


def test_equal_offsets_change_nothing():
    risk = random_risk(46, scale=0.0)
    shifted = ml.SoftmaxRisk(
        [K[:n] for K, n in zip(risk.data.K, LENGTHS, strict=True)],
        [X[:n, 0].tolist() for X, n in zip(risk.data.X, LENGTHS, strict=True)],
        [[c] * n for c, n in zip((3.0, -2.0, 0.5), LENGTHS, strict=True)],
    )
    p = np.random.default_rng(47).normal(size=5)
    assert shifted.data.has_offsets
    assert np.allclose(shifted.gradient(p).value(), risk.gradient(p).value(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("width", [2, 40])
@pytest.mark.parametrize("rule", [ml.NormalizedGD(0.3), ml.GradientDescent(0.7)])
def test_compiled_steps_are_those_of_numpy(rule, width):
    """In both forms of the state, and over many steps, after which logits are formed afresh."""
    risk = random_risk(48, CorrelationLoss(), width=width)
    start, save = 0.1 * np.random.default_rng(49).normal(size=(1, width)), np.array([1, 50, 700])
    compiled, stepwise = (
        loop.advance(loop.begin(start.copy()), (0, 700), save, None)
        for loop in (compiled_loop(risk, rule), StepwiseLoop(risk, rule))
    )
    assert np.allclose(compiled, stepwise, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rule", [ml.NormalizedGD(0.2), ml.GradientDescent(0.5), None])
def test_proofs_with_offsets_say_where_runs_end(seed, rule):
    risk = random_risk(100 + seed, CorrelationLoss(), scale=3.0)
    outcome = ml.predict_limit(risk, optimizer=rule).outcome
    assert outcome.certificate is not None
    assert outcome.certificate.data.has_offsets
    if rule is not None and outcome.proved:
        end = ml.descend(risk, optimizer=rule, n_steps=20 * max(outcome.n_steps, 200))
        assert np.array_equal(end.selected[list(outcome.inputs)], outcome.selected[list(outcome.inputs)])


def test_most_random_problems_with_offsets_are_proved():
    proved = [
        ml.predict_limit(random_risk(200 + k, CorrelationLoss()), optimizer=ml.NormalizedGD(0.2)).outcome.proved
        for k in range(20)
    ]
    assert np.mean(proved) >= 0.8


def test_exact_steps_from_the_start_include_offsets():
    risk = random_risk(51, CorrelationLoss(), scale=1.0)
    rule = ml.NormalizedGD(0.3)
    point = ml.descend(risk, optimizer=rule, n_steps=120).final
    proof = certify(risk.data, risk.head, point, optimizer=rule, loss=risk.loss)
    assert proof.verify(n_steps=120).applies
    assert not proof.verify(n_steps=119).applies


def test_certificates_keep_their_offsets_in_files(tmp_path):
    risk = random_risk(52, scale=1.0)
    point = ml.descend(risk, optimizer=ml.NormalizedGD(0.3), n_steps=2000).final
    proof = certify(risk.data, risk.head, point, optimizer=ml.NormalizedGD(0.3))
    proof.save(tmp_path / "proof.npz")
    read = Certificate.load(tmp_path / "proof.npz")
    assert np.array_equal(read.data.offsets, proof.data.offsets)
    assert read.verify().applies
    risk.data.save(tmp_path / "data.npz")
    assert np.array_equal(ml.data.load(tmp_path / "data.npz").offsets, risk.data.offsets)


def test_what_does_not_cover_offsets_refuses_them():
    risk = random_risk(53)
    point = ml.descend(risk, optimizer=ml.NormalizedGD(0.3), n_steps=2000).final
    with pytest.raises(InputError, match="X Theorem 4 does not cover"):
        certify(risk.data, risk.head, point, optimizer=ml.SignDescent(0.01))
    with pytest.raises(InputError, match="JointRisk"):
        ml.JointRisk(risk.data)
    prediction = ml.predict_limit(risk, optimizer=ml.SignDescent(0.01))
    assert prediction.outcome is None
    assert "offsets" in str(prediction.not_followed)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"scores": [[1.0, 2.0]]}, "`scores`|scores"),
        ({"offsets": [[1.0], [2.0, 3.0]]}, "offsets"),
        ({"scores": [[1.0, 2.0], [3.0]]}, "scores"),
        ({"scores": [[1.0, np.inf], [3.0, 1.0]]}, "finite"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_in_a_sentence(changes, said):
    given = {"keys": np.eye(2)[None].repeat(2, 0), "scores": [[1.0, 0.0], [0.0, 1.0]], "offsets": None} | changes
    with pytest.raises(InputError, match=said):
        ml.SoftmaxRisk(**given)
