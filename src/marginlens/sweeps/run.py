"""Run a plan chunk by chunk into a folder, and resume it after any interruption."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack, closing, nullcontext

from marginlens.errors import InputError
from marginlens.runtime.interrupts import deferred_interrupts
from marginlens.runtime.progress import Progress, ProgressCallback, as_progress
from marginlens.runtime.threads import n_threads
from marginlens.sweeps.chunk import ChunkWork
from marginlens.sweeps.executors import RESUME, computed, computed_in_processes
from marginlens.sweeps.plan import Plan, as_plan
from marginlens.sweeps.store import Sweep, opened, stop_file, write_chunk


def sweep(
    plan: Plan | Mapping[str, object],
    folder: str | os.PathLike[str],
    executor: Executor | None = None,
    device: str = "cpu",
    *,
    progress: ProgressCallback | None = None,
) -> Sweep:
    """Run a plan into a folder, or resume it: finished chunks are not computed again.

    Args:
        plan: a `Plan`, or a dict of its keys.

        folder: the folder for the results. One process at a time works in it; a folder with chunks of another plan is refused.

        executor: any `concurrent.futures.Executor`; it is not shut down. By default there is one process of this machine for
            each processor; on a single processor, on a GPU, or if one chunk is left, chunks are computed in this process.
            `dask.distributed.Client.get_executor()` returns an executor over many machines.

        device: "cpu", "cuda" or "cuda:1".

        progress: called as `progress(done, total)` after every chunk, in problems, including those of earlier runs.

    Returns:
        The `Sweep` in the folder.

    Raises:
        KeyboardInterrupt: on Ctrl-C; every finished chunk is kept, and the same call resumes the sweep.

        EngineError: if the workers are gone; every finished chunk is kept.
    """
    placed = as_plan(plan).on(device)
    if not (executor is None or callable(getattr(executor, "submit", None))):
        raise InputError("executor", "a concurrent.futures.Executor, or None", type(executor).__name__)
    waiting = nullcontext(_never) if executor is None else deferred_interrupts()
    with waiting as interrupted, opened(folder, placed) as made:
        finished, grid = made.listed(), placed.grid
        report = Progress(as_progress(progress), grid.n_total)
        report.advance(sum(grid.chunk_at(index).n_problems for index in finished))
        missing = [index for index in range(grid.n_chunks) if index not in finished]
        try:
            with ExitStack() as stack:
                if executor is None:
                    results = _own_results(ChunkWork(placed), missing)
                else:
                    work = ChunkWork(placed, stack.enter_context(stop_file(made.folder)))
                    results = computed(work, missing, executor, interrupted)
                stack.enter_context(closing(results))
                for index, content in results:
                    write_chunk(made, index, content)
                    report.advance(grid.chunk_at(index).n_problems)
        except KeyboardInterrupt:
            kept = f"{report.done:,} of {report.total:,} problems are in {str(made.folder)!r}"
            raise KeyboardInterrupt(f"{kept}. {RESUME}") from None
    return made


def _never() -> bool:
    return False


def _own_results(work: ChunkWork, chunks: list[int]) -> Generator[tuple[int, bytes]]:
    """Yield (chunk, its file's bytes), computed by processes of this machine if several chunks are left."""
    if min(len(chunks), n_threads()) > 1 and work.plan.device == "cpu":
        return computed_in_processes(work, chunks)
    return _computed_here(work, chunks)


def _computed_here(work: ChunkWork, chunks: Iterable[int]) -> Generator[tuple[int, bytes]]:
    for chunk in chunks:
        yield chunk, work(chunk)
