"""Streams of texts: files cut into the tokens of `text_windows`, piece by piece."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marginlens as ml
from marginlens.data import plain_text, text_stream
from marginlens.data.text_windows import indexed_text
from marginlens.data.vocabulary import Characters, Listed, Words
from marginlens.errors import InputError
from marginlens.runtime.progress import Progress

TEXT = "\ufeffΟΔΟΣ the cat and the dog,\r\nthe cat's dog — <unk> @-@ naïve 𝄞 and\r\rthe end.\n" * 40


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 7 bytes, so that characters, new lines and words are cut between two."""
    for module in (plain_text, text_stream):
        monkeypatch.setattr(module, "BLOCK_BYTES", 7)


def write(path: Path, text: str = TEXT) -> Path:
    packed = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    path.write_bytes(packed.get(path.suffix, bytes)(text.encode()))
    return path


def ids_of(stream: ml.data.TokenStream) -> np.ndarray:
    """All tokens of a stream."""
    chunks = [stream.read(k) for k in range(stream.n_chunks)]
    return np.concatenate([chunk.ids[chunk.first :] for chunk in chunks])


@pytest.mark.parametrize(
    "unit",
    [None, Words(), Words(lowercase=False, max_vocabulary=5), Words(min_count=41), Listed()],
    ids=["characters", "words", "frequent", "rare", "listed"],
)
@pytest.mark.parametrize("name", ["text.txt", "text.txt.gz", "text.bz2", "text.xz"])
def test_a_file_has_the_tokens_of_the_text_in_memory(tmp_path: Path, unit: Any, name: str) -> None:
    path = write(tmp_path / name)
    text = ml.data.read_text(write(tmp_path / "plain.txt"))
    vocabulary, ids = indexed_text(text, unit)
    stream = ml.data.TextStream(path, 6, unit, chunk=500).tokens(tmp_path, Progress())
    np.testing.assert_array_equal(ids_of(stream), ids)
    assert stream.names == vocabulary.names


@pytest.mark.parametrize("name", ["packed.gz", "packed.bz2", "packed.xz"])
def test_files_are_unpacked_by_their_bytes_not_by_their_name(tmp_path: Path, name: str) -> None:
    renamed = write(tmp_path / name).rename(tmp_path / "text.txt")
    plain = write(tmp_path / "plain.gz", "BZh text, not packed")
    assert ml.data.read_text(renamed) == TEXT.removeprefix("\ufeff").replace("\r\n", "\n")
    assert ml.data.read_text(plain) == "BZh text, not packed"
    stream = ml.data.TextStream([renamed, plain], 4).tokens(tmp_path, Progress())
    assert stream.n_tokens == len(ml.data.read_text(renamed)) + len(ml.data.read_text(plain))


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("ab" * 40 + "c", [Characters()]),
        ('{"naïve":["ΟΔΟΣ","Σ!"],"b+c=d/e;":(1)}' * 9, [Characters(), Words(max_vocabulary=None)]),
        ("你好，世界。ΑΣ、ΒΣ！好" * 9, [Characters(), Words(max_vocabulary=None)]),
        ("ΑΣ\u3000the\tΣΑΣ\u2028cat's" * 9, [Characters(), Words(), Listed()]),
    ],
    ids=["letters", "marks", "ideographs", "blanks"],
)
def test_a_text_of_one_line_is_cut_where_no_token_is(tmp_path: Path, text: str, units: Iterable[Any]) -> None:
    path = write(tmp_path / "text.txt", text)
    for unit in units:
        vocabulary, ids = indexed_text(text, unit)
        folder = tmp_path / type(unit).__name__
        folder.mkdir()
        stream = ml.data.TextStream(path, 2, unit, chunk=50).tokens(folder, Progress())
        assert stream.names == vocabulary.names
        np.testing.assert_array_equal(ids_of(stream), ids)


def test_no_more_than_a_few_blocks_of_a_line_wait_for_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_stream, "_MAX_TOKEN", 40)
    path = write(tmp_path / "marks.txt", "aaaaaaaaaaaaaaaaaaaa;bbbbbbbbbbbb b" * 50 + "a" * 38)
    pieces = list(text_stream._pieces(path, "utf-8"))
    assert "".join(pieces) == path.read_text(encoding="utf-8")
    assert max(map(len, pieces)) <= 47
    with pytest.raises(ml.InputError, match="at least every 40 characters"):
        ml.priority_graphs(ml.data.TextStream(write(tmp_path / "long.txt", "a b " + "a" * 60), 1, Words()))


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-be", "utf-32", "gb18030", "shift_jis", "cp437"])
def test_an_encoding_reads_what_the_text_in_memory_has(tmp_path: Path, encoding: str) -> None:
    text = "the cat, cafe and\r\nthe end\r\n" * 9 + ("très naïf" if encoding in ("latin-1", "cp437") else "日本語")
    path = tmp_path / "text.txt"
    path.write_bytes(text.encode(encoding))
    assert ml.data.read_text(path, encoding) == text.replace("\r\n", "\n")
    vocabulary, ids = indexed_text(text.replace("\r\n", "\n"), Words())
    stream = ml.data.TextStream(path, 4, Words(), encoding=encoding)
    tokens = stream.tokens(tmp_path, Progress())
    assert tokens.names == vocabulary.names
    np.testing.assert_array_equal(ids_of(tokens), ids)
    assert stream.fingerprint != ml.data.TextStream(path, 4, Words()).fingerprint


def test_the_graphs_are_those_of_the_windows_in_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "text.txt")
    for unit in (Characters(), Words()):
        graphs = ml.priority_graphs(ml.data.TextStream(path, 5, unit, chunk=300))
        named = ml.data.text_windows(ml.data.read_text(path), 5, unit)
        expected = ml.priority_graphs(named.data)
        assert list(graphs) == list(expected)
        assert graphs.names == named.vocabulary.names
        for last, graph in graphs.items():
            np.testing.assert_array_equal(graph.edges, expected[last].edges)
            np.testing.assert_array_equal(graph.counts, expected[last].counts)
            np.testing.assert_array_equal(graph.component_of, expected[last].component_of)


def test_files_share_a_vocabulary_and_no_window(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.txt", "abcab"), write(tmp_path / "b.txt.gz", "cdcd"), write(tmp_path / "c.txt", "")]
    stream = ml.data.TextStream(files, 2).tokens(tmp_path, Progress())
    assert stream.names == ("a", "b", "c", "d")
    chunk = stream.read(0)
    assert chunk.ids.tolist() == [0, 1, 2, 0, 1, 2, 3, 2, 3]
    assert chunk.starts.tolist() == [0, 5]


def test_a_tokenizer_reads_line_by_line(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    ids = {"the": 0, "cat": 1, "##s": 2, "[UNK]": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = write(tmp_path / "text.txt", "the cats\nthe dog the\ncat")
    stream = ml.data.TextStream(path, 2, tokenizer).tokens(tmp_path, Progress())
    assert stream.read(0).ids.tolist() == [0, 1, 2, 0, 3, 0, 1]
    assert stream.names == ("the", "cat", "##s", "[UNK]")


class Letters:
    """A unit without __repr__: the letters of a text that are not blanks, some as capitals."""

    def __init__(self, capitals: str, write: Any = None) -> None:
        self.capitals, self.write = capitals, write

    def split(self, text: str) -> list[str]:
        return [letter.upper() if letter in self.capitals else letter for letter in text if not letter.isspace()]

    def vocabulary(self, counts: Any) -> ml.data.Vocabulary:
        return ml.data.Vocabulary(tuple(sorted(counts)), self)  # type: ignore[arg-type]


def test_a_tokenizer_is_shown_by_the_beginning_of_its_repr(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.models.WordLevel({f"word{k}": k for k in range(500)}, unk_token="word0")
    tokenizer = tokenizers.Tokenizer(words)
    assert len(repr(tokenizer)) > 1000
    (tmp_path / "t.txt").write_text("word1 word2 word3")
    stream = ml.data.TextStream(tmp_path / "t.txt", 2, tokenizer)
    assert len(repr(stream)) < len(repr(str(tmp_path / "t.txt"))) + 100
    with pytest.raises(InputError) as refusal:
        ml.data.text_windows("word1 word2 word3", 2, tokenizer)
    assert refusal.value.argument == "unit"
    assert len(str(refusal.value)) < 150
    assert "Tokenizer(" in str(refusal.value)


def test_a_unit_without_a_repr_is_known_by_its_class_and_state(tmp_path: Path) -> None:
    path, out = write(tmp_path / "text.txt"), tmp_path / "graphs"
    first = ml.priority_graphs(ml.data.TextStream(path, 4, Letters("tc")), out=out)
    again = ml.priority_graphs(ml.data.TextStream(path, 4, Letters("tc")), out=out)
    assert len(first) == len(again)
    with pytest.raises(ml.InputError, match="the graphs of another stream"):
        ml.priority_graphs(ml.data.TextStream(path, 4, Letters("t")), out=out)
    with pytest.raises(ml.InputError, match="one whose __repr__ says how it cuts texts"):
        ml.priority_graphs(ml.data.TextStream(path, 4, Letters("t", write=lambda: None)))


def test_texts_are_encoded_once_and_again_where_the_file_is_damaged(tmp_path: Path) -> None:
    stream = ml.data.TextStream(write(tmp_path / "text.txt"), 5)
    out = tmp_path / "graphs"

    def interrupt(done: int, total: int) -> None:
        if done == 2:  # the file is read, and a chunk is counted
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ml.priority_graphs(stream, out=out, progress=interrupt)
    tokens = out / "tokens.ids"
    before = tokens.read_bytes()
    tokens.write_bytes(before[:-1] + b"\x07")
    with pytest.warns(UserWarning, match=r"tokens\.ids' is damaged and is made again"):
        graphs = ml.priority_graphs(stream, out=out)
    assert tokens.read_bytes() == before
    assert len(graphs) == len(ml.priority_graphs(ml.data.TextStream(stream.files, 5)))


def test_a_wrong_text_ends_in_a_sentence(tmp_path: Path) -> None:
    good = write(tmp_path / "good.txt")
    (tmp_path / "latin.txt").write_bytes(b"na\xc3\xafve na\xefve")
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(TEXT.encode())[:-20])
    (tmp_path / "cut.bz2").write_bytes(bz2.compress(TEXT.encode())[:-20])
    (tmp_path / "damaged.xz").write_bytes(lzma.compress(TEXT.encode())[:60] + bytes(80))
    (tmp_path / "text.zst").write_bytes(b"\x28\xb5\x2f\xfd\x04\x00")
    write(tmp_path / "empty.txt", "")
    for files, window, unit, words in (
        (tmp_path / "missing.txt", 3, None, "which is not there"),
        (tmp_path, 3, None, "which is no file"),
        ([], 3, None, "an empty list"),
        (3, 3, None, "int"),
        (good, 3, "words", "'unit'"),
        (good, 0, None, "'window'"),
        (tmp_path / "latin.txt", 3, None, "byte 9 (0xef)"),
        (tmp_path / "cut.txt.gz", 3, None, "truncated or damaged"),
        (tmp_path / "cut.bz2", 3, None, "truncated or damaged"),
        (tmp_path / "damaged.xz", 3, None, "truncated or damaged"),
        (tmp_path / "text.zst", 3, None, "packed by zstd instead. Unpack it first"),
        (tmp_path / "empty.txt", 3, None, "at least one token"),
        (good, 100_000, None, "shorter than the longest text"),
    ):
        with pytest.raises(ml.InputError) as refusal:
            ml.priority_graphs(ml.data.TextStream(files, window, unit))
        assert words in str(refusal.value)
    for encoding in ("utf-9", "hex", 8):
        with pytest.raises(ml.InputError, match="an encoding that Python knows"):
            ml.data.TextStream(good, 3, encoding=encoding)  # type: ignore[arg-type]
        with pytest.raises(ml.InputError, match="an encoding that Python knows"):
            ml.data.read_text(good, encoding)  # type: ignore[arg-type]
