"""`marginlens sweep`: run the plan in a file into a folder, go on with it, and read what is there."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Display
from rich.text import Text
from typer.core import TyperGroup

import marginlens as ml
from marginlens.cli._exit import errors_as_sentences
from marginlens.cli._options import AsJson
from marginlens.cli._terminal import console, rows_table
from marginlens.engines import Engine, Gpus, Processes, Threads, as_engine
from marginlens.errors import reject
from marginlens.sweeps import Plan

TABLE_SUFFIXES = (".parquet", ".csv")


class _PlanFirst(TyperGroup):
    """A group whose first word, where it is no command, is the plan to run."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_PlanFirst,
    help="Run a grid of many small problems into a folder that no crash can spoil: marginlens sweep PLAN.toml --out DIR.",
    no_args_is_help=True,
)
SweepFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a sweep.", show_default=False)]
Partial = Annotated[bool, typer.Option("--partial", help="Take what is there of a sweep that is not finished.")]


@app.command("run")
def run_plan(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A TOML file with the plan.", show_default=False)],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder for the results.", show_default=False)],
    workers: Annotated[int | None, typer.Option(metavar="N", help="Chunks computed at the same time.")] = None,
    processes: Annotated[
        bool, typer.Option("--processes", help="Compute them in processes: for a generator in Python.")
    ] = False,
    gpus: Annotated[
        int | None, typer.Option(metavar="N", help="Compute them on N GPUs; the plan's device is cuda.")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(metavar="tcp://…", help="Compute them on the cluster of a Dask scheduler.")
    ] = None,
) -> None:
    """Run a plan, or go on with it: the word run may be left out.

    Chunks that are in the folder are not computed again, so running the same command again goes on from wherever it ended. Ctrl-C ends it
    after the chunks in hand, with everything kept; a second one ends it at once, and loses only those.
    """
    with errors_as_sentences(), _told_warnings():
        made = Plan.from_file(plan)
        engine = _engine(workers, processes, gpus, scheduler)
        with _Bar() as bar:
            finished = ml.sweep(made, out, engine=engine, progress=bar)
        console().print(str(finished.status()), markup=False)


@app.command("status")
def status_of(
    folder: SweepFolder,
    check: Annotated[bool, typer.Option("--check", help="Read every file, and name damaged ones.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say how far a sweep is."""
    with errors_as_sentences():
        status = ml.sweep.status(folder, check=check)
        if as_json:
            typer.echo(json.dumps({**status.to_dict(), "is_finished": status.is_finished}, indent=2))
        else:
            console().print(str(status), markup=False)


@app.command("summary")
def summary_of(folder: SweepFolder, partial: Partial = False, as_json: AsJson = False) -> None:
    """Sum a sweep up by cell: shares of words, means with standard errors of numbers; with --json intervals and quantiles too."""
    with errors_as_sentences():
        summary = ml.sweep.summary(folder, partial=partial)
        if as_json:
            typer.echo(json.dumps(_as_rows(summary), indent=2))
        else:
            console().print(rows_table(f"{folder}: mean ± standard error, and shares", summary.rows()))


@app.command("table")
def write_table(
    folder: SweepFolder,
    out: Annotated[Path, typer.Option(metavar="FILE", help="A .parquet or .csv file.", show_default=False)],
    partial: Partial = False,
) -> None:
    """Write the table of a sweep, one row a problem, to a file."""
    with errors_as_sentences():
        from marginlens.runtime.files import check_place

        check_place(out, "out", TABLE_SUFFIXES)
        n_rows = ml.sweep.write_table(folder, out, partial=partial)
        console().print(f"{n_rows:,} rows are in {out}.", markup=False)


def _engine(workers: int | None, processes: bool, gpus: int | None, scheduler: str | None) -> Engine:
    """The engine that the options mean; two that exclude each other are refused."""
    kinds = {"processes": processes, "gpus": gpus is not None, "scheduler": scheduler is not None}
    chosen = [name for name, given in kinds.items() if given]
    if len(chosen) > 1:
        raise reject(chosen[1], f"left out beside --{chosen[0]}", "both")
    if scheduler is not None or gpus is not None:
        if workers is not None:
            raise reject("workers", f"left out beside --{chosen[0]}", workers)
        if scheduler is not None:
            return as_engine(scheduler)
        return Gpus(gpus)
    return Processes(workers) if processes else Threads(workers)


def _as_rows(summary: Any) -> list[dict[str, Any]]:
    rows = []
    for cell in summary.cells:
        columns = {}
        for name, of in cell.columns.items():
            columns[name] = {**of.to_dict(), **({"intervals": of.intervals} if hasattr(of, "intervals") else {})}
        rows.append({"cell": dict(cell.axes), "problems": cell.n_problems, "columns": columns})
    return rows


@contextmanager
def _told_warnings() -> Iterator[None]:
    """Warnings as sentences of the command."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: typer.echo(f"marginlens: {message}", err=True)
        yield


class _Rate(ProgressColumn):
    """Problems a second."""

    def render(self, task: Any) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f} problems/s")


class _Bar(Display):
    """Problems done of all, their rate and the time left, on stderr where it is a terminal: a callback `bar(done, total)`."""

    def __init__(self) -> None:
        on = console(stderr=True)
        count = TextColumn("{task.completed:,.0f} of {task.total:,.0f}", markup=False)
        columns = (SpinnerColumn(), BarColumn(), count, _Rate(), TimeRemainingColumn())
        super().__init__(*columns, console=on, transient=True, disable=not on.is_terminal, speed_estimate_period=60.0)
        self._shown: Any = None

    def __call__(self, done: int, total: int) -> None:
        if self._shown is None:
            self._shown = self.add_task("", total=total, completed=done)
        self.update(self._shown, completed=done)

    def stop(self) -> None:
        """Take the bar away."""
        if not self.disable:
            super().stop()
