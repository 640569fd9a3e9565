"""The folder that a probe writes: the names of its files, and a check before any slow import."""

from __future__ import annotations

from pathlib import Path

from marginlens.errors import InputError
from marginlens.runtime.files import check_writable, resolved

PAGE, LAB, NUMBERS, CURVES = "index.html", "lab.html", "probe.json", "checkpoints.json"
CURVES_PNG, CURVES_SVG = "curves.png", "curves.svg"


def check_folder(folder: Path) -> None:
    """Raise unless the page can be written: the place must be new or hold an earlier probe, in an existing folder."""
    final = resolved(folder)
    expected = "a new folder, or one that an earlier probe wrote"
    if final.exists() and not final.is_dir():
        raise InputError("out", expected, f"the file {str(folder)!r}")
    # The folder is replaced as a whole, so it may contain nothing that a probe did not write.
    if final.is_dir():
        names = {file.name for file in final.iterdir()}
        others = sorted(names - {PAGE, LAB, NUMBERS, CURVES, CURVES_PNG, CURVES_SVG})
        if others or (names and not names & {NUMBERS, CURVES}):
            first = (others or sorted(names))[0]
            raise InputError("out", expected, f"{str(folder)!r}, which holds something else ({first})")
        if Path.cwd().is_relative_to(final):
            raise InputError("out", expected, f"{str(folder)!r}, the folder that the command runs in")
    if not final.parent.is_dir():
        raise InputError("out", "a folder inside one that exists", repr(str(folder)))
    check_writable(final, "out")
