"""`marginlens graph`: the priorities of tokens in a text or a list of sequences, and the continuation of a prefix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import marginlens as ml
from marginlens.cli.options import ENCODINGS, AsJson, Quiet, refuse_options, words_of
from marginlens.cli.output import Output
from marginlens.errors import InputError, whole_number
from marginlens.words import text

if TYPE_CHECKING:
    from marginlens.cli.rankings import Ranking
    from marginlens.typing import IntArray

# Tokens of a window, by default.
WINDOW = 16
# Tokens that follow a prefix, by default.
N_CONTINUED = 40
# Words that have an id of their own, by default.
MAX_WORDS = 300
# Next tokens that JSON lists.
N_LIKELY = 10
# Suffixes of files that list sequences.
LISTED = (".json", ".npz")

# ---- the options

TextOrList = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="Text of any length, plain or compressed (.gz, .bz2, .xz), - for stdin; or a .json or .npz file with sequences, labels and "
        "optionally vocabulary and E.",
    ),
]
Window = Annotated[int | None, typer.Option(help=f"Number of tokens in each window of a text, {WINDOW} by default.")]
AsWords = Annotated[bool, typer.Option("--words", help="Cut a text into words instead of characters.")]
VocabularySize = Annotated[
    int | None, typer.Option(help=f"Number of words with their own ids, {MAX_WORDS} by default.")
]
Width = Annotated[int | None, typer.Option(help="Width of random embeddings of a text; one-hot by default.")]
DropListed = Annotated[bool, typer.Option("--drop", help="Leave out listed sequences that lack their label.")]
LastTokens = Annotated[list[str] | None, typer.Option(help="Last token to show; repeat it for several.")]
HeldOut = Annotated[float | None, typer.Option(help="Share to predict after learning the rest, such as 0.1.")]
Prefix = Annotated[str | None, typer.Option(help="Text that the automaton continues.")]
Continued = Annotated[int | None, typer.Option(help=f"Number of tokens of the continuation, {N_CONTINUED} by default.")]
Encoding = Annotated[
    str | None,
    typer.Option(help="Text encoding, such as latin-1; UTF-8 by default.", autocompletion=words_of(*ENCODINGS)),
]
GraphSeed = Annotated[int, typer.Option(help="Seed for embeddings, samples and the continuation.")]
Margin = Annotated[bool, typer.Option("--margin", help="Solve the Graph-SVM: how large W must be.")]
GraphPlot = Annotated[Path | None, typer.Option(help="Picture (.png, .svg, .pdf) of the shown graphs.")]
EdgesFile = Annotated[Path | None, typer.Option(help="File (.json) of the edges of the shown graphs.")]
SequencesFile = Annotated[Path | None, typer.Option(help="File (.npz, .json) of the sequences, for predict and train.")]
TokenizerFile = Annotated[Path | None, typer.Option(help="Tokenizer (.json) that cuts the text.")]


def graph(
    ctx: typer.Context,
    file: TextOrList,
    window: Window = None,
    words: AsWords = False,
    vocabulary: VocabularySize = None,
    d_model: Width = None,
    drop: DropListed = False,
    last: LastTokens = None,
    held_out: HeldOut = None,
    prefix: Prefix = None,
    tokens: Continued = None,
    encoding: Encoding = None,
    seed: GraphSeed = 0,
    margin: Margin = False,
    plot: GraphPlot = None,
    save: EdgesFile = None,
    sequences: SequencesFile = None,
    tokenizer: TokenizerFile = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Rank tokens by the data's next tokens.

    Print the priority graph after each last token, whether one W separates all of them, and the automaton. The Graph-SVM is
    solved only for --margin, --held-out, --prefix, or embeddings that are not one-hot. Windows of a text that do not contain
    their next token are left out and counted: attention can only output tokens that it reads.

    \b
    Examples:
      marginlens graph story.txt --window 16
      marginlens graph story.txt --words --vocabulary 300 --last the --plot the.svg
      marginlens graph story.txt --prefix "Once upon" --tokens 80 --seed 1
      marginlens graph - --encoding latin-1 --json < märchen.txt
      marginlens graph corpus.txt.gz --tokenizer tokenizer.json --held-out 0.1
    """
    output = Output(as_json, quiet)
    cut = TextCut(window, words, vocabulary, d_model, seed, encoding, tokenizer)
    cut.check(file, drop=drop)
    asked = Asked(prefix, tokens, seed, margin or held_out is not None)
    _check_files(file, plot, save, sequences)
    in_memory = margin or any(option is not None for option in (held_out, prefix, d_model, sequences))
    with output.stage("Ranking tokens"):
        ranking = _ranked(file, last, held_out, cut, drop=drop, in_memory=in_memory)
        ids = asked.ids(ranking)
        row = ranking.to_dict()

    def lines() -> Iterator[str]:
        yield from ranking.lines(row)
        if plot is not None:
            ranking.draw(plot)
        if save is not None:
            ranking.save(save, typed_command(ctx))
        if sequences is not None and ranking.named is not None:
            ml.data.write_sequences(sequences, ranking.named.data, ranking.vocabulary.names)
        yield from _predict(output, ranking, row, ids, asked)
        if held_out is None:
            yield text("cli.graph.hint")

    output.show(row, lines(), [plot, save, sequences])


# ---- what is asked for


@dataclass(frozen=True)
class Asked:
    """The request to the automaton: a prefix to continue, the number of tokens, the seed, and whether to solve the Graph-SVM."""

    prefix: str | None
    tokens: int | None
    seed: int
    solved: bool

    def __post_init__(self) -> None:
        if self.tokens is not None and self.prefix is None:
            raise InputError("tokens", "left out unless a prefix is to be continued", self.tokens)
        whole_number(self.n_tokens, "tokens", at_least=0)

    @property
    def n_tokens(self) -> int:
        """The number of tokens after the prefix."""
        return N_CONTINUED if self.tokens is None else self.tokens

    def ids(self, ranking: Ranking) -> IntArray | None:
        """Return the prefix (n_prefix,) as token ids; None without one."""
        if self.prefix is None:
            return None
        ids: IntArray = ranking.vocabulary.encode(self.prefix, "prefix")
        if len(ids) == 0:
            raise InputError("prefix", "at least one token", repr(self.prefix))
        return ids


@dataclass(frozen=True)
class TextCut:
    """The options for cutting a text into windows of tokens and embedding them; None if an option is not given.

    Attributes:
        window: the number of tokens in a window.

        words: whether words are the tokens, not characters.

        vocabulary: the number of words with their own ids.

        d_model: the width of random embeddings; one-hot by default.

        seed: the seed of the random embeddings.

        encoding: the encoding of the text; UTF-8 by default.

        tokenizer: the file of a tokenizer that cuts the text.
    """

    window: int | None
    words: bool
    vocabulary: int | None
    d_model: int | None
    seed: int
    encoding: str | None
    tokenizer: Path | None

    def __post_init__(self) -> None:
        whole_number(self.n_window, "window", at_least=1)
        whole_number(self.n_words, "vocabulary", at_least=1)
        whole_number(self.seed, "seed", at_least=0)

    @property
    def n_window(self) -> int:
        """The number of tokens in a window."""
        return WINDOW if self.window is None else self.window

    @property
    def n_words(self) -> int:
        """The number of words with their own ids."""
        return MAX_WORDS if self.vocabulary is None else self.vocabulary

    def check(self, file: Path, *, drop: bool) -> None:
        """Raise for options of a text with a list of sequences, and vice versa."""
        if file.suffix.lower() in LISTED:
            options: dict[str, Any] = {name: value for name, value in vars(self).items() if name != "seed"}
            refuse_options(f"for a {file.suffix.lower()} file, which lists its sequences", **options)
            return
        refuse_options("for a text, whose windows are dropped and counted anyway", drop=drop)
        refuse_options("unless words are the tokens", vocabulary=None if self.words else self.vocabulary)
        refuse_options("if a tokenizer cuts the text", words=self.words and self.tokenizer is not None)


def _check_files(file: Path, plot: Path | None, save: Path | None, sequences: Path | None) -> None:
    """Raise, before anything is read, if a file cannot be written."""
    from marginlens.runtime.files import check_place

    if str(file) == "-":
        refuse_options("for a text from stdin, which no fingerprint can name", save=save)
    for place, name, suffixes in (
        (plot, "plot", (".png", ".svg", ".pdf")),
        (save, "save", (".json",)),
        (sequences, "sequences", (".npz", ".json")),
    ):
        if place is not None:
            check_place(place, name, suffixes)


def _ranked(
    file: Path, last: list[str] | None, held_out: float | None, cut: TextCut, *, drop: bool, in_memory: bool
) -> Ranking:
    """Rank the tokens of a file: those of listed sequences, or of the windows of a text."""
    from marginlens.cli.rankings import rank_list, rank_text

    if file.suffix.lower() in LISTED:
        return rank_list(file, last, held_out, drop=drop, seed=cut.seed)
    return rank_text(file, last, held_out, cut, in_memory=in_memory)


# ---- the answer


def _predict(
    output: Output, ranking: Ranking, row: dict[str, Any], ids: IntArray | None, asked: Asked
) -> Iterator[str]:
    """Yield lines on whether one W ranks all tokens this way, how well the automaton predicts held-out windows, and how it
    continues a prefix.

    Args:
        output: the output, which shows progress.

        ranking: the ranked tokens.

        row: the numbers of the answer, to which this adds.

        ids: (n_prefix,) the prefix, or None.

        asked: the request to the automaton.
    """
    import numpy as np

    named, solution = ranking.named, None
    is_embedded = named is not None and not np.array_equal(named.data.E, np.eye(*named.data.E.shape))
    if named is not None and (asked.solved or ids is not None or is_embedded):
        with output.stage("Solving Graph-SVM") as bar:
            solution = ml.graph_svm(named.data.E, ranking.learned, progress=bar)
    row["separability"], sentences = ranking.separability(solution)
    yield from sentences
    if named is None or solution is None or (ids is None and ranking.split is None):
        return
    automaton, reason = None, text("cli.graph.no_automaton")
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
            row["continuation"] |= _continued(ranking, automaton, ids, asked)
        yield row["continuation"]["explanation"]
        yield text("cli.graph.continues")
        yield row["continuation"]["whole"]
        yield text("cli.graph.repetition")


def _continued(ranking: Ranking, automaton: ml.NextTokenAutomaton, prefix: IntArray, asked: Asked) -> dict[str, Any]:
    """Return the tokens that may follow a prefix, why the first of them wins, and a sampled continuation."""
    import numpy as np

    vocabulary, window = ranking.vocabulary, ranking.window
    sequence = prefix if window is None else prefix[-window:]
    # `explain` says if the limit is slow.
    probability = automaton.predict_proba(sequence, slow="limit")
    likely = [int(k) for k in np.argsort(-probability, kind="stable")[:N_LIKELY] if probability[k] > 0.0]
    ids = automaton.sample(prefix, asked.n_tokens, asked.seed, window=window)
    return {
        "next": [{"token": vocabulary.shown[k], "probability": float(probability[k])} for k in likely],
        "explanation": str(automaton.explain(sequence, vocabulary.quoted)),
        "text": vocabulary.decode(ids),
        "whole": vocabulary.decode(np.concatenate([prefix, ids])),
    }


def typed_command(ctx: typer.Context) -> str:
    """Return the typed command without --json, --quiet, the folder of --save, and folders of this machine."""
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
