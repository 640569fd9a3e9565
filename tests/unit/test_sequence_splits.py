"""Sequences in two parts: nothing of what is held out is learned from."""

import numpy as np
import pytest

from marginlens import InputError, SequenceDataset
from marginlens.data import NamedSequences, Vocabulary, Words, split_sequences, split_text_windows, text_windows
from marginlens.data.vocabulary import UNKNOWN, Listed, quoted

TEXT = "to be or not to be or not to suffer is the mind of the noble in the end of the question of the mind"


def samples(ds):
    return [(tuple(ds[i][0].tolist()), ds[i][1]) for i in range(len(ds))]


@pytest.mark.parametrize("unit", [None, Words(max_vocabulary=8)])
def test_a_text_is_cut_at_one_place(unit):
    split = split_text_windows(TEXT, 4, unit, held_out=0.5, d_model=5, rng=3)
    whole = text_windows(TEXT, 4, unit, d_model=5, rng=3)
    first, held = split.training.data, split.held_out
    assert split.training.vocabulary.names == whole.vocabulary.names
    np.testing.assert_array_equal(first.E, whole.data.E)
    np.testing.assert_array_equal(held.E, whole.data.E)
    every = samples(whole.data)
    assert samples(first) == every[: len(first)]
    assert samples(held) == every[len(every) - len(held) :]
    ids = whole.vocabulary.encode(TEXT)
    assert split.text.tolist() == ids[: len(split.text)].tolist()
    assert len(split.text) == len(ids) - round(0.5 * len(ids))
    for i, place in enumerate(split.samples.tolist()):
        assert first[i][0].tolist() == ids[place : place + 4].tolist()
    assert (
        len(first) + len(first.dropped) == len(split.text) - 4
    )  # every window, none of which reaches into the other part


def test_sequences_are_drawn_at_random_and_used_once():
    ds = SequenceDataset([[i, i + 1] for i in range(9)], range(9), np.eye(10))
    named = NamedSequences(ds, Vocabulary(tuple(map(str, range(10))), Listed()))
    split = split_sequences(named, held_out=1 / 3, rng=0)
    assert (len(split.training.data), len(split.held_out), split.text) == (6, 3, None)
    assert [samples(ds)[i] for i in split.samples] == samples(split.training.data)
    assert sorted(samples(split.training.data) + samples(split.held_out)) == samples(ds)
    assert samples(split.held_out) != samples(split_sequences(named, held_out=1 / 3, rng=1).held_out)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, "a", True, float("nan")])
def test_shares_outside_are_refused(share):
    with pytest.raises(InputError, match="'held_out' argument must be a share between 0 and 1"):
        split_text_windows(TEXT, 4, held_out=share)


def test_parts_that_are_too_small_are_refused():
    with pytest.raises(InputError, match="such that some window of the held-out part"):
        split_text_windows(TEXT, 4, held_out=0.01)
    with pytest.raises(InputError, match="such that some window of the first part"):
        split_text_windows(TEXT, 4, held_out=0.99)
    named = NamedSequences(SequenceDataset([[0, 1]], [0], np.eye(2)), Vocabulary(("a", "b"), Listed()))
    with pytest.raises(InputError, match="such that both parts have a sequence"):
        split_sequences(named, held_out=0.5)


def test_words_in_angle_brackets_and_marks_between_at_signs_are_one_token():
    assert Words().split("The <unk> , an all @-@ time 1 @,@ 000 < 5 > a@b") == [
        "the", "<unk>", ",", "an", "all", "@-@", "time", "1", "@,@", "000", "<", "5", ">", "a", "@", "b",
    ]  # fmt: skip


def test_a_text_that_writes_the_unknown_token_itself_has_one_of_it():
    vocabulary, ids = Words(max_vocabulary=1).index(f"a a {UNKNOWN} {UNKNOWN} {UNKNOWN} b")
    assert vocabulary.names == ("a", UNKNOWN)
    assert ids.tolist() == [0, 0, 1, 1, 1, 1]


def test_names_are_quoted_so_that_signs_can_be_read():
    assert Vocabulary((">", " ", '"', "<unk>"), Listed()).quoted == ('">"', '"␣"', "'\"'", '"<unk>"')
    assert quoted("a") == '"a"'
