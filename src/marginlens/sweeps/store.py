"""The folder of a sweep: its plan, a lock, a Parquet file for every finished chunk, whole or not there at all, and the table of them."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marginlens.errors import InputError, reject
from marginlens.result.frames import frame_of_arrow
from marginlens.runtime.files import (
    PARTIAL,
    as_path,
    check_place,
    durable_file,
    json_by_line,
    resolved,
    unusable,
    written_aside,
)
from marginlens.runtime.locks import LOCK, is_locked, locked_folder
from marginlens.runtime.versions import versions
from marginlens.sweeps.choices import nearest
from marginlens.sweeps.chunk import DamagedChunk, arrow, column_digest, decoded
from marginlens.sweeps.grid import Grid
from marginlens.sweeps.plan import Plan, differences, plan_hash, read_written_plan

TABLE_FORMATS = ("arrow", "pandas", "polars")
DIGEST_FORMAT = "marginlens-table-1"

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


# ---- the table: one row a problem, in order of cell and problem, read chunk by chunk


def batches(store: Store, columns: list[str] | None = None, *, partial: bool = False) -> Iterator[pyarrow.Table]:
    """The table of a sweep in pieces, a chunk each, with the cell's settings as columns after its number.

    Args:
        columns: which of the recorded columns; all by default.
        partial: take those chunks that are there; else a sweep that is not finished is refused.
    """
    for index in finished_chunks(store, partial=partial):
        yield with_settings(store, store.read(index, columns), store.grid.chunk_at(index).cell)


def finished_chunks(store: Store, *, partial: bool = False) -> list[int]:
    """The chunks that are there, all of them unless `partial`."""
    finished = list(store.listed())
    missing = store.grid.n_chunks - len(finished)
    if missing and not partial:
        raise InputError(
            f"The sweep in {str(store.folder)!r} is not finished: {missing:,} of {store.grid.n_chunks:,} chunks are missing. "
            "Run it again to go on, or ask for what is there with partial=True."
        )
    return finished


def recorded_columns(store: Store) -> list[str]:
    """The columns of the chunks, those of cell and problem first; none where there is no chunk yet."""
    first = next(iter(store.listed()), None)
    return [] if first is None else list(store.read(first).column_names)


def with_settings(store: Store, table: Any, cell: int) -> Any:
    """A chunk's table with the axes of the grid as columns behind `cell` and `problem`; lists whose lengths vary over the grid as such."""
    pa = arrow()
    axes, place = store.grid.cells[cell].axes, sum(name in table.column_names for name in ("cell", "problem"))
    for k, (name, value) in enumerate(axes.items()):
        column = pa.repeat(_scalar(store.grid.axes[name], value), table.num_rows)
        table = table.add_column(place + k, name, column.dictionary_encode() if column.type == pa.string() else column)
    for name, axis in (("selection", "n_inputs"), ("final", "d")):
        if axis in axes and name in table.column_names:
            values = table.schema.field(name).type.value_type
            table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.list_(values)))
    return table


def _scalar(values: tuple[Any, ...], value: Any) -> Any:
    """One of the values of an axis as Arrow has it: a whole number, a number, or a word for everything else."""
    pa, kinds = arrow(), {type(entry) for entry in values}
    if kinds <= {int, float}:
        return pa.scalar(value, pa.int64() if kinds == {int} else pa.float64())
    return pa.scalar(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def whole_table(store: Store, columns: list[str] | None = None, *, format: str = "arrow", partial: bool = False) -> Any:
    """All pieces as one table, or as a frame of pandas or polars."""
    if format not in TABLE_FORMATS:
        raise reject("format", f"one of {', '.join(TABLE_FORMATS)}", repr(format))
    pa = arrow()
    known = recorded_columns(store)
    for name in columns or ():
        if known and name not in known:
            listed = ", ".join(known[2:])
            raise reject("columns", f"names among {listed}", repr(name), nearest(str(name), known[2:]))
    pieces = list(batches(store, columns, partial=partial))
    if not pieces:
        raise InputError(f"The sweep in {str(store.folder)!r} has no finished chunk yet.")
    table = pa.concat_tables(pieces).unify_dictionaries()
    return table if format == "arrow" else frame_of_arrow(table, format)


def write_table(store: Store, path: Any, *, partial: bool = False) -> int:
    """Write the table to a .parquet or .csv file, a chunk at a time, lists in CSV as texts; returns the number of rows."""
    pa, place, n_rows = arrow(), as_path(path, "path", "the path of a file"), 0
    check_place(place, "path", (".parquet", ".csv"))
    pieces = batches(store, partial=partial)
    with written_aside(place, "path") as aside, ExitStack() as stack:
        writer: Any = None
        for piece in pieces:
            table = _plain(pa, piece, with_lists=place.suffix.lower() == ".parquet")
            if writer is None:
                make = pa.csv.CSVWriter if place.suffix.lower() == ".csv" else pa.parquet.ParquetWriter
                writer = stack.enter_context(make(aside, table.schema))
            writer.write_table(table)
            n_rows += table.num_rows
        if writer is None:
            raise InputError(f"The sweep in {str(store.folder)!r} has no finished chunk yet.")
    return n_rows


def _plain(pa: Any, table: Any, *, with_lists: bool) -> Any:
    """Dictionaries as plain words, which are the same in every chunk; without lists these as words too, their entries between spaces."""
    for k, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(k, field.name, table[field.name].cast(pa.string()))
        elif pa.types.is_nested(field.type) and not with_lists:
            texts = [" ".join(map(str, entry)) for entry in table[field.name].to_pylist()]
            table = table.set_column(k, field.name, pa.array(texts))
    return table


def digest(store: Store) -> str:
    """SHA-256 of the table's content, column by column, independent of chunks, of their compression and of who computed them."""
    digests: dict[str, Any] = {}
    for index in finished_chunks(store):
        table = store.read(index)
        for name in table.column_names:
            column_digest(table[name].chunks, digests.setdefault(name, hashlib.sha256()))
    content = {name: made.hexdigest() for name, made in digests.items()}
    axes = {name: list(values) for name, values in store.grid.axes.items()}
    said = {"format": DIGEST_FORMAT, "axes": axes, "n_problems": store.grid.n_problems, "columns": content}
    return hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
