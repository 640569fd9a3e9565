"""Routers on frozen experts: against a torch gate and decimals, what the gate's numbers mean, proofs, words, and refusals."""

import numpy as np
import pytest

import marginlens as ml
from decimal_oracle import matrix_gradient
from refusals import refused
from tolerances import ROUNDING


def problem(seed, n_inputs=7, n_experts=3, d=5):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n_inputs, d)), rng.uniform(-1.0, 1.0, (n_inputs, n_experts))


def test_value_and_gradient_are_those_of_a_torch_gate():
    torch = pytest.importorskip("torch")
    inputs, effects = problem(61)
    weight = torch.tensor(np.random.default_rng(62).standard_normal((3, 5)), requires_grad=True)  # of a Linear gate
    shares = torch.softmax(torch.tensor(inputs) @ weight.T, dim=-1)
    loss = torch.nn.functional.softplus(-(shares * torch.tensor(effects)).sum(-1)).mean()
    loss.backward()
    risk, W = ml.risk.router(inputs, effects), weight.detach().numpy().T
    assert abs(risk.value(W) - loss.item()) <= ROUNDING
    np.testing.assert_allclose(risk.gradient(W).value(), weight.grad.numpy().T, rtol=0.0, atol=ROUNDING)
    np.testing.assert_allclose(risk.attention(W), shares.detach().numpy(), rtol=0.0, atol=ROUNDING)


@pytest.mark.parametrize("size", [1.0, 1e3])
def test_gradients_far_out_are_those_of_decimals(size):
    inputs, effects = problem(63)
    risk, W = ml.risk.router(inputs, effects), size * np.random.default_rng(64).standard_normal((5, 3))
    dense, log_norm, _ = matrix_gradient(risk.of_p.data, risk.of_p.head, W, inputs, "Logistic")
    found = risk.gradient(W)
    np.testing.assert_allclose(found.direction(), dense, rtol=0.0, atol=ROUNDING)
    assert found.log_norm == pytest.approx(log_norm, rel=1e-12, abs=1e-11)


def test_the_margin_problem_is_the_multiclass_svm_of_the_winners():
    """Two experts: the shortest W has opposite columns, half of the SVM without bias for the sign of the winner."""
    inputs, effects = problem(65, n_experts=2)
    winners = np.array([0, 1, 0, 1, 0])
    risk = ml.risk.router(inputs[:5], effects[:5])
    W = ml.att_svm(risk.data, winners, query=inputs[:5]).x
    v = ml.label_svm(inputs[:5], 1 - 2 * winners).x
    np.testing.assert_allclose(W, np.stack([v, -v], axis=-1) / 2.0, rtol=0.0, atol=1e-10)


def test_winners_are_predicted_and_proved_before_training():
    inputs, effects = problem(66, n_inputs=5, d=8)
    risk = ml.risk.router(inputs, effects, names=["maths", "code", "prose"])
    outcome = ml.predict_limit(risk, optimizer=ml.NormalizedGD(0.2)).outcome
    run = ml.descend(risk, optimizer=ml.NormalizedGD(0.2), n_steps=20_000)
    assert outcome.proved
    np.testing.assert_array_equal(outcome.selected, run.selected)
    limit = ml.att_svm(risk.data, outcome.selected, query=inputs)
    assert ml.correlation(run.final.ravel(), limit.x.ravel()) > 0.999
    # the control: a limit that another choice of experts has
    other = ml.att_svm(risk.data, (outcome.selected + 1) % 3, query=inputs)
    assert ml.correlation(run.final.ravel(), other.x.ravel()) < 0.5


def test_verdicts_say_expert_and_input_or_their_names():
    inputs, effects = problem(67, n_inputs=2)
    numbered = ml.predict_limit(ml.risk.router(inputs, effects)).outcome
    first, second = numbered.selected
    assert str(numbered.ends_at) == f"expert {first} wins for input 0, expert {second} for input 1"
    named = ml.predict_limit(ml.risk.router(inputs, effects, names=["a", "b", "c"])).outcome
    assert str(named.ends_at) == f"“{'abc'[first]}” wins for input 0, “{'abc'[second]}” for input 1"


def test_a_batch_of_routers_is_its_problems():
    inputs, effects = np.random.default_rng(68).standard_normal((2, 4, 6, 3))
    batch = ml.risk.router(inputs, effects, loss=ml.losses.CorrelationLoss())
    W = np.random.default_rng(69).standard_normal((4, 3, 3))
    for j in range(4):
        one = ml.risk.router(inputs[j], effects[j], loss=ml.losses.CorrelationLoss())
        assert batch.value(W)[j] == pytest.approx(float(one.value(W[j])), rel=1e-14, abs=0)
    run = ml.descend(batch, optimizer=ml.NormalizedGD(0.1), n_steps=50)
    assert run.selected.shape == (4, 6)


@pytest.mark.parametrize(
    ("argument", "changed"),
    [
        ("inputs", {"inputs": np.ones((6, 5))}),
        ("inputs", {"inputs": np.ones(5)}),
        ("inputs", {"inputs": np.zeros((7, 5))}),
        ("effects", {"effects": np.ones(7)}),
        ("effects", {"effects": np.full((7, 3), np.nan)}),
        ("effects", {"effects": np.ones((7, 0))}),
        ("names", {"names": ["a", "b"]}),
        ("names", {"names": "abc"}),
        ("names", {"names": [1, 2, 3]}),
        ("loss", {"loss": "log"}),
    ],
)
def test_what_does_not_fit_is_refused(argument, changed):
    inputs, effects = problem(70)
    with refused(argument):
        ml.risk.router(**{"inputs": inputs, "effects": effects, **changed})
