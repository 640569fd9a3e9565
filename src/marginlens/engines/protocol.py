"""What an engine is, and the loop over tasks in flight that all engines share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Protocol, runtime_checkable

TaskFunction = Callable[[int], Any]
QUEUE_FACTOR = (
    2  # tasks in flight for each worker: the one that it runs and the next, so that it never waits for the caller
)
_WAIT_SECONDS = 0.5  # for which the caller's thread sleeps at most before it counts the workers again


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
