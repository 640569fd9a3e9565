"""`marginlens graph`: the priorities that a text or a list of sequences puts on tokens, and how they continue a prefix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from marginlens.cli import _rows
from marginlens.cli._exit import one_sentence
from marginlens.cli._options import AsJson
from marginlens.data.files import write_sequences
from marginlens.data.vocabulary import quoted
from marginlens.errors import reject, whole_number
from marginlens.runtime.files import check_place

WINDOW = 16  # tokens of a window unless said otherwise
_CONTINUED = 40  # tokens that follow a prefix unless said otherwise
_WORDS = 300  # words that have an id of their own unless said otherwise
_RANKING_LINES = 12  # components above others that the terminal lists for a last token, and
_LOWER = 12  # components below each; JSON has all
_MEMBERS = 40  # tokens of a component that the terminal lists

SequenceFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="A text in UTF-8, or a .json or .npz file with sequences, labels and optionally vocabulary and E.",
        show_default=False,
    ),
]


def graph(
    file: SequenceFile,
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
    seed: Annotated[
        int, typer.Option(metavar="N", help="Of random embeddings, of sequences held out and of the continuation.")
    ] = 0,
    as_json: AsJson = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="OUT.png", help="Draw the graphs of the shown last tokens there.")
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
) -> None:
    """Rank tokens by what the data say follows: priority graphs by last token, their separability, and the automaton they make.

    Windows of a text that do not hold the token which follows them are left out and counted: attention can only output what it reads.
    """
    with one_sentence():
        from marginlens.cli import graph_answers as work
        from marginlens.cli._terminal import console

        whole_number(seed, "seed", at_least=0)
        if tokens is not None and prefix is None:
            raise reject("tokens", "left out unless a prefix is to be continued", tokens)
        source = _source(file, (window, words, vocabulary, d_model, drop, seed))
        for place, argument, ends in (
            (plot, "plot", (".png", ".svg")),
            (save, "save", (".json",)),
            (sequences, "sequences", (".npz", ".json")),
        ):
            if place is not None:
                check_place(place, argument, ends)
        out = None if as_json else console()
        with _stage("Ranking tokens"):
            found = source.read() if held_out is None else source.split(held_out)
            answer = work.Answer.of(file, source, found, last)
            n_tokens = _CONTINUED if tokens is None else tokens
            wanted = None if prefix is None else work.Prefix.of(answer.found, prefix, n_tokens, seed, source.window)
            row = answer.rankings()
        if out is not None:
            _show_rankings(out, row)
        if plot is not None:
            work.draw(answer, plot)
        if save is not None:
            work.save(answer, save, held_out)
        if sequences is not None:
            write_sequences(sequences, answer.found.data, answer.found.vocabulary.names)
        solution = _solved(answer.found.data.E, answer.graphs)
        row["separability"] = work.separability(answer.found, answer.graphs, solution)
        if out is not None:
            _show_separability(out, row["separability"])
        if prefix is not None or held_out is not None:
            with _stage("Making the automaton"):
                automaton = work.fitted(answer, solution)
            if out is not None and isinstance(automaton, str):
                out.print(automaton, markup=False)
            if answer.split is not None:
                row["prediction"] = {"reason": automaton if isinstance(automaton, str) else "", "scores": []}
                if not isinstance(automaton, str):
                    with _stage("Predicting"):
                        row["prediction"]["scores"] = work.prediction_rows(answer.split, automaton)
                    if out is not None:
                        _show_prediction(out, row["prediction"]["scores"])
            if wanted is not None:
                with _stage("Continuing"):
                    row["continuation"] = wanted.continued(answer.found, automaton)
                if out is not None:
                    _show_continuation(out, row["continuation"])
        if out is None:
            typer.echo(_rows.as_json(row))
            return
        if held_out is None:
            out.print(
                "How well the automaton of these rankings predicts: --held-out 0.1 measures it on sequences that are left out.",
                markup=False,
            )
        for place in (plot, save, sequences):
            if place is not None:
                out.print(f"Written to {place}", markup=False)


@contextmanager
def _stage(title: str) -> Iterator[Any]:
    """A bar on stderr while one part of the work is done; it is gone before results are printed."""
    from marginlens.cli._terminal import Bars, console

    with Bars(console(stderr=True)) as bars:
        yield bars.bar(title)


def _solved(E: Any, graphs: Any) -> Any:
    """The Graph-SVM of all last tokens, with a bar that counts them."""
    from marginlens.svm import graph_svm

    with _stage("Solving Graph-SVM") as bar:
        return graph_svm(E, graphs, progress=bar)


def _source(file: Path, options: tuple[int | None, bool, int | None, int | None, bool, int]) -> Any:
    """How to read the file, with the options that its kind takes."""
    from marginlens.cli.graph_sources import ListSource, TextSource
    from marginlens.data.vocabulary import Characters, Words

    window, words, vocabulary, d_model, drop, seed = options
    if file.suffix.lower() in (".json", ".npz"):
        given = {"window": window, "words": words or None, "vocabulary": vocabulary, "d_model": d_model}
        for name, value in given.items():
            if value is not None:
                raise reject(name, f"left out for a {file.suffix.lower()} file, which lists its sequences", value)
        return ListSource(file, drop, seed)
    if drop:
        raise reject("drop", "left out for a text, whose windows are dropped and counted anyway", "it")
    if vocabulary is not None and not words:
        raise reject("vocabulary", "left out unless words are the tokens", vocabulary)
    if vocabulary is not None:
        whole_number(vocabulary, "vocabulary", at_least=1)
    unit = Words(max_vocabulary=_WORDS if vocabulary is None else vocabulary) if words else Characters()
    return TextSource(file, WINDOW if window is None else window, unit, d_model, seed)


# ---- the terminal


def _show_rankings(out: Console, row: dict[str, Any]) -> None:
    from marginlens.cli._terminal import rows_table

    out.print(f"{row['file']}: {row['size']}", markup=False)
    out.print(_of_all(row), markup=False)
    cells = [
        {name: quoted(value) if name == "last" else _cell(value) for name, value in one.items() if name != "order"}
        for one in row["graphs"]
    ]
    out.print(rows_table("Priorities by last token", cells))
    for one in row["graphs"]:
        _show_order(out, one)


def _show_order(out: Console, row: dict[str, Any]) -> None:
    """The components that sequences rank above others, with how many say so, and nothing that they do not say."""
    order, last = row["order"], quoted(row["last"])
    compared = order["compared"]
    total = sum(compared.values())
    if not total:
        out.print(
            f"After {last} all {row['tokens']} tokens are equal."
            if row["tokens"] > 1
            else f"After {last} there is one token.",
            markup=False,
        )
        return
    rest = f", {compared['not']} not at all" if compared["not"] else ""
    chains = f", {compared['through_chains']} through chains" if compared["through_chains"] else ""
    out.print(
        f"After {last}, {compared['directly']} of {total} pairs of components are ranked by sequences{chains}{rest}. "
        "Above > below (sequences that say so):",
        markup=False,
    )
    several = [part for part, members in enumerate(order["equal"]) if len(members) > 1]
    names = {part: quoted(members[0]) for part, members in enumerate(order["equal"])}
    for number, part in enumerate(several, 1):
        members = order["equal"][part]
        names[part] = f"[{number}]"
        more = f" … {len(members)} in all" if len(members) > _MEMBERS else ""
        _indented(out, f"[{number}] = {len(members)} equal tokens: {' '.join(map(quoted, members[:_MEMBERS]))}{more}")
    below: dict[int, list[tuple[int, int]]] = {}
    for pair in order["above"]:
        below.setdefault(pair["component"], []).append((pair["sequences"], pair["over"]))
    ranked = sorted(below.items(), key=lambda item: (-sum(times for times, _ in item[1]), item[0]))
    for upper, lower in ranked[:_RANKING_LINES]:
        lower.sort(key=lambda pair: (-pair[0], pair[1]))
        listed = "  ".join(f"{names[part]} ({times})" for times, part in lower[:_LOWER])
        more = f"  and {len(lower) - _LOWER} more" if len(lower) > _LOWER else ""
        _indented(out, f"{names[upper]} > {listed}{more}")
    if len(ranked) > _RANKING_LINES:
        _indented(out, f"and {len(ranked) - _RANKING_LINES} more components above others; --json lists them all.")


def _indented(out: Console, text: str) -> None:
    out.print(Padding(Text(text), (0, 0, 0, 2)))


def _show_separability(out: Console, row: dict[str, Any]) -> None:
    out.print(f"Graph-SVM of all last tokens: {row['meaning']} {row['proof']}", markup=False)
    if "conflict" in row:
        out.print(row["conflict"]["sentence"], markup=False)
        counts = [one["sequences"] for one in row["conflict"]["rankings"]]
        said = f"{counts[0]}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
        out.print(
            f"Sequences that say so: {said} for each ranking. Linearly independent embeddings, such as one-hot ones, separate "
            "every order; --json lists the rows in conflict.",
            markup=False,
        )


def _show_prediction(out: Console, rows: list[dict[str, Any]]) -> None:
    from marginlens.cli._terminal import rows_table

    cells = [
        {
            "rule": one["rule"],
            "sequences": one["samples"],
            "accuracy": f"{one['accuracy']:.3f}",
            "log-loss": f"{one['finite_log_loss']:.3f}",
            "impossible": f"{one['impossible']:.2%}",
            **({"unknown": f"{one['unknown']:.2%}"} if any(other["unknown"] for other in rows) else {}),
        }
        for one in rows
    ]
    out.print(rows_table("Prediction of the sequences held out", cells))
    out.print(
        "impossible: the token that follows had probability zero; the log-loss is the mean over the others. Every rule chooses among "
        "the tokens of the sequence.",
        markup=False,
    )


def _of_all(row: dict[str, Any]) -> str:
    dropped = row["dropped"]
    share = f" ({dropped / (dropped + row['samples']):.0%})" if dropped else ""
    left_out = f"{dropped} sequences{share} lack the token that follows them and are left out. " if dropped else ""
    held_out = f"{row['held_out']} others are held out. " if "held_out" in row else ""
    return f"{left_out}{held_out}{row['last_tokens']} different last tokens, {row['acyclic']} of them without ties."


def _cell(value: Any) -> Any:
    return ("yes" if value else "no") if isinstance(value, bool) else value


def _show_continuation(out: Console, row: dict[str, Any]) -> None:
    if row["reason"]:
        return
    out.print(row["explanation"], markup=False)
    out.print("The automaton continues:", style="bold")
    out.print(row["whole"], markup=False)
