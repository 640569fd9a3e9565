"""Vocabularies of unusual texts: what Python calls a string is cut, numbered, written and read without loss."""

import numpy as np
import pytest

from marginlens.data import Characters, SequenceDataset, Words, read_sequences, text_windows, write_sequences
from marginlens.data.vocabulary import Listed
from marginlens.errors import InputError

HALF = "\ud83d"  # half a surrogate pair, as surrogateescape and broken JSON leave in strings


@pytest.mark.parametrize("unit", [Characters(), Words(), Listed()], ids=repr)
def test_the_index_of_a_text_is_its_split_in_ids(unit):
    for text in (f"a{HALF}a b", "a\0 a a\0", "été \U0001f600 \U0001f600", "İ i̇"):
        vocabulary, ids = unit.index(text)
        assert [vocabulary.names[i] for i in ids] == unit.split(text)
        assert len(set(vocabulary.names)) == len(vocabulary) == len(set(unit.split(text)))
        assert np.array_equal(vocabulary.encode(text), ids)


def test_half_a_surrogate_pair_is_a_token_and_survives_a_file(tmp_path):
    found = text_windows(f"a{HALF}a{HALF}", 2)
    write_sequences(tmp_path / "s.json", found.data, found.vocabulary.names)
    assert read_sequences(tmp_path / "s.json").vocabulary.names == ("a", HALF)
    write_sequences(tmp_path / "s.json", SequenceDataset([[0]], [0], np.eye(1)), ["é"])
    assert "é" in (tmp_path / "s.json").read_text(encoding="utf-8")


def test_a_pattern_of_bytes_is_refused():
    with pytest.raises(InputError, match=r"'pattern' argument must be a regular expression; got b'a' .*bytes"):
        Words(pattern=b"a")
