"""`marginlens samples`: small files to try the other commands with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from marginlens.cli._exit import Answer, command
from marginlens.cli._options import argument


@command()
def samples(folder: Annotated[Path, argument("DIR", "Where they are written; made where it is not there.")]) -> Answer:
    """Write sample files: reviews.csv, sentences.txt, book.txt, problem.npz and tiny-model, a transformer of eight heads.

    They are made up, small and the same on every machine; docs/start.md uses each of them. No other file is overwritten.

    Examples:
        marginlens samples samples
    """
    from marginlens.data.samples import write_samples

    written = write_samples(folder)
    return Answer({"written": [str(path) for path in written]}, (), written)
