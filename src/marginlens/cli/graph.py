"""`marginlens graph`: the priorities that a text or a list of sequences puts on tokens, and how they continue a prefix."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import marginlens as ml
from marginlens.cli._commands import wants_json
from marginlens.cli._deferred import errors, np, rankings, terminal
from marginlens.cli._deferred import files as places
from marginlens.cli._deferred import rows as _rows
from marginlens.cli._exit import Answer, command
from marginlens.cli._options import ENCODINGS, argument, flag, option, refuse_options

if TYPE_CHECKING:
    from marginlens.cli._rankings import Ranking

WINDOW = 16  # tokens of a window unless said otherwise
STDIN = "-"
_CONTINUED = 40  # tokens that follow a prefix unless said otherwise
_WORDS = 300  # words that have an id of their own unless said otherwise
_REPETITION = (
    "It adds only tokens that it reads: no new one ever comes, and one that has left the window never returns, so that every "
    "continuation ends in repetition."
)
_CALLED: dict[str, Any] = {  # what the command calls arguments of the library
    **dict.fromkeys(("path", "data"), "{file}"),
    "max_vocabulary": "{vocabulary}",
    "unit": "{words}",
    "unrealizable": "{drop}",
}

SequenceFile = Annotated[
    Path,
    argument(
        "FILE",
        "A text of any length, also packed as .gz, .bz2 or .xz, - for one from stdin, or a .json or .npz file with sequences, labels "
        "and optionally vocabulary and E.",
    ),
]


@command(**_CALLED)
def graph(
    file: SequenceFile,
    window: Annotated[int | None, option("N", "Tokens of each window of a text.", str(WINDOW))] = None,
    words: Annotated[bool, flag("--words", "Words are the tokens of a text, not characters.")] = False,
    vocabulary: Annotated[
        int | None, option("N", "Words that are told apart; rarer ones are one unknown token.", f"{_WORDS}")
    ] = None,
    d_model: Annotated[
        int | None, option("D", "Width of random embeddings for the tokens of a text.", "one-hot")
    ] = None,
    drop: Annotated[bool, flag("--drop", "Leave out sequences of a .json or .npz file that lack their label.")] = False,
    last: Annotated[
        list[str] | None, option("TOKEN", "Show this last token; repeat it for several.", "most frequent")
    ] = None,
    held_out: Annotated[
        float | None,
        option(
            "SHARE",
            "Learn from the rest alone, and say how well this share is predicted: the end of a text, or sequences of a "
            "file that lists them, drawn at random. 0.1 is a good choice.",
            "none",
        ),
    ] = None,
    prefix: Annotated[str | None, option("TEXT", "Let the automaton of the data continue this text.")] = None,
    tokens: Annotated[int | None, option("N", "How many tokens to continue it by.", str(_CONTINUED))] = None,
    encoding: Annotated[str | None, option("NAME", "Text encoding, such as latin-1.", "UTF-8", words=ENCODINGS)] = None,
    seed: Annotated[int, option("N", "Of random embeddings, of sequences held out and of the continuation.")] = 0,
    margin: Annotated[
        bool,
        flag(
            "--margin", "Solve the Graph-SVM of all last tokens also where nothing else needs it: how large W must be."
        ),
    ] = False,
    plot: Annotated[
        Path | None, option("OUT.png", "Draw the graphs of the shown last tokens there, as .png, .svg or .pdf.")
    ] = None,
    save: Annotated[Path | None, option("OUT.json", "Keep the edges of the shown last tokens there.")] = None,
    sequences: Annotated[
        Path | None, option("OUT.npz", "Write the sequences there, .npz or .json, for `marginlens solve` and `train`.")
    ] = None,
    tokenizer: Annotated[
        Path | None, option("FILE.json", "A tokenizer of the package tokenizers that cuts the text.", "none")
    ] = None,
) -> Answer:
    """Rank tokens by what the data say follows: priority graphs by last token, their separability, and the automaton they make.

    The Graph-SVM is solved where something needs it: --margin, --held-out, --prefix, and embeddings other than one-hot.

    Windows of a text that do not hold the token which follows them are left out and counted: attention can only output what it reads.

    Examples:
        marginlens graph story.txt --window 16
        marginlens graph story.txt --words --vocabulary 300 --last the --plot the.svg
        marginlens graph sequences.json --drop --held-out 0.1
        marginlens graph story.txt --prefix "Once upon" --tokens 80 --seed 1
        marginlens graph - --encoding latin-1 --json < märchen.txt
        marginlens graph corpus.txt.gz --tokenizer tokenizer.json --held-out 0.1
    """
    from marginlens.cli._sources import ListSource, TextSource

    errors.whole_number(seed, "seed", at_least=0)
    if tokens is not None and prefix is None:
        raise errors.reject("tokens", "left out unless a prefix is to be continued", tokens)
    if str(file) == STDIN:
        refuse_options("for a text from stdin, which no fingerprint can name", save=save)
    suffix = file.suffix.lower()
    source: TextSource | ListSource
    if suffix in (".json", ".npz"):
        refuse_options(
            f"for a {suffix} file, which lists its sequences",
            window=window,
            words=words,
            vocabulary=vocabulary,
            d_model=d_model,
            encoding=encoding,
            tokenizer=tokenizer,
        )
        source = ListSource(file, drop, seed)
    else:
        refuse_options("for a text, whose windows are dropped and counted anyway", drop=drop)
        refuse_options("unless words are the tokens", vocabulary=None if words else vocabulary)
        refuse_options("if a tokenizer cuts the text", words=words and tokenizer is not None)
        most = errors.whole_number(_WORDS if vocabulary is None else vocabulary, "vocabulary", at_least=1)
        form = (WINDOW if window is None else window, most if words else None, d_model, seed, encoding, tokenizer)
        source = TextSource(file, *form)
    checked = (
        (plot, "plot", (".png", ".svg", ".pdf")),
        (save, "save", (".json",)),
        (sequences, "sequences", (".npz", ".json")),
    )
    for path, name, suffixes in checked:
        if path is not None:
            places.check_place(path, name, suffixes)
    n_tokens = errors.whole_number(_CONTINUED if tokens is None else tokens, "tokens", at_least=0)
    with terminal.stage("Ranking tokens"):
        if isinstance(source, TextSource):
            in_memory = margin or any(option is not None for option in (held_out, prefix, d_model, sequences))
            ranking = rankings.Ranking.of_text(source, held_out, last, in_memory)
        else:
            ranking = rankings.Ranking.of_list(source, held_out, last)
        ids = None if prefix is None else rankings.prefix_ids(ranking.vocabulary, prefix)
        row = ranking.to_dict()

    def text_and_files() -> Iterator[Any]:
        yield from rankings.ranking_text(row)
        if plot is not None:
            rankings.draw(ranking, plot)
        if save is not None:
            rankings.save(ranking, save)
        if sequences is not None and ranking.named is not None:
            ml.data.write_sequences(sequences, ranking.named.data, ranking.vocabulary.names)
        yield from _predicted(ranking, row, prefix, ids, n_tokens, seed, margin or held_out is not None)
        if held_out is None:
            yield "How well the automaton of these rankings predicts: --held-out 0.1 measures it on sequences that are left out."

    text = list(text_and_files()) if wants_json() else text_and_files()  # which computes the last of the numbers
    return Answer(row, text, [plot, save, sequences])


def _predicted(
    ranking: Ranking, row: dict[str, Any], prefix: str | None, ids: Any, n_tokens: int, seed: int, solved: bool
) -> Iterator[Any]:
    """Whether one W ranks all tokens so, how well the automaton predicts what is held out, and how it continues a prefix.

    Args:
        row: what is printed as JSON, to which this adds. solved: whether the Graph-SVM is asked for.
    """
    named, solution = ranking.named, None
    if named is not None and (
        solved or ids is not None or not np.array_equal(named.data.E, np.eye(*named.data.E.shape))
    ):
        with terminal.stage("Solving Graph-SVM") as bar:
            solution = ml.graph_svm(named.data.E, ranking.learned, progress=bar)
    row["separability"] = _rows.separability(named, ranking.learned, solution)
    yield from rankings.separability_text(row["separability"])
    if named is None or solution is None or (ids is None and ranking.split is None):
        return
    with terminal.stage("Making the automaton"):
        automaton, reason = rankings.fitted(named.data, ranking.learned, solution)
    if reason:
        yield reason
    if ranking.split is not None:
        row["held_out"] |= {"reason": reason, "scores": []}
        if automaton is not None:
            with terminal.stage("Predicting"):
                scores = ml.nexttoken.score_held_out(ranking.split, {"automaton": automaton})
            row["held_out"] |= scores.to_dict()
            yield from rankings.prediction_text(row["held_out"])
    if ids is not None:
        continuation: dict[str, Any] = {
            "prefix": prefix,
            "reason": reason,
            "next": [],
            "explanation": "",
            "text": "",
            "whole": "",
        }
        row["continuation"] = continuation
        if automaton is not None:
            with terminal.stage("Continuing"):
                continuation |= rankings.continued(ranking, automaton, ids, n_tokens, seed)
            yield continuation["explanation"]
            yield terminal.bold("The automaton continues:")
            yield continuation["whole"]
            yield _REPETITION
