"""`marginlens graph --stream`: the priority graphs of texts and token files that need not fit in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

import marginlens as ml
from marginlens.cli import _rows
from marginlens.cli._options import refuse_options
from marginlens.cli._terminal import Bars, console, counted, rows_table
from marginlens.cli._voice import naming
from marginlens.data.vocabulary import quoted
from marginlens.errors import reject, whole_number

if TYPE_CHECKING:
    from marginlens.data import TextStream, TokenStream
    from marginlens.graphs import StoredGraphs

_TOKEN_FILES = (".npy", ".bin", ".u16", ".u32", ".arrow")  # names of files with token ids end so; others are texts
_SHOWN = 3  # last tokens that are shown unless chosen


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
        if all(file.is_dir() or file.suffix.lower() in _TOKEN_FILES for file in self.files) or self.dtype is not None:
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


def rank_stream(options: StreamOptions, n_words: int, as_json: bool) -> None:
    """Count the windows of a stream, and print the sizes of all graphs and of the shown ones."""
    source = options.source(n_words)
    try:
        with Bars() as bars:
            bar = bars.bar("Counting windows")
            graphs = ml.priority_graphs(source, out=options.out, engine=options.scheduler, progress=bar)
    except KeyboardInterrupt:
        where = "is lost; --out DIR keeps it" if options.out is None else f"is in {options.out}; run it again to go on"
        raise KeyboardInterrupt(f"What was counted {where}.") from None
    row = _summary(source, graphs, options)
    if as_json:
        typer.echo(_rows.as_json(row))
        return
    out = console()
    files = ", ".join(map(str, options.files[:_SHOWN])) + (", ..." if len(options.files) > _SHOWN else "")
    out.print(f"{files}: {counted(row['windows'], 'window')} of {counted(options.window, 'token')}", markup=False)
    out.print(
        f"{row['dropped']} of {row['windows']} windows ({row['dropped'] / row['windows']:.0%}) lack the token that follows them and are "
        f"left out. {counted(row['last_tokens'], 'different last token')}, {row['acyclic']} of them ({row['share_acyclic']:.1%}) without "
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


def _summary(source: Any, graphs: StoredGraphs, options: StreamOptions) -> dict[str, Any]:
    summary = graphs.summary()
    return {
        "files": [str(file) for file in options.files],
        "stream": repr(source),
        "window": options.window,
        "windows": summary.n_windows,
        "dropped": summary.n_dropped,
        "last_tokens": summary.n_graphs,
        "tokens": int(summary.tokens.sum()),
        "edges": summary.n_edges,
        "components": summary.n_components,
        "acyclic": summary.n_acyclic,
        "share_acyclic": summary.share_acyclic,
        "graphs": [_graph_row(place, graphs, summary) for place in _shown(graphs, summary, options.last)],
    }


def _shown(graphs: StoredGraphs, summary: Any, names: list[str] | None) -> list[int]:
    """The places in the summary of the last tokens to show: those that are named, or the most frequent ones."""
    if not names:
        return np.argsort(-summary.windows, kind="stable")[:_SHOWN].tolist()
    known = {name: k for k, name in enumerate(_token_names(graphs))}
    known |= {name: k for k, name in enumerate(graphs.names or ())}
    places = []
    for name in names:
        if name not in known:
            raise reject("last", f"one of the {len(known)} tokens of the vocabulary", repr(name))
        if known[name] not in graphs:
            expected = "the last token of some window that holds the token which follows it"
            raise reject("last", expected, repr(name))
        places.append(int(np.searchsorted(summary.last, known[name])))
    return list(dict.fromkeys(places))


def _token_names(graphs: StoredGraphs) -> Sequence[str]:
    """What the tokens are called, with signs for blanks; their ids where the stream has no names."""
    if graphs.names is None:
        return tuple(map(str, range(graphs.facts["n_vocabulary"])))
    return ml.data.Vocabulary(graphs.names, ml.data.Characters()).shown


def _graph_row(place: int, graphs: StoredGraphs, summary: Any) -> dict[str, Any]:
    last = int(summary.last[place])
    graph = graphs[last]
    sizes = np.bincount(graph.component_of)
    return {
        "last": _token_names(graphs)[last],
        "windows": int(summary.windows[place]),
        "tokens": len(graph.nodes),
        "edges": len(graph.edges),
        "components": graph.n_components,
        "largest_component": int(sizes.max()),
        "strict_pairs": len(graph.strict),
        "acyclic": graph.is_acyclic,
    }
