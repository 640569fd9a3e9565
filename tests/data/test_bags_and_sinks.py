"""Bags of patches, and the sink that `with_sink` adds: what they hold, what they refuse, and the softmax they stand for."""

from __future__ import annotations

import numpy as np
import pytest

import marginlens as ml
from marginlens.risk.softmax import logits
from refusals import refused
from tolerances import ROUNDING


def ragged(rng, lengths=(3, 5, 2), d=4):
    return [rng.standard_normal((n, d)) for n in lengths]


def softmax(a):
    weights = np.exp(a - a.max())
    return weights / weights.sum()


@pytest.mark.parametrize("labels", [[1, 0, 0], [1, -1, -1]])
def test_bags_take_both_forms_of_labels_and_bags_of_any_sizes(labels):
    patches = ragged(np.random.default_rng(1))
    data = ml.data.bags(patches, labels, names=[["a", "", "b"], [""] * 5, ["c", "d"]])
    assert data.kind == "bag"
    assert data.y.tolist() == [1.0, -1.0, -1.0]
    assert data.lengths.tolist() == [3, 5, 2]
    assert data.name_of(0, 2) == "b"
    assert data.name_of(1, 2) == "2"
    for given, held in zip(patches, data.X, strict=True):
        np.testing.assert_array_equal(held[: len(given)], given)
    keys = ragged(np.random.default_rng(2), d=3)
    assert ml.data.bags(patches, labels, keys=keys).d_key == 3


@pytest.mark.parametrize(
    ("argument", "parts"),
    [
        ("labels", {"labels": [1, 0, 2]}),
        ("labels", {"labels": [1, 0, -1]}),
        ("labels", {"labels": [1, 0]}),
        ("labels", {"labels": ["a", "b", "c"]}),
        ("names", {"names": [["a"], ["b"], ["c"]]}),
        ("keys", {"keys": ragged(np.random.default_rng(2), (3, 4, 2))}),
        ("patches", {"patches": []}),
    ],
)
def test_bags_refuse_what_does_not_fit(argument, parts):
    with refused(argument):
        ml.data.bags(**{"patches": ragged(np.random.default_rng(1)), "labels": [1, 0, 0], **parts})


def test_a_fixed_sink_makes_softmax_one_and_a_learned_one_has_a_logit_of_its_own():
    rng = np.random.default_rng(4)
    patches, p, b = ragged(rng), rng.standard_normal(4), 0.7
    data = ml.TokenDataset(patches, [1, -1, 1])
    fixed, learned = data.with_sink(), data.with_sink(learned=True)
    assert fixed.lengths.tolist() == learned.lengths.tolist() == [4, 6, 3]
    for i, keys in enumerate(patches):
        n = len(keys)
        by_hand = np.exp(keys @ p) / (1.0 + np.exp(keys @ p).sum())
        np.testing.assert_allclose(softmax(logits(fixed, p)[i, : n + 1])[:n], by_hand, rtol=ROUNDING, atol=0)
        by_hand = np.exp(keys @ p) / (np.exp(b) + np.exp(keys @ p).sum())
        np.testing.assert_allclose(
            softmax(logits(learned, np.append(p, b))[i, : n + 1])[:n], by_hand, rtol=ROUNDING, atol=0
        )
    head = rng.standard_normal(4)
    for sunk in (fixed, learned):
        np.testing.assert_array_equal(sunk.scores(head)[sunk.mask & ~np.pad(data.mask, ((0, 0), (0, 1)))], 0.0)
        assert not sunk.X[~sunk.mask].any()
        assert not sunk.K[~sunk.mask].any()


def test_a_sink_is_named_and_leaves_the_data_as_it_was(tmp_path):
    data = ml.TokenDataset([[[0.0, 2.0], [1.0, 0.0]]], [1], tokens=["dog", "cat"], kind="bag", W=[[2.0, 0.0]])
    assert data.with_sink().tokens == (("dog", "cat", "sink"),)
    assert data.tokens == (("dog", "cat"),)
    assert data.with_sink().kind == "bag"
    np.testing.assert_array_equal(data.with_sink().K, [[[0.0], [2.0], [0.0]]])
    np.testing.assert_array_equal(data.with_sink(learned=True).K, [[[0.0, 0.0], [2.0, 0.0], [0.0, 1.0]]])
    batch = ml.TokenDataset(np.ones((3, 2, 4, 5)), np.ones((3, 2)))
    assert batch.with_sink().tokens == (("", "", "", "", "sink"),) * 2
    assert batch[1].with_sink() == batch.with_sink()[1]
    data.with_sink(learned=True).save(tmp_path / "sink.npz")
    assert ml.data.load(tmp_path / "sink.npz") == data.with_sink(learned=True)


def test_a_verdict_says_sink_and_a_fixed_one_cannot_win_where_keys_surround_it():
    keys = np.array([[[1.0, 0.0], [-0.5, 0.9], [-0.5, -0.9]], [[1.0, 2.0], [2.0, 1.0], [1.5, 1.5]]])
    data, head = ml.data.scored_tokens(keys, [[-0.3, -0.2, -0.1], [-0.2, -0.3, -0.1]])
    found = ml.predict_limit(data.with_sink(learned=True), head)
    assert str(found.outcome.ends_at) == "“sink” wins in input 0, “sink” in input 1"
    assert ml.att_svm(data.with_sink(), [3, 3]).status is ml.Status.INFEASIBLE
    assert ml.descend(data.with_sink(), head, n_steps=300).selected[0] != 3
