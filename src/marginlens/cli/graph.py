"""`marginlens graph`: the priorities that a text or a list of sequences puts on tokens, and how they continue a prefix."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import marginlens as ml
from marginlens.cli.options import ENCODINGS, AsJson, Quiet, refuse_options, words_of
from marginlens.cli.output import Output
from marginlens.errors import InputError, rename_arguments, whole_number

if TYPE_CHECKING:
    from marginlens.cli.rankings import Ranking

WINDOW = 16  # tokens of a window, by default
N_CONTINUED = 40  # tokens that follow a prefix, by default
MAX_WORDS = 300  # words that have an id of their own, by default
N_LIKELY = 10  # next tokens that JSON lists
LISTED = (".json", ".npz")  # files that list sequences
REPETITION = (
    "It adds only tokens that it reads: no new one ever comes, and one that has left the window never returns, so that every "
    "continuation ends in repetition."
)


@rename_arguments(path="file", data="file", max_vocabulary="vocabulary", unit="words", unrealizable="drop")
def graph(
    ctx: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Text of any length, also packed as .gz, .bz2 or .xz, - for stdin; or a .json or .npz file with sequences, labels and "
            "optionally vocabulary and E.",
        ),
    ],
    window: Annotated[int | None, typer.Option(help=f"Tokens of each window of a text, {WINDOW} by default.")] = None,
    words: Annotated[bool, typer.Option("--words", help="Cut a text into words, not into characters.")] = False,
    vocabulary: Annotated[
        int | None, typer.Option(help=f"Words with an id of their own, {MAX_WORDS} by default.")
    ] = None,
    d_model: Annotated[
        int | None, typer.Option(help="Width of random embeddings of a text; one-hot by default.")
    ] = None,
    drop: Annotated[bool, typer.Option("--drop", help="Leave out listed sequences that lack their label.")] = False,
    last: Annotated[list[str] | None, typer.Option(help="Last token to show; repeat it for several.")] = None,
    held_out: Annotated[
        float | None, typer.Option(help="Share to predict after learning the rest, such as 0.1.")
    ] = None,
    prefix: Annotated[str | None, typer.Option(help="Text that the automaton continues.")] = None,
    tokens: Annotated[int | None, typer.Option(help=f"Tokens to continue it by, {N_CONTINUED} by default.")] = None,
    encoding: Annotated[
        str | None,
        typer.Option(help="Text encoding, such as latin-1; UTF-8 by default.", autocompletion=words_of(*ENCODINGS)),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of embeddings, samples and continuation.")] = 0,
    margin: Annotated[bool, typer.Option("--margin", help="Solve the Graph-SVM: how large W must be.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Picture (.png, .svg, .pdf) of the shown graphs.")] = None,
    save: Annotated[Path | None, typer.Option(help="File (.json) of the edges of the shown graphs.")] = None,
    sequences: Annotated[
        Path | None, typer.Option(help="File (.npz, .json) of the sequences, for solve and train.")
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer (.json) that cuts the text.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Rank tokens by what the data say follows.

    These are priority graphs by last token, their separability, and the automaton they make. The Graph-SVM is solved if something needs
    it: --margin, --held-out, --prefix, or embeddings other than one-hot. Windows of a text that do not hold the token which follows
    them are left out and counted: attention can only output what it reads.

    \b
    Examples:
      marginlens graph story.txt --window 16
      marginlens graph story.txt --words --vocabulary 300 --last the --plot the.svg
      marginlens graph sequences.json --drop --held-out 0.1
      marginlens graph story.txt --prefix "Once upon" --tokens 80 --seed 1
      marginlens graph - --encoding latin-1 --json < märchen.txt
      marginlens graph corpus.txt.gz --tokenizer tokenizer.json --held-out 0.1
    """
    from marginlens.runtime.files import check_place

    output = Output(as_json, quiet)
    whole_number(seed, "seed", at_least=0)
    if tokens is not None and prefix is None:
        raise InputError("tokens", "left out unless a prefix is to be continued", tokens)
    n_tokens = whole_number(N_CONTINUED if tokens is None else tokens, "tokens", at_least=0)
    n_window = whole_number(WINDOW if window is None else window, "window", at_least=1)
    n_words = whole_number(MAX_WORDS if vocabulary is None else vocabulary, "vocabulary", at_least=1)
    if str(file) == "-":
        refuse_options("for a text from stdin, which no fingerprint can name", save=save)
    if file.suffix.lower() in LISTED:
        of_text: dict[str, Any] = {"window": window, "words": words, "vocabulary": vocabulary, "d_model": d_model}
        of_text |= {"encoding": encoding, "tokenizer": tokenizer}
        refuse_options(f"for a {file.suffix.lower()} file, which lists its sequences", **of_text)
    else:
        refuse_options("for a text, whose windows are dropped and counted anyway", drop=drop)
        refuse_options("unless words are the tokens", vocabulary=None if words else vocabulary)
        refuse_options("if a tokenizer cuts the text", words=words and tokenizer is not None)
    for place, name, suffixes in (
        (plot, "plot", (".png", ".svg", ".pdf")),
        (save, "save", (".json",)),
        (sequences, "sequences", (".npz", ".json")),
    ):
        if place is not None:
            check_place(place, name, suffixes)
    from marginlens.cli.rankings import rank_list, rank_text

    with output.stage("Ranking tokens"):
        if file.suffix.lower() in LISTED:
            ranking = rank_list(file, last, held_out, drop=drop, seed=seed)
        else:
            in_memory = margin or any(option is not None for option in (held_out, prefix, d_model, sequences))
            size = (n_window, n_words if words else None, d_model, seed)
            ranking = rank_text(file, last, held_out, *size, encoding, tokenizer, in_memory=in_memory)
        ids = None if prefix is None else ranking.vocabulary.encode(prefix, "prefix")
        if ids is not None and len(ids) == 0:
            raise InputError("prefix", "at least one token", repr(prefix))
        row = ranking.to_dict()

    def lines() -> Iterator[str]:
        yield from ranking.lines(row)
        if plot is not None:
            ranking.draw(plot)
        if save is not None:
            ranking.save(save, typed_command(ctx))
        if sequences is not None and ranking.named is not None:
            ml.data.write_sequences(sequences, ranking.named.data, ranking.vocabulary.names)
        yield from _predict(output, ranking, row, ids, n_tokens, seed, margin or held_out is not None)
        if held_out is None:
            yield "How well the automaton of these rankings predicts: --held-out 0.1 measures it on sequences that are left out."

    output.show(row, lines(), [plot, save, sequences])


def _predict(
    output: Output, ranking: Ranking, row: dict[str, Any], ids: Any, n_tokens: int, seed: int, solved: bool
) -> Iterator[str]:
    """Whether one W ranks all tokens so, how well the automaton predicts what is held out, and how it continues a prefix.

    Args:
        row: the numbers of the answer, to which this adds.
        ids: (n_prefix,) the prefix, or None.
        solved: whether the Graph-SVM is asked for.
    """
    import numpy as np

    named, solution = ranking.named, None
    is_embedded = named is not None and not np.array_equal(named.data.E, np.eye(*named.data.E.shape))
    if named is not None and (solved or ids is not None or is_embedded):
        with output.stage("Solving Graph-SVM") as bar:
            solution = ml.graph_svm(named.data.E, ranking.learned, progress=bar)
    row["separability"], sentences = ranking.separability(solution)
    yield from sentences
    if named is None or solution is None or (ids is None and ranking.split is None):
        return
    automaton, reason = None, "There is no automaton, because the Graph-SVM of the data has no solution."
    if solution.status is not ml.Status.INFEASIBLE:
        try:
            with output.stage("Making the automaton"):
                automaton = ml.NextTokenAutomaton.fit(named.data, graphs=ranking.learned, priority=solution)
            reason = ""
        except InputError as problem:
            reason = str(problem)
    if reason:
        yield reason
    if ranking.split is not None:
        row["held_out"] |= {"reason": reason, "scores": []}
        if automaton is not None:
            with output.stage("Predicting"):
                scores = ml.nexttoken.score_held_out(ranking.split, {"automaton": automaton})
            row["held_out"] |= scores.to_dict()
            yield str(scores)
    if ids is None:
        return
    row["continuation"] = {"prefix": ranking.vocabulary.decode(ids), "reason": reason, "next": []}
    if automaton is not None:
        with output.stage("Continuing"):
            row["continuation"] |= _continued(ranking, automaton, ids, n_tokens, seed)
        yield row["continuation"]["explanation"]
        yield "The automaton continues:"
        yield row["continuation"]["whole"]
        yield REPETITION


def _continued(
    ranking: Ranking, automaton: ml.NextTokenAutomaton, prefix: Any, n_tokens: int, seed: int
) -> dict[str, Any]:
    """The tokens that may follow a prefix, why the first of them wins, and a sampled continuation."""
    import numpy as np

    vocabulary, window = ranking.vocabulary, ranking.window
    sequence = prefix if window is None else prefix[-window:]
    probability = automaton.predict_proba(sequence, slow="limit")  # `explain` says if it is slow
    likely = [int(k) for k in np.argsort(-probability, kind="stable")[:N_LIKELY] if probability[k] > 0.0]
    ids = automaton.sample(prefix, n_tokens, seed, window=window)
    return {
        "next": [{"token": vocabulary.shown[k], "probability": float(probability[k])} for k in likely],
        "explanation": str(automaton.explain(sequence, vocabulary.quoted)),
        "text": vocabulary.decode(ids),
        "whole": vocabulary.decode(np.concatenate([prefix, ids])),
    }


def typed_command(ctx: typer.Context) -> str:
    """The command that was typed, without --json, --quiet, --save's own folder and folders of this machine."""
    import shlex

    words = ["marginlens", str(ctx.info_name)]
    for parameter in ctx.command.params:
        value = ctx.params.get(str(parameter.name))
        if parameter.name in ("as_json", "quiet") or value in (None, False, parameter.default, ()):
            continue
        option = [parameter.opts[0]] if parameter.param_type_name == "option" else []
        for one in value if isinstance(value, list | tuple) else [value]:
            words += option if one is True else [*option, one.name if isinstance(one, Path) else str(one)]
    return shlex.join(words)
