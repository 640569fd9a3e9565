"""What an engine costs for each task beside the work itself: tasks that compute nothing and give back as many bytes as a chunk's file."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from marginlens.engines import Engine, Processes, Threads
from marginlens.errors import MissingExtra
from marginlens.runtime.progress import Progress, ProgressCallback

N_TASKS, RESULT_BYTES, WORKERS = 1000, 100_000, 2
CHUNK_SECONDS = 1.0  # of work, as a sweep cuts it


def empty_chunk(task: int) -> bytes:
    """A result of the size of a chunk's file, without the work."""
    return bytes(RESULT_BYTES)


def bench_engines(progress: ProgressCallback | None = None, *, n_tasks: int = N_TASKS) -> list[dict[str, Any]]:
    """Run tasks without work on every engine of this machine.

    Returns:
        A row for each engine: seconds until the first result, then wall time and CPU time of this process for each task, and this time
        in per cent of the work of a chunk.
    """
    watch, rows = Progress(progress), []
    for name, engine in watch.each(list(_engines().items())):
        rows.append(_row(name, engine(), n_tasks))
    return rows


def _engines() -> dict[str, Callable[[], Engine]]:
    engines: dict[str, Callable[[], Engine]] = {
        "a thread": Threads,
        f"{WORKERS} threads": lambda: Threads(WORKERS),
        f"{WORKERS} processes": lambda: Processes(WORKERS),
    }
    try:
        from marginlens.engines.dask import DaskEngine
    except MissingExtra:
        return engines
    return engines | {f"Dask, {WORKERS} workers": lambda: DaskEngine.local(WORKERS)}


def _row(name: str, engine: Engine, n_tasks: int) -> dict[str, Any]:
    began = time.perf_counter()
    results = engine.run(empty_chunk, range(n_tasks + WORKERS))
    for _ in range(WORKERS):
        next(results)
    first = time.perf_counter(), time.process_time()
    count = sum(len(content) == RESULT_BYTES for _, content in results)
    seconds, cpu = time.perf_counter() - first[0], time.process_time() - first[1]
    return {
        "method": name,
        "tasks": count,
        "start_seconds": first[0] - began,
        "seconds": seconds / count,
        "cpu_seconds": cpu / count,
        "percent_of_a_chunk": 100.0 * cpu / count / CHUNK_SECONDS,
    }
