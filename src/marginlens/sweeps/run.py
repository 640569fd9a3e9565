"""Sweeps: run a plan chunk by chunk into a folder, go on after whatever ended it, and read what is there."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, NamedTuple

from marginlens.engines import Engine, as_engine
from marginlens.errors import reject
from marginlens.result import Displayed, Result, Tabular, counted, drawn
from marginlens.result.drawing import draw_bars
from marginlens.result.frames import frame_of_arrow
from marginlens.result.notebook import Headline
from marginlens.runtime.interrupts import deferred_interrupts
from marginlens.runtime.progress import Progress, ProgressCallback, as_progress
from marginlens.sweeps.choices import function_record, imported, working_folder
from marginlens.sweeps.chunk import ChunkWork, arrow, made_problems
from marginlens.sweeps.grid import Cell
from marginlens.sweeps.plan import Plan, as_plan
from marginlens.sweeps.store import Store, digest, opened, whole_table, write_table
from marginlens.sweeps.summary import LEVELS, Summary, summarize
from marginlens.typing import Axes


class Problem(NamedTuple):
    """One problem of a sweep: its data and head, and the settings of its cell."""

    data: Any
    head: Any
    cell: dict[str, Any]


@dataclass(frozen=True, repr=False, eq=False)
class SweepStatus(Result, Tabular):
    """How far a sweep is.

    Attributes:
        folder: where it is. n_chunks, n_problems: of the plan. chunks_done, problems_done: of these. bytes: on the disk.
        is_running: whether a process is at work on it. damaged: files that are not what was written, where that was looked for.

    `to_frame()` has two rows, what is done and what is left: state, chunks, problems.
    """

    folder: str
    n_chunks: int
    n_problems: int
    chunks_done: int
    problems_done: int
    bytes: int
    is_running: bool
    damaged: tuple[str, ...] = ()

    @property
    def is_finished(self) -> bool:
        """Whether every chunk is there."""
        return self.chunks_done == self.n_chunks

    @drawn
    def plot(self, ax: Axes) -> None:
        """Draw how many problems are done and how many are left."""
        columns = self._columns()
        draw_bars(ax, columns["state"], columns["problems"], "problems", ylabel="state")

    def _columns(self) -> dict[str, Any]:
        chunks = [self.chunks_done, self.n_chunks - self.chunks_done]
        problems = [self.problems_done, self.n_problems - self.problems_done]
        return {"state": ["done", "left"], "chunks": chunks, "problems": problems}

    def _headline(self) -> Headline:
        return Headline("finished" if self.is_finished else "not finished", str(self), self.is_finished or None)

    def __str__(self) -> str:
        share = f"{self.chunks_done:,} of {counted(self.n_chunks, 'chunk')} ({self.problems_done:,} of {self.n_problems:,} problems)"
        unfinished = "running" if self.is_running else "not finished: running the same sweep again goes on"
        state = "finished" if self.is_finished else unfinished
        wrong = (
            f" {counted(len(self.damaged), 'file is', 'files are')} damaged: {', '.join(self.damaged)}."
            if self.damaged
            else ""
        )
        return f"{self.folder}: {share}, {self.bytes / 1e6:.1f} MB; {state}.{wrong}"


@dataclass(frozen=True, repr=False, eq=False)
class Sweep(Displayed):
    """The folder of a sweep, finished or not: what it has recorded, as a table, summed up by cell, drawn, or problem by problem."""

    store: Store

    @classmethod
    def of(cls, folder: Any) -> Sweep:
        """The sweep in a folder."""
        arrow()
        return folder if isinstance(folder, Sweep) else cls(Store.of(folder))

    @property
    def folder(self) -> Path:
        """Where it is."""
        return self.store.folder

    def status(self, *, check: bool = False) -> SweepStatus:
        """How far it is; with `check` every file is read and damaged ones are named."""
        finished = self.store.listed()
        grid = self.store.grid
        damaged = tuple(str(problem.place) for problem in self.store.damaged(finished)) if check else ()
        done = sum(grid.chunk_at(index).n_problems for index in finished)
        return SweepStatus(
            str(self.folder),
            grid.n_chunks,
            grid.n_total,
            len(finished),
            done,
            sum(finished.values()),
            self.store.is_running(),
            damaged,
        )

    def table(self, columns: list[str] | None = None, *, format: str = "arrow", partial: bool = False) -> Any:
        """One row a problem, in order of cell and problem: their numbers, the axes of the grid, what was recorded.

        Args:
            columns: which of the recorded ones; all by default. format: "arrow", "pandas" or "polars".
            partial: the chunks that are there, of a sweep that is not finished.
        """
        wanted = None if columns is None else ["cell", "problem", *dict.fromkeys(columns)]
        return whole_table(self.store, wanted, format=format, partial=partial)

    def to_frame(self, library: str | None = None) -> Any:
        """The table as a data frame, one row a problem: of pandas if it is installed, else of polars, else a `pyarrow.Table`.

        Args:
            library: "pandas", "polars" or "pyarrow", to ask for one of them.
        """
        return frame_of_arrow(self.table(), library)

    def _headline(self) -> Headline:
        status = self.status()
        return Headline("finished" if status.is_finished else "not finished", str(status), status.is_finished or None)

    def _facts(self) -> dict[str, Any]:
        grid = self.store.grid
        recorded = ", ".join([*self.store.plan["record"], *self.store.plan["measures"]])
        axes = {f"axis {name}": list(values) for name, values in grid.axes.items()}
        return {"cells": len(grid.cells), "problems a cell": grid.n_problems, **axes, "recorded": recorded}

    def write_table(self, path: Any, *, partial: bool = False) -> int:
        """Write the table to a .parquet or .csv file, chunk by chunk, and return how many rows it has."""
        return write_table(self.store, path, partial=partial)

    def summary(self, *, quantiles: Any = LEVELS, partial: bool = False) -> Summary:
        """Every cell summed up: shares of words with exact 95% intervals; means with standard errors, and quantiles, of numbers.

        Args:
            quantiles: their levels. partial: sum up the chunks that are there, of a sweep that is not finished.
        """
        return summarize(self.store, quantiles=quantiles, partial=partial)

    def plot(self, ax: Axes | None = None, *, column: str | None = None, axis: str | None = None) -> Axes:
        """Draw one column over one axis of the grid, as `Summary.plot` does; of a sweep that is not finished how far it is."""
        status = self.status()
        return self.summary().plot(ax, column=column, axis=axis) if status.is_finished else status.plot(ax)

    def digest(self) -> str:
        """SHA-256 of the table's content, the same whoever computed it in whatever order."""
        return digest(self.store)

    def problem(self, index: int, *, data: Callable[..., Any] | None = None) -> Problem:
        """The data of problem `index`, counted through all cells as the rows of the table are, made once more.

        Args:
            data: the function that made them, where it is one of your own that cannot be imported by name.
        """
        chunk, place = self.store.grid.locate(index)
        cell = self.store.grid.cells[chunk.cell]
        said = cell.settings["data"]
        if isinstance(said, str):
            only = replace(chunk, first=chunk.first + place, last=chunk.first + place + 1)
            problems, head = made_problems(cell, only, self.store.plan["seed"])
            return Problem(problems[0], head[0], dict(cell.settings))
        module = str(said["function"]).partition(":")[0]
        function = data if data is not None else imported(said["function"], "data", working_folder(), (module,))
        if function_record(function)["source"] != said["source"]:
            raise reject("data", f"the function {said['function']} as it was when the sweep was run", "a changed one")
        settings = {**cell.settings, "data": function}
        problems, head = made_problems(
            Cell(cell.index, cell.stream, settings, cell.axes), chunk, self.store.plan["seed"]
        )
        shared = head is None or (hasattr(head, "ndim") and head.ndim == 1)
        return Problem(problems[place], head if shared else head[place], dict(cell.settings))

    def __repr__(self) -> str:
        grid = self.store.grid
        axes = "; ".join(f"{name}: {', '.join(map(str, values))}" for name, values in grid.axes.items())
        recorded = ", ".join([*self.store.plan["record"], *self.store.plan["measures"]])
        return (
            f"Sweep of {counted(len(grid.cells), 'cell')}{f' ({axes})' if axes else ''} with {grid.n_problems:,} problems each, recording "
            f"{recorded}. {self.status()}"
        )


def _of_folder(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of `Sweep` that takes the folder of one in its place."""

    def call(self: Any, folder: Any, *arguments: Any, **options: Any) -> Any:
        return method(Sweep.of(folder), *arguments, **options)

    _, *parameters = signature(method).parameters.values()
    first = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", "folder")]
    call.__name__, call.__doc__ = method.__name__, method.__doc__
    call.__signature__ = signature(method).replace(parameters=[*first, *parameters])  # type: ignore[attr-defined]
    return call


class _SweepCall:
    """`ml.sweep`: runs a plan, and reads the folders of sweeps."""

    def __call__(
        self,
        plan: Any = None,
        out: Any = None,
        *,
        engine: Any = None,
        client: Any = None,
        progress: ProgressCallback | None = None,
        **keys: Any,
    ) -> Sweep:
        """Run a plan into a folder, or go on with it: chunks that are there are not computed again.

        Args:
            plan: a `Plan`, a dict, or the path of a TOML file; or the keys of a `Plan` as keyword arguments.
            out: the folder. One process at a time works in it; another plan than its own is refused.
            engine: where chunks are computed; threads of this process by default. client: a Dask client in its place.
            progress: called as `progress(done, total)` in problems after every chunk, those of earlier runs included.
        Returns:
            The `Sweep`. Ctrl-C ends it after the next chunk, with all before it kept; calling it again goes on.
        """
        arrow()
        made = as_plan(plan, keys)
        if out is None:
            raise reject("out", "the folder that the results go to", "none")
        if engine is not None and client is not None:
            raise reject("client", "left out where an engine is given", "both")
        return run(made, out, as_engine(client if engine is None else engine), as_progress(progress))

    table = _of_folder(Sweep.table)
    write_table = _of_folder(Sweep.write_table)
    summary = _of_folder(Sweep.summary)
    plot = _of_folder(Sweep.plot)
    status = _of_folder(Sweep.status)
    digest = _of_folder(Sweep.digest)
    problem = _of_folder(Sweep.problem)

    def __repr__(self) -> str:
        return "<ml.sweep: runs a plan into a folder, and reads it by its methods table, summary, status, plot, problem and digest>"


sweep = _SweepCall()


def run(plan: Plan, out: Any, engine: Engine, progress: ProgressCallback | None) -> Sweep:
    """Compute every chunk that is not there or damaged, and write each as soon as it is finished."""
    with opened(out, plan) as store:
        for problem in store.damaged(store.listed()):
            warnings.warn(f"The chunk file {str(problem.place)!r} is damaged and computed anew.", stacklevel=3)
            problem.place.unlink()
        finished, grid = store.listed(), plan.grid
        report = Progress(progress, grid.n_total)
        report.advance(sum(grid.chunk_at(index).n_problems for index in finished))
        missing = (index for index in range(grid.n_chunks) if index not in finished)
        try:
            with deferred_interrupts() as interrupted:
                tasks = itertools.takewhile(lambda _: not interrupted(), missing)
                with closing(engine.run(ChunkWork(plan), tasks)) as results:
                    for index, content in results:
                        store.write(index, content)
                        report.advance(grid.chunk_at(index).n_problems)
        except KeyboardInterrupt:
            kept = f"{report.done:,} of {report.total:,} problems are in {str(store.folder)!r}"
            raise KeyboardInterrupt(f"{kept}; running the same sweep again goes on from there.") from None
    return Sweep(Store(store.folder))
