"""Sweeps: run a plan chunk by chunk into a folder, and go on after whatever ended it; `ml.sweep` reads the folder too."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from contextlib import closing
from inspect import Parameter, signature
from typing import Any

from marginlens.engines import Engine, as_engine
from marginlens.errors import reject
from marginlens.runtime.interrupts import deferred_interrupts
from marginlens.runtime.progress import Progress, ProgressCallback, as_progress
from marginlens.sweeps.chunk import ChunkWork, arrow
from marginlens.sweeps.plan import Plan, as_plan
from marginlens.sweeps.store import Sweep, opened, write_chunk


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
    with opened(out, plan) as made:
        for problem in made.damaged(made.listed()):
            warnings.warn(f"The chunk file {str(problem.place)!r} is damaged and computed anew.", stacklevel=3)
            problem.place.unlink()
        finished, grid = made.listed(), plan.grid
        report = Progress(progress, grid.n_total)
        report.advance(sum(grid.chunk_at(index).n_problems for index in finished))
        missing = (index for index in range(grid.n_chunks) if index not in finished)
        try:
            with deferred_interrupts() as interrupted:
                tasks = itertools.takewhile(lambda _: not interrupted(), missing)
                with closing(engine.run(ChunkWork(plan), tasks)) as results:
                    for index, content in results:
                        write_chunk(made, index, content)
                        report.advance(grid.chunk_at(index).n_problems)
        except KeyboardInterrupt:
            kept = f"{report.done:,} of {report.total:,} problems are in {str(made.folder)!r}"
            raise KeyboardInterrupt(f"{kept}; running the same sweep again goes on from there.") from None
    return made
