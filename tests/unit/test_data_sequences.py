"""Sequence datasets: their form, and every input that they refuse."""

from __future__ import annotations

import numpy as np
import pytest

import tolerances
from marginlens.data.sequences import SequenceDataset, as_sequences, check_sequence
from marginlens.errors import InputError


def test_lists_and_arrays_give_the_same_dataset() -> None:
    listed = SequenceDataset([[0, 1, 2], [2, 1, 0]], [1, 2], np.eye(3))
    array = SequenceDataset(np.array([[0, 1, 2], [2, 1, 0]]), np.array([1, 2]), np.eye(3))
    for name in ("tokens", "offsets", "labels", "last", "sample", "lengths"):
        np.testing.assert_array_equal(getattr(listed, name), getattr(array, name))
    assert repr(listed) == "SequenceDataset(2 sequences × 3 of 3 tokens, d_model=3)"


def test_ragged_sequences_keep_their_samples_apart() -> None:
    ds = SequenceDataset([[3, 0], [1], [2, 2, 1, 0]], [0, 1, 2], np.eye(4)[:, :3] + 0.1 * np.eye(4, 3, k=-1))
    assert len(ds) == 3
    assert ds.n_vocabulary == 4
    assert ds.d_model == 3
    assert ds.last.tolist() == [0, 1, 0]
    assert ds.lengths.tolist() == [2, 1, 4]
    assert ds.sample.tolist() == [0, 0, 1, 2, 2, 2, 2]
    assert ds[-1][0].tolist() == [2, 2, 1, 0]
    assert ds.is_label.tolist() == [False, True, True, True, True, False, False]
    assert "up to 4" in repr(ds)
    with pytest.raises(IndexError, match="sample 3 of a dataset with 3"):
        ds[3]


@pytest.mark.statement("C Eq. (1)")
def test_logits_and_attention_follow_the_definition() -> None:
    rng = np.random.default_rng(0)
    E, W = rng.normal(size=(5, 3)), rng.normal(size=(3, 3))
    ds = SequenceDataset([[0, 1, 4, 4], [3, 2], [1]], [4, 2, 1], E)
    logits, attention = ds.logits(W), ds.attention(W)
    for i in range(len(ds)):
        ids, _ = ds[i]
        expected = E[ids] @ W @ E[ids[-1]]
        here = slice(ds.offsets[i], ds.offsets[i + 1])
        np.testing.assert_allclose(logits[here], expected, rtol=tolerances.ROUNDING, atol=tolerances.ROUNDING)
        np.testing.assert_allclose(attention[here], np.exp(expected) / np.exp(expected).sum(), rtol=tolerances.ROUNDING)
    with np.errstate(over="raise", invalid="raise"):
        assert ds.attention(1e4 * W)[ds.offsets[-2]] == 1.0


@pytest.mark.statement("C Assumption 2")
def test_unrealizable_samples_are_named_or_dropped_and_counted() -> None:
    sequences, labels = [[0, 1], [1, 2], [2], [0, 2, 1]], [0, 0, 1, 1]
    with pytest.raises(
        InputError, match=r"2 samples without their label \(indices 1, 2; label 0 of sample 1\).*unrealizable=\"drop\""
    ):
        SequenceDataset(sequences, labels, np.eye(3))
    ds = SequenceDataset(sequences, labels, np.eye(3), unrealizable="drop")
    assert ds.dropped.tolist() == [1, 2]
    assert [ids.tolist() for ids, _ in (ds[0], ds[1])] == [[0, 1], [0, 2, 1]]
    assert ds.labels.tolist() == [0, 1]
    assert repr(ds).endswith("2 unrealizable dropped)")
    with pytest.raises(InputError, match="at least one sample; got none among 2"):
        SequenceDataset([[0], [1]], [1, 0], np.eye(2), unrealizable="drop")
    many = [[0]] * 9
    with pytest.raises(
        InputError, match=r"9 samples without their label \(indices 0, 1, 2, 3, 4, …; label 1 of sample 0\)"
    ):
        SequenceDataset(many, [1] * 9, np.eye(2))


REFUSED = [
    (([[0, 1], [0, 3]], [0, 0], np.eye(3)), "'sequences'.*ids from 0 to 2.*id 3 at position 1 of sample 1"),
    (([[0, 1], [0, -1]], [0, 0], np.eye(3)), "'sequences'.*id -1 at position 1 of sample 1"),
    ((np.array([[0, 1], [5, 0]]), [0, 0], np.eye(3)), "'sequences'.*id 5 at position 0 of sample 1"),
    (([[0, 1], []], [0, 0], np.eye(3)), r"'sequences'.*at least one token; got an empty sequence \(sample 1\)"),
    (
        (np.empty((2, 0), dtype=int), [0, 0], np.eye(3)),
        r"'sequences'.*at least one token; got empty sequences \(sample 0\)",
    ),
    (([], [], np.eye(3)), "'sequences'.*at least one sequence; got an empty list"),
    ((np.empty((0, 3), dtype=int), [], np.eye(3)), r"'sequences'.*at least one sequence; got shape \(0, 3\)"),
    (([[0.5, 1.0]], [0], np.eye(3)), r"'sequences\[0\]'.*whole-number token ids.*float64"),
    ((np.array([[0.0, 1.0]]), [0], np.eye(3)), "'sequences'.*whole numbers.*float64"),
    (([[[0], [1, 2]]], [0], np.eye(3)), r"'sequences\[0\]'.*lists of different lengths"),
    (("ab", [0], np.eye(3)), "'sequences'.*got str"),
    ((3, [0], np.eye(3)), "'sequences'.*got int"),
    (([[0, 1]], [0, 1], np.eye(3)), r"'labels'.*shape \(1,\).*got shape \(2,\)"),
    (([[0, 1]], [0.0], np.eye(3)), "'labels'.*whole numbers.*float64"),
    (([[0, 1]], [[0], [1, 2]], np.eye(3)), "'labels'.*got list"),
    (([[0, 1]], [7], np.eye(3)), "'labels'.*ids from 0 to 2; got id 7 of sample 0"),
    (([[0, 1]], [2], np.eye(3)), r"'labels'.*1 samples without their label \(indices 0; label 2 of sample 0\)"),
    (([[0, 1]], [0], np.eye(3)[0]), r"'E'.*\(n_vocabulary, d_model\).*got shape \(3,\)"),
    (([[0, 1]], [0], np.zeros((2, 0))), "'E'.*at least one token and one coordinate"),
    (([[0, 1]], [0], np.array([[1.0, 0.0], [np.nan, 1.0]])), r"'E'.*finite.*got nan at index \(1, 0\)"),
    (([[0, 1]], [0], np.array([[1.0, 0.0], [np.inf, 1.0]])), r"'E'.*finite.*got inf at index \(1, 0\)"),
    (
        ([[0, 1]], [0], np.array([[1.0, 2.0], [0.0, 1.0], [1.0, 2.0]])),
        "'E'.*same row for tokens 0 and 2.*separate tokens",
    ),
    (([[0, 1]], [0], "x"), "'E'.*array of finite numbers"),
]


@pytest.mark.parametrize(("arguments", "sentence"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_bad_input_is_refused_by_name(arguments: tuple, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        SequenceDataset(*arguments)


def test_other_bad_arguments_are_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"'unrealizable'.*or .keep.; got 'hide'"):
        SequenceDataset([[0, 1]], [0], np.eye(2), unrealizable="hide")
    ds = SequenceDataset([[0, 1]], [0], np.eye(2))
    with pytest.raises(InputError, match=r"'W'.*shape \(2, 2\).*got shape \(3, 3\)"):
        ds.logits(np.eye(3))
    with pytest.raises(InputError, match=r"'sequence'.*ids from 0 to 1; got id 2"):
        ds.sequence([0, 2])
    with pytest.raises(InputError, match=r"'sequence'.*at least one token id"):
        check_sequence([], 3)
    with pytest.raises(InputError, match=r"'sequence'.*at least one token id; got lists of different lengths"):
        check_sequence([[0], [1, 2]], 3)
    with pytest.raises(InputError, match=r"'ds'.*a SequenceDataset; got list"):
        as_sequences([[0, 1]])
