"""Sequence datasets, with next tokens and with labels: their form, slices and equality."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tolerances
from marginlens import SequenceDataset
from marginlens.data import LabelledSequences
from marginlens_papers.claims.random_data import random_sequences
from random_examples import examples
from refusals import refused

EYE = np.eye(3)


def samples(data):
    return [(ids.tolist(), label) for ids, label in (data[i] for i in range(len(data)))]


def test_lists_and_arrays_give_the_same_dataset():
    listed = SequenceDataset([[0, 1, 2], [2, 1, 0]], [1, 2], EYE)
    assert listed == SequenceDataset(np.array([[0, 1, 2], [2, 1, 0]]), np.array([1, 2]), EYE)
    assert listed != SequenceDataset([[0, 1, 2], [2, 1, 0]], [1, 2], 2.0 * EYE)
    assert repr(listed) == "SequenceDataset(2 sequences × 3 of 3 tokens, d_model=3)"


def test_ragged_sequences_keep_samples_separate():
    data = SequenceDataset([[3, 0], [1], [2, 2, 1, 0]], [0, 1, 2], np.eye(4))
    assert (len(data), data.n_vocabulary, data.d_model) == (3, 4, 4)
    assert data.last.tolist() == [0, 1, 0]
    assert data.sample.tolist() == [0, 0, 1, 2, 2, 2, 2]
    assert data.is_label.tolist() == [False, True, True, True, True, False, False]
    assert "up to 4" in repr(data)
    with pytest.raises(IndexError):
        data[3]


@examples(30)
@given(st.integers(1, 6), st.booleans(), st.integers(0, 2**32 - 1), st.data())
def test_slices_masks_and_lists_take_samples_in_their_order(n_samples, labelled, seed, draw):
    rng = np.random.default_rng(seed)
    sequences = [rng.integers(4, size=n) for n in rng.integers(1, 5, size=n_samples)]
    if labelled:
        data = LabelledSequences(sequences, rng.choice([-1, 1], size=n_samples), 6)
    else:
        data = SequenceDataset(sequences, [ids[-1] for ids in sequences], rng.standard_normal((4, 3)))
    numbers = draw.draw(st.lists(st.integers(0, n_samples - 1), min_size=1))
    part = data[numbers]
    assert type(part) is type(data)
    assert samples(part) == [samples(data)[i] for i in numbers]
    mask = np.isin(np.arange(n_samples), numbers)
    assert data[mask] == data[np.unique(numbers)]
    assert data[:] == data
    assert (data[::-1] == data) == (samples(data)[::-1] == samples(data))


@pytest.mark.statement("C Eq. (1)")
@examples(15)
@given(st.integers(0, 2**32 - 1))
def test_logits_and_attention_follow_the_definition_and_the_order_of_samples(seed):
    rng = np.random.default_rng(seed)
    data = random_sequences(5, 3, 4, 4, rng)
    W, order = rng.normal(size=(3, 3)), rng.permutation(4)
    logits, attention = data.logits(W), data.attention(W)
    for i in range(len(data)):
        ids, _ = data[i]
        expected, positions = data.E[ids] @ W @ data.E[ids[-1]], slice(data.offsets[i], data.offsets[i + 1])
        np.testing.assert_allclose(logits[positions], expected, rtol=1e-10, atol=tolerances.ROUNDING)
        np.testing.assert_allclose(
            attention[positions], np.exp(expected) / np.exp(expected).sum(), rtol=1e-10, atol=0.0
        )
    np.testing.assert_allclose(data[order].attention(W), attention.reshape(4, 4)[order].ravel(), rtol=1e-10, atol=0.0)
    with np.errstate(over="raise", invalid="raise"):
        data.attention(1e4 * W)


@examples(15)
@given(st.integers(0, 2**32 - 1))
def test_the_names_of_the_tokens_do_not_matter(seed):
    rng = np.random.default_rng(seed)
    data, W = random_sequences(5, 3, 4, 4, rng), rng.normal(size=(3, 3))
    name = rng.permutation(5)  # token k is called name[k]
    renamed = SequenceDataset(
        [name[data[i][0]] for i in range(4)], name[data.labels], data.E[np.argsort(name)], unrealizable="keep"
    )
    np.testing.assert_allclose(renamed.attention(W), data.attention(W), rtol=1e-10, atol=0.0)
    assert np.array_equal(renamed.is_label, data.is_label)


@pytest.mark.statement("C Assumption 2")
def test_unrealizable_samples_are_named_dropped_or_kept():
    sequences, labels = [[0, 1], [1, 2], [2], [0, 2, 1]], [0, 0, 1, 1]
    with refused("labels"):
        SequenceDataset(sequences, labels, EYE)
    data = SequenceDataset(sequences, labels, EYE, unrealizable="drop")
    assert data.dropped.tolist() == [1, 2]
    assert data.original_samples().tolist() == [0, 3]
    assert samples(data) == [([0, 1], 0), ([0, 2, 1], 1)]
    everything = SequenceDataset(sequences, labels, EYE, unrealizable="keep")
    assert everything.unrealizable.tolist() == [1, 2]
    assert everything.realizable() == data
    with refused("labels"):
        SequenceDataset([[0], [1]], [1, 0], np.eye(2), unrealizable="drop")
