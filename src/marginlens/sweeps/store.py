"""The folder of a sweep: its plan, a lock, and a Parquet file for every finished chunk, each of which appears whole or not at all."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marginlens.errors import InputError, reject
from marginlens.runtime.files import PARTIAL, as_path, durable_file, json_by_line, resolved, unusable
from marginlens.runtime.locks import LOCK, is_locked, locked_folder
from marginlens.runtime.versions import versions
from marginlens.sweeps.chunk import DamagedChunk, decoded
from marginlens.sweeps.grid import Grid
from marginlens.sweeps.plan import Plan, differences, plan_hash, read_written_plan

if TYPE_CHECKING:
    import pyarrow

PLAN, CHUNKS = "plan.json", "chunks"
_CHUNK_NAME = re.compile(r"(\d{6,})\.parquet")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True)
class Store:
    """The folder of a sweep that was begun, to read from."""

    folder: Path

    @classmethod
    def of(cls, folder: Any) -> Store:
        """The store in this folder, which must have a plan."""
        place = resolved(as_path(folder, "folder", "the folder of a sweep"))
        if not (place / PLAN).is_file():
            raise reject("folder", "that of a sweep", f"{str(folder)!r}, which has no {PLAN}")
        return cls(place)

    @cached_property
    def plan(self) -> dict[str, Any]:
        """The written plan."""
        return read_written_plan(self.folder / PLAN)

    @cached_property
    def plan_hash(self) -> str:
        """Its hash, which every chunk of it has."""
        return plan_hash(self.plan)

    @cached_property
    def grid(self) -> Grid:
        """Cells and chunks."""
        return Grid.of_written(self.plan)

    def place(self, index: int) -> Path:
        """The file of a chunk."""
        return self.folder / CHUNKS / f"{index:06d}.parquet"

    def listed(self) -> dict[int, int]:
        """Chunk → bytes of its file, of all that are there, in order: one listing, no file is opened."""
        found = {}
        with suppress(FileNotFoundError), os.scandir(self.folder / CHUNKS) as entries:
            for entry in entries:
                match = _CHUNK_NAME.fullmatch(entry.name)
                if match is not None and int(match[1]) < self.grid.n_chunks:
                    found[int(match[1])] = entry.stat().st_size
        return dict(sorted(found.items()))

    def read(self, index: int, columns: list[str] | None = None) -> pyarrow.Table:
        """What was recorded in a chunk, checked; a damaged file is refused by name."""
        return decoded(self.place(index), self.grid.chunk_at(index), self.plan_hash, columns)

    def damaged(self, chunks: Iterable[int]) -> list[DamagedChunk]:
        """Those of these chunks whose files are damaged."""
        found = []
        for index in chunks:
            try:
                self.read(index, ["cell"])
            except DamagedChunk as problem:
                found.append(problem)
        return found

    def is_running(self) -> bool:
        """Whether a process is at work in the folder."""
        return is_locked(self.folder)


class Writer(Store):
    """The same for the one process that holds the lock, to write to."""

    def write(self, index: int, content: bytes) -> None:
        """Write the file of a chunk aside, bring it to the disk, and rename it into its place."""
        try:
            with durable_file(self.place(index)) as file:
                file.write(content)
        except OSError as problem:
            raise self.refused(problem) from problem

    def refused(self, problem: OSError) -> InputError:
        """The sentence for a disk that takes no more."""
        kept = f"{len(self.listed()):,} of {self.grid.n_chunks:,} chunks are kept"
        remedy = "free some space and run" if problem.errno in _FULL else "run"
        return reject(
            "out",
            "a folder that takes another chunk",
            unusable(self.folder, problem),
            f"All {kept}: {remedy} the same sweep again to go on.",
        )


@contextmanager
def opened(folder: Any, plan: Plan) -> Iterator[Writer]:
    """The folder of this plan, made if there is none, locked against other processes; that of another plan is refused."""
    place = resolved(as_path(folder, "out", "the path of a folder"))
    try:
        (place / CHUNKS).mkdir(parents=True, exist_ok=True) if _is_free(place) else None
    except OSError as problem:
        raise reject("out", "a folder that can be written", unusable(place, problem)) from problem
    with locked_folder(place):
        writer = Writer(place)
        try:
            _remove_leftovers(place)
            if (place / PLAN).exists():
                if writer.plan_hash != plan.hash:
                    what = differences(writer.plan, plan.to_dict())
                    raise reject("out", "a folder of this plan", f"that of another one: {what}")
            else:
                content = {"hash": plan.hash, "plan": plan.to_dict(), "begun_with": versions()}
                with durable_file(place / PLAN) as file:
                    file.write(json_by_line(content))
            (place / CHUNKS).mkdir(exist_ok=True)
        except OSError as problem:
            raise reject("out", "a folder that can be written", unusable(place, problem)) from problem
        yield writer


def _is_free(place: Path) -> bool:
    """Whether a sweep may use the folder: there is none, it is empty, or it has a sweep, at least a lock. Else refused."""
    if not place.exists():
        return True
    if not place.is_dir():
        raise reject("out", "a folder", f"{str(place)!r}, which is a file")
    names = {entry.name for entry in place.iterdir()}
    if names and not names & {PLAN, LOCK, CHUNKS}:
        raise reject("out", "a new or empty folder, or that of an earlier sweep", f"{str(place)!r} with other files")
    return True


def _remove_leftovers(place: Path) -> None:
    """Remove what a process that was killed had begun to write."""
    for folder in (place, place / CHUNKS):
        for leftover in folder.glob(f".*{PARTIAL}"):
            leftover.unlink(missing_ok=True)
