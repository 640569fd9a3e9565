"""What an engine is, and those of this machine: threads, its GPUs, and processes that are replaced when they die."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing.resource_tracker import ensure_running
from queue import Empty, SimpleQueue
from typing import Any, Protocol, runtime_checkable

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from marginlens.errors import EngineError, missing_extra, reject, whole_number
from marginlens.result import Described
from marginlens.runtime.interrupts import interrupts_blocked
from marginlens.runtime.threads import limited_threads, n_threads

TaskFunction = Callable[[int], Any]
QUEUE_FACTOR = 2  # tasks in flight for each worker: the one that it runs and the next, so that it never waits
_WAIT_SECONDS = 0.5  # for which the caller's thread sleeps at most before it counts the workers again
_MAX_DEATHS = 3  # worker processes that one task may take with it, and
_MAX_START_DEATHS = 8  # times that they may die one after the other before they have answered
_LONGEST_PAUSE = 5.0  # seconds before others are started after such a death
_POLL_SECONDS = 0.5  # between two looks whether the process that started a worker is there
_CAUSES = "they were killed, or ran out of memory"


@runtime_checkable
class Engine(Protocol):
    """Where tasks run. A task is a whole number, and `work(task)` computes its result."""

    @property
    def n_workers(self) -> int:
        """How many tasks run at the same time."""
        ...

    def run(self, work: TaskFunction, tasks: Iterable[int]) -> Generator[tuple[int, Any], None, None]:
        """Yield (task, work(task)) as tasks are finished, in any order, each task once.

        Tasks are taken from `tasks` a few at a time, so that neither tasks nor results pile up; when it ends, those in hand are
        finished and yielded. A caller that wants to end early without losing them ends `tasks`, on Ctrl-C through
        `runtime.interrupts.deferred_interrupts`. An exception in the work is raised here, once. Closing the iterator, also by an
        exception, gives up all threads and processes and the tasks in hand.
        """
        ...


def as_finished(
    submit: Callable[[int], Future[Any]],
    tasks: Iterable[int],
    in_flight: Callable[[], int],
    lost: Callable[[int, Future[Any]], bool] = lambda task, future: False,
) -> Generator[tuple[int, Any], None, None]:
    """The loop of every engine: submit tasks while fewer than `in_flight()` are out, yield (task, result) as they are finished.

    Args:
        submit: begins a task and returns its future.
        lost: whether a finished future failed through its worker's fault, so that the task is to be submitted again.
    """
    coming, again = iter(tasks), deque[int]()
    running: dict[Future[Any], int] = {}
    ended: SimpleQueue[Future[Any]] = SimpleQueue()
    try:
        while True:
            while len(running) < in_flight():
                task = again.popleft() if again else next(coming, None)
                if task is None:
                    break
                future = submit(task)
                running[future] = task
                future.add_done_callback(ended.put)
            if not running:
                return
            for future in sorted(_waiting(ended), key=_failed):  # what is finished is yielded before an error is raised
                task = running.pop(future)
                if lost(task, future):
                    again.append(task)
                else:
                    yield task, future.result()
    finally:
        for future in running:
            future.cancel()


def _waiting(ended: SimpleQueue[Future[Any]]) -> list[Future[Any]]:
    """The futures that have ended, at least one unless that takes long."""
    futures: list[Future[Any]] = []
    with suppress(Empty):
        futures.append(ended.get(timeout=_WAIT_SECONDS))
        while True:
            futures.append(ended.get_nowait())
    return futures


def _failed(future: Future[Any]) -> bool:
    return future.cancelled() or future.exception() is not None


# ---- threads and GPUs


class Threads(Described):
    """Tasks in threads of this process: for work that compiled kernels do, which release the interpreter lock.

    Args:
        n_workers: tasks at the same time; each then uses its share of the processors. One by default, since compiled kernels spread
            over all processors by themselves; the next task is computed while the caller deals with the result of the last.
    """

    quantities = "{n_workers}"

    def __init__(self, n_workers: int | None = None) -> None:
        self.n_workers = 1 if n_workers is None else whole_number(n_workers, "n_workers", at_least=1)

    def run(self, work: TaskFunction, tasks: Iterable[int]) -> Generator[tuple[int, Any], None, None]:
        """Yield (task, work(task)) as tasks are finished."""
        yield from run_in_threads(work, tasks, self.n_workers)


def run_in_threads(
    work: TaskFunction, tasks: Iterable[int], n_workers: int, prepare: Callable[[], Any] | None = None
) -> Generator[tuple[int, Any], None, None]:
    """Run tasks in so many threads, each on its share of the processors, and each after `prepare()`."""
    share = max(1, n_threads() // n_workers)

    def shared(task: int) -> Any:
        with limited_threads(share):
            return work(task)

    pool = ThreadPoolExecutor(n_workers, thread_name_prefix="marginlens-task", initializer=prepare)
    try:
        yield from as_finished(lambda task: pool.submit(shared, task), tasks, lambda: QUEUE_FACTOR * n_workers)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class Gpus(Described):
    """Tasks on the GPUs of this machine, one at a time on each; work with `device="cuda"` runs on the GPU of its thread.

    Args:
        count: how many of them, the first ones; all by default.
    """

    quantities = "{n_workers}"

    def __init__(self, count: int | None = None) -> None:
        available = _device_count()
        self.n_workers = available if count is None else whole_number(count, "count", at_least=1)
        if not 1 <= self.n_workers <= available:
            raise reject(
                "count", "a number of GPUs that this machine has", f"{self.n_workers} where it has {available}"
            )

    def run(self, work: TaskFunction, tasks: Iterable[int]) -> Generator[tuple[int, Any], None, None]:
        """Yield (task, work(task)) as tasks are finished."""
        import cupy

        devices: SimpleQueue[int] = SimpleQueue()
        for device in range(self.n_workers):
            devices.put(device)
        yield from run_in_threads(work, tasks, self.n_workers, lambda: cupy.cuda.Device(devices.get()).use())


def _device_count() -> int:
    try:
        import cupy
    except ImportError as problem:
        raise missing_extra("cupy", "gpu", "Work on GPUs") from problem
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:  # no driver, or no device
        return 0


# ---- processes


class Processes(Described):
    """Tasks in processes of this machine: for work in Python, such as a generator function of one's own.

    Where a process dies, joblib's loky starts all of them anew, and the tasks that they were at are run again, one at a time: one that
    takes three processes with it is to blame. Processes that die while they start are no task's fault; others are started after longer
    and longer pauses, and eight such deaths in a row end the run.

    Args:
        n_workers: processes; each uses its share of the processors. By default as many as there are processors.
    """

    quantities = "{n_workers}"

    def __init__(self, n_workers: int | None = None) -> None:
        self.n_workers = n_threads() if n_workers is None else whole_number(n_workers, "n_workers", at_least=1)

    def run(self, work: TaskFunction, tasks: Iterable[int]) -> Generator[tuple[int, Any], None, None]:
        """Yield (task, work(task)) as tasks are finished."""
        pool = _Pool(work, self.n_workers)
        try:
            yield from as_finished(pool.submit, tasks, pool.in_flight, pool.lost)
        finally:
            pool.close()


class _Pool:
    """An executor of loky, which is replaced when a process of it dies, and the tasks that were lost with it."""

    def __init__(self, work: TaskFunction, n_workers: int) -> None:
        self.work, self.n_workers = work, n_workers
        self.executor: Any = None
        self.deaths: Counter[int] = Counter()  # by task, of processes that had no other
        self.suspects: set[int] = set()  # tasks of processes that died, until they are finished

    def in_flight(self) -> int:
        """How many tasks may be out: one at a time as long as one of them may be to blame for a death."""
        return 1 if self.suspects else QUEUE_FACTOR * self.n_workers

    def submit(self, task: int) -> Future[Any]:
        ensure_running()  # the tracker of multiprocessing, whose start would end the block of signals
        with interrupts_blocked():  # processes start in it
            try:
                return self._started().submit(_run_task, task)
            except BrokenProcessPool:  # killed while they had nothing to do
                self.close()
                return self._started().submit(_run_task, task)

    def lost(self, task: int, future: Future[Any]) -> bool:
        """Whether the process of a task died, so that it has to be run again."""
        if future.cancelled() or not isinstance(future.exception(), BrokenProcessPool):
            self.suspects.discard(task)
            return False
        self.deaths[task] += self.suspects == {task}
        if self.deaths[task] >= _MAX_DEATHS:
            raise EngineError(f"Task {task} ended {_MAX_DEATHS} worker processes one after the other: {_CAUSES}.")
        self.suspects.add(task)
        self.close()
        return True

    def close(self) -> None:
        """End all processes, at once where they are still at work."""
        if self.executor is None:
            return
        executor, self.executor = self.executor, None
        for worker in list((executor._processes or {}).values()):
            with suppress(ProcessLookupError):  # loky's own `kill_workers` can miss them while tasks are queued
                os.kill(worker.pid, signal.SIGKILL)
        executor.shutdown(wait=True)

    def _started(self) -> Any:
        """The executor; a new one has answered once."""
        from joblib.externals.loky import ProcessPoolExecutor  # type: ignore[import-untyped]

        for pause in range(_MAX_START_DEATHS):
            if self.executor is not None:
                return self.executor
            threads = max(1, n_threads() // self.n_workers)
            self.executor = ProcessPoolExecutor(
                self.n_workers,
                initializer=_prepare_process,
                initargs=(self.work, os.getpid(), threads),
                env={"MARGINLENS_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)},
            )
            try:
                self.executor.submit(os.getpid).result()
            except BrokenProcessPool:
                self.close()
                time.sleep(min(_LONGEST_PAUSE, 0.1 * 2**pause))
        raise EngineError(
            f"{_MAX_START_DEATHS} times one after the other worker processes died before they began a task: {_CAUSES}."
        )


_work: TaskFunction | None = None  # of a worker process


def _prepare_process(work: TaskFunction, parent: int, threads: int) -> None:
    """Let a new process leave signals to the one that started it, take its share of the processors, and end when the other ends."""
    global _work
    _work = work
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threadpool_limits(threads)
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)


def _run_task(task: int) -> Any:
    assert _work is not None
    return _work(task)
