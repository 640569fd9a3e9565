"""Windows over a text, vocabularies of characters and words, and sequences in JSON files."""

from __future__ import annotations

import json

import numpy as np
import pytest

from marginlens.data.paper_examples import figure_2
from marginlens.data.sequence_files import read_sequences, write_sequences
from marginlens.data.sequences import SequenceDataset
from marginlens.data.text_windows import read_text, text_windows
from marginlens.data.vocabulary import UNKNOWN, Characters, Words
from marginlens.errors import InputError
from tolerances import ROUNDING

TEXT = "To be, or not to be:\nthat is the question. It's a question – naïve?"


@pytest.mark.parametrize("unit", [Characters(), Words(), Words(lowercase=False, min_count=2)])
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
        with pytest.raises(InputError, match="long enough that some window holds the token that follows it"):
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
    with pytest.raises(InputError, match=r"must be made of the .* tokens of the vocabulary; got 'Z', which is none"):
        found.vocabulary.encode("tZ", "prefix")


def test_embeddings_of_a_width_are_unit_rows_of_the_seed():
    one, same, other = (text_windows(TEXT, 4, d_model=5, rng=seed).data.E for seed in (1, 1, 2))
    assert one.shape[1] == 5
    assert np.linalg.norm(one, axis=1) == pytest.approx(np.ones(len(one)), abs=ROUNDING)
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_a_file_is_read_without_its_mark_and_with_plain_new_lines(tmp_path):
    place = tmp_path / "t.txt"
    place.write_bytes(b"\xef\xbb\xbfna\xc3\xafve\r\nyes")
    assert read_text(place) == "naïve\nyes"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "'path' argument must be a text file; got .* which is empty instead"),
        (b"abc\xff", r"must be a text file in UTF-8; got .* whose byte 3 \(0xff\) is not instead"),
        (None, "No such file"),
    ],
)
def test_unusable_files_are_refused(tmp_path, content, sentence):
    place = tmp_path / "t.txt"
    if content is not None:
        place.write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        read_text(place)
    with pytest.raises(InputError, match="Is a directory"):
        read_text(tmp_path)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: text_windows("abcab", 5),
            "'window' argument must be shorter than the text, which has 5 tokens; got 5",
        ),
        (lambda: text_windows("abcab", 0), "'window' argument must be a whole number of at least 1"),
        (lambda: text_windows(" \n ", 1, Words()), "'text' argument must be a text with at least one token; got none"),
        (lambda: text_windows(b"ab", 1), "'text' argument must be a string; got bytes"),
        (lambda: Words(pattern="("), "'pattern' argument must be a regular expression; got"),
        (lambda: Words(pattern="(a)b"), "without capturing groups"),
        (lambda: Words(min_count=0), "'min_count' argument must be a whole number of at least 1"),
        (
            lambda: text_windows("".join(map(chr, range(0x4E00, 0x4E00 + 5000))) + "aaa", 3),
            "'d_model' argument must be given for more than 4096 tokens; got none for 5001",
        ),
    ],
)
def test_unusable_settings_are_refused(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()


# ---- JSON


def written(place, **content):
    place.write_text(json.dumps(content))
    return place


def test_a_dataset_survives_the_file(tmp_path):
    ds = SequenceDataset([[0, 1], [2, 1, 0]], [1, 2], np.random.default_rng(0).standard_normal((3, 2)))
    write_sequences(tmp_path / "s.json", ds, ["a", "b", "c"])
    back = read_sequences(tmp_path / "s.json")
    assert back.vocabulary.names == ("a", "b", "c")
    for name in ("tokens", "offsets", "labels", "E"):
        assert np.array_equal(getattr(back.data, name), getattr(ds, name))


def test_names_and_ids_say_the_same(tmp_path):
    by_name = read_sequences(written(tmp_path / "n.json", sequences=[["a", "c"], ["b", "a"]], labels=["c", "b"]))
    by_id = read_sequences(
        written(tmp_path / "i.json", sequences=[[0, 2], [1, 0]], labels=[2, 1], vocabulary=["a", "b", "c"])
    )
    assert by_name.vocabulary == by_id.vocabulary
    assert np.array_equal(by_name.data.tokens, by_id.data.tokens)
    assert by_name.data.tokens.tolist() == [0, 2, 1, 0]
    assert np.array_equal(by_name.data.E, np.eye(3))
    other_order = read_sequences(
        written(tmp_path / "o.json", sequences=[["a", "c"]], labels=["c"], vocabulary=["c", "b", "a"])
    )
    assert other_order.data.tokens.tolist() == [2, 0]


def test_ids_alone_name_themselves(tmp_path):
    write_sequences(tmp_path / "f.json", figure_2())
    assert read_sequences(tmp_path / "f.json").vocabulary.names == ("0", "1", "2", "3")
    alone = read_sequences(written(tmp_path / "a.json", sequences=[[0, 4]], labels=[4]))
    assert alone.vocabulary.names == ("0", "1", "2", "3", "4")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"sequences": [[0]]}, r"without labels \(it holds 'sequences'\)"),
        ({"sequences": "ab", "labels": [0]}, "'sequences' argument must be a list of lists of tokens; got 'ab'"),
        ({"sequences": ["ab"], "labels": [0]}, r"'sequences\[0\]' argument must be a list of tokens; got 'ab'"),
        ({"sequences": [[0]], "labels": 0}, "'labels' argument must be a list with one token per sequence; got 0"),
        ({"sequences": [[0, "a"]], "labels": [0]}, "or names in all; got ids and names"),
        ({"sequences": [[0.5]], "labels": [0]}, "or names in all; got fractions and ids"),
        ({"sequences": [[0, -1]], "labels": [0]}, "id -1 at position 1 of sample 0"),
        ({"sequences": [[0], []], "labels": [0, 0]}, r"an empty sequence \(sample 1\)"),
        ({"sequences": [], "labels": []}, "at least one sequence"),
        ({"sequences": [[0, 10**30]], "labels": [0]}, "ids below 4096 where the file has no E; got id 10000"),
        ({"sequences": [[0, 1]], "labels": [2]}, "1 samples without their label"),
        ({"sequences": [[0, 1]], "labels": [0, 1]}, r"whole numbers of shape \(1,\)"),
        ({"sequences": [["a"]], "labels": ["b"], "vocabulary": ["a"]}, "'labels' argument .* got 'b', which is none"),
        ({"sequences": [["a"]], "labels": ["a"], "vocabulary": ["a", "a"]}, "names that differ; got 'a' twice"),
        ({"sequences": [["a"]], "labels": ["a"], "vocabulary": []}, "'vocabulary' argument must be a list of at least"),
        ({"sequences": [[0]], "labels": [0], "vocabulary": ["a"], "E": [[1], [2]]}, "one row for each of the 1 names"),
        ({"sequences": [[0, 1]], "labels": [0], "E": [[1], [1]]}, "the same row for tokens 0 and 1"),
        ({"sequences": [[0, 1]], "labels": [0], "E": [[1, None], [1, 2]]}, "'E' argument must be an array of finite"),
    ],
)
def test_unusable_json_is_refused(tmp_path, content, sentence):
    with pytest.raises(InputError, match=sentence):
        read_sequences(written(tmp_path / "s.json", **content))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"{", "which is no JSON"), (b"[1]", "is no object with names"), (b'{"a": "\xff"}', "byte 7 .0xff. is not")],
)
def test_what_is_no_json_is_refused(tmp_path, content, sentence):
    (tmp_path / "s.json").write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        read_sequences(tmp_path / "s.json")


def test_samples_without_their_label_can_be_dropped(tmp_path):
    place = written(tmp_path / "s.json", sequences=[[0, 1], [0, 1]], labels=[2, 1])
    assert read_sequences(place, unrealizable="drop").data.dropped.tolist() == [0]
