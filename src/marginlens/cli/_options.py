"""Words of the command line turned into the objects that the library takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from marginlens.errors import reject
from marginlens.losses.margin import CorrelationLoss, Exponential, Logistic, Loss

AsJson = Annotated[bool, typer.Option("--json", help="Print the numbers as JSON and nothing else.")]
ProblemFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="A .npz or JSON file with X, y, v and optionally K or W; or with sequences, labels and optionally vocabulary, E and C.",
        show_default=False,
    ),
]
DropUnrealizable = Annotated[
    bool, typer.Option("--drop", help="Leave out sequences of the file that lack their label.")
]
PlotPlace = Annotated[
    Path | None, typer.Option("--plot", metavar="OUT.png", help="Draw it there, when keys have two coordinates.")
]
StartPoint = Annotated[
    str | None,
    typer.Option(
        "--start",
        metavar="0.5,-1",
        help="Where p starts, one number per coordinate; for sequences W row by row.",
        show_default="zero",
    ),
]

LOSSES: dict[str, Loss] = {"logistic": Logistic(), "exponential": Exponential(), "correlation": CorrelationLoss()}
LossName = Annotated[
    str | None,
    typer.Option(
        "--loss",
        metavar="LOSS",
        help=f"One of {', '.join(LOSSES)}; for sequences one of log, squared, cross-entropy, squared-probability.",
        show_default="logistic; log",
    ),
]


def for_tokens_only(**options: Any) -> None:
    """Refuse options that a file of sequences does not take."""
    for name, value in options.items():
        if value is not None:
            raise reject(name, "left out for a file of sequences", repr(str(value)))


def for_sequences_only(**options: Any) -> None:
    """Refuse options that only a file of sequences takes."""
    for name, value in options.items():
        if value is not None:
            raise reject(name, "left out unless the file holds sequences", repr(value))


def loss_named(word: str) -> Loss:
    """The loss of that name."""
    if word.lower() not in LOSSES:
        raise reject("loss", f"one of {', '.join(LOSSES)}", repr(word))
    return LOSSES[word.lower()]


def token_indices(text: str) -> list[int]:
    """Token indices separated by commas, one per input."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise reject("selected", "token indices separated by commas, such as 0,1,2", repr(text)) from None


def coordinates(text: str) -> list[float]:
    """Numbers separated by commas, one per coordinate of p."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise reject("start", "numbers separated by commas, such as 0.5,-1", repr(text)) from None
