"""Options and words that several commands share, turned into the objects that the library takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from marginlens.cli._deferred import errors
from marginlens.names import NORMS

DEVICES = ("cpu", "cuda", "cuda:1", "mps")
ENCODINGS = ("utf-8", "latin-1", "cp1252", "utf-16")
LISTED_NORMS = (*NORMS.names, "l1.75", "l3")  # that a shell offers

if TYPE_CHECKING:
    from marginlens.data.tokens import FloatArray, TokenDataset
    from marginlens.lab.problem_files import LabProblem


def option(
    metavar: str, help: str, default: str = "", *, name: str = "", words: Iterable[str] = (), **more: Any
) -> Any:
    """An option that takes a value.

    Args:
        metavar: what stands for its value in the help. default: what holds where it is left out, in words.
        name: with its dashes, where it is not the parameter's. words: values that a shell offers. more: of `typer.Option`.
    """
    if words:
        more["autocompletion"] = words_of(*words)
    return typer.Option(*([name] if name else []), metavar=metavar, help=help, show_default=default or True, **more)


def flag(name: str, help: str, *short: str) -> Any:
    """An option without a value, named with its dashes, and by a short name too where it has one."""
    return typer.Option(name, *short, help=help)


def argument(metavar: str, help: str, **more: Any) -> Any:
    """A word of the command line that is no option."""
    return typer.Argument(metavar=metavar, help=help, show_default=False, **more)


def words_of(*words: str) -> Callable[[str], list[str]]:
    """The completion of an option that takes one of these words."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete.lower())]


AsJson = Annotated[bool, flag("--json", "Print the numbers as JSON and nothing else.")]
Quiet = Annotated[
    bool, flag("--quiet", "Print no progress, tables or remarks: only errors, and what another option asks for.", "-q")
]
ProblemFile = Annotated[
    Path,
    argument(
        "FILE",
        "A .npz or JSON file with X, y, v and optionally K or W; a problem that the lab saved; or a file with sequences, labels and "
        "optionally vocabulary, E and C; - reads stdin.",
    ),
]
DropUnrealizable = Annotated[bool, flag("--drop", "Leave out sequences of the file that lack their label.")]
PlotPlace = Annotated[
    Path | None, option("OUT.png", "Draw it there, as .png, .svg or .pdf, when keys have two coordinates.")
]
OF_PROBLEM_FILE: dict[str, Any] = {  # what commands that read a problem call the arguments of the library
    "path": "{file}",
    "data": "{file}",
    "problem": "{file}",
    "head": "the head in {file}",
    "rows": "the keys in {file}",
    "places": "the tokens in {file}",
    "unrealizable": "{drop}",
    "others": "'{argument}' in {file}",
}
_LARGEST = 1e150  # of weights: their norms are sums of squares, which are to be numbers too


class TokenProblem(NamedTuple):
    """A problem of token selection, or a batch, its head, and the run that its file describes; None where it is no file of the lab's."""

    data: TokenDataset
    head: FloatArray
    run: LabProblem | None


def read_token_problem(file: Path) -> TokenProblem | LabProblem:
    """The problem of a file, whether the lab saved it or not; as the lab has it where head and attention are trained together."""
    from marginlens.data.files import is_problem, read_entries, read_problem
    from marginlens.lab.problem_files import LabProblem

    entries = read_entries(file)
    if is_problem(entries):
        problem = LabProblem.from_dict(entries, str(file))
        return problem if problem.trains_head else TokenProblem(problem.data, problem.head, problem)
    data, head = read_problem(file)
    return TokenProblem(data, head, None)


def refuse_options(kind: str, **options: Any) -> None:
    """Refuse options that belong to another kind of file: each must be None or False."""
    for name, value in options.items():
        if value is not None and value is not False:
            raise errors.reject(name, f"left out {kind}", repr(value if isinstance(value, bool) else str(value)))


def numbers(text: str, argument: str, count: int, kind: type = float) -> list[Any]:
    """So many numbers of one kind separated by commas: finite ones, or token indices."""
    words, example = ("token indices", "0,1,2") if kind is int else ("finite numbers", "0.5,-1")
    try:
        if not text.isascii():  # digits of other scripts, which no other option takes
            raise ValueError
        found = [kind(part) for part in text.split(",")]
    except ValueError:
        raise errors.reject(argument, f"{words} separated by commas, such as {example}", repr(text)) from None
    if len(found) != count:
        raise errors.reject(argument, f"{words} separated by commas, {count} in all", f"{len(found)}")
    limit = 2**63 if kind is int else _LARGEST
    wrong = next((one for one in found if not -limit < one < limit), None)
    if wrong is not None:
        raise errors.reject(argument, f"{words} separated by commas, below {limit:g}", f"{wrong}")
    return found
