"""Texts that need not fit in memory: files read piece by piece, cut into tokens, and written as a stream of token ids."""

from __future__ import annotations

import codecs
import dataclasses
import hashlib
import json
import os
import re
import warnings
import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from marginlens.data.plain_text import BLOCK_BYTES, incremental_decoder, text_blocks
from marginlens.data.token_stream import RawFile, TokenStream, without_end
from marginlens.data.vocabulary import Characters, Unit, Vocabulary
from marginlens.errors import brief_repr, reject, whole_number
from marginlens.runtime.files import as_path, durable_file, unusable, write_whole
from marginlens.runtime.progress import Progress
from marginlens.typing import IntArray

_BLOCK_TOKENS = 1 << 22  # that are renumbered at a time
_MAX_TOKEN = 1 << 22  # characters that are searched for a place to cut
_N_CODE_POINTS = 0x110000
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_CUTS = (  # where a piece of text may end, the best first: after a line; in a longer line, before a blank, or after a mark that no
    # token of Words() reaches beyond and that does not change how the letters beside it look in lower case
    re.compile(r"(?s).*\n"),
    re.compile(r"(?s).+(?=\s)"),
    re.compile(r'(?s).*[(){}\[\]"!?;+=/、。，；！？]'),
)
_TOKENS, _FIRST, _DESCRIPTION = "tokens.ids", ".first.partial", "tokens.json"


class TextStream:
    r"""Every window of texts in files, followed by its next token: `text_windows` for texts that do not fit in memory.

    No window reaches from one file into another. `priority_graphs(stream)` counts the windows; of a single file its graphs are those of
    `text_windows(read_text(file), window, unit)`, with the same ids.

    Args:
        files: the path of a text file, also packed by gzip, bzip2 or xz, or a list of them.
        window: T, the tokens of each window.
        unit: what a token is: `Characters()` by default, `Words(...)`, or a tokenizer of the package tokenizers, also inside one of
            transformers, which reads line by line, as `Words(pattern=...)` does where a token may hold a new line. Lines longer than a
            megabyte are cut before a blank or after a mark such as ; or 。, and one that has neither for 4 million characters is read by
            Characters() alone. The vocabulary is that of all files.
        encoding: of all files.
        chunk: labels of a chunk, as in `TokenStream`.

    Attributes:
        held_out: the share of the tokens, at the end, that is not counted; see `hold_out`.
    """

    held_out: float = 0.0

    def __init__(
        self, files: Any, window: int, unit: Any = None, *, encoding: str = "utf-8", chunk: int | None = None
    ) -> None:
        single = isinstance(files, str | os.PathLike)
        listed = [files] if single else list(files) if isinstance(files, Sequence) else []
        expected = "the path of a text file, or a list of them"
        if not listed:
            raise reject("files", expected, "an empty list" if isinstance(files, Sequence) else type(files).__name__)
        self.files = tuple(as_path(file, "files", expected) for file in listed)
        for file in self.files:
            if not file.is_file():
                got = "which is no file" if file.exists() else "which is not there"
                raise reject("files", expected, f"{str(file)!r}, {got}")
        self.window = whole_number(window, "window", at_least=1)
        self.unit = Characters() if unit is None else unit
        incremental_decoder(encoding)
        self.encoding = encoding
        self.tokens_per_chunk = None if chunk is None else whole_number(chunk, "chunk", at_least=1)
        self._numbering()  # refuses what is no unit

    def __repr__(self) -> str:
        count = repr(str(self.files[0])) if len(self.files) == 1 else f"{len(self.files)} files"
        return f"TextStream({count}, window={self.window}, unit={brief_repr(self.unit)})"

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all files and of what decides how they are counted."""
        encoding = codecs.lookup(self.encoding).name
        options: dict[str, Any] = {} if encoding == "utf-8" else {"encoding": encoding}
        options |= {"held_out": self.held_out} if self.held_out else {}
        decisive = [self.window, _identity(self.unit), *([options] if options else [])]
        digest = hashlib.sha256(json.dumps(decisive).encode())
        for path in self.files:
            try:
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
            except OSError as problem:
                raise reject("files", "text files", unusable(path, problem)) from problem
        return digest.hexdigest()

    def hold_out(self, share: float) -> TextStream:
        """The same stream without this share of its tokens, between 0 and 1, at the end; the vocabulary stays that of all."""
        return without_end(self, share)

    def tokens(self, folder: Path, progress: Progress) -> TokenStream:
        """The ids of all texts, in a file of this folder that is written unless it is there."""
        place, description = folder / _TOKENS, folder / _DESCRIPTION
        if not self._is_encoded(place, description):
            numbering = self._numbering()
            edges = self._write_first_ids(folder / _FIRST, numbering, progress)
            written = _renumbered(folder / _FIRST, place, numbering)
            names = numbering.vocabulary().names
            facts = {"stream": self.fingerprint, "held_out": self.held_out, "edges": edges, "names": names, **written}
            write_whole(description, json.dumps(facts).encode(), "out")
        return cast(TokenStream, stored_tokens(folder, self.window, self.tokens_per_chunk))

    def _is_encoded(self, place: Path, description: Path) -> bool:
        """Whether the ids of these texts are there, undamaged; a damaged file is named and will be made again."""
        if not description.is_file():
            return False
        try:
            facts = json.loads(description.read_text(encoding="utf-8"))
            if facts["stream"] == self.fingerprint and facts["checksum"] == _checksum(place):
                return True
        except (OSError, ValueError, KeyError):
            pass
        warnings.warn(f"{str(place)!r} is damaged and is made again.", stacklevel=2)
        return False

    def _numbering(self) -> _Numbering:
        unit = getattr(self.unit, "backend_tokenizer", getattr(self.unit, "tokenizer", self.unit))
        if isinstance(unit, Characters):
            return _CodePoints(unit)
        if all(hasattr(unit, name) for name in ("encode_batch", "id_to_token", "get_vocab_size", "to_str")):
            return _Tokenizer(unit)
        if isinstance(unit, type | str | bytes) or not all(hasattr(unit, name) for name in ("split", "vocabulary")):
            raise reject(
                "unit", "Characters(), Words(...) or a tokenizer of the package tokenizers", brief_repr(self.unit)
            )
        return _Names(unit)

    def _write_first_ids(self, place: Path, numbering: _Numbering, progress: Progress) -> list[int]:
        """Write every token by the number that `numbering` gives it at first; where each text begins, and the number of all tokens."""
        edges, anywhere = [0], isinstance(numbering, _CodePoints)  # where a text may be cut
        try:
            with place.open("wb") as file:
                for path in progress.each(self.files):
                    n_tokens = 0
                    pieces = text_blocks(path, self.encoding, "files") if anywhere else _pieces(path, self.encoding)
                    for piece in pieces:
                        ids = numbering.ids(piece)
                        file.write(ids.astype("<u4").data)
                        n_tokens += len(ids)
                    edges.append(edges[-1] + n_tokens)
        except OSError as problem:
            raise reject("out", "a folder with room for the tokens of the texts", unusable(place, problem)) from problem
        if edges[-1] == 0:
            raise reject("files", "texts with at least one token", "none")
        return edges


def stored_tokens(folder: Path, window: int, chunk: int | None = None) -> TokenStream | None:
    """The stream of ids that `TextStream.tokens` has written to a folder; None where it has written none."""
    if not all((folder / name).is_file() for name in (_DESCRIPTION, _TOKENS)):
        return None
    facts = json.loads((folder / _DESCRIPTION).read_text(encoding="utf-8"))
    file = RawFile(folder / _TOKENS, facts["dtype"], tuple(facts["edges"]))
    stream = TokenStream(file, window, n_vocabulary=len(facts["names"]), chunk=chunk)
    stream.names, stream.held_out = tuple(facts["names"]), facts.get("held_out", 0.0)
    return stream


def _identity(unit: Any) -> Any:
    """What decides how a unit cuts texts."""
    unit = getattr(unit, "backend_tokenizer", getattr(unit, "tokenizer", unit))
    if hasattr(unit, "to_str"):
        return unit.to_str()
    fields = dataclasses.fields(unit) if dataclasses.is_dataclass(unit) else ()
    unnamed = type(unit).__repr__ is object.__repr__  # which gives an address in memory
    name = f"{type(unit).__module__}.{type(unit).__qualname__} {unit.__getstate__()!r}" if unnamed else repr(unit)
    if re.search(r" at 0x[0-9a-fA-F]+>", name):
        expected = "one whose __repr__ says how it cuts texts, by which a folder knows its stream"
        raise reject("unit", expected, f"{name}, which is another in every process")
    return [name, {field.name: repr(getattr(unit, field.name)) for field in fields}]


# ---- reading


def _pieces(path: Path, encoding: str) -> Iterator[str]:
    """The text of a file in pieces of about a megabyte with whole tokens: they end where `_CUTS` allow it."""
    waiting = ""
    for text in text_blocks(path, encoding, "files"):
        waiting += text
        cuts = _CUTS if len(waiting) > BLOCK_BYTES else _CUTS[:1]
        if end := next((found.end() for cut in cuts if (found := cut.match(waiting))), 0):
            yield waiting[:end]
            waiting = waiting[end:]
        if len(waiting) > _MAX_TOKEN:
            expected = f"texts with a new line, blank or mark at least every {_MAX_TOKEN:,} characters"
            raise reject("files", expected, f"{str(path)!r}, which has none for longer", "Characters() reads any text.")
    if waiting:
        yield waiting


# ---- numbering tokens


class _Numbering(Protocol):
    """Gives tokens numbers as they come, and the vocabulary once all have come."""

    def ids(self, piece: str) -> IntArray:
        """The tokens of a piece of text, by numbers that later pieces do not change."""

    def vocabulary(self) -> Vocabulary:
        """The vocabulary of all pieces."""

    def table(self) -> IntArray:
        """The id in the vocabulary of each number."""


class _CodePoints:
    def __init__(self, unit: Characters) -> None:
        self.unit, self.counts = unit, np.zeros(_N_CODE_POINTS, dtype=np.int64)

    def ids(self, piece: str) -> IntArray:
        points = np.frombuffer(piece.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.int64)
        counts = np.bincount(points)
        self.counts[: len(counts)] += counts
        return points

    def vocabulary(self) -> Vocabulary:
        return self.unit.vocabulary({chr(k): int(self.counts[k]) for k in np.flatnonzero(self.counts).tolist()})

    def table(self) -> IntArray:
        return np.cumsum(self.counts > 0) - 1


class _Names:
    def __init__(self, unit: Unit) -> None:
        self.unit, self.numbers, self.counts = unit, dict[str, int](), np.zeros(0, dtype=np.int64)

    def ids(self, piece: str) -> IntArray:
        numbers = self.numbers
        ids = np.array([numbers.setdefault(name, len(numbers)) for name in self.unit.split(piece)], dtype=np.int64)
        counts = np.bincount(ids, minlength=len(numbers))
        counts[: len(self.counts)] += self.counts
        self.counts = counts
        return ids

    def vocabulary(self) -> Vocabulary:
        return self.unit.vocabulary(dict(zip(self.numbers, self.counts.tolist(), strict=True)))

    def table(self) -> IntArray:
        return self.vocabulary().ids(list(self.numbers))


class _Tokenizer:
    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = type(tokenizer).from_str(tokenizer.to_str())  # a copy, which cuts no text short
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()

    def ids(self, piece: str) -> IntArray:
        lines = self.tokenizer.encode_batch(_LINE.findall(piece), add_special_tokens=False)
        return np.array([k for line in lines for k in line.ids], dtype=np.int64)

    def vocabulary(self) -> Vocabulary:
        count = self.tokenizer.get_vocab_size()
        return Vocabulary(tuple(self.tokenizer.id_to_token(k) or f"<{k}>" for k in range(count)), Characters())

    def table(self) -> IntArray:
        return np.arange(self.tokenizer.get_vocab_size())


def _renumbered(first: Path, place: Path, numbering: _Numbering) -> dict[str, Any]:
    """Write the ids of the vocabulary in place of the first numbers; their type and checksum."""
    table = numbering.table()
    dtype = "uint16" if table.max() < 2**16 else "uint32"
    table, checksum = table.astype(dtype), 0
    try:
        with first.open("rb") as source, durable_file(place) as file:
            while len(numbers := np.fromfile(source, "<u4", _BLOCK_TOKENS)):
                block = table[numbers].astype(np.dtype(dtype).newbyteorder("<"))
                checksum = zlib.crc32(block.data, checksum)
                file.write(block.data)
        first.unlink()
    except OSError as problem:
        raise reject("out", "a folder with room for the tokens of the texts", unusable(place, problem)) from problem
    return {"dtype": dtype, "checksum": checksum}


def _checksum(place: Path) -> int:
    checksum = 0
    with place.open("rb") as file:
        while content := file.read(BLOCK_BYTES):
            checksum = zlib.crc32(content, checksum)
    return checksum
