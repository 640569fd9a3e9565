"""`marginlens graph`: the priorities that a text or a list of sequences puts on tokens, and how they continue a prefix."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from marginlens.commands import answers
from marginlens.commands.endings import one_sentence
from marginlens.commands.options import AsJson
from marginlens.errors import reject, whole_number

WINDOW = 16  # tokens of a window unless said otherwise
_CONTINUED = 40  # tokens that follow a prefix unless said otherwise
_WORDS = 300  # words that have an id of their own unless said otherwise

SequenceFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="A text in UTF-8, or a .json file with sequences, labels and optionally vocabulary and E.",
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
        bool, typer.Option("--drop", help="Leave out sequences of a .json file that lack their label.")
    ] = False,
    last: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOKEN", help="Show this last token; repeat it for several.", show_default="most frequent"
        ),
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Let the automaton of the data continue this text.")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="How many tokens to continue it by.", show_default=str(_CONTINUED)),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of random embeddings and of the continuation.")] = 0,
    as_json: AsJson = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="OUT.png", help="Draw the graphs of the shown last tokens there.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="OUT.json", help="Keep the edges of the shown last tokens there.")
    ] = None,
) -> None:
    """Rank tokens by what the data say follows: priority graphs by last token, their separability, and the automaton they make.

    Windows of a text that do not hold the token which follows them are left out and counted: attention can only output what it reads.
    """
    with one_sentence():
        from marginlens.commands import graph_answers as work
        from marginlens.report.terminal import Bars, console

        whole_number(seed, "seed", at_least=0)
        if tokens is not None and prefix is None:
            raise reject("tokens", "left out unless a prefix is to be continued", tokens)
        source = _source(file, (window, words, vocabulary, d_model, drop, seed))
        for place, argument, ends in ((plot, "plot", (".png", ".svg")), (save, "save", (".json",))):
            work.check_output(place, argument, ends)
        with Bars(console(stderr=True)) as bars:
            bar = bars.bar("Ranking tokens")
            bar.expect(4)
            found = source.read()
            n_tokens = _CONTINUED if tokens is None else tokens
            bar.advance()
            answer = work.Answer.of(file, source, found, last)
            wanted = None if prefix is None else work.Prefix.of(found, prefix, n_tokens, seed, source.window)
            bar.advance()
            told = answer.told()
            bar.advance()
            if wanted is not None:
                told["continuation"] = wanted.continued(found)
            bar.advance()
        if plot is not None:
            work.draw(answer, plot)
        if save is not None:
            work.save(answer, save)
        if as_json:
            typer.echo(answers.as_json(told))
        else:
            _show(console(), told, [str(place) for place in (plot, save) if place is not None])


def _source(file: Path, options: tuple[int | None, bool, int | None, int | None, bool, int]) -> Any:
    """How to read the file, with the options that its kind takes."""
    from marginlens.commands.graph_sources import JsonSource, TextSource
    from marginlens.data.vocabulary import Characters, Words

    window, words, vocabulary, d_model, drop, seed = options
    if file.suffix.lower() == ".json":
        given = {"window": window, "words": words or None, "vocabulary": vocabulary, "d_model": d_model}
        for name, value in given.items():
            if value is not None:
                raise reject(name, "left out for a .json file, which lists its sequences", value)
        return JsonSource(file, drop)
    if drop:
        raise reject("drop", "left out for a text, whose windows are dropped and counted anyway", "it")
    if vocabulary is not None and not words:
        raise reject("vocabulary", "left out unless words are the tokens", vocabulary)
    if vocabulary is not None:
        whole_number(vocabulary, "vocabulary", at_least=1)
    unit = Words(max_vocabulary=_WORDS if vocabulary is None else vocabulary) if words else Characters()
    return TextSource(file, WINDOW if window is None else window, unit, d_model, seed)


# ---- the terminal


def _show(out: Console, told: dict[str, Any], written: list[str]) -> None:
    from marginlens.report.terminal import rows_table

    out.print(f"{told['file']}: {told['size']}", markup=False)
    out.print(_of_all(told), markup=False)
    rows = [{name: _cell(value) for name, value in row.items() if name != "priority"} for row in told["graphs"]]
    out.print(rows_table("Priorities by last token", rows))
    for row in told["graphs"]:
        out.print(f"After {row['last']}, level by level: {row['priority']}", markup=False)
    separable = told["separability"]
    out.print(f"Graph-SVM of all last tokens: {separable['meaning']} {separable['proof']}", markup=False)
    if "continuation" in told:
        _show_continuation(out, told["continuation"])
    for place in written:
        out.print(f"Written to {place}", markup=False)


def _of_all(told: dict[str, Any]) -> str:
    dropped = told["dropped"]
    share = f" ({dropped / (dropped + told['samples']):.0%})" if dropped else ""
    left_out = f"{dropped} sequences{share} lack the token that follows them and are left out. " if dropped else ""
    return f"{left_out}{told['last_tokens']} different last tokens, {told['acyclic']} of them without ties."


def _cell(value: Any) -> Any:
    return ("yes" if value else "no") if isinstance(value, bool) else value


def _show_continuation(out: Console, told: dict[str, Any]) -> None:
    if told["reason"]:
        out.print(told["reason"], markup=False)
        return
    out.print(told["explanation"], markup=False)
    out.print("The automaton continues:", style="bold")
    out.print(told["whole"], markup=False)
