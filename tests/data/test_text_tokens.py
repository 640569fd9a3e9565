"""Texts of any length as token ids: files cut into the tokens of `text_windows`, piece by piece, by any tokenizer."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marginlens as ml
from marginlens.data import plain_text, text_tokens
from marginlens.data.text_windows import indexed_text
from marginlens.data.tokenizer import TokenizerUnit, read_tokenizer
from marginlens.data.vocabulary import Characters, Listed, Words
from refusals import refused

TEXT = "\ufeffΟΔΟΣ the cat and the dog,\r\nthe cat's dog — <unk> @-@ naïve 𝄞 and\r\rthe end.\n" * 40
PLAIN = TEXT.removeprefix("\ufeff").replace("\r\n", "\n")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 7 bytes and chunks of 50 tokens, so that characters, new lines and words are cut between two."""
    for module in (plain_text, text_tokens):
        monkeypatch.setattr(module, "BLOCK_BYTES", 7)
    monkeypatch.setattr(text_tokens, "CHUNK_TOKENS", 50)
    monkeypatch.setattr(text_tokens, "MAX_SPOOLED_BYTES", 100)


def write(path: Path, text: str = TEXT) -> Path:
    packed = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    path.write_bytes(packed.get(path.suffix, bytes)(text.encode()))
    return path


def with_lengths(line: str) -> list[str | int]:
    """The words of a line, and after each the number of its letters."""
    return [token for word in line.split() for token in (word, len(word))]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    "unit",
    [None, Words(), Words(lowercase=False, max_vocabulary=5), Words(min_count=41), Listed(), str.split, with_lengths],
    ids=["characters", "words", "frequent", "rare", "listed", "function", "numbers"],
)
@pytest.mark.parametrize("name", ["text.txt", "text.txt.gz", "text.bz2", "text.xz"])
def test_a_file_has_the_tokens_of_the_text_in_memory(tmp_path: Path, unit: Any, name: str) -> None:
    text = ml.data.TextTokens(write(tmp_path / name), unit)
    vocabulary, ids = indexed_text(PLAIN, unit)
    chunks = list(text)
    assert max(len(chunk) for chunk in chunks) <= 50
    np.testing.assert_array_equal(np.concatenate(chunks), ids)
    np.testing.assert_array_equal(np.concatenate(list(text.chunks(33, 171))), ids[33:171])
    assert text.vocabulary.names == vocabulary.names
    assert len(text) == len(ids)


@pytest.mark.parametrize("name", ["packed.gz", "packed.bz2", "packed.xz"])
def test_files_are_decompressed_by_content_not_name(tmp_path: Path, name: str) -> None:
    renamed = write(tmp_path / name).rename(tmp_path / "text.txt")
    plain = write(tmp_path / "plain.gz", "BZh text, not packed")
    assert ml.data.read_text(renamed) == PLAIN
    assert ml.data.read_text(plain) == "BZh text, not packed"
    assert len(ml.data.TextTokens(plain)) == 20


@pytest.mark.posix("named pipe in a folder")
@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress, bz2.compress])
def test_a_pipe_is_read_without_seeking(tmp_path: Path, pack: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary, ids = indexed_text(PLAIN, Words())
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(pack(TEXT.encode())))
    writer.start()
    text = ml.data.TextTokens(tmp_path / "pipe", Words())
    writer.join()
    np.testing.assert_array_equal(np.concatenate(list(text)), ids)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(pack(TEXT.encode()))))
    assert ml.data.TextTokens("-", Words()).vocabulary.names == vocabulary.names


@pytest.mark.usefixtures("small_blocks")
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
def test_a_text_of_one_line_is_split_between_tokens(tmp_path: Path, text: str, units: Iterable[Any]) -> None:
    path = write(tmp_path / "text.txt", text)
    for unit in units:
        vocabulary, ids = indexed_text(text, unit)
        found = ml.data.TextTokens(path, unit)
        assert found.vocabulary.names == vocabulary.names
        np.testing.assert_array_equal(np.concatenate(list(found)), ids)


@pytest.mark.usefixtures("small_blocks")
def test_a_long_line_buffers_only_a_few_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_tokens, "_MAX_TOKEN", 40)
    path = write(tmp_path / "marks.txt", "aaaaaaaaaaaaaaaaaaaa;bbbbbbbbbbbb b" * 50 + "a" * 38)
    pieces = list(text_tokens._pieces(plain_text.text_blocks(path, "utf-8", "path"), path))
    assert "".join(pieces) == path.read_text(encoding="utf-8")
    assert max(map(len, pieces)) <= 47
    with refused("path"):
        ml.data.TextTokens(write(tmp_path / "long.txt", "a b " + "a" * 60), Words())


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-be", "utf-32", "gb18030", "shift_jis", "cp437"])
def test_an_encoded_file_has_the_tokens_of_the_text(tmp_path: Path, encoding: str) -> None:
    text = "the cat, cafe and\r\nthe end\r\n" * 9 + ("très naïf" if encoding in ("latin-1", "cp437") else "日本語")
    path = tmp_path / "text.txt"
    path.write_bytes(text.encode(encoding))
    assert ml.data.read_text(path, encoding) == text.replace("\r\n", "\n")
    vocabulary, ids = indexed_text(text.replace("\r\n", "\n"), Words())
    found = ml.data.TextTokens(path, Words(), encoding=encoding)
    assert found.vocabulary.names == vocabulary.names
    np.testing.assert_array_equal(np.concatenate(list(found)), ids)


# ---- tokenizers


@pytest.fixture
def tokenizer() -> Any:
    """A tokenizer of the package, with many tokens that no text here has, special tokens and truncation."""
    tokenizers = pytest.importorskip("tokenizers")
    ids = {"[UNK]": 0, "[CLS]": 1, **{f"unused{k}": k for k in range(2, 9_000)}}
    ids |= {"the": 9_000, "cat": 9_001, "##s": 9_002, "dog": 9_003}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.decoder = tokenizers.decoders.WordPiece()
    special = [("[CLS]", 1)]
    made.post_processor = tokenizers.processors.TemplateProcessing(single="[CLS] $A", special_tokens=special)
    made.enable_truncation(2)
    return made


CATS = "the cats\nthe bird the\ncat the dogs the"


def test_a_tokenizer_gives_ids_to_the_tokens_that_occur(tmp_path: Path, tokenizer: Any) -> None:
    text = ml.data.TextTokens(write(tmp_path / "text.txt", CATS), tokenizer)
    assert text.vocabulary.names == ("the", "##s", "cat", "[UNK]", "dog")  # the most frequent first
    named = [text.vocabulary.names[k] for k in np.concatenate(list(text))]
    assert named == ["the", "cat", "##s", "the", "[UNK]", "the", "cat", "the", "dog", "##s", "the"]
    named = ml.data.text_windows(CATS, 3, tokenizer)
    assert named.data.n_vocabulary == 5
    split = ml.data.split_text_windows(CATS * 9, 3, tokenizer, held_out=0.3)
    assert split.training.vocabulary.names[0] == "the"
    assert text.vocabulary.decode(text.vocabulary.encode("the dogs")) == "the dogs"


def test_error_messages_shorten_tokenizers(tokenizer: Any, tmp_path: Path) -> None:
    text = ml.data.TextTokens(write(tmp_path / "text.txt", CATS), tokenizer)
    shown = [
        repr(text),
        repr(text.vocabulary),
        repr(ml.data.text_windows(CATS, 3, tokenizer)),
        repr(TokenizerUnit(tokenizer)),
    ]
    with pytest.raises(ml.InputError) as refusal:
        ml.priority_graphs(tokenizer, window=3)  # type: ignore[call-overload]
    assert max(map(len, [*shown, str(refusal.value)])) < 200
    assert "TokenizerUnit(Tokenizer)" in shown[0]


def test_a_tokenizer_is_read_from_its_file(tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save(str(tmp_path / "t.json"))
    assert read_tokenizer(tmp_path / "t.json").get_vocab_size() == tokenizer.get_vocab_size()
    (tmp_path / "bad.json").write_text('{"model": 3}', encoding="utf-8")
    (tmp_path / "bytes.json").write_bytes(b"\xff")
    for path in (tmp_path / "bad.json", tmp_path / "bytes.json", tmp_path / "missing.json", tmp_path):
        with refused("path"):
            read_tokenizer(path)


@pytest.mark.parametrize(
    ("unit", "got"),
    [
        ("words", "words"),
        (3, "3"),
        (list, "list"),
        (lambda line: line, " str"),
        (lambda line: {"ids": [1]}, " dict"),
        (lambda line: [1.5], " float"),
        (lambda line: [None], " NoneType"),
    ],
)
def test_an_invalid_tokenizer_is_refused(tmp_path: Path, unit: Any, got: str) -> None:
    path = write(tmp_path / "text.txt")
    for call in (lambda: ml.data.TextTokens(path, unit), lambda: ml.data.text_windows(PLAIN, 3, unit)):
        with pytest.raises(ml.InputError) as caught:
            call()
        assert caught.value.argument == "unit"
        assert got in caught.value.got


def test_an_unreadable_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"na\xc3\xafve na\xefve")
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(TEXT.encode())[:-20])
    (tmp_path / "cut.bz2").write_bytes(bz2.compress(TEXT.encode())[:-20])
    (tmp_path / "damaged.xz").write_bytes(lzma.compress(TEXT.encode())[:60] + bytes(80))
    (tmp_path / "text.zst").write_bytes(b"\x28\xb5\x2f\xfd\x04\x00")
    write(tmp_path / "empty.txt", "")
    for path, argument, got in (
        (tmp_path / "missing.txt", "path", "No such file"),
        (tmp_path, "path", "Is a directory"),
        (3, "path", ""),
        (tmp_path / "latin.txt", "encoding", "byte 9 (0xef)"),
        (tmp_path / "cut.txt.gz", "path", "damaged"),
        (tmp_path / "cut.bz2", "path", "damaged"),
        (tmp_path / "damaged.xz", "path", "damaged"),
        (tmp_path / "text.zst", "path", "zstd"),
        (tmp_path / "empty.txt", "path", ""),
    ):
        with pytest.raises(ml.InputError) as caught:
            ml.data.TextTokens(path)  # type: ignore[arg-type]
        assert caught.value.argument == argument
        assert got in caught.value.got
    for encoding in ("utf-9", "hex", 8):
        with refused("encoding"):
            ml.data.TextTokens(write(tmp_path / "good.txt"), encoding=encoding)  # type: ignore[arg-type]


@pytest.mark.posix("device that is always full")
def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(size: int) -> Any:
        return open("/dev/full", "wb", buffering=0)

    monkeypatch.setattr(text_tokens, "SpooledTemporaryFile", full)
    with refused("path"):
        ml.data.TextTokens(write(tmp_path / "text.txt"))
