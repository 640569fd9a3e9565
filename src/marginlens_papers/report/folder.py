"""A report folder that is complete at any time: each state is built next to it and renamed into its place."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from marginlens.errors import InputError
from marginlens.runtime.files import replace_folder, resolved, unusable
from marginlens_papers.report.ledger import LEDGER


@dataclass(frozen=True)
class Draft:
    """A report in the making: `folder` is filled, from the old report too as far as that is still valid, then moved to `place`."""

    place: Path
    folder: Path
    attic: Path

    def carry_over(self, superseded: Collection[str]) -> None:
        """Copy the files of the report that is in place now, except those `superseded` (paths relative to the folder)."""
        for path in sorted(self.place.rglob("*")):
            name = path.relative_to(self.place)
            target = self.folder / name
            carried = (path.is_file() or path.is_symlink()) and name.as_posix() not in superseded
            if carried and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target, follow_symlinks=False)

    def retain(self, names: Collection[str]) -> None:
        """Delete every file of the draft except these (paths relative to the folder)."""
        self.folder.mkdir(exist_ok=True)  # which an interruption of `publish` may have left out
        for path in self.folder.rglob("*"):
            if path.is_file() and path.relative_to(self.folder).as_posix() not in names:
                path.unlink()

    def publish(self) -> None:
        """Move the draft to its place and begin another one; if anything goes wrong, the old report is put back."""
        self.place.parent.mkdir(parents=True, exist_ok=True)
        replace_folder(self.folder, self.place, self.attic)
        shutil.rmtree(self.attic, ignore_errors=True)
        self.folder.mkdir()


@contextmanager
def draft(place: str | os.PathLike[str]) -> Iterator[Draft]:
    """A draft for the report at `place`; what is not published when the block ends, however it ends, is removed.

    Opening the draft is the test whether `place` can be written, so it comes before any computing.
    """
    try:
        final = resolved(place)
        _require_report(final)
        ground = next(parent for parent in final.parents if parent.exists())
        workshop = Path(tempfile.mkdtemp(prefix=f".{final.name}-", suffix=".partial", dir=ground))
    except OSError as problem:
        raise InputError("out", "a folder that can be written", unusable(place, problem)) from problem
    try:
        made = Draft(final, workshop / "new", workshop / "old")
        made.folder.mkdir()
        yield made
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _require_report(place: Path) -> None:
    """Refuse any place whose renaming would take something else away than an old report."""
    expected = "a folder for nothing but the report: a new one, an empty one or an earlier report"
    if not place.exists():
        return
    if not place.is_dir():
        raise InputError("out", expected, f"the file {str(place)!r}")
    if Path.cwd().is_relative_to(place):
        raise InputError("out", expected, "the current folder or one above it", "Name a folder inside it.")
    if os.path.ismount(place):
        raise InputError("out", expected, f"the mount point {str(place)!r}", "Name a folder inside it.")
    if any(place.iterdir()) and not (place / LEDGER).is_file():
        raise InputError("out", expected, f"{str(place)!r}, which holds other files")
    with tempfile.TemporaryFile(dir=place):  # a folder that cannot be written cannot be renamed away either
        pass
