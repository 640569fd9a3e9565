"""The folder of a sweep: its plan, a lock, and a complete Parquet file for every finished chunk."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from marginlens.errors import InputError, require
from marginlens.names import nearest
from marginlens.result import Displayed, counted
from marginlens.runtime.files import (
    PARTIAL,
    as_path,
    durable_file,
    json_by_line,
    resolved,
    unusable,
)
from marginlens.runtime.versions import versions
from marginlens.sweeps.choices import function_record
from marginlens.sweeps.chunk import add_to_digest, arrow, decoded, made_problems
from marginlens.sweeps.grid import Grid
from marginlens.sweeps.plan import Plan, differences, plan_hash, read_written_plan
from marginlens.sweeps.summary import LEVELS, CellSummary, Summary, quantile_levels, summarized_columns
from marginlens.typing import ArrayLike, Axes

if TYPE_CHECKING:
    import pyarrow

DIGEST_FORMAT = "marginlens-table-1"
PLAN, CHUNKS, LOCK = "plan.json", "chunks", "lock"
# The end of the name of a file which says that the sweep with this number has ended.
STOPPED = ".stopped"
# How long a lock that another process holds is tried again.
LOCK_SECONDS = 0.3
_CHUNK_NAME = re.compile(r"(\d{6,})\.parquet")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Problem(NamedTuple):
    """One problem of a sweep: its data and head, and the settings of its cell."""

    data: Any
    head: Any
    cell: dict[str, Any]


@dataclass(frozen=True, repr=False)
class SweepStatus:
    """The progress of a sweep.

    Attributes:
        folder: the folder of the sweep.

        n_chunks: the number of chunks of the plan.

        n_problems: the number of problems of the plan.

        chunks_done: the number of finished chunks.

        problems_done: the number of problems in finished chunks.

        bytes: the size of the folder on the disk.
    """

    folder: str
    n_chunks: int
    n_problems: int
    chunks_done: int
    problems_done: int
    bytes: int

    @property
    def is_finished(self) -> bool:
        """True if every chunk is finished."""
        return self.chunks_done == self.n_chunks

    def __repr__(self) -> str:
        done = f"{self.chunks_done:,} of {counted(self.n_chunks, 'chunk')} ({self.problems_done:,} of {self.n_problems:,} problems)"
        state = "finished" if self.is_finished else "not finished: running the same sweep again goes on"
        return f"{self.folder}: {done}, {self.bytes / 1e6:.1f} MB; {state}."


@dataclass(frozen=True, repr=False, eq=False)
class Sweep(Displayed):
    """The folder of a sweep, finished or not: its records as a table, a summary by cell, a plot, or problem by problem."""

    folder: Path

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Sweep:
        """Open the folder of a sweep, finished or not."""
        arrow()
        place = resolved(as_path(folder, "folder", "the folder of a sweep"))
        if not (place / PLAN).is_file():
            raise InputError("folder", "that of a sweep", f"{str(folder)!r}, which has no {PLAN}")
        return cls(place)

    # ---- its files

    @cached_property
    def plan(self) -> dict[str, Any]:
        """The written plan."""
        return read_written_plan(self.folder / PLAN)

    @cached_property
    def plan_hash(self) -> str:
        """The hash of the plan, which every chunk holds."""
        return plan_hash(self.plan)

    @cached_property
    def grid(self) -> Grid:
        """The cells and chunks of the sweep."""
        return Grid.of(self.plan)

    def place(self, index: int) -> Path:
        """Return the file of a chunk."""
        return self.folder / CHUNKS / f"{index:06d}.parquet"

    def listed(self) -> dict[int, int]:
        """List the finished chunks in order, with the size of each file in bytes, without opening a file."""
        found = {}
        with suppress(FileNotFoundError), os.scandir(self.folder / CHUNKS) as entries:
            for entry in entries:
                match = _CHUNK_NAME.fullmatch(entry.name)
                if match is not None and int(match[1]) < self.grid.n_chunks:
                    found[int(match[1])] = entry.stat().st_size
        return dict(sorted(found.items()))

    def finished(self, *, partial: bool = False) -> list[int]:
        """Return the finished chunks: all of them, or with `partial` at least one; otherwise raise."""
        finished = list(self.listed())
        missing = self.grid.n_chunks - len(finished)
        if missing and not partial:
            raise InputError(
                "folder",
                "that of a finished sweep",
                f"{str(self.folder)!r}, which lacks {missing:,} of {self.grid.n_chunks:,} chunks",
                "Run it again to go on, or ask for the finished chunks with `partial=True`.",
            )
        if not finished:
            raise InputError("folder", "that of a sweep with a finished chunk", f"{str(self.folder)!r}, which has none")
        return finished

    def read(self, index: int, columns: list[str] | None = None) -> pyarrow.Table:
        """Read what was recorded in a chunk and check it; a damaged file is refused by name."""
        return decoded(self.place(index), self.grid.chunk_at(index), self.plan_hash, columns)

    def status(self) -> SweepStatus:
        """Return the progress of the sweep."""
        found, grid = self.listed(), self.grid
        problems_done = sum(grid.chunk_at(index).n_problems for index in found)
        return SweepStatus(
            str(self.folder), grid.n_chunks, grid.n_total, len(found), problems_done, sum(found.values())
        )

    # ---- the table: one row a problem, in order of cell and problem, read chunk by chunk

    def batches(self, columns: list[str] | None = None, *, partial: bool = False) -> Iterator[pyarrow.Table]:
        """Yield the table in pieces, one for each chunk, with the axes of the grid as columns behind `cell` and `problem`.

        Args:
            columns: names of recorded columns; all by default.

            partial: take the finished chunks of an unfinished sweep; by default an unfinished sweep is an error.
        """
        for index in self.finished(partial=partial):
            yield self._with_axes(self.read(index, columns), self.grid.chunk_at(index).cell)

    def _with_axes(self, table: Any, cell: int) -> Any:
        """Return a chunk's table with the axes of its cell; lists whose lengths vary over the grid are lists of any length."""
        pa = arrow()
        axes, place = self.grid.cells[cell].axes, sum(name in table.column_names for name in ("cell", "problem"))
        for k, (name, value) in enumerate(axes.items()):
            column = pa.repeat(_scalar(self.grid.axes[name], value), table.num_rows)
            column = column.dictionary_encode() if column.type == pa.string() else column
            table = table.add_column(place + k, name, column)
        for name, axis in (("selection", "n_inputs"), ("final", "d")):
            if axis in axes and name in table.column_names:
                values = table.schema.field(name).type.value_type
                table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.list_(values)))
        return table

    def table(self, columns: list[str] | None = None, *, partial: bool = False) -> pyarrow.Table:
        """Return a table with one row per problem, in order of cell and problem: their numbers, the axes of the grid, what was recorded.

        Args:
            columns: names of recorded columns; all by default.

            partial: take the finished chunks of an unfinished sweep; by default an unfinished sweep is an error.
        """
        known = self.read(self.finished(partial=partial)[0]).column_names
        for name in columns or ():
            if name not in known:
                recorded = known[2:]
                raise InputError(
                    "columns", f"names among {', '.join(recorded)}", repr(name), nearest(str(name), recorded)
                )
        wanted = None if columns is None else ["cell", "problem", *dict.fromkeys(columns)]
        return arrow().concat_tables(list(self.batches(wanted, partial=partial))).unify_dictionaries()

    def to_frame(self) -> Any:
        """Return the table as a data frame of pandas, with one row per problem."""
        require("pandas", "pandas", "A data frame")
        return self.table().to_pandas()

    def digest(self) -> str:
        """Return the SHA-256 of the table's content, column by column, independent of chunks, their compression and who computed them."""
        digests: dict[str, Any] = {}
        for index in self.finished():
            table = self.read(index)
            for name in table.column_names:
                add_to_digest(digests.setdefault(name, hashlib.sha256()), table[name])
        content = {name: made.hexdigest() for name, made in digests.items()}
        axes = {name: list(values) for name, values in self.grid.axes.items()}
        said = {"format": DIGEST_FORMAT, "axes": axes, "n_problems": self.grid.n_problems, "columns": content}
        return hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    # ---- what it shows

    def summary(self, *, quantiles: ArrayLike = LEVELS, partial: bool = False) -> Summary:
        """Summarise every cell: shares of words with exact 95% intervals; means with standard errors, and quantiles, of numbers.

        Args:
            quantiles: the levels of the quantiles.

            partial: summarise the finished chunks of an unfinished sweep; by default an unfinished sweep is an error.
        """
        levels, finished = quantile_levels(quantiles), set(self.finished(partial=partial))
        cells = []
        for cell in self.grid.cells:
            chunks = [index for index in self.grid.chunks_of(cell.index) if index in finished]
            if chunks:
                names = summarized_columns(self.read(chunks[0]).schema)
                table = arrow().concat_tables([self.read(index, names) for index in chunks])
                cells.append(CellSummary.of(cell.axes, table, levels))
        return Summary(tuple(cells))

    def plot(self, ax: Axes | None = None, *, column: str | None = None, axis: str | None = None) -> Axes:
        """Draw one column over one axis of the grid, as `Summary.plot` does, from the finished chunks."""
        return self.summary(partial=True).plot(ax, column=column, axis=axis)

    def problem(self, index: int, *, data: Callable[..., object] | None = None) -> Problem:
        """Make the data of problem `index` again, counted through all cells like the rows of the table.

        Args:
            data: the function that made the data, if the plan has your own function.
        """
        chunk, place = self.grid.locate(index)
        cell = self.grid.cells[chunk.cell]
        said = cell.settings["data"]
        if isinstance(said, str):
            only = replace(chunk, first=chunk.first + place, last=chunk.first + place + 1)
            problems, head = made_problems(cell, only, self.plan["seed"])
            return Problem(problems[0], head[0], dict(cell.settings))
        if data is None or function_record(data)["source"] != said["source"]:
            got = "none" if data is None else "a changed one"
            raise InputError("data", f"the function {said['function']} as it was when the sweep was run", got)
        made_by = replace(cell, settings={**cell.settings, "data": data})
        problems, head = made_problems(made_by, chunk, self.plan["seed"])
        shared = head is None or (hasattr(head, "ndim") and head.ndim == 1)
        return Problem(problems[place], head if shared else head[place], dict(cell.settings))

    @property
    def _recorded(self) -> str:
        return ", ".join([*self.plan["record"], *self.plan["measures"]])

    def __repr__(self) -> str:
        grid = self.grid
        axes = "; ".join(f"{name}: {', '.join(map(str, values))}" for name, values in grid.axes.items())
        return (
            f"Sweep of {counted(len(grid.cells), 'cell')}{f' ({axes})' if axes else ''} with {grid.n_problems:,} problems each, recording "
            f"{self._recorded}. {self.status()}"
        )


def _scalar(values: tuple[object, ...], value: object) -> Any:
    """Return one of the values of an axis as Arrow has it: a whole number, a number, or a word for everything else."""
    pa, kinds = arrow(), {type(entry) for entry in values}
    if kinds <= {int, float}:
        return pa.scalar(value, pa.int64() if kinds == {int} else pa.float64())
    return pa.scalar(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


# ---- writing


def write_chunk(sweep: Sweep, index: int, content: bytes) -> None:
    """Write the file of a chunk beside its place, flush it to the disk and rename it; a full disk is an error."""
    try:
        with durable_file(sweep.place(index)) as file:
            file.write(content)
    except OSError as problem:
        kept = f"{len(sweep.listed()):,} of {sweep.grid.n_chunks:,} chunks are kept"
        again = "free some space and run" if problem.errno in _FULL else "run"
        remedy = f"All {kept}: {again} the same sweep again to go on."
        got = unusable(sweep.folder, problem)
        raise InputError("folder", "a folder that takes another chunk", got, remedy) from problem


@contextmanager
def opened(folder: str | os.PathLike[str], plan: Plan) -> Iterator[Sweep]:
    """Open the folder of this plan, which is made if there is none, and lock it against other processes.

    A folder of another plan is refused unless it holds no chunk; that plan may not have been able to run.
    """
    arrow()
    from filelock import FileLock, Timeout

    place = resolved(as_path(folder, "folder", "the path of a folder"))
    with _writable(place):
        _check_free(place)
        (place / CHUNKS).mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        with _writable(place):
            try:
                stack.enter_context(FileLock(place / LOCK, timeout=LOCK_SECONDS))
            except Timeout:
                got = f"{str(place)!r}, which another process is writing"
                remedy = "Wait for it, or end it and run this again."
                raise InputError("folder", "one that no other process uses", got, remedy) from None
        sweep = Sweep(place)
        with _writable(place):
            _remove_leftovers(place)
            has_plan = (place / PLAN).exists()
            is_same = has_plan and sweep.plan_hash == plan.hash
            if has_plan and not is_same and any((place / CHUNKS).iterdir()):
                what = differences(sweep.plan, plan.to_dict())
                raise InputError("folder", "a folder of this plan", f"that of another one: {what}")
            if not is_same:
                content = {"hash": plan.hash, "plan": plan.to_dict(), "begun_with": versions()}
                with durable_file(place / PLAN) as file:
                    file.write(json_by_line(content))
        yield Sweep(place)


@contextmanager
def stop_file(folder: Path) -> Iterator[Path]:
    """Give the path of a file that is made if the block ends with an error or Ctrl-C; the next sweep in this folder removes it.

    An executor finishes the chunks that it has handed to its workers, several each. Workers that see this file stop earlier.
    """
    place = folder / f".{uuid4().hex}{STOPPED}"
    try:
        yield place
    except BaseException:
        with suppress(OSError):
            place.touch()
        raise


@contextmanager
def _writable(place: Path) -> Iterator[None]:
    """Raise if a folder cannot be written."""
    try:
        yield
    except OSError as problem:
        raise InputError("folder", "a folder that can be written", unusable(place, problem)) from problem


def _check_free(place: Path) -> None:
    """Raise unless the place is new, an empty folder, or the folder of a sweep, which has at least its lock."""
    if not place.exists():
        return
    if not place.is_dir():
        raise InputError("folder", "a folder", f"{str(place)!r}, which is a file")
    names = {entry.name for entry in place.iterdir()}
    if names and not names & {PLAN, LOCK, CHUNKS}:
        raise InputError(
            "folder", "a new or empty folder, or that of an earlier sweep", f"{str(place)!r} with other files"
        )


def _remove_leftovers(place: Path) -> None:
    """Remove unfinished files of a killed process, and the file that told workers to stop."""
    for pattern in (f".*{PARTIAL}", f"{CHUNKS}/.*{PARTIAL}", f".*{STOPPED}"):
        for leftover in place.glob(pattern):
            leftover.unlink(missing_ok=True)
