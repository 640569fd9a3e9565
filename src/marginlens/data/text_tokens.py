"""The tokens of a text file of any length: the text is cut piece by piece, and ids are kept in a temporary file."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Iterator
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Protocol

import numpy as np

from marginlens.data.plain_text import BLOCK_BYTES, incremental_decoder, text_blocks
from marginlens.data.tokenizer import as_unit
from marginlens.data.vocabulary import Characters, Unit, Vocabulary
from marginlens.errors import InputError
from marginlens.runtime.files import as_path
from marginlens.typing import IntArray

# Tokens that are read at a time.
CHUNK_TOKENS = 1 << 20
# Ids up to this size, 4 million tokens, stay in memory.
MAX_SPOOLED_BYTES = 1 << 24
# Characters that are searched for a place to cut.
_MAX_TOKEN = 1 << 22
_N_CODE_POINTS = 0x110000
_ID = np.dtype("<u4")
# Where a piece of text may end, the best first: after a line; in a longer line, before a blank, or after a mark that no
# token of Words() reaches beyond and that does not change how the letters beside it look in lower case.
_CUTS = (
    re.compile(r"(?s).*\n"),
    re.compile(r"(?s).+(?=\s)"),
    re.compile(r'(?s).*[(){}\[\]"!?;+=/、。，；！？]'),
)


class TextTokens:
    """The token ids of a text file of any length: like `text_windows`, but for texts that may not fit into memory.

    Each iteration yields arrays of ids, one for each consecutive piece of the text; `priority_graphs(text, window=16)` counts
    their windows. The file is read only once. Ids take four bytes per token; if there are many, they are kept in a temporary
    file in the folder that TMPDIR names.

    Args:
        path: the path of a text file, plain or compressed by gzip, bzip2 or xz; "-" reads stdin.

        unit: how the text is cut into tokens: `Characters()` by default, `Words(...)`, or a tokenizer. A tokenizer is a
            function from a text to a list of strings or whole numbers, a `tokenizers.Tokenizer`, or a fast tokenizer of
            transformers; it reads line by line. A text of more than a megabyte is cut after lines, so no token may reach beyond
            a line. Lines longer than a megabyte are cut before a blank or after a mark such as ; or 。. A line without either
            for 4 million characters can only be read by `Characters()`.

        encoding: the encoding of the file.

    Attributes:
        vocabulary: the tokens that occur, as `text_windows` numbers them.
    """

    vocabulary: Vocabulary

    def __init__(self, path: str | os.PathLike[str], unit: object = None, *, encoding: str = "utf-8") -> None:
        file = as_path(path, "path", "the path of a text file")
        incremental_decoder(encoding)
        cut = as_unit(unit)
        numbering: _Numbering = _CodePoints(cut) if isinstance(cut, Characters) else _Names(cut)
        blocks = text_blocks(file, encoding, "path")
        pieces = blocks if isinstance(cut, Characters) else _pieces(blocks, file)
        self._n_tokens = 0
        self._numbers = SpooledTemporaryFile(MAX_SPOOLED_BYTES)  # noqa: SIM115  closed with this object
        weakref.finalize(self, self._numbers.close)
        for piece in pieces:
            numbers = numbering.numbers(piece)
            try:
                self._numbers.write(numbers.astype(_ID).tobytes())
            except OSError as problem:
                expected = "a text whose ids have room in the temporary folder, which TMPDIR names"
                raise InputError("path", expected, f"{str(file)!r} ({problem.strerror})") from problem
            self._n_tokens += len(numbers)
        if not self._n_tokens:
            raise InputError("path", "a text with at least one token", f"{str(file)!r}, which has none")
        self.vocabulary = numbering.vocabulary()
        self._ids = numbering.table(self.vocabulary)

    def __len__(self) -> int:
        return self._n_tokens

    def __repr__(self) -> str:
        return f"TextTokens({self._n_tokens} tokens, {self.vocabulary!r})"

    def __iter__(self) -> Iterator[IntArray]:
        return self.chunks()

    def chunks(self, first: int = 0, last: int | None = None) -> Iterator[IntArray]:
        """Yield the tokens from `first` to `last` - 1, a chunk at a time."""
        end = self._n_tokens if last is None else min(last, self._n_tokens)
        for start in range(first, end, CHUNK_TOKENS):
            yield self.read(start, min(start + CHUNK_TOKENS, end))

    def read(self, first: int, last: int) -> IntArray:
        """Return the ids (last - first,) of the tokens from `first` to `last` - 1."""
        self._numbers.seek(first * _ID.itemsize)
        return self._ids[np.frombuffer(self._numbers.read((last - first) * _ID.itemsize), dtype=_ID)]


def _pieces(blocks: Iterator[str], path: Path) -> Iterator[str]:
    """Yield a text in pieces of about a megabyte with whole tokens, cut where `_CUTS` allow it. A shorter text is one piece."""
    waiting = ""
    for text in blocks:
        waiting += text
        if len(waiting) <= BLOCK_BYTES:
            continue
        if end := next((cut.end() for pattern in _CUTS if (cut := pattern.match(waiting))), 0):
            yield waiting[:end]
            waiting = waiting[end:]
        if len(waiting) > _MAX_TOKEN:
            expected = f"a text with a new line, blank or mark at least every {_MAX_TOKEN:,} characters"
            raise InputError(
                "path", expected, f"{str(path)!r}, which has none for longer", "Characters() reads any text."
            )
    if waiting:
        yield waiting


class _Numbering(Protocol):
    """Numbers for tokens in the order in which they first occur, and the vocabulary at the end."""

    def numbers(self, piece: str) -> IntArray:
        """Return the numbers of the tokens of a piece of text, which later pieces do not change."""

    def vocabulary(self) -> Vocabulary:
        """Return the vocabulary of all pieces."""

    def table(self, vocabulary: Vocabulary) -> IntArray:
        """Return the id in the vocabulary of each number."""


class _CodePoints:
    def __init__(self, unit: Characters) -> None:
        self.unit, self.counts = unit, np.zeros(_N_CODE_POINTS, dtype=np.int64)

    def numbers(self, piece: str) -> IntArray:
        points = np.frombuffer(piece.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.int64)
        counts = np.bincount(points)
        self.counts[: len(counts)] += counts
        return points

    def vocabulary(self) -> Vocabulary:
        return self.unit.vocabulary({chr(k): int(self.counts[k]) for k in np.flatnonzero(self.counts).tolist()})

    def table(self, vocabulary: Vocabulary) -> IntArray:
        return np.cumsum(self.counts > 0) - 1


class _Names:
    def __init__(self, unit: Unit) -> None:
        self.unit, self.places, self.counts = unit, dict[str, int](), np.zeros(0, dtype=np.int64)

    def numbers(self, piece: str) -> IntArray:
        places = self.places
        found = np.array([places.setdefault(name, len(places)) for name in self.unit.split(piece)], dtype=np.int64)
        counts = np.bincount(found, minlength=len(places))
        counts[: len(self.counts)] += self.counts
        self.counts = counts
        return found

    def vocabulary(self) -> Vocabulary:
        return self.unit.vocabulary(dict(zip(self.places, self.counts.tolist(), strict=True)))

    def table(self, vocabulary: Vocabulary) -> IntArray:
        return vocabulary.ids(list(self.places))
