"""`marginlens samples`: small files to try the other commands with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from marginlens.cli._deferred import terminal
from marginlens.cli._exit import Answer, command
from marginlens.cli._options import argument


@command()
def samples(
    folder: Annotated[str, argument("DIR", "The folder for them, which is made unless it is there.")],
) -> Answer:
    """Write sample files: reviews.csv, sentences.txt, book.txt, problem.npz and tiny-model, a transformer of eight heads.

    They are made up, small and the same on every machine; docs/start.md uses each of them. No other file is overwritten.

    Examples:
        marginlens samples samples
    """
    from marginlens.data.samples import write_samples

    before = {place.name for place in Path(folder).iterdir()} if folder and Path(folder).is_dir() else set()
    written = write_samples(folder)
    others = before - {path.relative_to(folder).parts[0] for path in written}
    said = [f"Left as found in {folder}: {terminal.counted(len(others), 'other file')}."] if others else []
    return Answer({"written": [str(path) for path in written]}, said, written)
