"""Statistics of attention by blocks of queries: equal to those of a full map in float64, at any rule and any size of logits."""

import itertools
import math

import numpy as np
import pytest
import torch

from full_attention import full_logits, tensors, with_sinks
from marginlens.probe import AttentionRule, attention_statistics, received_attention
from marginlens.probe.heads import statistics
from marginlens.probe.heads.selection import select_tokens
from marginlens.probe.heads.sparsity import soft_sparsity
from refusals import refused
from tolerances import ROUNDING

TOLERANCES = (0.0, 1e-3, 0.05, 0.5)


def entropies(maps):
    logs = np.log(maps, out=np.zeros_like(maps), where=maps > 0.0)
    return np.where(maps.any(axis=-1), -np.sum(maps * logs, axis=-1), np.nan)


def n_left_out(maps, tolerance, n_visible):
    """By a sort of all: hidden tokens come first, and are no gain."""
    return (np.cumsum(np.sort(maps, axis=-1), axis=-1) <= tolerance).sum(axis=-1) - (maps.shape[-1] - n_visible)


def compare(q, k, rule=None, positions=None, rtol=1e-12, atol=1e-10):
    rule = AttentionRule() if rule is None else rule
    logits, sees = full_logits(q, k, rule, positions)
    left_out = torch.rand(len(q), k.shape[2], generator=torch.Generator().manual_seed(5)) < 0.4
    found = attention_statistics(q, k, rule, positions=positions, tolerances=TOLERANCES, left_out=left_out)
    compare_beside(found, logits, sees & ~left_out[:, None, None], sees.any(dim=-1), rtol)
    chosen = select_tokens(logits.numpy(), sees.numpy())
    competing = with_sinks(logits, rule)
    maps = torch.softmax(competing, dim=-1)
    sink, maps = 1.0 - maps[..., : logits.shape[-1]].sum(dim=-1), maps[..., : logits.shape[-1]].numpy()
    sees_some = sees.any(dim=-1).numpy()
    maps = np.where(sees_some[..., None], maps, 0.0)
    size = np.abs(np.where(sees.numpy(), logits.numpy(), 0.0)).max()
    is_unique = sees_some & ~found.tied.numpy()
    np.testing.assert_array_equal(found.selected.numpy()[is_unique], chosen.selected[is_unique])
    assert (found.selected.numpy()[~sees_some] == -1).all()
    np.testing.assert_allclose(
        found.largest.numpy()[sees_some], logits.amax(dim=-1).numpy()[sees_some], rtol=rtol, atol=rtol * size
    )
    np.testing.assert_allclose(found.margin.numpy()[sees_some], chosen.margin[sees_some], rtol=rtol, atol=rtol * size)
    lse = torch.logsumexp(competing, dim=-1).numpy()
    np.testing.assert_allclose(found.log_sum_exp.numpy()[sees_some], lse[sees_some], rtol=rtol, atol=rtol * size)
    total = maps.sum(axis=-1, keepdims=True)
    rest = np.divide(maps, total, out=np.zeros_like(maps), where=total > 0.0)
    top = np.where(sees_some, maps.max(axis=-1), np.nan)
    for name, value in (("entropy", entropies(rest)), ("n_effective", soft_sparsity(rest)), ("top_probability", top)):
        np.testing.assert_allclose(getattr(found, name).numpy(), value, rtol=atol, atol=atol, err_msg=name)
    np.testing.assert_array_equal(found.n_visible.numpy(), sees.expand(logits.shape).sum(dim=-1).numpy())
    np.testing.assert_allclose(found.learned_sink.numpy()[sees_some], sink.numpy()[sees_some], rtol=0.0, atol=atol)
    first = sees.any(dim=2).any(dim=1).int().argmax(dim=-1).numpy()
    shares = np.stack([maps[row, :, :, place] for row, place in enumerate(first)])
    np.testing.assert_allclose(found.sink_share.numpy()[sees_some], shares[sees_some], rtol=0.0, atol=atol)
    n_visible = found.n_visible.numpy()
    got = found.n_negligible.numpy()
    if atol <= 1e-10:
        for tolerance, counts in list(zip(TOLERANCES, got, strict=True))[1:]:
            np.testing.assert_array_equal(counts[sees_some], n_left_out(maps, tolerance, n_visible)[sees_some])
    received = received_attention(q, k, found.log_sum_exp, rule, positions=positions)
    np.testing.assert_allclose(
        received.numpy(), maps.sum(axis=2), rtol=1e-9 if atol <= 1e-10 else 1e-4, atol=atol * q.shape[2]
    )
    return found


def compare_beside(found, logits, sees_beside, sees_some, rtol):
    """What is selected among some keys equals the selection of a map in which the others are hidden."""
    logits, sees_beside = logits.numpy(), sees_beside.expand(logits.shape).numpy()
    sees_some = sees_some.expand(logits.shape[:-1]).numpy()
    chosen = select_tokens(logits, sees_beside)
    selected, margin = found.selected_beside.numpy(), found.margin_beside.numpy()
    is_unique = chosen.margin > found.rounding.numpy()
    assert is_unique.any()
    np.testing.assert_array_equal(selected[is_unique], chosen.selected[is_unique])
    assert (selected[~sees_beside.any(axis=-1)] == -1).all()
    several = sees_beside.sum(axis=-1) >= 2
    atol = rtol * np.abs(np.where(sees_beside, logits, 0.0)).max()
    np.testing.assert_allclose(margin[several], chosen.margin[several], rtol=rtol, atol=atol)
    assert np.isposinf(margin[sees_some & ~several]).all()


def padding():
    mask = torch.ones(2, 1, 1, 23, dtype=torch.bool)
    mask[0, ..., 17:] = False  # padded on the right
    mask[1, ..., :5] = False  # and on the left
    return mask


RULES = {
    "plain": AttentionRule(),
    "causal": AttentionRule(causal=True),
    "window": AttentionRule(causal=True, window=4),
    "both sides": AttentionRule(window=3),
    "scaled": AttentionRule(scale=1.0, softcap=5.0, causal=True),
    "ALiBi": AttentionRule(bias=2.0 ** -torch.arange(1.0, 5.0, dtype=torch.float64), causal=True),
    "full bias": AttentionRule(bias=tensors(4, 23, 23, seed=3)),
    "bias by blocks": AttentionRule(bias=lambda queries, keys: tensors(4, 23, 23, seed=3)[:, queries, keys]),
    "sinks": AttentionRule(sinks=torch.tensor([0.0, 1.0, -2.0, 40.0]), causal=True),
    "padding": AttentionRule(mask=padding()),
    "padding, causal": AttentionRule(mask=padding(), causal=True),
    "added mask": AttentionRule(mask=torch.where(padding(), 0.0, torch.finfo(torch.float32).min)),
}


@pytest.mark.parametrize("size", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("name", RULES)
def test_statistics_equal_those_of_a_full_map(name, size, monkeypatch):
    """Also by rows of one query, which is what blocks come to."""
    q, k = tensors(2, 4, 23, 8, size=size), tensors(2, 2, 23, 8, seed=1)
    whole = compare(q, k, RULES[name])
    monkeypatch.setattr(statistics, "_BLOCK_ENTRIES", {"cpu": 23, "cuda": 23})
    monkeypatch.setattr(statistics, "_MIN_ROWS", 1)
    single = compare(q, k, RULES[name])
    torch.testing.assert_close(single.entropy, whole.entropy, rtol=1e-11, atol=1e-13, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precision_is_summed_in_single(dtype):
    q, k = tensors(1, 2, 64, 16, dtype=dtype), tensors(1, 2, 64, 16, seed=1, dtype=dtype)
    found = compare(q, k, AttentionRule(causal=True), rtol=3e-6, atol=1e-5)
    assert found.entropy.dtype is torch.float32


def test_a_sample_of_queries_has_the_numbers_of_all():
    q, k, rule = tensors(2, 4, 50, 8), tensors(2, 4, 50, 8, seed=1), AttentionRule(causal=True, window=20)
    places = torch.tensor([49, 3, 17])
    some = compare(q[:, :, places], k, rule, positions=places)
    whole = attention_statistics(q, k, rule)
    torch.testing.assert_close(some.entropy, whole.entropy[..., places])


def test_logits_of_a_hundred_thousand_keep_finite_statistics():
    """Numbers that a mask of -1e5, or an exponential without the maximum taken out, would spoil."""
    q, k = tensors(1, 2, 40, 4, size=1e4), tensors(1, 2, 40, 4, seed=1, size=20.0)
    found = compare(q, k, AttentionRule(causal=True), atol=1e-9)
    assert float(found.largest[..., 5:].max()) > 1e5
    assert float(found.largest.min()) < -1e4
    compare(q - 1e5, k.abs() + 1.0, AttentionRule(causal=True, scale=1.0), atol=1e-7)


def test_entropy_and_rest_are_accurate_for_saturated_attention():
    """Entropy of e^-600 and the probability beside the top one: a subtraction from 1 would leave zero, or noise."""
    q = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    k = torch.tensor([0.0, 600.0, 1.0], dtype=torch.float64)[None, None, :, None]
    found = attention_statistics(q, k)
    small = math.exp(-600.0) + math.exp(-599.0)
    assert float(found.rest_probability) == pytest.approx(small, rel=1e-12, abs=ROUNDING)
    assert float(found.entropy) == pytest.approx(
        small + 600.0 * math.exp(-600.0) + 599.0 * math.exp(-599.0), rel=1e-12, abs=ROUNDING
    )


def test_ties_are_reported():
    k = torch.tensor([1.0, 3.0, 3.0, 2.0], dtype=torch.float64)[None, None, :, None]
    found = attention_statistics(torch.ones(1, 1, 1, 1, dtype=torch.float64), k)
    assert bool(found.tied)
    assert float(found.margin) == 0.0
    assert int(found.selected) in (1, 2)
    assert not bool(attention_statistics(torch.ones(1, 1, 1, 1, dtype=torch.float64), k[:, :, :2]).tied)


def test_equal_logits_leave_out_a_whole_number_of_keys():
    q, k = torch.zeros(1, 1, 5, 2, dtype=torch.float64), tensors(1, 1, 100, 2)
    found = attention_statistics(q, k, tolerances=(0.0, 0.155, 0.995))
    assert found.n_negligible[:, 0, 0, 0].tolist() == [0, 15, 99]


@pytest.mark.parametrize("tolerance", [0.0, 1e-3, 0.05, 0.4])
def test_negligible_keys_are_the_largest_omissible_set(tolerance):
    """By all subsets of seven keys, with the total variation itself."""
    for seed in range(5):
        s = np.random.default_rng(seed).dirichlet(np.full(7, 0.3))
        most = 0
        for left_out in itertools.product((False, True), repeat=7):
            rest = np.where(left_out, 0.0, s)
            if rest.sum() > 0.0 and 0.5 * np.abs(s - rest / rest.sum()).sum() <= tolerance + 1e-15:
                most = max(most, sum(left_out))
        k = torch.from_numpy(np.log(s))[None, None, :, None]
        found = attention_statistics(torch.ones(1, 1, 1, 1, dtype=torch.float64), k, tolerances=(tolerance,))
        assert int(found.n_negligible) == most


def test_nan_rows_are_counted_by_kind():
    q, k = tensors(1, 1, 4, 2), tensors(1, 1, 4, 2, seed=1)
    q[0, 0, 2] = torch.nan
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    mask[..., 0, :] = False
    found = attention_statistics(q, k, AttentionRule(mask=mask), tolerances=(0.1,))
    assert found.selected.flatten().tolist()[0] == found.selected.flatten().tolist()[2] == -1
    assert found.entropy.isnan().flatten().tolist() == [True, False, True, False]
    assert [note.code for note in found.notes] == ["note.queries_without_keys", "note.logits_not_finite"]
    assert "4 queries" in repr(found)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda q, k: attention_statistics(None, k), "q"),
        (lambda q, k: attention_statistics(q, k[:, :, :, :1]), "k"),
        (lambda q, k: attention_statistics(q[:, :3], k), "k"),
        (lambda q, k: attention_statistics(q[:, :, :2], k, AttentionRule(causal=True)), "positions"),
        (lambda q, k: attention_statistics(q, k, tolerances=(1.0,)), "tolerances"),
        (lambda q, k: attention_statistics(q, k, AttentionRule(mask=torch.ones(3, 3))), "mask"),
        (lambda q, k: attention_statistics(q, k, AttentionRule(sinks=torch.ones(3))), "sinks"),
        (lambda q, k: AttentionRule(window=0), "window"),
        (lambda q, k: AttentionRule(softcap=0.0), "softcap"),
        (lambda q, k: AttentionRule(scale=math.nan), "scale"),
    ],
)
def test_invalid_arguments_are_refused(call, argument):
    with refused(argument):
        call(tensors(1, 4, 5, 2), tensors(1, 2, 5, 2))


def test_keys_left_out_have_the_shape_of_the_inputs():
    q = k = tensors(2, 4, 5, 8)
    assert attention_statistics(q, k).selected_beside is None
    with refused("left_out"):
        attention_statistics(q, k, left_out=torch.zeros(5, dtype=torch.bool))
    none_left = attention_statistics(q, k, left_out=torch.ones(2, 5, dtype=torch.bool))
    assert (none_left.selected_beside == -1).all()
    assert torch.isposinf(none_left.margin_beside).all()
