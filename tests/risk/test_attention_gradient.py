"""Gradients and risks: against autograd where it is accurate, and against decimals where float64 formulas break."""

import numpy as np
import pytest

import marginlens as ml
from decimal_oracle import gradient as decimal_gradient
from marginlens import core
from marginlens.arithmetic.log_scaled import ExcessRisk
from marginlens.risk import MultiHeadRisk, logits
from tolerances import AUTOGRAD, HIGH_PRECISION, ROUNDING

LOSSES = [ml.Logistic(), ml.Exponential(), ml.CorrelationLoss()]


def by_autograd(risk, x, head):
    """Value and gradient of a risk of W with queries for each head of each input, or of p as the one row of W, by torch."""
    torch = pytest.importorskip("torch")
    W, X, K, y = (torch.tensor(array) for array in (np.atleast_2d(x), risk.data.X, risk.data.K, risk.data.y))
    queries = torch.tensor(np.reshape(getattr(risk, "query", np.ones((len(y), 1))), (len(y), -1, len(W))))
    attention = torch.softmax(torch.einsum("itd,qd,ihq->iht", K, W.requires_grad_(), queries), dim=-1)
    margin = y * head(torch.einsum("iht,itd->ihd", attention, X)).mean(dim=1)
    losses = {
        "Logistic": torch.nn.functional.softplus(-margin),
        "Exponential": torch.exp(-margin),
        "CorrelationLoss": -margin,
    }
    value = losses[type(risk.loss).__name__].mean()
    value.backward()
    return value.item(), W.grad.numpy().reshape(np.shape(x))


def attention_risks():
    """Risks of p in every loss, and of several heads."""
    data, v = ml.data.gaussian_tokens(5, 4, 5, 6, 0)
    yield from ((type(loss).__name__, ml.AttentionRisk(data, v, loss)) for loss in LOSSES)
    data, v = ml.data.sphere_tokens(2, 4, 5, 6, 0)
    yield "heads", MultiHeadRisk(data, v, 3)
    yield "queries", MultiHeadRisk(data, v, np.random.default_rng(3).normal(size=(4, 3, 7)))
    yield "self-attention", MultiHeadRisk.self_attention(data, v)


@pytest.mark.statement("A Eq. (15a)", "A Eq. (18)", "A Eq. (1)", "A (ERM)", "A Eq. (4)")
@pytest.mark.parametrize("name", dict(attention_risks()))
def test_gradient_and_risk_agree_with_autograd(name):
    batch = dict(attention_risks())[name]
    x = np.random.default_rng(1).normal(size=(len(batch), *batch.shape))
    values, gradients = batch.value(x), batch.gradient(x).value()
    for j in range(len(batch)):
        risk = batch[j]
        value, theirs = by_autograd(risk, x[j], lambda z, v=risk.head: z @ z.new_tensor(v))
        assert values[j] == pytest.approx(value, rel=1e-12, abs=ROUNDING)
        assert np.linalg.norm(gradients[j] - theirs) < AUTOGRAD * np.linalg.norm(theirs)


def test_nonlinear_head_gradient_agrees_with_autograd():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    psi = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    data, _ = ml.data.gaussian_tokens(6, 3, 5, 4, 0)
    for j, p in enumerate(np.random.default_rng(1).normal(size=(6, 4))):
        risk = ml.AttentionRisk(data[j], psi)
        theirs = by_autograd(risk, p, lambda z: psi(z)[..., 0])[1]
        assert np.linalg.norm(risk.gradient(p).value() - theirs) < AUTOGRAD * np.linalg.norm(theirs)
    single = psi.float()
    ml.AttentionRisk(data, single).gradient(np.ones(4))
    assert next(single.parameters()).dtype == torch.float32  # the caller's module is left as it was


@pytest.mark.statement("A Eq. (15a)")
@pytest.mark.parametrize("loss", LOSSES, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("size", [0.0, 1.0, 40.0, 1e3, 1e4])
def test_gradient_is_exact_at_any_norm(loss, size):
    """At ‖p‖ = 1e4 the gradient is far below the smallest float64, and still right to eleven digits."""
    for seed in range(4):
        data, v = ml.data.sphere_tokens(1, 2, 3, 3, seed)
        data, v = data[0], v[0]
        p = size * np.random.default_rng(100 + seed).normal(size=3)
        found = ml.AttentionRisk(data, v, loss).gradient(p)
        direction, log_norm = decimal_gradient(data, v, p, type(loss).__name__)
        assert np.allclose(
            found.array / np.linalg.norm(found.array), direction, rtol=0, atol=HIGH_PRECISION * max(1, size / 10)
        )
        assert found.log_norm == pytest.approx(log_norm, rel=1e-12, abs=1e-9)
    assert size < 1e3 or log_norm < -745  # the test means what it says


@pytest.mark.parametrize("size", [1.0, 300.0, 1e4])
def test_tied_scores_and_huge_margins_keep_their_digits(size):
    """A nearest token with exactly the best score, and scores of ±2,000 whose logistic slope underflows."""
    keys = np.array([[(0.0, 0.0), (0.3, 0.1), (-1.0, 0.5)], [(1.0, 0.0), (0.0, 1.0), (-1.0, -1.0)]])
    for scores in ([[1.0, 1.0, 0.2], [0.5, 0.5, 0.1]], [[2000.0, 2000.0, 1999.0], [1500.0, 10.0, -2000.0]]):
        data, v = ml.data.scored_tokens(keys, scores)
        p = size * np.array([0.6, -0.8])
        found = ml.AttentionRisk(data, v).gradient(p)
        direction, log_norm = decimal_gradient(data, v, p, "Logistic")
        assert np.allclose(found.array / np.linalg.norm(found.array), direction, rtol=0, atol=1e-9)
        assert found.log_norm == pytest.approx(log_norm, rel=1e-10, abs=ROUNDING)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("size", [0.1, 30.0, 2e3, 1e5])
def test_compiled_weights_equal_the_numpy_gradient(loss, size):
    for seed in range(10):
        data, v = ml.data.sphere_tokens(1, 3, 4, 5, seed)
        data, v = data[0], v[0]
        p = size * np.random.default_rng(seed).normal(size=5)
        weights, log_scale = np.empty((3, 4)), np.empty(1)
        core.pair_weights(
            np.einsum("itd,d->it", data.K, p), data.scores(v), data.lengths, loss.code, log_scale, weights
        )
        compiled = weights.ravel() @ data.K.reshape(12, 5) / 3
        found = ml.AttentionRisk(data, v, loss).gradient(p)
        assert ml.correlation(compiled, found.array) > 1 - 1e-12
        assert np.log(np.linalg.norm(compiled)) + log_scale[0] == pytest.approx(found.log_norm, abs=1e-8, rel=0.0)


@pytest.mark.statement("A Eq. (63)")
def test_excess_risk_agrees_with_plain_and_decimal_arithmetic():
    data, v = ml.data.sphere_tokens(10, 3, 4, 5, 3)
    p = np.random.default_rng(4).normal(size=(10, 5))
    selected = np.argmax(logits(data, p), axis=-1)
    base = np.mean(ml.Logistic().value(np.take_along_axis(data.scores(v), selected[..., None], -1)[..., 0]), axis=-1)
    found = ml.AttentionRisk(data, v).excess(p)
    assert np.allclose(
        found.sign * np.exp(found.log), ml.AttentionRisk(data, v).value(p) - base, rtol=1e-9, atol=ROUNDING
    )
    other = (selected + 1) % 4  # relative to tokens that are not the largest
    base = np.mean(ml.Logistic().value(np.take_along_axis(data.scores(v), other[..., None], -1)[..., 0]), axis=-1)
    found = ml.AttentionRisk(data, v).excess(p, other)
    assert np.allclose(
        found.sign * np.exp(found.log), ml.AttentionRisk(data, v).value(p) - base, rtol=1e-9, atol=ROUNDING
    )
    far, farther = ml.AttentionRisk(data, v).excess(1e5 * p), ml.AttentionRisk(data, v).excess(2e5 * p)
    assert np.isfinite(far.log).all()
    assert np.all(far.log < -745)
    assert np.allclose(farther.log / far.log, 2, rtol=0.0, atol=0.05)  # the log of the excess is linear in the norm
    assert np.array_equal(far.above(farther), far.sign > 0)


def test_excess_risks_are_ordered_by_sign_and_then_by_logarithm():
    sign, log = np.array([-1.0, -1.0, 0.0, 1.0, 1.0]), np.array([5.0, -900.0, -np.inf, -900.0, 5.0])  # increasing
    risen, fallen = np.meshgrid(np.arange(5), np.arange(5), indexing="ij")
    one, other = (ExcessRisk(sign[which], log[which]) for which in (risen, fallen))
    assert np.array_equal(one.above(other), risen > fallen)


def test_offsets_common_to_an_input_do_not_matter():
    """Softmax ignores a shift of all keys of an input; so do our digits, even for a shift of 1e6."""
    data, v = ml.data.sphere_tokens(5, 3, 4, 5, 7)
    shifted = ml.TokenDataset(data.X, data.y, K=data.K + 2.0**20 * np.ones(5))
    clean = ml.TokenDataset(data.X, data.y, K=shifted.K - 2.0**20 * np.ones(5))
    a, b = ml.descend(shifted, v, n_steps=300), ml.descend(clean, v, n_steps=300)
    assert np.min(ml.correlation(a.final, b.final)) > 1 - 1e-10
