"""The losses of DPO and InfoNCE as risks: against autograd, against decimals where autograd underflows, and what they refuse."""

import mpmath
import numpy as np
import pytest

import marginlens as ml
from refusals import refused

BETA = 0.3
PROMPTS, CHOSEN, REJECTED = [0, 0, 2, 1], [1, 2, 0, 3], [0, 1, 4, 2]


def policy(seed, lengths=(3, 4, 6), width=5):
    """Features and the reference's log-probabilities of prompts with different numbers of responses."""
    rng = np.random.default_rng(seed)
    features = [rng.normal(size=(n, width)) for n in lengths]
    logits = [rng.normal(size=n) for n in lengths]
    return features, [(row - np.log(np.exp(row).sum())).tolist() for row in logits]


def dpo(seed, **changes):
    features, reference = policy(seed)
    given = {"prompts": PROMPTS, "reference": reference, "beta": BETA} | changes
    return ml.risk.preferences(features, CHOSEN, REJECTED, **given)


@pytest.mark.parametrize("size", [0.0, 1.0, 30.0])
def test_the_risk_is_the_loss_of_dpo_by_autograd(size):
    """With the policy's own log-probabilities, normalising constants and all."""
    torch = pytest.importorskip("torch")
    features, reference = policy(71)
    theta = torch.tensor(size * np.random.default_rng(72).normal(size=5), requires_grad=True)
    losses = []
    for i, w, l in zip(PROMPTS, CHOSEN, REJECTED, strict=True):
        ratio = torch.log_softmax(torch.tensor(features[i]) @ theta, dim=0) - torch.tensor(
            reference[i], dtype=torch.float64
        )
        losses.append(-torch.nn.functional.logsigmoid(BETA * ratio[w] - BETA * ratio[l]))
    loss = torch.stack(losses).mean()
    loss.backward()
    risk, point = dpo(71), theta.detach().numpy()
    assert float(risk.value(point)) == pytest.approx(loss.item(), rel=1e-12, abs=1e-12)
    assert np.allclose(risk.gradient(point).value(), theta.grad.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [1.0, 1e4])
def test_gradients_are_those_of_decimals_beyond_the_range_of_double_precision(size):
    """At θ far along a direction that ranks all pairs, autograd in double precision returns zero."""
    features, reference = policy(73)
    risk = dpo(73)
    theta = size * ml.att_svm(risk.data, [0] * 4).x
    with mpmath.workdps(60):
        total = [mpmath.mpf(0)] * 5
        for i, w, l in zip(PROMPTS, CHOSEN, REJECTED, strict=True):
            row = [mpmath.mpf(x) - mpmath.mpf(y) for x, y in zip(features[i][w], features[i][l], strict=True)]
            z = BETA * sum(a * mpmath.mpf(t) for a, t in zip(row, theta, strict=True))
            z -= BETA * (mpmath.mpf(reference[i][w]) - mpmath.mpf(reference[i][l]))
            total = [t - BETA * a / (1 + mpmath.exp(z)) / 4 for t, a in zip(total, row, strict=True)]
        norm = mpmath.norm(mpmath.matrix(total))
        direction, log_norm = [float(t / norm) for t in total], float(mpmath.log(norm))
    found = risk.gradient(theta)
    assert np.allclose(found.direction(), direction, rtol=0, atol=1e-11)
    assert found.log_norm == pytest.approx(log_norm, rel=1e-12, abs=1e-11)
    assert (size == 1.0) or log_norm < -900.0


def test_autograd_in_double_precision_loses_the_gradient_that_the_risk_keeps():
    torch = pytest.importorskip("torch")
    risk = dpo(73)
    point = 1e4 * ml.att_svm(risk.data, [0] * 4).x
    theta = torch.tensor(point, requires_grad=True)
    rows = torch.tensor(risk.data.K[:, 0] - risk.data.K[:, 1])
    offsets = torch.tensor(risk.data.offsets[:, 0] - risk.data.offsets[:, 1])
    (-torch.nn.functional.logsigmoid(rows @ theta + offsets)).mean().backward()
    assert not theta.grad.any()
    assert np.isfinite(risk.gradient(point).log_norm)


def test_without_a_reference_it_is_the_bradley_terry_model():
    features, _ = policy(75)
    risk = ml.risk.preferences(features, CHOSEN, REJECTED, prompts=PROMPTS, beta=1.0)
    theta = np.random.default_rng(76).normal(size=5)
    rewards = [f @ theta for f in features]
    ahead = [rewards[i][w] - rewards[i][l] for i, w, l in zip(PROMPTS, CHOSEN, REJECTED, strict=True)]
    assert float(risk.value(theta)) == pytest.approx(np.mean(np.log1p(np.exp(-np.array(ahead)))), rel=1e-14, abs=0)
    one_each = ml.risk.preferences(features, [0, 1, 2], [1, 2, 0])
    assert one_each.data == ml.risk.preferences(features, [0, 1, 2], [1, 2, 0], prompts=[0, 1, 2]).data
    assert not one_each.data.has_offsets


@pytest.mark.parametrize("positives", [[2, 0, 1], [[0, 2], [1], [3, 4]]])
def test_the_adapters_risk_is_info_nce_by_autograd(positives):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(77)
    queries, documents = rng.normal(size=(3, 4)), rng.normal(size=(5, 6))
    W = torch.tensor(rng.normal(size=(4, 6)), requires_grad=True)
    log_share = torch.log_softmax(torch.tensor(queries) @ W @ torch.tensor(documents).T, dim=1)
    loss = -torch.stack(
        [torch.logsumexp(log_share[i, p], 0) for i, p in enumerate(np.atleast_1d(p) for p in positives)]
    )
    loss.mean().backward()
    risk = ml.risk.contrastive(queries, documents, positives)
    assert float(risk.value(W.detach().numpy())) == pytest.approx(loss.mean().item(), rel=1e-12, abs=0)
    assert np.allclose(risk.gradient(W.detach().numpy()).value(), W.grad.numpy(), rtol=1e-12, atol=1e-13)


def test_documents_of_each_query_may_differ_in_number():
    rng = np.random.default_rng(78)
    queries, shared = rng.normal(size=(2, 3)), rng.normal(size=(4, 3))
    W = rng.normal(size=(3, 3))
    same = ml.risk.contrastive(queries, [shared, shared], [1, 2])
    assert same.data == ml.risk.contrastive(queries, shared, [1, 2], names=list("abcd")).data
    fewer = ml.risk.contrastive(queries, [shared[:2], shared], [1, 2])
    shares = [np.exp(queries[0] @ W @ shared[:2].T), np.exp(queries[1] @ W @ shared.T)]
    by_hand = -np.mean([np.log(shares[0][1] / shares[0].sum()), np.log(shares[1][2] / shares[1].sum())])
    assert float(fewer.value(W)) == pytest.approx(by_hand, rel=1e-13, abs=0)


@pytest.mark.parametrize(
    ("argument", "parts"),
    [
        ("rejected", {"rejected": [1, 1, 4, 2]}),
        ("rejected", {"rejected": [0, 3, 4, 2]}),
        ("chosen", {"chosen": [1, 2]}),
        ("chosen", {"chosen": [1.0, 2.0, 0.0, 3.0]}),
        ("prompts", {"prompts": [0, 0, 3, 1]}),
        ("beta", {"beta": 0.0}),
        ("reference", {"reference": [[0.0, 0.0]] * 3}),
        ("features", {"features": np.eye(3)}),
        ("features", {"features": np.ones((2, 2, 3, 4))}),
        ("features", {"features": 3.0}),
    ],
)
def test_preferences_refuse_what_does_not_fit(argument, parts):
    features, _ = policy(79)
    given = {"features": features, "chosen": CHOSEN, "rejected": REJECTED, "prompts": PROMPTS}
    with refused(argument):
        ml.risk.preferences(**given | parts)


@pytest.mark.parametrize(
    ("argument", "parts"),
    [
        ("positives", {"positives": [0]}),
        ("positives", {"positives": [0, 3]}),
        ("positives", {"positives": [0, []]}),
        ("positives", {"positives": 1}),
        ("documents", {"documents": 1.0}),
        ("documents", {"documents": [np.eye(2)] * 3}),
        ("documents", {"documents": [np.eye(2), np.full((2, 2), np.nan)]}),
        ("queries", {"queries": [[0.0, 0.0], [1.0, 0.0]]}),
        ("names", {"names": ["a"]}),
    ],
)
def test_contrastive_refuses_what_does_not_fit(argument, parts):
    with refused(argument):
        ml.risk.contrastive(**{"queries": np.eye(2), "documents": np.eye(3, 2), "positives": [0, 1]} | parts)
