"""What `marginlens graph` reads: windows of a text, sequences that a file lists, and streams that need not fit in memory."""

from __future__ import annotations

import shutil
import sys
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import marginlens as ml
from marginlens.cli._options import refuse_options
from marginlens.data.files import read_sequences
from marginlens.data.plain_text import BLOCK_BYTES, STDIN, read_text
from marginlens.data.text_windows import embeddings, split_sequences, split_text_windows, text_windows
from marginlens.data.tokenizer import read_tokenizer
from marginlens.data.vocabulary import UNKNOWN, Listed, NamedSequences, Vocabulary
from marginlens.errors import calling, reject
from marginlens.runtime.files import unusable

if TYPE_CHECKING:
    from marginlens.cli._terminal import Bar
    from marginlens.data import SequenceSplit, TextStream, TokenStream
    from marginlens.graphs import StoredGraphs

_TOKEN_FILES = (".npy", ".bin", ".u16", ".u32", ".arrow")  # names of files with token ids end so; others are texts
_NAMED = 3  # files


@dataclass(frozen=True)
class TextSource:
    """Windows of a text; None is what was not said.

    Args:
        words: how many words have an id of their own; None where characters are the tokens.
    """

    files: Sequence[Path]
    window: int
    words: int | None
    d_model: int | None
    seed: int
    encoding: str | None = None

    @property
    def file(self) -> Path:
        """What the files are called together."""
        return Path(", ".join(map(str, self.files[:_NAMED])) + (", …" if len(self.files) > _NAMED else ""))

    @cached_property
    def unit(self) -> Any:
        """What texts are cut into."""
        return ml.data.Characters() if self.words is None else ml.data.Words(max_vocabulary=self.words)

    @property
    def units(self) -> str:
        """What texts are cut into, in words."""
        return "characters" if self.words is None else f"words, the {self.words} most frequent"

    def read(self, held_out: float | None) -> NamedSequences | SequenceSplit:
        """The windows; where a share is held out, those of the beginning of the text and those of its end."""
        text = read_text(self.file, self.encoding or "utf-8")
        options: dict[str, Any] = {"d_model": self.d_model, "rng": self.seed}
        if held_out is None:
            return text_windows(text, self.window, self.unit, **options)
        return split_text_windows(text, self.window, self.unit, held_out=held_out, **options)

    def settings(self) -> dict[str, Any]:
        """What decides what is read, besides the files."""
        width = "one-hot" if self.d_model is None else f"{self.d_model} random coordinates, seed {self.seed}"
        return {"tokens": self.units, "window": self.window, "embeddings": width}


@dataclass(frozen=True)
class ListSource:
    """Sequences that a JSON or .npz file lists."""

    file: Path
    drop: bool
    seed: int = 0
    window: int | None = None

    def read(self, held_out: float | None) -> NamedSequences | SequenceSplit:
        """The sequences; where a share is held out, some of them at random, and the others."""
        named = read_sequences(self.file, unrealizable="drop" if self.drop else "refuse")
        return named if held_out is None else split_sequences(named, held_out=held_out, rng=self.seed)

    def settings(self) -> dict[str, Any]:
        """What decides what is read, besides the file."""
        return {"tokens": "listed", "unrealizable": "drop" if self.drop else "refuse"}


@dataclass(frozen=True)
class StreamSource(TextSource):
    """Windows of texts, or of files of token ids, that need not fit in memory."""

    tokenizer: Path | None = None
    dtype: str | None = None
    separator: int | None = None

    @property
    def units(self) -> str:
        """What texts are cut into, in words."""
        return "ids" if self.unit is None else f"tokenizer {self.tokenizer.name}" if self.tokenizer else super().units

    @cached_property
    def regular_files(self) -> list[Path]:
        """The files; what comes through a pipe is written to a temporary one first, since a stream is read more than once."""
        regular = list(self.files)
        for k, file in enumerate(self.files):
            if str(file) == STDIN or file.is_fifo():
                folder = Path(tempfile.mkdtemp(prefix="marginlens-pipe-"))
                weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
                regular[k] = folder / "content"
                try:
                    opened = nullcontext(sys.stdin.buffer) if str(file) == STDIN else file.open("rb")
                    with opened as pipe, regular[k].open("wb") as written:
                        shutil.copyfileobj(pipe, written, BLOCK_BYTES)
                except OSError as problem:
                    expected = "a pipe whose content has room in the temporary folder, which TMPDIR names"
                    raise reject("file", expected, unusable(file, problem)) from problem
        return regular

    @cached_property
    def unit(self) -> Any:
        """What texts are cut into; None for files of token ids."""
        ids = [file for file in self.files if file.is_dir() or file.suffix.lower() in _TOKEN_FILES]
        for file in self.files:
            if file.suffix.lower() in (".json", ".npz"):
                raise reject("file", "a text or a file of token ids where --stream is given", repr(str(file)))
        if ids and len(ids) < len(self.files) and self.dtype is None:
            text = next(file for file in self.files if file not in ids)
            got = f"{str(ids[0])!r} beside {str(text)!r}"
            raise reject("file", "either texts or files of token ids", got, "--dtype reads all of them as ids.")
        if ids or self.dtype is not None:
            given = {"words": self.words is not None, "tokenizer": self.tokenizer, "encoding": self.encoding}
            refuse_options("for files of token ids", **given)
            return None
        refuse_options("for texts", separator=self.separator)
        if self.tokenizer is not None:
            refuse_options("where a tokenizer cuts the texts", words=self.words is not None)
            with calling(path="tokenizer"):
                return read_tokenizer(self.tokenizer)
        return super().unit

    def count(self, held_out: float | None, out: Path | None, scheduler: str | None, bar: Bar) -> StoredGraphs:
        """The priority graphs of all windows, without those of the share that is held out."""
        stream: TextStream | TokenStream
        if self.unit is None:
            dtype = self.dtype or ("uint32" if self.files[0].suffix.lower() == ".u32" else "uint16")
            stream = ml.data.TokenStream(self.regular_files, self.window, separator=self.separator, dtype=dtype)
        else:
            encoding = self.encoding or "utf-8"
            stream = ml.data.TextStream(self.regular_files, self.window, self.unit, encoding=encoding)
        if held_out is not None:
            stream = stream.hold_out(held_out)
        try:
            return ml.priority_graphs(stream, out=out, engine=scheduler, progress=bar)
        except KeyboardInterrupt:
            where = "is lost; --out DIR keeps it" if out is None else f"is in {out}; run it again to go on"
            raise KeyboardInterrupt(f"What was counted {where}.") from None

    def vocabulary(self, graphs: StoredGraphs) -> Vocabulary:
        """What the tokens are called; by their ids where the files have nothing else."""
        if graphs.names is None:
            return Vocabulary(tuple(map(str, range(graphs.facts["n_vocabulary"]))), Listed())
        unknown = graphs.names.index(UNKNOWN) if self.words is not None and UNKNOWN in graphs.names else None
        return Vocabulary(graphs.names, ml.data.Characters() if self.tokenizer else self.unit, unknown)

    def read_in_memory(self, tokens: TokenStream, vocabulary: Vocabulary) -> NamedSequences | SequenceSplit:
        """The windows that fit in memory; where a share is held out, those of both parts."""
        E = embeddings(len(vocabulary), self.d_model, self.seed)
        return tokens.split(vocabulary, E) if tokens.held_out else NamedSequences(tokens.sequences(E), vocabulary)
