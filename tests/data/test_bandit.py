"""Bandits: what they hold and refuse, and that values and gradients are those of a softmax policy under three algorithms."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest

import marginlens as ml
from refusals import refused
from tolerances import ROUNDING

LOSSES = {
    "reinforce": ml.losses.CorrelationLoss(),
    "grpo": ml.losses.ArcsineLoss(),
    "rejection_sampling": ml.losses.LogProbability(),
}
OBJECTIVES = {
    "reinforce": lambda u: -u,
    "grpo": lambda u: -2.0 * u.sqrt().arcsin(),
    "rejection_sampling": lambda u: -u.log(),
}
# What an algorithm multiplies the advantage r_a - u of an arm by.
FACTORS = {
    "reinforce": lambda u, rest: 1,
    "grpo": lambda u, rest: 1 / mp.sqrt(u * rest),
    "rejection_sampling": lambda u, rest: 1 / u,
}
ALGORITHMS = pytest.mark.parametrize("name", LOSSES)
DIGITS = 6_000  # weights of norm 2,000 leave wrong arms probabilities down to about 1e-3,000


def problem(seed=0, n_states=3, n_arms=4, d=4):
    """Features, rewards and weights; logits of weights with as few bits are exact, and so are those of centred features."""
    rng = np.random.default_rng(seed)
    features = np.round(256.0 * rng.standard_normal((n_states, n_arms, d))) / 256.0
    rewards = (rng.random((n_states, n_arms)) < 0.3).astype(float)
    rewards[:, :2] = [1.0, 0.0]  # every state has an arm that is right, and one that is not
    return features, rewards, np.round(256.0 * rng.standard_normal(d)) / 256.0


def policy_gradient(features, rewards, theta, name):
    """The value's gradient by the policy-gradient theorem, in many digits: the mean of factor · Σ_a π_a (r_a - u) φ_a."""
    with mp.workdps(DIGITS):
        total = [mp.mpf(0)] * len(theta)
        theta = [mp.mpf(x) for x in theta]
        for phi, reward in zip(features, rewards, strict=True):
            phi = [[mp.mpf(float(x)) for x in row] for row in phi]
            weights = [mp.exp(mp.fsum(map(mp.fmul, row, theta))) for row in phi]
            share = [w / mp.fsum(weights) for w in weights]
            u = mp.fsum(s * float(r) for s, r in zip(share, reward, strict=True))
            rest = mp.fsum(s * float(1 - r) for s, r in zip(share, reward, strict=True))
            factor = FACTORS[name](u, rest) / len(features)
            for s, r, row in zip(share, reward, phi, strict=True):
                advantage = rest if r == 1.0 else -u
                total = [x - factor * s * advantage * y for x, y in zip(total, row, strict=True)]
        norm = mp.sqrt(mp.fsum(x * x for x in total))
        return np.array([float(x / norm) for x in total]), float(mp.log(norm))


@ALGORITHMS
@pytest.mark.parametrize("seed", [1, 2])
def test_values_and_gradients_are_those_of_automatic_differentiation(name, seed):
    torch = pytest.importorskip("torch")
    features, rewards, theta = problem(seed)
    offsets = np.random.default_rng(seed).standard_normal(rewards.shape)
    data = ml.data.bandit(features, rewards, offsets=offsets)
    risk = ml.SoftmaxRisk(features, rewards, offsets, LOSSES[name])
    run = ml.descend(data, loss=LOSSES[name], optimizer=ml.GradientDescent(0.1), n_steps=1, start=theta)
    x = torch.tensor(theta, dtype=torch.float64, requires_grad=True)
    policy = torch.softmax(torch.tensor(features) @ x + torch.tensor(offsets), dim=-1)
    value = OBJECTIVES[name]((policy * torch.tensor(rewards)).sum(dim=-1)).mean()
    value.backward()
    gradient = x.grad.numpy()
    np.testing.assert_allclose(float(risk.value(theta)), value.item(), rtol=ROUNDING, atol=0)
    np.testing.assert_allclose(risk.gradient(theta).value(), gradient, rtol=0, atol=ROUNDING * np.linalg.norm(gradient))
    np.testing.assert_allclose(run.final, theta - 0.1 * gradient, rtol=0, atol=ROUNDING * np.linalg.norm(theta))


@ALGORITHMS
@pytest.mark.parametrize("scale", [1.0, 32.0, 1024.0])
def test_gradients_are_exact_at_any_norm(name, scale):
    features, rewards, theta = problem(3)
    theta *= scale
    found = ml.SoftmaxRisk(features, rewards, loss=LOSSES[name]).gradient(theta)
    direction, log_norm = policy_gradient(features, rewards, theta, name)
    assert abs(found.log_norm - log_norm) <= ROUNDING * max(abs(log_norm), 1.0)
    np.testing.assert_allclose(found.direction(), direction, rtol=0, atol=ROUNDING)


def test_bandits_of_one_state_of_several_and_of_unequal_ones():
    features, rewards, _ = problem()
    one = ml.data.bandit(features[0], rewards[0], names=list("abcd"), offsets=rewards[1])
    assert one == ml.data.bandit(features[:1], rewards[:1], offsets=rewards[1:2])
    assert one.kind == "bandit"
    assert one.name_of(0, 3) == "d"
    several = ml.data.bandit(features, rewards, names=list("abcd"))
    assert several.tokens == (("a", "b", "c", "d"),) * 3
    np.testing.assert_array_equal(several.K, features)
    np.testing.assert_array_equal(several.scores([1.0]), rewards)
    ragged = ml.data.bandit([features[0, :2], features[1]], [[1.0, 0.0], rewards[1]], names=[["a", "b"], list("cdef")])
    assert ragged.lengths.tolist() == [2, 4]
    assert ragged.name_of(1, 3) == "f"
    batch = ml.data.bandit(np.stack([features, features]), np.stack([rewards, 1.0 - rewards]))
    assert len(batch) == 2
    assert batch[0] == several


@pytest.mark.parametrize(
    ("argument", "parts"),
    [
        ("rewards", {"rewards": [1.0, 0.0]}),
        ("rewards", {"rewards": [1.0, 0.0, np.nan]}),
        ("names", {"names": ["a", "b"]}),
        ("names", {"names": "abc"}),
        ("names", {"names": 3}),
        ("features", {"features": [1.0, 2.0, 3.0]}),
        ("offsets", {"offsets": [1.0]}),
    ],
)
def test_bandits_refuse_what_does_not_fit(argument, parts):
    with refused(argument):
        ml.data.bandit(**{"features": np.eye(3), "rewards": [1.0, 0.0, 0.0], **parts})


@pytest.mark.parametrize("loss", [ml.losses.ArcsineLoss(), ml.losses.LogProbability()])
def test_losses_of_probabilities_refuse_negative_rewards(loss):
    with refused("scores"):
        ml.descend(ml.data.bandit(np.eye(2), [1.0, -1.0]), loss=loss, n_steps=1)


def test_a_verdict_names_arms_and_states():
    data = ml.data.bandit([[[0.0, 1.0], [1.0, 0.0]], [[0.0, 2.0], [1.0, 0.0]]], [[1.0, 0.0], [1.0, 0.5]])
    outcome = ml.predict(data, loss=ml.losses.CorrelationLoss()).outcome
    assert str(outcome.ends_at) == "arm 0 wins in state 0, arm 0 in state 1"
    assert outcome.proved


def test_a_file_keeps_a_bandit(tmp_path):
    features, rewards, _ = problem()
    data = ml.data.bandit(features, rewards, names=list("abcd"))
    data.save(tmp_path / "bandit.npz")
    found = ml.data.load(tmp_path / "bandit.npz")
    assert found == data
    assert (found.kind, found.tokens) == (data.kind, data.tokens)


def test_the_best_arm_may_lose_although_no_other_arm_is_locally_optimal():
    data = ml.data.bandit([[1.1, -1.1], [1.5, 0.7], [0.0, -0.2], [0.0, 0.0], [0.4, -0.4]], [1.0, -0.8, -0.6, 1.9, 1.4])
    loss = ml.losses.CorrelationLoss()
    assert ml.locally_optimal_directions(data, data.own_head).selections.tolist() == [[3]]
    assert data.optimal(data.own_head) == [3]
    found = ml.predict(data, loss=loss).outcome
    assert found.finite
    assert found.proved
    assert "no arm wins" in str(found.ends_at)
    # Plain steps, which share nothing with the flow, end in the ball that the proof is for.
    run = ml.descend(data, loss=loss, optimizer=ml.GradientDescent(1.0), n_steps=200_000)
    assert np.linalg.norm(run.final - found.point) <= found.certificate.radius


def test_a_policy_gradient_of_our_own_ends_at_the_proved_arms():
    count, n_arms, d, size, n_steps = 40, 5, 3, 0.5, 300
    rng = np.random.default_rng(8)
    features, rewards = rng.standard_normal((count, 1, n_arms, d)), rng.standard_normal((count, 1, n_arms))
    found = ml.predict(
        ml.data.bandit(features, rewards), loss=ml.losses.CorrelationLoss(), optimizer=ml.NormalizedGD(size)
    )
    phi, r, theta = features[:, 0], rewards[:, 0], np.zeros((count, d))
    for _ in range(n_steps):
        logits = np.einsum("bad,bd->ba", phi, theta)
        share = np.exp(logits - logits.max(axis=-1, keepdims=True))
        share /= share.sum(axis=-1, keepdims=True)
        # Advantages by differences of rewards, so that that of the leading arm does not cancel.
        advantage = np.sum(share[:, None] * (r[:, :, None] - r[:, None]), axis=-1)
        gradient = np.einsum("ba,bad->bd", share * advantage, phi)
        gradient /= np.abs(gradient).max(axis=-1, keepdims=True)  # the squares of its entries may underflow
        theta += size * gradient / np.linalg.norm(gradient, axis=-1, keepdims=True)
    ends = np.argmax(np.einsum("bad,bd->ba", phi, theta), axis=-1)
    settled = [each.outcome.proved and each.outcome.n_steps <= n_steps for each in found]
    assert sum(settled) >= 35
    assert [each.outcome.selected[0] for each, done in zip(found, settled, strict=True) if done] == ends[
        settled
    ].tolist()
