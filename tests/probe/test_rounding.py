"""Certificates of rounded keys: no certified selection changes in a million decisions, and bounds hold for exact maps."""

import math
from functools import partial

import pytest
import torch

import full_attention
from full_attention import full_logits, full_maps, with_sinks
from marginlens.errors import InputError
from marginlens.probe import (
    AttentionRule,
    attention_statistics,
    certify_rounding,
    output_bound,
    rotation_matrix,
    round_keys,
)
from marginlens.probe.heads.rounding import RoundedKeys
from marginlens.probe.heads.statistics import largest_logits, output_ranges

tensors = partial(full_attention.tensors, dtype=torch.float32)

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
    before, after = full_maps(q, k, rule), full_maps(q, rounded.keys, rule)
    apart = 0.5 * (before - after).abs().sum(dim=-1)
    assert bool((apart <= found.variation.double() + 1e-6).all())
    changed = before[..., :30].argmax(-1) != after[..., :30].argmax(-1)
    assert torch.equal(changed[found.decided], found.changed[found.decided])
    assert not bool((found.certified & changed).any())
    assert not bool((found.certified & ~found.resolved).any())  # two exact keys know what one knows
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


@pytest.mark.slow
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


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("n_exact", [1, 2, 5])
def test_what_is_resolved_is_among_the_keys_that_are_read(bits, n_exact):
    """The keys of largest bound, found with full maps, have the exact selection; with lengths that are too short they do not always."""
    q, k = tensors(4, 4, 800, 8, seed=0, size=1.5), tensors(4, 2, 12, 8, seed=1)
    rounded = round_keys(k, bits)
    wrong = []
    for shrunk in (1.0, 0.2):
        error = rounded.error * shrunk
        found = certify_rounding(q, k, RoundedKeys(rounded.keys, error), n_exact=n_exact)
        exact, hat = (full_logits(q, keys, RULES["plain"])[0] for keys in (k, rounded.keys))
        upper = hat + q.norm(dim=-1, keepdim=True) * error.repeat_interleave(2, 1)[:, :, None] / math.sqrt(8)
        read = upper.topk(n_exact, dim=-1).indices
        is_read = (read == exact.argmax(dim=-1, keepdim=True)).any(dim=-1)
        wrong.append(int((found.resolved & ~is_read).sum()))
        assert found.resolved_share > 0.0
    assert wrong[0] == 0
    assert wrong[1] > 0 or n_exact == 5


def test_centred_keys_round_better_and_give_the_same_attention():
    """Keys that share a long vector lose nearly all bits to it, unless it is taken away before."""
    q, k = tensors(1, 2, 100, 16, seed=0, size=2.0), tensors(1, 2, 100, 16, seed=1) + 20.0
    plain, centred = (round_keys(k, 4, centre=centre) for centre in (None, k.mean(dim=-2, keepdim=True)))
    assert float(centred.error.mean()) < 0.2 * float(plain.error.mean())
    shares = [certify_rounding(q, k, one).certified_share for one in (plain, centred)]
    assert shares[1] > shares[0] + 0.2
    nothing = round_keys(k, 4, centre=k.mean(dim=-2, keepdim=True)).keys - k.mean(dim=-2, keepdim=True)
    assert torch.allclose(full_maps(q, centred.keys, RULES["plain"]), full_maps(q, nothing, RULES["plain"]), atol=1e-4)


@pytest.mark.parametrize("name", ["plain", "causal", "capped", "sinks"])
def test_outputs_stay_in_their_range_and_corners_reach_it(name):
    """The range in each coordinate holds for random logits in the box, and is what the best of all corners gives."""
    rule, n_tokens = RULES[name], 6
    q, k = (
        tensors(1, 4, n_tokens, 4, seed=0, dtype=torch.float64),
        tensors(1, 2, n_tokens, 4, seed=1, dtype=torch.float64),
    )
    v = tensors(1, 2, n_tokens, 3, seed=2, dtype=torch.float64)
    radius = tensors(1, 2, n_tokens, seed=3, dtype=torch.float64).abs()
    least, most = output_ranges(q, k, v, radius, rule)
    logits, width = (
        full_logits(q, k, rule)[0],
        q.norm(dim=-1, keepdim=True) * radius.repeat_interleave(2, 1)[:, :, None] / 2.0,
    )
    best = torch.full_like(most, -math.inf)
    for corner in range(2**n_tokens):
        signs = torch.tensor([1.0 if corner >> k & 1 else -1.0 for k in range(n_tokens)], dtype=torch.float64)
        moved = with_sinks(logits + signs * width, rule)
        best = best.maximum(moved.softmax(dim=-1)[..., :n_tokens] @ v.repeat_interleave(2, 1))
    assert torch.allclose(best, most, atol=1e-9)
    assert bool((least <= most).all())


def test_the_output_moves_by_less_than_its_bound_which_is_below_that_by_total_variation():
    q, k, v = (tensors(2, heads, 20, 16, seed=seed) for seed, heads in enumerate((4, 2, 2)))
    rule, rounded = RULES["causal"], round_keys(k, 5)
    change = (full_maps(q, k, rule) - full_maps(q, rounded.keys, rule)) @ v.double().repeat_interleave(2, 1)
    bound = output_bound(q, k, v, rounded, rule)
    assert bool((change.norm(dim=-1) <= bound + 1e-5).all())
    longest = v.norm(dim=-1).amax(dim=-1).repeat_interleave(2, 1)[..., None]
    assert float(bound.mean()) < 0.7 * float((2.0 * certify_rounding(q, k, rounded, rule).variation * longest).mean())


def test_the_largest_logits_are_those_of_a_full_map():
    q, k = tensors(2, 4, 50, 8, seed=0), tensors(2, 2, 50, 8, seed=1)
    found = largest_logits(q, k, 3, AttentionRule(causal=True))
    best = full_logits(q, k, AttentionRule(causal=True))[0].topk(3, dim=-1)
    assert torch.allclose(found.logits.double(), best.values, atol=1e-6)
    assert torch.equal(found.keys, best.indices.masked_fill(best.values == -math.inf, -1))


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
