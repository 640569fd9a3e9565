"""Certificates of rounded keys: no certified selection changes in a million decisions, and bounds hold for exact maps."""

import math

import numpy as np
import pytest
import torch

from marginlens.errors import InputError
from marginlens.probe import AttentionRule, attention_statistics, certify_rounding, rotation_matrix, round_keys
from marginlens.probe.heads.rounding import RoundedKeys


def tensors(*shape, seed, size=1.0, dtype=torch.float32):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape) * size).to(dtype)


def maps(q, k, rule):
    logits = (
        q.double() @ k.double().repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(2, 3) / math.sqrt(q.shape[-1])
    )
    if rule.bias is not None:
        logits = logits + rule.bias
    if rule.softcap is not None:
        logits = rule.softcap * torch.tanh(logits / rule.softcap)
    if rule.causal:
        logits = logits.masked_fill(~torch.ones_like(logits[0, 0], dtype=torch.bool).tril(), -math.inf)
    if rule.sinks is not None:
        logits = torch.cat((logits, rule.sinks.double()[None, :, None, None].expand(*logits.shape[:3], 1)), -1)
    return torch.softmax(logits, dim=-1)


RULES = {
    "plain": AttentionRule(),
    "causal": AttentionRule(causal=True),
    "capped": AttentionRule(softcap=3.0, causal=True),
    "bias": AttentionRule(bias=tensors(4, 30, 30, seed=9, size=2.0)),
    "sinks": AttentionRule(sinks=torch.tensor([0.0, 3.0, -1.0, 8.0]), causal=True),
}


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_bounds_hold_for_exact_maps(name, rotated, bits):
    rule, q, k = RULES[name], tensors(2, 4, 30, 16, seed=0, size=3.0), tensors(2, 2, 30, 16, seed=1)
    rounded = round_keys(k, bits, rotation_matrix(16) if rotated else None)
    found = certify_rounding(q, k, rounded, rule)
    before, after = maps(q, k, rule), maps(q, rounded.keys, rule)
    apart = 0.5 * (before - after).abs().sum(dim=-1)
    assert bool((apart <= found.variation.double() + 1e-6).all())
    changed = before[..., :30].argmax(-1) != after[..., :30].argmax(-1)
    assert torch.equal(changed[found.decided], found.changed[found.decided])
    assert not bool((found.certified & changed).any())
    if bits == 8:
        assert float(found.certified[found.decided].float().mean()) > 0.9
        assert found.certified_share >= found.robust_share > 0.8


def decisions(seed, bits, shrunk=1.0, hostile=False):
    """Certified, robust and changed of 100,000 decisions; errors of random directions, of the lengths of rounding, where hostile."""
    q, k = tensors(8, 4, 3200, 8, seed=seed, size=1.5), tensors(8, 2, 12, 8, seed=seed + 1)
    rounded = round_keys(k, bits)
    if hostile:
        turn = tensors(*k.shape, seed=seed + 2)
        rounded = RoundedKeys(k + turn / turn.norm(dim=-1, keepdim=True) * rounded.error[..., None], rounded.error)
    found = certify_rounding(q, k, rounded._replace(error=rounded.error * shrunk))
    return found


def test_no_certified_selection_changes_in_a_million_decisions():
    n_decisions = n_certified = n_changed = 0
    for seed in range(5):
        for bits in (2, 3, 4, 6, 8):
            found = decisions(10 * seed, bits, hostile=seed % 2 == 1)
            assert not bool((found.certified & found.changed).any())
            assert not bool((found.robust & found.changed).any())
            n_decisions += int(found.decided.sum())
            n_certified, n_changed = n_certified + int(found.certified.sum()), n_changed + int(found.changed.sum())
    assert n_decisions >= 1_000_000
    assert n_certified > 0.3 * n_decisions
    assert n_changed > 0.01 * n_decisions


def test_lengths_that_are_too_short_certify_selections_that_change():
    """The control: with a fifth of the true lengths the inequality lets changed selections pass."""
    found = decisions(0, 3, shrunk=0.2)
    assert bool((found.certified & found.changed).any())
    assert bool((found.robust & found.changed).any())


def test_rotation_saves_keys_with_an_outlier():
    """One coordinate of 50 makes all others round to nothing at 4 bits, unless it is spread."""
    q, k = tensors(1, 2, 200, 64, seed=0, size=2.0), tensors(1, 2, 200, 64, seed=1)
    q[..., 3], k[..., 3] = 0.05, 50.0
    plain, turned = (certify_rounding(q, k, round_keys(k, 6, rotation)) for rotation in (None, rotation_matrix(64)))
    assert turned.certified_share > plain.certified_share + 0.1
    assert torch.allclose(rotation_matrix(48) @ rotation_matrix(48).T, torch.eye(48, dtype=torch.float64), atol=1e-12)


def test_rounding_is_by_steps_of_each_key():
    k = torch.tensor([[[[7.0, 3.4, -1.6], [0.0, 0.0, 0.0]]]])
    rounded = round_keys(k, 4)
    assert rounded.keys.tolist() == [[[[7.0, 3.0, -2.0], [0.0, 0.0, 0.0]]]]
    assert rounded.error[0, 0].tolist() == pytest.approx([math.hypot(0.4, 0.4), 0.0])
    with pytest.raises(InputError, match="'bits' argument"):
        round_keys(k, 1)
    with pytest.raises(InputError, match="'rule' argument"):
        certify_rounding(k, k, rounded, AttentionRule(bias=lambda queries, keys: 0.0))


def test_queries_without_a_choice_are_no_decisions():
    q, k = tensors(1, 1, 3, 4, seed=0), tensors(1, 1, 3, 4, seed=1)
    k[:, :, 1] = k[:, :, 2]
    found = certify_rounding(q, k, round_keys(k, 8), AttentionRule(causal=True))
    statistics = attention_statistics(q, k, AttentionRule(causal=True))
    assert not bool(found.decided[..., 0])
    assert not bool((found.decided & statistics.tied).any())
