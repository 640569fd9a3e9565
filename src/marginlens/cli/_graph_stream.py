"""`marginlens graph --stream`: the priority graphs of texts and token files that need not fit in memory."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

import marginlens as ml
from marginlens.cli import _rows
from marginlens.cli._options import refuse_options
from marginlens.cli._rankings import shown_last_tokens
from marginlens.cli._terminal import Bars, console, counted, rows_table
from marginlens.cli._voice import naming
from marginlens.data.plain_text import BLOCK_BYTES, STDIN
from marginlens.data.vocabulary import quoted
from marginlens.errors import reject, whole_number
from marginlens.runtime.files import unusable

if TYPE_CHECKING:
    from marginlens.data import TextStream, TokenStream
    from marginlens.graphs import PriorityGraph, StoredGraphs

_TOKEN_FILES = (".npy", ".bin", ".u16", ".u32", ".arrow")  # names of files with token ids end so; others are texts
_SHOWN = 3  # files that are named


@dataclass(frozen=True)
class StreamOptions:
    """What `marginlens graph --stream` was asked for; None and False are what was not said."""

    files: list[Path]
    window: int
    words: bool
    vocabulary: int | None
    tokenizer: Path | None
    encoding: str | None
    dtype: str | None
    separator: int | None
    last: list[str] | None
    out: Path | None
    scheduler: str | None

    def source(self, n_words: int) -> TextStream | TokenStream:
        """The stream; `n_words` is how many words have an id of their own unless said otherwise."""
        for file in self.files:
            if file.suffix.lower() in (".json", ".npz"):
                raise reject("file", "a text or a file of token ids where --stream is given", repr(str(file)))
        ids = [file for file in self.files if file.is_dir() or file.suffix.lower() in _TOKEN_FILES]
        if ids and len(ids) < len(self.files) and self.dtype is None:
            text = next(file for file in self.files if file not in ids)
            got = f"{str(ids[0])!r} beside {str(text)!r}"
            raise reject("file", "either texts or files of token ids", got, "--dtype reads all of them as ids.")
        if ids or self.dtype is not None:
            given = {"words": self.words, "vocabulary": self.vocabulary, "tokenizer": self.tokenizer}
            refuse_options("for files of token ids", **given, encoding=self.encoding)
            dtype = self.dtype or ("uint32" if self.files[0].suffix.lower() == ".u32" else "uint16")
            return ml.data.TokenStream(list(self.files), self.window, separator=self.separator, dtype=dtype)
        refuse_options("for texts", separator=self.separator)
        encoding = self.encoding or "utf-8"
        return ml.data.TextStream(list(self.files), self.window, self._unit(n_words), encoding=encoding)

    def _unit(self, n_words: int) -> Any:
        if self.tokenizer is not None:
            refuse_options("where a tokenizer cuts the texts", words=self.words, vocabulary=self.vocabulary)
            with naming(path="tokenizer"):
                return ml.text.SubwordTokenizer.from_file(self.tokenizer)
        if not self.words:
            refuse_options("unless words are the tokens", vocabulary=self.vocabulary)
            return ml.data.Characters()
        count = n_words if self.vocabulary is None else self.vocabulary
        return ml.data.Words(max_vocabulary=whole_number(count, "vocabulary", at_least=1))


@contextmanager
def _regular_files(files: list[Path]) -> Iterator[list[Path]]:
    """The files; what comes through a pipe is written to a temporary one first, since a stream is read more than once."""
    with tempfile.TemporaryDirectory(prefix="marginlens-pipe-") as folder:
        regular = list(files)
        for k, file in enumerate(files):
            if str(file) == STDIN or file.is_fifo():
                regular[k] = Path(folder) / f"pipe-{k}"
                try:
                    opened = nullcontext(sys.stdin.buffer) if str(file) == STDIN else file.open("rb")
                    with opened as pipe, regular[k].open("wb") as written:
                        shutil.copyfileobj(pipe, written, BLOCK_BYTES)
                except OSError as problem:
                    expected = "a pipe whose content has room in the temporary folder, which TMPDIR names"
                    raise reject("file", expected, unusable(file, problem)) from problem
        yield regular


def rank_stream(options: StreamOptions, n_words: int, as_json: bool) -> None:
    """Count the windows of a stream, and print the sizes of all graphs and of the shown ones."""
    with _regular_files(options.files) as regular:
        _rank(replace(options, files=regular), options.files, n_words, as_json)


def _rank(options: StreamOptions, files: list[Path], n_words: int, as_json: bool) -> None:
    source = options.source(n_words)
    try:
        with Bars() as bars:
            bar = bars.bar("Counting windows")
            graphs = ml.priority_graphs(source, out=options.out, engine=options.scheduler, progress=bar)
    except KeyboardInterrupt:
        where = "is lost; --out DIR keeps it" if options.out is None else f"is in {options.out}; run it again to go on"
        raise KeyboardInterrupt(f"What was counted {where}.") from None
    row = {"files": list(map(str, files)), **_summary(graphs, options)}
    if as_json:
        typer.echo(_rows.as_json(row))
        return
    out = console()
    listed = ", ".join(row["files"][:_SHOWN]) + (", ..." if len(files) > _SHOWN else "")
    out.print(f"{listed}: {counted(row['windows'], 'window')} of {counted(options.window, 'token')}", markup=False)
    out.print(
        f"{row['dropped']:,} of {row['windows']:,} windows ({row['dropped'] / row['windows']:.0%}) lack the token that follows them and "
        f"are left out. {counted(row['last_tokens'], 'different last token')}, {row['acyclic']:,} of them ({row['share_acyclic']:.1%}) without "
        f"ties; {counted(row['tokens'], 'token')}, {counted(row['edges'], 'edge')} and {counted(row['components'], 'component')} in all "
        "graphs together.",
        markup=False,
    )
    cells = [
        {**graph, "last": quoted(graph["last"]), "acyclic": "yes" if graph["acyclic"] else "no"}
        for graph in row["graphs"]
    ]
    out.print(rows_table("Priorities by last token", cells))
    if options.out is not None:
        out.print(f"Written to {options.out}; in Python, marginlens.graphs.StoredGraphs reads them.", markup=False)


def _summary(graphs: StoredGraphs, options: StreamOptions) -> dict[str, Any]:
    summary = graphs.summary()
    counts = np.zeros(graphs.facts["n_vocabulary"], dtype=np.int64)
    counts[summary.last] = summary.windows
    names = graphs.names or tuple(map(str, range(len(counts))))
    return {
        "window": options.window,
        "windows": summary.n_windows,
        "dropped": summary.n_dropped,
        "last_tokens": summary.n_graphs,
        "tokens": int(summary.tokens.sum()),
        "edges": summary.n_edges,
        "components": summary.n_components,
        "acyclic": summary.n_acyclic,
        "share_acyclic": summary.share_acyclic,
        "graphs": [
            _graph_row(graphs[k], _shown_names(names)[k], int(counts[k]))
            for k in shown_last_tokens(graphs, names, counts, options.last)
        ],
    }


def _shown_names(names: Sequence[str]) -> Sequence[str]:
    """The names with signs for blanks."""
    return ml.data.Vocabulary(tuple(names), ml.data.Characters()).shown


def _graph_row(graph: PriorityGraph, name: str, n_windows: int) -> dict[str, Any]:
    return {
        "last": name,
        "windows": n_windows,
        "tokens": len(graph.nodes),
        "edges": len(graph.edges),
        "components": graph.n_components,
        "largest_component": int(np.bincount(graph.component_of).max()),
        "strict_pairs": len(graph.strict),
        "acyclic": graph.is_acyclic,
    }
