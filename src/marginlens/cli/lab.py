"""`marginlens lab`: the interactive page as one file, opened in the browser."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer

from marginlens.cli.options import Quiet, refuse_options
from marginlens.cli.output import Output
from marginlens.errors import InputError
from marginlens.words import text as text_of

# The title in the first bytes of every page that the command wrote.
PAGE_TITLE = b"<title>marginlens lab"
TITLE_WITHIN = 2000


def preset_names(incomplete: str) -> list[str]:
    """Return the lab's examples whose names in links begin so."""
    from marginlens.lab.presets import presets

    return [entry.link_name for entry in presets() if entry.link_name.lower().startswith(incomplete.lower())]


def lab(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="Problem in the plane, or sequences, in a file as predict and train read it."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="File of the page.")] = Path("lab.html"),
    preset: Annotated[
        str | None,
        typer.Option(
            help="Example to begin with, by its name in links: the-start-decides.", autocompletion=preset_names
        ),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Address of a public copy, for links that the page copies.")
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Write the page without opening it.")] = False,
    quiet: Quiet = False,
) -> None:
    """Open the interactive page, with your own problem if you like.

    Drag tokens in the plane and see at once what attention will select, and why. The page is a single file and needs no
    network: send it, host it anywhere, or open it again later.

    \b
    Examples:
      marginlens lab
      marginlens lab problem.npz --out lecture.html
      marginlens lab --preset the-start-decides --no-open
      marginlens lab --address https://example.org/lab.html
    """
    from marginlens.data.files import holds_sequences
    from marginlens.lab import preset as preset_named
    from marginlens.lab import read_problem, write_lab
    from marginlens.lab.presets import Preset
    from marginlens.lab.problem_files import LabProblem

    _check_page(out)
    shown: LabProblem | Preset | dict[str, Any] | None = None
    if file is not None:
        refuse_options("beside a file, which the page begins with", preset=preset)
        shown = _text_state(file) if holds_sequences(file) else read_problem(file)
    elif preset is not None:
        shown = preset_named(preset)
    write_lab(out, shown, address=address)
    output = Output(quiet=quiet)
    output.say(text_of("cli.written", path=str(out)))
    if not no_open and not webbrowser.open(out.resolve().as_uri()):
        output.say(text_of("cli.no_browser"))


def _check_page(out: Path) -> None:
    """Raise instead of overwriting a file that is not a page of the lab."""
    from marginlens.runtime.files import check_place

    check_place(out, "out", (".html", ".htm"))
    if out.exists():
        with out.open("rb") as page:
            if PAGE_TITLE not in page.read(TITLE_WITHIN):
                raise InputError(
                    "out", "a new file, or a page that the lab wrote", f"{str(out)!r}, which is another file"
                )


def _text_state(file: Path) -> dict[str, Any]:
    """Return the state of the page that shows the sequences of a file on the text tab."""
    from marginlens.data.files import read_sequence_problem
    from marginlens.lab import preset
    from marginlens.lab.presets import sequences_text

    problem = read_sequence_problem(file, unrealizable="keep")
    if problem.head is not None:
        raise InputError("file", "a file of sequences without a head C for the page", repr(str(file)))
    text = sequences_text(problem.named.data, problem.named.vocabulary.names)
    return {**preset("text").state(), "preset": None, "text": {**text, "last": None, "prompt": ""}}
