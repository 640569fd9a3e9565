"""Options shared by several commands, and the problems and numbers that they name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from marginlens.errors import InputError, rename_arguments
from marginlens.names import NORMS

if TYPE_CHECKING:
    from marginlens.data.files import SequenceProblem
    from marginlens.data.tokens import FloatArray, TokenDataset
    from marginlens.lab.problem_files import LabProblem
    from marginlens.typing import ArrayLike

DEVICES = ("cpu", "cuda", "cuda:1", "mps")
ENCODINGS = ("utf-8", "latin-1", "cp1252", "utf-16")
# Norms that completion offers.
LISTED_NORMS = (*NORMS.names, "l1.75", "l3")
# Norms of weights are sums of squares, which must be finite.
MAX_WEIGHT = 1e150


def words_of(*words: str) -> Callable[[str], list[str]]:
    """Return the completion of an option that takes one of these words."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete.lower())]


AsJson = Annotated[bool, typer.Option("--json", help="Print the numbers as JSON and nothing else.")]
Details = Annotated[
    bool, typer.Option("--details", help="Print also the theorems, their conditions, directions and margins.")
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Print errors only, and the JSON of --json."),
]
ProblemFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="Problem in a .npz or JSON file with X, y, v and optionally K or W, or as the lab saved it; or sequences and labels, "
        "with vocabulary, E and C if wanted. - reads stdin.",
    ),
]
DropUnrealizable = Annotated[
    bool, typer.Option("--drop", help="Leave out sequences of the file that lack their label.")
]
PlotFile = Annotated[
    Path | None,
    typer.Option(metavar="OUT.png", help="Picture (.png, .svg or .pdf) of a problem whose keys have two coordinates."),
]
_OF_PROBLEM = {**dict.fromkeys(("path", "data", "problem"), "file"), "unrealizable": "drop"}
_OF_STEPS = {"n_steps": "steps", "power": "decay", **dict.fromkeys(("size", "step", "rate"), "step_size")}
_OF_MODEL = dict.fromkeys(("name", "path", "folder", "folders", "file", "config", "tokenizer"), "model")
# By command: arguments of the library, and the command's own parameters for them.
TYPED_AS: dict[str, dict[str, str]] = {
    "predict": _OF_PROBLEM,
    "train": _OF_PROBLEM | _OF_STEPS,
    "probe": _OF_MODEL | {"texts": "text"},
    "graph": _OF_PROBLEM | {"max_vocabulary": "vocabulary", "unit": "words"},
    "lab": _OF_PROBLEM | {"name": "preset"},
    "statement": {"label": "words"},
    "reproduce": {"folder": "out"},
}


def read_token_problem(file: Path) -> tuple[TokenDataset, FloatArray | None, LabProblem | None]:
    """Read tokens, head, and the run that a file of the lab describes; None for other files.

    The head is None if it is trained together with attention.
    """
    from marginlens.data.files import is_problem, read_entries, read_problem
    from marginlens.lab.problem_files import LabProblem

    entries = read_entries(file)
    if not is_problem(entries):
        return *read_problem(file), None
    problem = LabProblem.from_dict(entries, str(file))
    return problem.data, None if problem.trains_head else problem.head, problem


def read_sequence_problem(file: Path, *, drop: bool) -> SequenceProblem:
    """Read the sequences of a file and its head. Sequences without their label are dropped, kept if the file has a head, or refused."""
    from marginlens.data.files import read_sequence_problem
    from marginlens.data.sequences import reject_unrealizable

    if drop:
        return read_sequence_problem(file, unrealizable="drop")
    problem = read_sequence_problem(file, unrealizable="keep")
    data = problem.named.data
    if problem.head is None and len(data.unrealizable):
        remedy = 'Leave them out with --drop, or give a head "C" in the file.'
        with rename_arguments(file):
            raise reject_unrealizable(data.unrealizable, data.labels, remedy)
    return problem


def refuse_options(reason: str, **options: Any) -> None:
    """Raise for options that do not go with the file or with other options: each must be None or False."""
    for name, value in options.items():
        if value is not None and value is not False:
            raise InputError(name, f"left out {reason}", repr(value if isinstance(value, bool) else str(value)))


def numbers(text: str, argument: str, count: int, kind: type = float) -> list[Any]:
    """Parse numbers separated by commas: finite ones, or token indices if `kind` is int."""
    words, example = ("token indices", "0,1,2") if kind is int else ("finite numbers", "0.5,-1")
    try:
        # Digits of other scripts, which no other option takes.
        if not text.isascii():
            raise ValueError
        values = [kind(part) for part in text.split(",")]
    except ValueError:
        raise InputError(argument, f"{words} separated by commas, such as {example}", repr(text)) from None
    if len(values) != count:
        raise InputError(argument, f"{words} separated by commas, {count} in all", f"{len(values)}")
    limit = 2**63 if kind is int else MAX_WEIGHT
    wrong = next((value for value in values if not -limit < value < limit), None)
    if wrong is not None:
        raise InputError(argument, f"{words} separated by commas, below {limit:g}", f"{wrong}")
    return values


def vector(values: ArrayLike) -> str:
    """Format the coordinates of a direction or a point; of a long one only the first and last."""
    import numpy as np

    return np.array2string(np.asarray(values, dtype=np.float64), precision=3, threshold=8, suppress_small=True)
