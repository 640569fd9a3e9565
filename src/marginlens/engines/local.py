"""Engines of this machine: threads, and processes that are replaced when they die."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, get_context, parent_process
from multiprocessing.sharedctypes import RawValue
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from marginlens.engines.protocol import QUEUE_FACTOR, TaskFunction, as_finished
from marginlens.errors import EngineError, whole_number
from marginlens.runtime.interrupts import interrupts_blocked
from marginlens.runtime.threads import limited_threads, n_threads

_MAX_DEATHS = 3  # worker processes that one task may take with it, and
_MAX_IDLE_DEATHS = 8  # that may die one after the other before they have begun a task, with no task finished meanwhile
_LONGEST_PAUSE = 5.0  # seconds before another one is started after such deaths
_NO_TASK = -1  # what a process reports until it begins a task, and between two


class Threads:
    """Tasks in threads of this process: for work that compiled kernels do, which release the interpreter lock.

    Args:
        n_workers: tasks at the same time; each then uses its share of the processors. One by default, since compiled kernels spread
            over all processors by themselves; the next task is computed while the caller deals with the result of the last.
    """

    def __init__(self, n_workers: int | None = None) -> None:
        self.n_workers = 1 if n_workers is None else whole_number(n_workers, "n_workers", at_least=1)

    def run(self, work: TaskFunction, tasks: Iterable[int]) -> Generator[tuple[int, Any], None, None]:
        """Yield (task, work(task)) as tasks are finished."""
        shared = with_share(work, self.n_workers)
        pool = ThreadPoolExecutor(self.n_workers, thread_name_prefix="marginlens-task")
        try:
            yield from as_finished(lambda task: pool.submit(shared, task), tasks, lambda: QUEUE_FACTOR * self.n_workers)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def __repr__(self) -> str:
        return f"Threads({self.n_workers})"


def with_share(work: TaskFunction, n_workers: int) -> TaskFunction:
    """The same work on its share of the processors, where it runs in one of `n_workers` threads."""
    share = max(1, n_threads() // n_workers)

    def shared(task: int) -> Any:
        with limited_threads(share):
            return work(task)

    return shared


class Processes:
    """Tasks in processes of this machine: for work in Python, such as a generator function of one's own.

    The processes are spawned, not forked, and read compiled functions from the cache on disk. Where one dies, its task is run again
    in a new one, up to three times; the other processes go on meanwhile. One that dies before it has begun a task, as while it
    starts, is no task's fault: others are started after longer and longer pauses, and eight such deaths in a row end the run.
    A script that uses processes needs the usual `if __name__ == "__main__":`.

    Args:
        n_workers: processes; each uses its share of the processors. By default as many as there are processors.
    """

    def __init__(self, n_workers: int | None = None) -> None:
        self.n_workers = n_threads() if n_workers is None else whole_number(n_workers, "n_workers", at_least=1)

    def run(self, work: TaskFunction, tasks: Iterable[int]) -> Generator[tuple[int, Any], None, None]:
        """Yield (task, work(task)) as tasks are finished."""
        workers = _Workers(work, self.n_workers)
        try:
            yield from as_finished(workers.submit, tasks, lambda: QUEUE_FACTOR * self.n_workers, workers.lost)
        finally:
            workers.close()

    def __repr__(self) -> str:
        return f"Processes({self.n_workers})"


class _Workers:
    """Worker processes, each a pool of one, so that a death tells whose task it was and disturbs no other process."""

    def __init__(self, work: TaskFunction, count: int) -> None:
        self.prepared = (cloudpickle.dumps(work), max(1, n_threads() // count))
        self.workers = [_Worker(self.prepared) for _ in range(count)]
        self.deaths: Counter[int] = Counter()
        self.idle_deaths = 0  # since a task was finished

    def submit(self, task: int) -> Future[Any]:
        """Give the task to the process with the fewest."""
        worker = min(self.workers, key=lambda worker: len(worker.tasks))
        try:
            return worker.submit(task)
        except BrokenProcessPool:  # killed while it had nothing to do
            return self._replace(worker).submit(task)

    def lost(self, task: int, future: Future[Any]) -> bool:
        """Whether the process of a task died; a task that it had reported to have begun is to blame, and no other."""
        worker = next((worker for worker in self.workers if future in worker.tasks), None)
        if not _died(future):
            self.idle_deaths = 0
            if worker is not None:
                del worker.tasks[future]
            return False
        if worker is not None:
            begun = worker.begun.value
            if begun == _NO_TASK:
                self._pause()
            else:
                self.deaths[begun] += 1
                if self.deaths[begun] >= _MAX_DEATHS:
                    raise EngineError(
                        f"Task {begun} ended {_MAX_DEATHS} worker processes one after the other: they were killed, or ran out of memory."
                    )
            self._replace(worker)
        return True

    def _pause(self) -> None:
        """Wait before a process that died without a task is replaced, the longer the more of them died; too many are an error."""
        self.idle_deaths += 1
        if self.idle_deaths >= _MAX_IDLE_DEATHS:
            raise EngineError(
                f"{_MAX_IDLE_DEATHS} worker processes died one after the other before they began a task: they were killed, ran out of "
                'memory, or the script starts processes outside of if __name__ == "__main__".'
            )
        time.sleep(min(_LONGEST_PAUSE, 0.05 * 2**self.idle_deaths))

    def close(self) -> None:
        """End all processes, at once where they are still at work."""
        for worker in self.workers:
            worker.close()

    def _replace(self, worker: _Worker) -> _Worker:
        worker.close()
        fresh = self.workers[self.workers.index(worker)] = _Worker(self.prepared)
        return fresh


class _Worker:
    """One process and the tasks that it was given, in their order."""

    def __init__(self, prepared: tuple[bytes, int]) -> None:
        self.begun = RawValue("q", _NO_TASK)  # the task that the process is at
        initial = (*prepared, self.begun)
        self.pool = ProcessPoolExecutor(1, get_context("spawn"), initializer=_prepare_process, initargs=initial)
        self.tasks: dict[Future[Any], int] = {}

    def submit(self, task: int) -> Future[Any]:
        with interrupts_blocked():  # the process starts in it
            future = self.pool.submit(_run_task, task)
        self.tasks[future] = task
        return future

    def close(self) -> None:
        for process in list((self.pool._processes or {}).values()):
            process.kill()
        self.pool.shutdown(wait=True, cancel_futures=True)


def _died(future: Future[Any]) -> bool:
    return not future.cancelled() and isinstance(future.exception(), BrokenProcessPool)


_work: TaskFunction | None = None  # of a worker process, and
_begun: Any = None  # where it reports the task that it is at


def _prepare_process(work: bytes, threads: int, begun: Any) -> None:
    """Let a new process leave signals to the one that started it, take its share of the processors, and end when the other ends."""
    global _work, _begun
    _work, _begun = cloudpickle.loads(work), begun  # functions of a script and of a notebook among them
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.environ["MARGINLENS_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(threads)
    threadpool_limits(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _run_task(task: int) -> Any:
    assert _work is not None
    _begun.value = task
    try:
        return _work(task)
    finally:
        _begun.value = _NO_TASK
