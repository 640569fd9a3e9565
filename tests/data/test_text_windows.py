"""Windows over a text, vocabularies of characters and words, and splits of which nothing held out is learned from."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marginlens import InputError, SequenceDataset
from marginlens.data import Vocabulary, read_text, split_sequences, split_text_windows, text_windows
from marginlens.data.vocabulary import UNKNOWN, Characters, Listed, NamedSequences, Words
from random_examples import examples
from refusals import refused
from tolerances import ROUNDING

LONG = "to be or not to be or not to suffer is the mind of the noble in the end of the question of the mind"
TEXT = "To be, or not to be:\nthat is the question. It's a question – naïve?"


@pytest.mark.parametrize(
    "unit", [Characters(), Words(), Words(lowercase=False, min_count=2)], ids=["letters", "words", "twice"]
)
@pytest.mark.parametrize("window", [1, 2, 5])
def test_windows_are_those_of_a_loop(unit, window):
    names = unit.split(TEXT)
    if isinstance(unit, Words) and unit.min_count > 1:
        names = [name if names.count(name) >= unit.min_count else UNKNOWN for name in names]
    expected, dropped = [], []
    for i in range(len(names) - window):
        if names[i + window] in names[i : i + window]:
            expected.append((names[i : i + window], names[i + window]))
        else:
            dropped.append(i)
    if not expected:
        with refused("window"):
            text_windows(TEXT, window, unit)
        return
    found = text_windows(TEXT, window, unit)
    told = [([found.vocabulary.names[t] for t in ids], found.vocabulary.names[y]) for ids, y in found.data]
    assert told == expected
    assert found.data.dropped.tolist() == dropped
    assert np.array_equal(found.data.E, np.eye(len(found.vocabulary)))


def test_characters_are_ordered_by_code_point_and_words_by_count():
    characters, ids = Characters().index("banäna")
    assert characters.names == ("a", "b", "n", "ä")
    assert ids.tolist() == [1, 0, 2, 3, 2, 0]
    words, ids = Words().index("B a b, B.")
    assert words.names == ("b", ",", ".", "a")
    assert ids.tolist() == [0, 3, 0, 1, 0, 2]
    assert words.unknown is None


def test_rare_words_become_one_unknown_token_in_their_place():
    vocabulary, ids = Words(max_vocabulary=2).index("a b a c b d a")
    assert vocabulary.names == ("a", "b", UNKNOWN)
    assert ids.tolist() == [0, 1, 0, 2, 1, 2, 0]
    assert vocabulary.encode("d a").tolist() == [2, 0]
    assert Words(max_vocabulary=None, min_count=2).index("a b a c b d a")[0].names == ("a", "b", UNKNOWN)


def test_text_is_encoded_and_decoded():
    found = text_windows(TEXT, 6)
    assert found.vocabulary.decode(found.vocabulary.encode("that is")) == "that is"
    assert found.vocabulary.shown[0] == "↵"
    assert found.vocabulary.shown[1] == "␣"
    words = text_windows(TEXT, 6, Words()).vocabulary
    assert words.decode(words.encode("IT'S the question , not a question.")) == "it's the question, not a question."
    with refused("prefix"):
        found.vocabulary.encode("tZ", "prefix")


def test_embeddings_of_a_width_are_unit_rows_of_the_seed():
    one, same, other = (text_windows(TEXT, 4, d_model=5, rng=seed).data.E for seed in (1, 1, 2))
    assert one.shape[1] == 5
    assert np.linalg.norm(one, axis=1) == pytest.approx(np.ones(len(one)), abs=ROUNDING, rel=0.0)
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_a_file_is_read_without_bom_and_with_plain_newlines(tmp_path):
    place = tmp_path / "t.txt"
    place.write_bytes(b"\xef\xbb\xbfna\xc3\xafve\r\nyes")
    assert read_text(place) == "naïve\nyes"


def test_unusable_files_are_refused(tmp_path):
    for content, argument, got in ((b"", "path", "empty"), (b"abc\xff", "encoding", "byte 3 (0xff)")):
        (tmp_path / "t.txt").write_bytes(content)
        with pytest.raises(InputError) as caught:
            read_text(tmp_path / "t.txt")
        assert caught.value.argument == argument
        assert got in caught.value.got
    with refused("path"):
        read_text(tmp_path / "none.txt")


@examples(40)
@given(st.text(min_size=1), st.sampled_from([Characters(), Words(), Listed()]))
def test_the_index_of_a_text_is_its_split_in_ids(text, unit):
    vocabulary, ids = unit.index(text)
    assert [vocabulary.names[i] for i in ids] == unit.split(text)
    assert len(set(vocabulary.names)) == len(vocabulary) == len(set(unit.split(text)))
    assert np.array_equal(vocabulary.encode(text), ids)


def test_a_lone_surrogate_is_a_character():
    assert text_windows("a\ud83da\ud83d", 2).vocabulary.names == ("a", "\ud83d")


def test_marks_and_the_unknown_token_are_one_token_each():
    assert Words().split("The <unk> , an all @-@ time 1 @,@ 000 < 5 > a@b") == [
        "the", "<unk>", ",", "an", "all", "@-@", "time", "1", "@,@", "000", "<", "5", ">", "a", "@", "b",
    ]  # fmt: skip
    vocabulary, ids = Words(max_vocabulary=1).index(f"a a {UNKNOWN} {UNKNOWN} {UNKNOWN} b")
    assert vocabulary.names == ("a", UNKNOWN)
    assert ids.tolist() == [0, 0, 1, 1, 1, 1]


def test_names_are_quoted_so_that_signs_can_be_read():
    assert Vocabulary((">", " ", '"', "<unk>"), Listed()).quoted == ('">"', '"␣"', "'\"'", '"<unk>"')


# ---- splits


def samples(data):
    return [(tuple(data[i][0].tolist()), data[i][1]) for i in range(len(data))]


@pytest.mark.parametrize("unit", [None, Words(max_vocabulary=8)], ids=["characters", "words"])
def test_a_text_is_split_at_one_position(unit):
    split = split_text_windows(LONG, 4, unit, held_out=0.5, d_model=5, rng=3)
    whole = text_windows(LONG, 4, unit, d_model=5, rng=3)
    first, last = split.training.data, split.held_out
    assert split.training.vocabulary.names == whole.vocabulary.names
    every = samples(whole.data)
    assert samples(first) == every[: len(first)]
    assert samples(last) == every[len(every) - len(last) :]
    ids = whole.vocabulary.encode(LONG)
    assert split.text.tolist() == ids[: len(ids) - round(0.5 * len(ids))].tolist()
    for i, place in enumerate(split.samples.tolist()):
        assert first[i][0].tolist() == ids[place : place + 4].tolist()
    assert len(first) + len(first.dropped) == len(split.text) - 4  # no window reaches into the other part


def test_split_sequences_are_random_and_disjoint():
    data = SequenceDataset([[i, i + 1] for i in range(9)], range(9), np.eye(10))
    named = NamedSequences(data, Vocabulary(tuple(map(str, range(10))), Listed()))
    split = split_sequences(named, held_out=1 / 3, rng=0)
    assert (len(split.training.data), len(split.held_out), split.text) == (6, 3, None)
    assert data[split.samples] == split.training.data
    assert sorted(samples(split.training.data) + samples(split.held_out)) == samples(data)
    assert split.held_out != split_sequences(named, held_out=1 / 3, rng=1).held_out
