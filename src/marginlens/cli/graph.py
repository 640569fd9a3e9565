"""`marginlens graph`: the priorities that a text or a list of sequences puts on tokens, and how they continue a prefix."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

import marginlens as ml
from marginlens.cli._completions import ENCODINGS, words_of
from marginlens.cli._deferred import errors, np, rankings, terminal
from marginlens.cli._deferred import files as places
from marginlens.cli._deferred import rows as _rows
from marginlens.cli._exit import errors_as_sentences
from marginlens.cli._options import AsJson, Quiet, refuse_options

if TYPE_CHECKING:
    from marginlens.cli._graph_stream import StreamSource
    from marginlens.cli._terminal import Bar
    from marginlens.data.sequences import SequenceDataset
    from marginlens.data.text_windows import SequenceSplit
    from marginlens.data.token_stream import TokenStream
    from marginlens.data.tokens import IntArray
    from marginlens.data.vocabulary import NamedSequences, Unit, Vocabulary
    from marginlens.graphs import PriorityGraph, StoredGraphs
    from marginlens.graphs.priority import Evidence
    from marginlens.svm import GraphSolution

WINDOW = 16  # tokens of a window unless said otherwise
STDIN = "-"
_CONTINUED = 40  # tokens that follow a prefix unless said otherwise
_WORDS = 300  # words that have an id of their own unless said otherwise
_DISTRIBUTION = 10  # next tokens that are listed
_REPETITION = (
    "It adds only tokens that it reads: no new one ever comes, and one that has left the window never returns, so that every "
    "continuation ends in repetition."
)
_CALLED = {  # what the command calls arguments of the library
    **dict.fromkeys(("path", "file", "data", "source"), "{files}"),
    "max_vocabulary": "{vocabulary}",
    "engine": "{scheduler}",
    "unit": "{words}",
    "folder": "{out}",
    "unrealizable": "{drop}",
}
_GRAPH_PACKAGES = ("python", "marginlens", "numpy", "scipy")  # whose versions a saved file names

SequenceFiles = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE",
        help="A text, also packed as .gz, .bz2 or .xz, - for one from stdin, or a .json or .npz file with sequences, labels and "
        "optionally vocabulary and E; several files of a stream.",
        show_default=False,
    ),
]


def graph(
    files: SequenceFiles,
    window: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens of each window of a text.", show_default=str(WINDOW))
    ] = None,
    words: Annotated[bool, typer.Option("--words", help="Words are the tokens of a text, not characters.")] = False,
    vocabulary: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Words that are told apart; rarer ones are one unknown token.", show_default=f"{_WORDS}"
        ),
    ] = None,
    d_model: Annotated[
        int | None,
        typer.Option(metavar="D", help="Width of random embeddings for the tokens of a text.", show_default="one-hot"),
    ] = None,
    drop: Annotated[
        bool, typer.Option("--drop", help="Leave out sequences of a .json or .npz file that lack their label.")
    ] = False,
    last: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOKEN", help="Show this last token; repeat it for several.", show_default="most frequent"
        ),
    ] = None,
    held_out: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Learn from the rest alone, and say how well this share is predicted: the end of a text, or sequences of a "
            "file that lists them, drawn at random. 0.1 is a good choice.",
            show_default="none",
        ),
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Let the automaton of the data continue this text.")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="How many tokens to continue it by.", show_default=str(_CONTINUED)),
    ] = None,
    encoding: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of a text, such as latin-1.",
            show_default="UTF-8",
            autocompletion=words_of(*ENCODINGS),
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Of random embeddings, of sequences held out and of the continuation.")
    ] = 0,
    margin: Annotated[
        bool,
        typer.Option(
            "--margin",
            help="Solve the Graph-SVM of all last tokens also where nothing else needs it: how large W must be.",
        ),
    ] = False,
    as_json: AsJson = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="OUT.png", help="Draw the graphs of the shown last tokens there, as .png, .svg or .pdf."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="OUT.json", help="Keep the edges of the shown last tokens there.")
    ] = None,
    sequences: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT.npz", help="Write the sequences there, .npz or .json, for `marginlens solve` and `train`."
        ),
    ] = None,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="Files that need not fit in memory: texts, also packed or from a pipe, or token ids as .npy, .bin or Arrow files.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The folder for the graphs of a stream; run it again to go on.", show_default="none"
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="A tokenizer that cuts the texts of a stream.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Of raw token ids in a stream.", show_default="uint16")
    ] = None,
    separator: Annotated[
        int | None, typer.Option(metavar="ID", help="The token id that stands between the texts of a stream.")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A Dask scheduler whose workers count the chunks of a stream.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Rank tokens by what the data say follows: priority graphs by last token, their separability, and the automaton they make.

    The Graph-SVM is solved where something needs it: --margin, --held-out, --prefix, and embeddings other than one-hot.

    Windows of a text that do not hold the token which follows them are left out and counted: attention can only output what it reads.

    Examples:
        marginlens graph story.txt --window 16
        marginlens graph story.txt --words --vocabulary 300 --last the --plot the.svg
        marginlens graph sequences.json --drop --held-out 0.1
        marginlens graph story.txt --prefix "Once upon" --tokens 80 --seed 1
        marginlens graph - --encoding latin-1 --json < märchen.txt
        marginlens graph --stream corpus.txt.gz more.txt --words --out graphs
    """
    with errors_as_sentences(**_CALLED):
        errors.whole_number(seed, "seed", at_least=0)
        if tokens is not None and prefix is None:
            raise errors.reject("tokens", "left out unless a prefix is to be continued", tokens)
        if str(files[0]) == STDIN:
            refuse_options("for a text from stdin, which no fingerprint can name", save=save)
        source: TextSource | ListSource | StreamSource
        if stream:
            refuse_options("for a stream", drop=drop)
            refuse_options("where a tokenizer cuts the texts", prefix=None if tokenizer is None else prefix)
            kind = (tokenizer, encoding, dtype, separator)
            source = _stream_source(files, window, words, vocabulary, kind, d_model, seed)
        else:
            given = {"out": out, "tokenizer": tokenizer, "dtype": dtype, "separator": separator, "scheduler": scheduler}
            refuse_options("unless --stream is given", **given)
            if len(files) != 1:
                raise errors.reject("file", "a single one unless --stream is given", f"{len(files)} files")
            source = _source(files[0], window, words, vocabulary, d_model, drop, seed, encoding)
        for place, argument, suffixes in (
            (plot, "plot", (".png", ".svg", ".pdf")),
            (save, "save", (".json",)),
            (sequences, "sequences", (".npz", ".json")),
        ):
            if place is not None:
                places.check_place(place, argument, suffixes)
        screen = None if as_json else terminal.console()
        n_tokens = errors.whole_number(_CONTINUED if tokens is None else tokens, "tokens", at_least=0)
        with _stage("Ranking tokens") as bar:
            if isinstance(source, TextSource | ListSource):
                ranking = Ranking.of(source, held_out, last)
            else:
                counted = source.count(held_out, out, scheduler, bar)
                in_memory = margin or any(option is not None for option in (held_out, prefix, d_model, sequences))
                ranking = Ranking.of_stream(source, counted, last, in_memory)
            ids = None if prefix is None else _prefix_ids(ranking.vocabulary, prefix)
            row = ranking.to_dict()
        if screen is not None:
            rankings.show_rankings(screen, row)
            if stream and (row["stream"]["learned_tokens"] or np.inf) < row["stream"]["tokens"]:
                learned = f"{row['stream']['learned_tokens']:,} of {row['stream']['tokens']:,} tokens"
                screen.print(f"What follows is learned from the first {learned}, whose windows fit in memory.")
        if plot is not None:
            _draw(ranking, plot)
        if save is not None:
            _save(ranking, save, held_out)
        if sequences is not None and ranking.named is not None:
            ml.data.write_sequences(sequences, ranking.named.data, ranking.vocabulary.names)
        solution, E = None, None if ranking.named is None else ranking.named.data.E
        if E is not None and (
            margin or ids is not None or held_out is not None or not np.array_equal(E, np.eye(*E.shape))
        ):
            with _stage("Solving Graph-SVM") as bar:
                solution = ml.graph_svm(E, ranking.learned, progress=bar)
        row["separability"] = _rows.separability(ranking.named, ranking.learned, solution)
        if screen is not None:
            rankings.show_separability(screen, row["separability"])
        if ranking.named is not None and solution is not None and (ids is not None or held_out is not None):
            with _stage("Making the automaton"):
                automaton, reason = _fitted(ranking.named.data, ranking.learned, solution)
            if screen is not None and reason:
                screen.print(reason, markup=False)
            if ranking.split is not None:
                row["prediction"] = {"reason": reason, "scores": []}
                if automaton is not None:
                    with _stage("Predicting"):
                        scores = ml.nexttoken.score_held_out(ranking.split, {"automaton": automaton})
                    row["prediction"] |= scores.to_dict()
                    if screen is not None:
                        rankings.show_prediction(screen, row["prediction"])
            if ids is not None:
                empty = dict.fromkeys(("explanation", "text", "whole"), "")
                row["continuation"] = {"prefix": prefix, "reason": reason, "next": [], **empty}
                if automaton is not None:
                    with _stage("Continuing"):
                        row["continuation"] |= _continued(ranking, automaton, ids, n_tokens, seed)
                    if screen is not None:
                        screen.print(row["continuation"]["explanation"], markup=False)
                        screen.print("The automaton continues:", style="bold")
                        screen.print(row["continuation"]["whole"], markup=False)
                        screen.print(_REPETITION, markup=False)
        if screen is None:
            typer.echo(_rows.as_json(row))
            return
        if held_out is None:
            screen.print(
                "How well the automaton of these rankings predicts: --held-out 0.1 measures it on sequences that are left out.",
                markup=False,
            )
        for place in (plot, save, sequences, out):
            if place is not None:
                screen.print(f"Written to {place}", markup=False)


@contextmanager
def _stage(title: str) -> Iterator[Bar]:
    """A bar on stderr while one part of the work is done; it is gone before results are printed."""
    with terminal.Bars() as bars:
        yield bars.bar(title)


# ---- what is read


@dataclass(frozen=True)
class TextSource:
    """Windows of a text."""

    file: Path
    window: int
    unit: Unit
    d_model: int | None
    seed: int
    encoding: str | None = None

    def read(self, held_out: float | None) -> NamedSequences | SequenceSplit:
        """The windows; where a share is held out, those of the beginning of the text and those of its end."""
        from marginlens.data.plain_text import read_text
        from marginlens.data.text_windows import split_text_windows, text_windows

        text, options = read_text(self.file, self.encoding or "utf-8"), {"d_model": self.d_model, "rng": self.seed}
        if held_out is None:
            return text_windows(text, self.window, self.unit, **options)
        return split_text_windows(text, self.window, self.unit, held_out=held_out, **options)

    def settings(self) -> dict[str, Any]:
        """What decides what is read, besides the file."""
        most = getattr(self.unit, "max_vocabulary", None)
        units = "characters" if most is None else f"words, the {most} most frequent"
        embeddings = "one-hot" if self.d_model is None else f"{self.d_model} random coordinates, seed {self.seed}"
        return {"tokens": units, "window": self.window, "embeddings": embeddings}

    def options(self) -> list[str]:
        """The options of the command line that read it so."""
        most = getattr(self.unit, "max_vocabulary", None)
        words = [] if most is None else ["--words", "--vocabulary", str(most)]
        width = [] if self.d_model is None else ["--d-model", str(self.d_model), "--seed", str(self.seed)]
        encoding = [] if self.encoding is None else ["--encoding", self.encoding]
        return ["--window", str(self.window), *words, *width, *encoding]


@dataclass(frozen=True)
class ListSource:
    """Sequences that a JSON or .npz file lists."""

    file: Path
    drop: bool
    seed: int = 0
    window: int | None = None

    def read(self, held_out: float | None) -> NamedSequences | SequenceSplit:
        """The sequences; where a share is held out, some of them at random, and the others."""
        from marginlens.data.files import read_sequences
        from marginlens.data.text_windows import split_sequences

        named = read_sequences(self.file, unrealizable="drop" if self.drop else "refuse")
        return named if held_out is None else split_sequences(named, held_out=held_out, rng=self.seed)

    def settings(self) -> dict[str, Any]:
        """What decides what is read, besides the file."""
        return {"tokens": "listed", "unrealizable": "drop" if self.drop else "refuse"}

    def options(self) -> list[str]:
        """The options of the command line that read it so."""
        return [*(["--drop"] if self.drop else []), *(["--seed", str(self.seed)] if self.seed else [])]


def _stream_source(
    files: list[Path],
    window: int | None,
    words: bool,
    vocabulary: int | None,
    kind: tuple[Path | None, str | None, str | None, int | None],
    d_model: int | None,
    seed: int,
) -> StreamSource:
    """How to read a stream; `kind` are the tokenizer, the encoding, the dtype and the separator."""
    from marginlens.cli._graph_stream import StreamSource

    refuse_options("unless words are the tokens", vocabulary=None if words else vocabulary)
    most = errors.whole_number(_WORDS if vocabulary is None else vocabulary, "vocabulary", at_least=1)
    return StreamSource(files, WINDOW if window is None else window, most if words else None, *kind, d_model, seed)


def _source(
    file: Path,
    window: int | None,
    words: bool,
    vocabulary: int | None,
    d_model: int | None,
    drop: bool,
    seed: int,
    encoding: str | None,
) -> TextSource | ListSource:
    """How to read the file, with the options that its kind takes."""
    from marginlens.data.vocabulary import Characters, Words

    if file.suffix.lower() in (".json", ".npz"):
        kind = f"for a {file.suffix.lower()} file, which lists its sequences"
        refuse_options(kind, window=window, words=words, vocabulary=vocabulary, d_model=d_model, encoding=encoding)
        return ListSource(file, drop, seed)
    refuse_options("for a text, whose windows are dropped and counted anyway", drop=drop)
    if not words:
        refuse_options("unless words are the tokens", vocabulary=vocabulary)
        return TextSource(file, WINDOW if window is None else window, Characters(), d_model, seed, encoding)
    most = errors.whole_number(_WORDS if vocabulary is None else vocabulary, "vocabulary", at_least=1)
    return TextSource(file, WINDOW if window is None else window, Words(max_vocabulary=most), d_model, seed, encoding)


# ---- what is computed


@dataclass(frozen=True, eq=False)
class Ranking:
    """The priority graphs of all sequences, and the last tokens whose graphs are shown.

    Attributes:
        counts: (n_vocabulary,) how many sequences end in each token. dropped: how many more lack the token that follows them.
        evidence: what stands behind the order of a graph, with `first` as places in the source. size: of all sequences, in words.
        named: the sequences, of a stream those that fit in memory, or None where nothing needs them. split: the same beside what is held
            out. learned: the graphs of `named`, or all graphs where it is None. stream: what is known of a stream alone.
    """

    source: TextSource | ListSource | StreamSource
    vocabulary: Vocabulary
    graphs: Mapping[int, PriorityGraph]
    counts: IntArray
    dropped: int
    n_acyclic: int
    shown: list[int]
    evidence: Callable[[PriorityGraph], Evidence]
    size: str
    named: NamedSequences | None
    split: SequenceSplit | None
    learned: Mapping[int, PriorityGraph]
    stream: dict[str, Any] | None = None

    @classmethod
    def of(cls, source: TextSource | ListSource, held_out: float | None, last: Sequence[str] | None) -> Ranking:
        """Rank the tokens; `last` names the last tokens to show, the most frequent ones by default."""
        read: Any = source.read(held_out)
        named, split = (read, None) if held_out is None else (read.training, read)
        data, graphs = named.data, ml.priority_graphs(named.data)
        counts = np.bincount(data.last, minlength=data.n_vocabulary)
        shown = rankings.shown_last_tokens(graphs, named.vocabulary.names, counts, last)
        places = data.original_samples() if split is None else split.samples

        def evidence(graph: PriorityGraph) -> Evidence:
            found = ml.graphs.ranking_evidence(data, graph)
            return replace(found, first=places[found.first])

        n_acyclic = sum(graph.is_acyclic for graph in graphs.values())
        sizes = (counts, len(data.dropped), n_acyclic, shown, evidence, _rows.size_of(data))
        return cls(source, named.vocabulary, graphs, *sizes, named, split, graphs)

    @classmethod
    def of_stream(
        cls, source: StreamSource, graphs: StoredGraphs, last: Sequence[str] | None, in_memory: bool
    ) -> Ranking:
        """The ranking of a counted stream; `in_memory` says whether something needs its sequences."""
        vocabulary, summary = source.vocabulary(graphs), graphs.summary()
        tokens = cast("TokenStream", graphs.tokens)  # those that were counted just now
        counts = np.zeros(len(vocabulary), dtype=np.int64)
        counts[summary.last] = summary.windows
        shown = rankings.shown_last_tokens(graphs, vocabulary.names, counts, last)
        size = _rows.sequences_size(
            int(counts.sum()), str(source.window), len(vocabulary), source.d_model or len(vocabulary)
        )
        read: Any = source.read(tokens, vocabulary) if in_memory else None
        named, split = (read.training, read) if in_memory and tokens.held_out else (read, None)
        row = {
            "files": [str(file) for file in source.files],
            "tokens": tokens.n_tokens,
            "learned_tokens": min(tokens.n_tokens, tokens.n_in_memory) if in_memory else None,
            "windows": summary.n_windows,
            "edges": summary.n_edges,
            "components": summary.n_components,
            "fingerprint": graphs.facts["stream"],
        }
        evidence = partial(ml.graphs.ranking_evidence, tokens)
        sizes = (counts, summary.n_dropped, summary.n_acyclic, shown, evidence, size)
        learned = ml.priority_graphs(named.data) if in_memory else graphs
        return cls(source, vocabulary, graphs, *sizes, named, split, learned, row)

    def to_dict(self) -> dict[str, Any]:
        """What the graphs say, as plain values."""
        held_out = {} if self.split is None else {"held_out": len(self.split.held_out)}
        graphs = [(self.graphs[k], int(self.counts[k])) for k in self.shown]
        return {
            "file": str(self.source.file),
            "size": self.size,
            "settings": self.source.settings(),
            "samples": int(self.counts.sum()),
            "dropped": self.dropped,
            **held_out,
            "last_tokens": len(self.graphs),
            "acyclic": self.n_acyclic,
            "graphs": [
                rankings.graph_row(graph, self.vocabulary.shown, n, self.evidence(graph)) for graph, n in graphs
            ],
            **({} if self.stream is None else {"stream": self.stream}),
        }


def _fitted(
    data: SequenceDataset, graphs: Mapping[int, PriorityGraph], solution: GraphSolution
) -> tuple[ml.NextTokenAutomaton | None, str]:
    """The automaton of the data, given their Graph-SVM; or the sentence that says why there is none."""
    if solution.status is ml.Status.INFEASIBLE:
        return None, "There is no automaton, because the Graph-SVM of the data has no solution."
    try:
        return ml.NextTokenAutomaton.fit(data, graphs=graphs, priority=solution), ""
    except errors.InputError as problem:
        return None, str(problem)


def _prefix_ids(vocabulary: Vocabulary, text: str) -> IntArray:
    ids = vocabulary.encode(text, "prefix")
    if len(ids) == 0:
        raise errors.reject("prefix", "at least one token", repr(text))
    return ids


def _continued(
    ranking: Ranking, automaton: ml.NextTokenAutomaton, prefix: IntArray, n_tokens: int, seed: int
) -> dict[str, Any]:
    """What the automaton says follows a prefix, why, and how it goes on from there."""
    vocabulary, window = ranking.vocabulary, ranking.source.window
    sequence = prefix if window is None else prefix[-window:]
    probability = automaton.predict_proba(sequence)
    likely = [int(k) for k in np.argsort(-probability, kind="stable")[:_DISTRIBUTION] if probability[k] > 0.0]
    ids = automaton.sample(prefix, n_tokens, seed, window=window)
    return {
        "next": [{"token": vocabulary.shown[k], "probability": float(probability[k])} for k in likely],
        "explanation": str(automaton.explain(sequence, vocabulary.quoted)),
        "text": vocabulary.decode(ids),
        "whole": vocabulary.decode(np.concatenate([prefix, ids])),
    }


# ---- files


def _draw(ranking: Ranking, place: Path) -> None:
    """Write the picture of the shown graphs."""
    from marginlens.plotting.files import write_figure

    shown = [ranking.graphs[k] for k in ranking.shown]
    write_figure(place, ml.plotting.draw_graphs(shown, ranking.vocabulary.shown))


def _save(ranking: Ranking, place: Path, held_out: float | None) -> None:
    """Write the shown graphs edge by edge, with what made them: settings, versions, the command and the file's fingerprint."""
    from marginlens.graphs.export import to_table
    from marginlens.runtime.versions import versions

    vocabulary, file = ranking.vocabulary, ranking.source.file
    shown = [word for k in ranking.shown for word in ("--last", vocabulary.shown[k])]
    share = [] if held_out is None else ["--held-out", repr(held_out)]
    command = ["marginlens", "graph", file.name, *ranking.source.options(), *share, *shown, "--save", place.name]
    facts = {
        "command": shlex.join(command),
        "file": file.name,
        **(
            {"sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
            if ranking.stream is None
            else {"stream": ranking.stream["fingerprint"]}
        ),
        "settings": ranking.source.settings(),
        "versions": {name: version for name, version in versions().items() if name in _GRAPH_PACKAGES},
        "samples": int(ranking.counts.sum()),
        "dropped": ranking.dropped,
        "vocabulary": list(vocabulary.names),
        "shown": list(vocabulary.shown),
    }

    def line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    tables = [{**to_table(ranking.graphs[k]), "samples": int(ranking.counts[k])} for k in ranking.shown]
    graphs = ",\n".join(
        "{" + ",\n ".join(f'"{name}":{line(part)}' for name, part in table.items()) + "}" for table in tables
    )
    entries = [f'"{name}":{line(value)}' for name, value in facts.items()]
    text = (
        "{\n" + ",\n".join([*entries, f'"graphs":[\n{graphs}]']) + "\n}\n"
    )  # one line for each entry and part of a graph
    places.write_whole(place, text.encode(), "save")
