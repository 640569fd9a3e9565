"""Random next-token data follow their protocols, and Figure 2's example is what the text says."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from marginlens.data.paper_examples import figure_2
from marginlens.data.random_sequences import (
    acyclic_sequences,
    acyclic_sequences_as_coded,
    cyclic_sequences,
    cyclic_sequences_as_coded,
    ordered_sequences,
)
from marginlens.errors import InputError
from marginlens.graphs import cyclic_subset, is_acyclic, priority_graphs, tied_positions
from tolerances import ROUNDING

MAKERS = (acyclic_sequences, cyclic_sequences, acyclic_sequences_as_coded, cyclic_sequences_as_coded)


@pytest.mark.statement("C App. D")
@pytest.mark.parametrize("make", MAKERS)
def test_sizes_embeddings_and_kind(make):
    for seed in range(20):
        ds = make(6, 5, 6, 4, np.random.default_rng(seed))
        assert len(ds) == 6
        assert ds.E.shape == (6, 5)
        assert np.all(ds.lengths == 4)
        assert np.linalg.norm(ds.E, axis=1) == pytest.approx(np.ones(6), abs=ROUNDING)
        assert is_acyclic(priority_graphs(ds)) is (make in (acyclic_sequences, acyclic_sequences_as_coded))


@pytest.mark.parametrize("make", MAKERS)
def test_the_seed_decides(make):
    one, same, other = make(6, 5, 6, 4, 3), make(6, 5, 6, 4, np.random.default_rng(3)), make(6, 5, 6, 4, 4)
    assert np.array_equal(one.tokens, same.tokens)
    assert np.array_equal(one.labels, same.labels)
    assert np.array_equal(one.E, same.E)
    assert not np.array_equal(one.E, other.E)


def test_a_label_is_the_first_token_in_the_order():
    order = [3, 0, 4, 1, 2]
    ds = ordered_sequences(order, 3, 200, 3, 0)
    for ids, label in (ds[i] for i in range(len(ds))):
        assert label == next(token for token in order if token in ids)


def test_one_order_explains_all_acyclic_labels():
    ds = acyclic_sequences(7, 4, 300, 4, 1)
    above = {(label, int(t)) for ids, label in (ds[i] for i in range(len(ds))) for t in ids if t != label}
    assert above
    assert not any((j, i) in above for i, j in above)


def test_tokens_repeat_in_the_text_and_not_in_the_code():
    assert any(len(set(ids.tolist())) < 4 for ids in acyclic_sequences(6, 5, 50, 4, 0).tokens.reshape(50, 4))
    for make in (acyclic_sequences_as_coded, cyclic_sequences_as_coded):
        ds = make(8, 5, 4, 6, 0)
        assert all(len(set(ids.tolist())) == 6 for ids in ds.tokens.reshape(4, 6))


def test_a_cyclic_label_is_uniform_among_different_tokens():
    ds = cyclic_sequences(2, 2, 40_000, 3, 5)
    mixed = ds.tokens.reshape(-1, 3).sum(axis=1) == 1  # 0, 0, 1 in some order
    shares = Counter(ds.labels[mixed].tolist())
    assert shares[1] / mixed.sum() == pytest.approx(0.5, abs=0.02)  # a uniform position would give a third


@pytest.mark.statement("C Fig 2", "C §3.1", "C Def 1", "C Def 2", "C Eq. (4)", "C Eq. (5)")
def test_figure_2_is_what_the_text_says():
    ds = figure_2()
    graphs = priority_graphs(ds)
    assert sorted(graphs) == [0, 1]
    assert [part.tolist() for part in graphs[0].components] == [[3], [1], [2], [0]]
    assert [part.tolist() for part in graphs[1].components] == [[0, 1, 2], [3]]
    assert graphs[0].is_acyclic
    assert not graphs[1].is_acyclic
    assert not is_acyclic(graphs)
    assert {tuple(pair) for pair in graphs[1].strict.tolist()} == {
        (0, 3),
        (1, 3),
    }  # edges to e_4, which no path leads back from
    assert graphs[1].tied.tolist() == [[0, 1], [0, 2], [1, 2]]
    assert ds.last.tolist() == [0, 0, 0, 1, 1, 1, 1]
    last = slice(*ds.offsets[-2:])
    assert (np.flatnonzero(ds.is_label[last]) + 1).tolist() == [3]
    assert (np.flatnonzero(tied_positions(ds, graphs)[last]) + 1).tolist() == [1, 3]
    cyclic = cyclic_subset(ds, graphs)
    assert (cyclic.samples + 1).tolist() == [4, 5, 6, 7]
    assert set(cyclic.tokens.tolist()) == {0, 1, 2}
    assert len(set(cyclic.lengths.tolist())) > 1  # App. D: inputs of varying lengths


def test_impossible_sizes_are_refused_in_one_sentence():
    with pytest.raises(InputError, match=r"'n_tokens' argument must be at most n_vocabulary = 4"):
        acyclic_sequences_as_coded(4, 3, 2, 5, 0)
    with pytest.raises(InputError, match="'n_samples' argument must be at least 2, for tokens of equal priority"):
        cyclic_sequences(4, 3, 1, 5, 0)
    with pytest.raises(InputError, match="'n_tokens' argument must be a whole number of at least 1"):
        acyclic_sequences(4, 3, 1, 0, 0)
    with pytest.raises(InputError, match="'order' argument must be every id from 0"):
        ordered_sequences([0, 0, 1], 3, 2, 2, 0)


def test_a_kind_that_never_comes_is_given_up(monkeypatch):
    monkeypatch.setattr("marginlens.data.random_sequences._DRAWS", 3)
    with pytest.raises(InputError, match=r"None of 3 random datasets .* is without tokens of equal priority"):
        acyclic_sequences_as_coded(3, 3, 200, 3, 0)
