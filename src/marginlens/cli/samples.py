"""`marginlens samples`: small files to try the other commands with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marginlens.cli.options import AsJson, Quiet
from marginlens.cli.output import Output
from marginlens.words import text


def samples(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder for the files, made if missing.")],
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write small files to try the other commands with.

    The files are reviews.csv, sentences.txt, book.txt, problem.npz and tiny-model, a transformer with eight heads. They are
    made up, and the same on every machine. No other file is overwritten.

    \b
    Examples:
      marginlens samples samples
    """
    from marginlens.data.samples import write_samples

    before = {entry.name for entry in Path(folder).iterdir()} if folder and Path(folder).is_dir() else set()
    written = write_samples(folder)
    others = before - {path.relative_to(folder).parts[0] for path in written}
    lines = [text("cli.others_kept", count=len(others), folder=folder)] if others else []
    Output(as_json, quiet).show({"written": [str(path) for path in written]}, lines, written)
