"""`marginlens graph --stream`: texts and token files that need not fit in memory, and the priority graphs of their windows."""

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
from marginlens.data.plain_text import BLOCK_BYTES, STDIN
from marginlens.data.text_windows import embeddings
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
class StreamSource:
    """Windows of texts, or of files of token ids; None and False are what was not said."""

    files: Sequence[Path]
    window: int
    words: int | None  # that have an id of their own; None where words are not the tokens
    tokenizer: Path | None
    encoding: str | None
    dtype: str | None
    separator: int | None
    d_model: int | None
    seed: int

    @property
    def file(self) -> Path:
        """What the files are called together."""
        return Path(", ".join(map(str, self.files[:_NAMED])) + (", …" if len(self.files) > _NAMED else ""))

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
                return ml.text.SubwordTokenizer.from_file(self.tokenizer)
        return ml.data.Characters() if self.words is None else ml.data.Words(max_vocabulary=self.words)

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

    def read(self, tokens: TokenStream, vocabulary: Vocabulary) -> NamedSequences | SequenceSplit:
        """The windows that fit in memory; where a share is held out, those of both parts."""
        E = embeddings(len(vocabulary), self.d_model, self.seed)
        return tokens.split(vocabulary, E) if tokens.held_out else NamedSequences(tokens.sequences(E), vocabulary)

    def settings(self) -> dict[str, Any]:
        """What decides what is read, besides the files."""
        units = "characters" if self.words is None else f"words, the {self.words} most frequent"
        units = "ids" if self.unit is None else f"tokenizer {self.tokenizer.name}" if self.tokenizer else units
        width = "one-hot" if self.d_model is None else f"{self.d_model} random coordinates, seed {self.seed}"
        return {"tokens": units, "window": self.window, "embeddings": width}

    def options(self) -> list[str]:
        """The words of the command line that read it so, besides the first file."""
        words = [] if self.words is None else ["--words", "--vocabulary", str(self.words)]
        named = ("tokenizer", "encoding", "dtype", "separator", "d_model")
        given = {name.replace("_", "-"): getattr(self, name) for name in named if getattr(self, name) is not None}
        options = [word for name, value in given.items() for word in (f"--{name}", str(value))]
        seed = [] if self.d_model is None else ["--seed", str(self.seed)]
        return [*map(str, self.files[1:]), "--stream", "--window", str(self.window), *words, *options, *seed]
