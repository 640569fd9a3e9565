"""Texts in files: unpacked if their first bytes show compression, and decoded block by block."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import re
import sys
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

from marginlens.errors import InputError
from marginlens.runtime.files import as_path

STDIN = "-"
# Bytes of an unpacked file that are decoded at a time.
BLOCK_BYTES = 1 << 20
# The first bytes, which tell how a file is packed.
_MARK_BYTES = 10
_PACKED: tuple[tuple[re.Pattern[bytes], Any], ...] = (
    (re.compile(rb"\x1f\x8b"), gzip.open),
    (re.compile(rb"BZh[1-9]1AY&SY"), bz2.open),
    (re.compile(rb"\xfd7zXZ\0"), lzma.open),
)
_ZSTANDARD = b"\x28\xb5\x2f\xfd"


def read_text(path: str | os.PathLike[str], encoding: str = "utf-8") -> str:
    """Read the text of a file, plain or compressed by gzip, bzip2 or xz; "-" reads stdin.

    Every line break becomes one character, and a byte-order mark is removed.
    """
    text = "".join(text_blocks(as_path(path, "path", "the path of a file"), encoding, "path"))
    if not text:
        raise InputError("path", "a text file", f"{str(path)!r}, which is empty")
    return text


def text_blocks(path: Path, encoding: str, argument: str) -> Iterator[str]:
    """Yield the text that `read_text` reads, a block at a time; `argument` names the path in errors."""
    decoder, n_bytes, carried = incremental_decoder(encoding), 0, ""
    for content in unpacked_blocks(path, argument):
        pending = len(decoder.getstate()[0])
        try:
            text = carried + decoder.decode(content, final=not content)
        except UnicodeDecodeError as problem:
            place, byte = n_bytes - pending + problem.start, problem.object[problem.start]
            wrong = f"{encoding}, in which byte {place} (0x{byte:02x}) of {str(path)!r} is no letter"
            raise InputError("encoding", "the encoding of the text", wrong, "latin-1 reads any.") from problem
        text = text if n_bytes else text.removeprefix("\ufeff")
        n_bytes += len(content)
        # Half of a new line may wait for its other half.
        carried = "\r" if content and text.endswith("\r") else ""
        yield text.removesuffix(carried).replace("\r\n", "\n")


def incremental_decoder(encoding: str) -> codecs.IncrementalDecoder:
    """Return the decoder of a text encoding, otherwise raise."""
    try:
        # Refuses codecs that are not encodings of texts, such as hex.
        io.TextIOWrapper(io.BytesIO(), encoding)
        return codecs.getincrementaldecoder(encoding)()
    except (LookupError, TypeError, ValueError) as problem:
        expected = "an encoding that Python knows, such as utf-8, latin-1 or utf-16"
        raise InputError("encoding", expected, repr(encoding)) from problem


class _Rejoined(io.RawIOBase):
    """A file or pipe that starts again from its beginning although some bytes have been read."""

    def __init__(self, beginning: bytes, rest: IO[bytes]) -> None:
        self._beginning, self._rest = beginning, rest

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        taken = self._beginning[: len(room)] or self._rest.read(len(room))
        self._beginning = self._beginning[len(taken) :]
        room[: len(taken)] = taken
        return len(taken)


def unpacked_blocks(path: Path, argument: str, given: bytes | None = None) -> Iterator[bytes]:
    """Yield the bytes of a file, or of stdin, or those given in its place, and an empty block at the end."""
    expected = "a text file"
    stdin = sys.stdin.buffer if given is None else io.BytesIO(given)
    try:
        with nullcontext(stdin) if str(path) == STDIN else path.open("rb") as source:
            mark = source.read(_MARK_BYTES)
            file: IO[bytes] = io.BufferedReader(_Rejoined(mark, source), BLOCK_BYTES)
            if mark.startswith(_ZSTANDARD):
                remedy = "Unpack it first, or read `zstd -dc FILE` from stdin."
                raise InputError(argument, expected, f"{str(path)!r}, which is packed by zstd", remedy)
            unpack = next((opened for pattern, opened in _PACKED if pattern.match(mark)), None)
            unpacked = file if unpack is None else unpack(file)
            while content := unpacked.read(BLOCK_BYTES):
                yield content
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as problem:
        reason = getattr(problem, "strerror", None) or f"which is truncated or damaged: {problem}"
        raise InputError(argument, expected, f"{str(path)!r} ({reason})") from problem
    yield b""
