"""`marginlens lab`: the interactive page as one file, with a problem of the user's or an example, opened in the browser."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated, Any

from marginlens.cli._deferred import errors, files, terminal
from marginlens.cli._exit import command
from marginlens.cli._options import OF_PROBLEM_FILE, argument, flag, option, refuse_options

PAGE = Path("lab.html")
_MARK = b"<title>marginlens lab"  # in every file that the command wrote
_MARK_WITHIN = 2000  # bytes from the beginning


def preset_names(incomplete: str) -> list[str]:
    """The lab's examples whose names begin so."""
    from marginlens.lab.presets import presets

    return [entry.name for entry in presets() if entry.name.lower().startswith(incomplete.lower())]


@command("Nothing was written.", has_json=False, **OF_PROBLEM_FILE, name="{preset}")
def lab(
    file: Annotated[
        Path | None,
        argument(
            "FILE",
            "What to begin with: a problem in the plane, or sequences, in a .npz or JSON file as solve and train read it, or a "
            "problem that the page saved.",
        ),
    ] = None,
    out: Annotated[Path, option("LAB.html", "Where the page goes.")] = PAGE,
    preset: Annotated[
        str | None, option("NAME", "The example to begin with.", "start-decides, playing", autocompletion=preset_names)
    ] = None,
    address: Annotated[
        str | None, option("URL", "Where a public copy of the page will be; links that the page copies lead there.")
    ] = None,
    no_open: Annotated[bool, flag("--no-open", "Write the page without opening it.")] = False,
) -> None:
    """Open the lab: drag tokens in the plane and see at once what attention will select, and why.

    The page is one file without network: send it, host it anywhere, or open it again later.

    Examples:
        marginlens lab
        marginlens lab problem.npz --out lecture.html
        marginlens lab --preset A-F2 --no-open
        marginlens lab --address https://example.org/lab.html
    """
    from marginlens.data.files import holds_sequences
    from marginlens.lab import LabProblem, Preset, read_problem, write_lab
    from marginlens.lab import preset as preset_named

    _check_place(out)
    shown: LabProblem | Preset | dict[str, Any] | None = None
    if file is not None:
        refuse_options("beside a file, which the page begins with", preset=preset)
        shown = _text_state(file) if holds_sequences(file) else read_problem(file)
    elif preset is not None:
        shown = preset_named(preset)
    write_lab(out, shown, address=address)
    terminal.say(f"Written to {out}")
    if not no_open and not webbrowser.open(out.resolve().as_uri()):
        terminal.say("No browser could be started: open the file in one.")


def _check_place(out: Path) -> None:
    """Refuse to write over a file that is no page of the lab."""
    files.check_place(out, "out", (".html", ".htm"))
    if out.exists():
        with out.open("rb") as file:
            if _MARK not in file.read(_MARK_WITHIN):
                raise errors.reject(
                    "out", "a new file, or a page that the lab wrote", f"{str(out)!r}, which is something else"
                )


def _text_state(file: Path) -> dict[str, Any]:
    """The state that shows the sequences of a file on the text tab."""
    from marginlens.data.files import read_sequence_problem
    from marginlens.lab import preset
    from marginlens.lab.presets import sequences_text

    problem = read_sequence_problem(file, unrealizable="keep")
    if problem.head is not None:
        raise errors.reject("file", "a file of sequences without a head C for the page", repr(str(file)))
    text = sequences_text(problem.named.data, problem.named.vocabulary.names)
    return {**preset("text").state(), "preset": None, "text": {**text, "last": None, "prompt": ""}}
