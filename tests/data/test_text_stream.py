"""Streams of texts: files cut into the tokens of `text_windows`, piece by piece."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marginlens as ml
from marginlens.data import text_stream
from marginlens.data.text_windows import indexed_text
from marginlens.data.vocabulary import Characters, Listed, Words
from marginlens.runtime.progress import Progress

TEXT = "\ufeffΟΔΟΣ the cat and the dog,\r\nthe cat's dog — <unk> @-@ naïve 𝄞 and\r\rthe end.\n" * 40


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 7 bytes, so that characters, new lines and words are cut between two."""
    monkeypatch.setattr(text_stream, "_BLOCK_BYTES", 7)


def write(path: Path, text: str = TEXT) -> Path:
    content = text.encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize(
    "unit",
    [None, Words(), Words(lowercase=False, max_vocabulary=5), Words(min_count=41), Listed()],
    ids=["characters", "words", "frequent", "rare", "listed"],
)
@pytest.mark.parametrize("name", ["text.txt", "text.txt.gz"])
def test_a_file_has_the_tokens_of_the_text_in_memory(tmp_path: Path, unit: Any, name: str) -> None:
    path = write(tmp_path / name)
    text = ml.data.read_text(write(tmp_path / "plain.txt"))
    vocabulary, ids = indexed_text(text, unit)
    stream = ml.data.TextStream(path, 6, unit, chunk=500).tokens(tmp_path, Progress())
    chunks = [stream.read(k) for k in range(stream.n_chunks)]
    np.testing.assert_array_equal(np.concatenate([chunk.ids[chunk.first :] for chunk in chunks]), ids)
    assert stream.names == vocabulary.names


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
    assert not tokens.exists()
    assert len(graphs) == len(ml.priority_graphs(ml.data.TextStream(stream.files, 5)))


def test_a_wrong_text_ends_in_a_sentence(tmp_path: Path) -> None:
    good = write(tmp_path / "good.txt")
    (tmp_path / "latin.txt").write_bytes(b"na\xc3\xafve na\xefve")
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(TEXT.encode())[:-20])
    (tmp_path / "plain.gz").write_text("no archive")
    write(tmp_path / "empty.txt", "")
    for files, window, unit, words in (
        (tmp_path / "missing.txt", 3, None, "which is not there"),
        (tmp_path, 3, None, "which is no file"),
        ([], 3, None, "an empty list"),
        (3, 3, None, "int"),
        (good, 3, "words", "'unit'"),
        (good, 0, None, "'window'"),
        (tmp_path / "latin.txt", 3, None, "whose byte 9 (0xef) is not"),
        (tmp_path / "cut.txt.gz", 3, None, "truncated or damaged"),
        (tmp_path / "plain.gz", 3, None, "truncated or damaged"),
        (tmp_path / "empty.txt", 3, None, "at least one token"),
        (good, 100_000, None, "shorter than the longest text"),
    ):
        with pytest.raises(ml.InputError) as refusal:
            ml.priority_graphs(ml.data.TextStream(files, window, unit))
        assert words in str(refusal.value)
