"""`marginlens sweep`: run the plan in a file into a folder, go on with it, and read what is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import marginlens as ml
from marginlens.cli._commands import HELP_NAMES, Group, group
from marginlens.cli._deferred import errors, files, terminal
from marginlens.cli._exit import Answer, command
from marginlens.cli._options import argument, flag, option

if TYPE_CHECKING:
    from marginlens.engines import Engine

TABLE_SUFFIXES = (".parquet", ".csv")


class _PlanFirst(Group):
    """A group whose first word, where it is no command, is the plan to run."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in HELP_NAMES:
            args = ["run", *args]
        return super().parse_args(ctx, args)


SweepFolder = Annotated[Path, argument("DIR", "The folder of a sweep.")]
Partial = Annotated[bool, flag("--partial", "Take what is there of a sweep that is not finished.")]


@command(engine="{scheduler}", folder="{out}", n_workers="{workers}", others="'{argument}' in {plan}")
def run_plan(
    plan: Annotated[Path, argument("PLAN", "A TOML file with the plan.")],
    out: Annotated[Path, option("DIR", "The folder for the results.")],
    workers: Annotated[int | None, option("N", "Chunks computed at the same time.")] = None,
    processes: Annotated[bool, flag("--processes", "Compute them in processes: for a generator in Python.")] = False,
    gpus: Annotated[int | None, option("N", "Compute them on N GPUs; the plan's device is cuda.")] = None,
    allow: Annotated[
        list[str] | None, option("MODULE", "Let the plan run functions of this module too; repeat it for several.")
    ] = None,
    scheduler: Annotated[str | None, option("tcp://…", "Compute them on the cluster of a Dask scheduler.")] = None,
) -> Answer:
    """Run a plan, or go on with it: the word run may be left out.

    A plan is a program: where it names functions as module:function, they are run. It may name those of modules in its own folder, and
    of modules that --allow names; do not run a plan whose folder you would not run.

    Chunks that are in the folder are not computed again, so running the same command again goes on from wherever it ended. Ctrl-C ends it
    after the chunks in hand, with everything kept; a second one ends it at once, and loses only those.

    Examples:
        marginlens sweep plan.toml --out results
        marginlens sweep run plan.toml --out results --workers 8
        marginlens sweep run plan.toml --out results --scheduler tcp://head:8786 --quiet
    """
    from marginlens.sweeps import Plan

    made = Plan.from_file(plan, allow=allow or ())
    engine = _engine(workers, processes, gpus, scheduler)
    with terminal.stage("Sweeping", rates=True) as bar:
        finished = ml.sweep(made, out, engine=engine, progress=bar)
    return _status(finished.status())._replace(written=[out])


def _status(status: Any) -> Answer:
    return Answer({**status.to_dict(), "is_finished": status.is_finished}, [str(status)])


@command()
def status_of(
    folder: SweepFolder,
    check: Annotated[bool, flag("--check", "Read every file, and name damaged ones.")] = False,
) -> Answer:
    """Say how far a sweep is.

    Examples:
        marginlens sweep status results
        marginlens sweep status results --check --json
    """
    return _status(ml.sweep.status(folder, check=check))


@command()
def summary_of(folder: SweepFolder, partial: Partial = False) -> Answer:
    """Sum a sweep up by cell: shares of words, means with standard errors of numbers; with --json intervals and quantiles too.

    Examples:
        marginlens sweep summary results
        marginlens sweep summary results --partial --json
    """
    summary = ml.sweep.summary(folder, partial=partial)
    table = terminal.rows_table(f"{folder}: mean ± standard error, and shares", summary.rows())
    return Answer(_as_rows(summary), [table])


@command()
def write_table(
    folder: SweepFolder,
    out: Annotated[Path, option("FILE", "A .parquet or .csv file.")],
    partial: Partial = False,
) -> Answer:
    """Write the table of a sweep, one row a problem, to a file.

    Examples:
        marginlens sweep table results --out results.parquet
        marginlens sweep table results --out results.csv --partial
    """
    files.check_place(out, "out", TABLE_SUFFIXES)
    n_rows = ml.sweep.write_table(folder, out, partial=partial)
    return Answer({"rows": n_rows, "out": str(out)}, [f"{terminal.counted(n_rows, 'row')}."], [out])


def _engine(workers: int | None, processes: bool, gpus: int | None, scheduler: str | None) -> Engine:
    """The engine that the options mean; two that exclude each other are refused."""
    from marginlens.engines import Gpus, Processes, Threads, as_engine

    kinds = {"processes": processes, "gpus": gpus is not None, "scheduler": scheduler is not None}
    chosen = [name for name, given in kinds.items() if given]
    if len(chosen) > 1:
        raise errors.reject(chosen[1], f"left out beside --{chosen[0]}", "both")
    if scheduler is not None or gpus is not None:
        if workers is not None:
            raise errors.reject("workers", f"left out beside --{chosen[0]}", workers)
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


app = group(
    {"run": run_plan, "status": status_of, "summary": summary_of, "table": write_table},
    _PlanFirst,
    help="Run a grid of many small problems into a folder that no crash can spoil: marginlens sweep PLAN.toml --out DIR.",
)
