"""Run the chunks of a sweep on any `concurrent.futures.Executor`, by default on processes of this machine."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from contextlib import contextmanager, suppress
from typing import Any

from marginlens.errors import EngineError
from marginlens.runtime.interrupts import deferred_interrupts, interrupts_blocked
from marginlens.runtime.threads import n_threads

# Chunks handed to an executor at a time, so that neither chunks nor results pile up.
MAX_IN_FLIGHT = 256
# Times in a row that worker processes may die without a chunk finished in between.
MAX_DEATHS = 3
# The pause between two looks for Ctrl-C.
INTERRUPT_POLL_SECONDS = 0.1
# The pause between two looks of a worker process whether the sweep that started it is still running.
PARENT_POLL_SECONDS = 0.5
RESUME = "The finished chunks are kept; run the same sweep again to go on."

ChunkFunction = Callable[[int], bytes]


def computed(
    work: ChunkFunction, chunks: Iterable[int], executor: Executor, interrupted: Callable[[], bool]
) -> Generator[tuple[int, bytes]]:
    """Yield (chunk, work(chunk)) as chunks are finished, in any order; if the caller stops early, cancel chunks that have not begun.

    Args:
        interrupted: a function that returns whether Ctrl-C has been pressed; a KeyboardInterrupt is then raised. Ctrl-C must be
            deferred, because an exception raised in a callback of the garbage collector is lost, and Dask has such a callback.
    """
    waiting, running = iter(chunks), dict[Future[bytes], int]()
    try:
        while True:
            for chunk in itertools.islice(waiting, MAX_IN_FLIGHT - len(running)):
                running[executor.submit(work, chunk)] = chunk
            if not running:
                return
            done, _ = wait(running, INTERRUPT_POLL_SECONDS, FIRST_COMPLETED)
            if interrupted():
                raise KeyboardInterrupt
            # Hand out what is finished before an error is raised.
            for future in sorted(done, key=_has_failed):
                yield running.pop(future), future.result()
    except (BrokenExecutor, CancelledError) as problem:
        raise EngineError(f"The executor stopped working ({_first_line(problem)}). {RESUME}") from problem
    except Exception as problem:
        # Dask raises exceptions of its own when its scheduler or its workers are gone.
        if type(problem).__module__.partition(".")[0] != "distributed":
            raise
        raise EngineError(f"The Dask cluster stopped working ({_first_line(problem)}). {RESUME}") from problem
    finally:
        for future in running:
            future.cancel()


def computed_in_processes(work: ChunkFunction, chunks: Iterable[int]) -> Generator[tuple[int, bytes]]:
    """Yield (chunk, work(chunk)) from processes of this machine, which are replaced if they die.

    When one process dies, loky gives up all of them; new processes compute the lost chunks again.
    """
    remaining, deaths = dict.fromkeys(chunks), 0
    while remaining:
        try:
            with deferred_interrupts() as interrupted, _processes() as executor:
                for chunk, content in computed(work, list(remaining), executor, interrupted):
                    del remaining[chunk]
                    deaths = 0
                    yield chunk, content
        except EngineError as problem:
            deaths += 1
            if deaths == MAX_DEATHS:
                sentence = f"Worker processes died {deaths} times in a row: they were killed, or ran out of memory."
                raise EngineError(f"{sentence} {RESUME}") from problem


@contextmanager
def _processes() -> Iterator[Executor]:
    """Start loky's processes, one for each processor; they are killed at once if the block ends early."""
    from loky import ProcessPoolExecutor  # type: ignore[import-untyped]

    environment = {"MARGINLENS_THREADS": "1", "OMP_NUM_THREADS": "1"}
    executor = ProcessPoolExecutor(n_threads(), initializer=_prepare, initargs=(os.getpid(),), env=environment)
    try:
        # The first task starts the processes. A terminal sends Ctrl-C to them too, and one that is still importing would print a traceback.
        with interrupts_blocked():
            executor.submit(os.getpid)
        yield executor
    except BaseException:
        # loky's own `kill_workers` misses processes while tasks are queued.
        for process in list((executor._processes or {}).values()):
            # Windows has no SIGKILL: there SIGTERM ends a process at once.
            with suppress(OSError):
                os.kill(process.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
        raise
    finally:
        executor.shutdown(wait=True)


def _prepare(parent: int) -> None:
    """Prepare a worker process: ignore Ctrl-C, which the process of the sweep handles, and end when that process has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    if sys.platform == "win32":  # where a process keeps the number of a parent that has ended
        import _winapi

        _winapi.WaitForSingleObject(_winapi.OpenProcess(_winapi.SYNCHRONIZE, False, parent), _winapi.INFINITE)
    else:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_SECONDS)
    os._exit(1)


def _has_failed(future: Future[Any]) -> bool:
    return future.cancelled() or future.exception() is not None


def _first_line(problem: BaseException) -> str:
    return " ".join([type(problem).__name__, *str(problem).strip().splitlines()[:1]])
