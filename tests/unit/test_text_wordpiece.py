"""Words cut into pieces, against every possible cut and against the package tokenizers; vocabulary files."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from marginlens.errors import InputError, MissingExtra
from marginlens.text import SavedTokenizer, Snowball, WordPiece, read_pieces
from marginlens.text.wordpiece import pieces_from_dict, read_vocabulary

VOCABULARY = ["[UNK]", "a", "b", "ab", "bab", "##a", "##b", "##ba", "##aab", "un", "##able", "c"]


def greedy(word: str, known: set[str]) -> tuple[str, ...]:
    """The definition: the longest first piece that is known, then the same for the rest."""
    if not word:
        return ()
    mark = ""
    pieces: list[str] = []
    while word:
        ends = [k for k in range(1, len(word) + 1) if mark + word[:k] in known]
        if not ends:
            return ("[UNK]",)
        pieces.append(mark + word[: max(ends)])
        word, mark = word[max(ends) :], "##"
    return tuple(pieces)


def random_words(n_words: int) -> list[str]:
    rng = np.random.default_rng(3)
    return ["".join(rng.choice(list("aabbc"), size=rng.integers(1, 9))) for _ in range(n_words)]


def test_the_longest_piece_first() -> None:
    words = [*random_words(400), "unable", "ab"]
    found = WordPiece(tuple(VOCABULARY)).cut(words)
    assert found == [greedy(word, set(VOCABULARY)) for word in words]
    assert found[-2] == ("un", "##able")
    assert ("[UNK]",) in found


def test_long_words_are_unknown() -> None:
    assert WordPiece(tuple(VOCABULARY)).cut(["a" * 100, "a" * 101]) == [("a",) + ("##a",) * 99, ("[UNK]",)]


def saved_wordpiece(path: Path) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordPiece({name: k for k, name in enumerate(VOCABULARY)}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=4, pad_token="[UNK]")
    special = [("[UNK]", VOCABULARY.index("[UNK]"))]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="[UNK] $A", special_tokens=special)
    tokenizer.save(str(path))
    return path


def test_a_saved_tokenizer_cuts_alike_without_its_truncation_padding_and_special_tokens(tmp_path: Path) -> None:
    words = [*random_words(200), "a" * 101]
    saved = read_pieces(saved_wordpiece(tmp_path / "tokenizer.json"))
    assert isinstance(saved, SavedTokenizer)
    assert saved.cut(words) == WordPiece(tuple(VOCABULARY)).cut(words)
    assert pieces_from_dict(json.loads(json.dumps(saved.to_dict()))) == saved


def test_a_vocabulary_file(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*VOCABULARY, "x\u2028y"]) + "\n", encoding="utf-8")
    pieces = read_pieces(path)
    assert isinstance(pieces, WordPiece)
    assert pieces.tokens == (*VOCABULARY, "x\u2028y")
    assert repr(pieces) == "WordPiece(13 tokens)"
    assert pieces_from_dict(json.loads(json.dumps(pieces.to_dict()))) == pieces
    path.write_bytes(b"a\r\nb\r\n")
    assert read_vocabulary(path, 2) == ("a", "b")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "which is empty"),
        (b"\n\n", "which is empty"),
        (b"a\n\nb\n", "whose line 2 is blank"),
        (b"a\nb\na\n", "none twice.*with 'a' on lines 1 and 3"),
        (b"a\xff\n", "which is not UTF-8 at byte 1"),
    ],
)
def test_bad_vocabulary_files(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=says):
        read_pieces(path)


def test_a_vocabulary_of_another_length(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("a\nb\n")
    with pytest.raises(InputError, match=r"a vocabulary file of 3 tokens; got .*vocab.txt' with 2 instead"):
        WordPiece.from_file(path, 3)
    with pytest.raises(InputError, match=r"No such file"):
        WordPiece.from_file(tmp_path / "missing.txt")
    with pytest.raises(InputError, match=r"Is a directory"):
        WordPiece.from_file(tmp_path)
    with pytest.raises(InputError, match="at least one token"):
        WordPiece(())


@pytest.mark.parametrize(
    ("content", "says"),
    [("{", "which is not JSON"), ("[1]", "whose JSON has no 'model'"), ('{"model": 3}', "one it refuses")],
)
def test_bad_saved_tokenizers(tmp_path: Path, content: str, says: str) -> None:
    pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(InputError, match=re.escape(says)):
        read_pieces(path)
    with pytest.raises(InputError, match="kind"):
        pieces_from_dict({"kind": "other"})


def test_absent_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    monkeypatch.setitem(__import__("sys").modules, "snowballstemmer", None)
    with pytest.raises(MissingExtra, match=r"package tokenizers: install it with pip install 'marginlens\[text\]'"):
        SavedTokenizer('{"model": {}}').cut(["a"])
    with pytest.raises(MissingExtra, match="package snowballstemmer"):
        Snowball().stems(["films"])


def test_stems() -> None:
    pytest.importorskip("snowballstemmer")
    assert Snowball().stems(["movies", "loving", "generously"]) == ["movi", "love", "generous"]
    assert Snowball("german").stems(["katzen"]) == ["katz"]
    assert re.fullmatch(r"snowballstemmer [\d.]+, PyStemmer \S+", Snowball().made_with())
    with pytest.raises(InputError, match=r"a Snowball stemmer \(.*english.*\); got 'klingon'"):
        Snowball("klingon").stems(["a"])
