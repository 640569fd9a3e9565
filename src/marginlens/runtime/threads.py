"""Threads over problems: compiled kernels release the interpreter lock and run in short slices, between which they can be interrupted."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple

from marginlens.runtime.progress import Progress, ProgressCallback

# The factor by which the size of a slice may grow or shrink at a time.
_MAX_CHANGE = 4.0
# How long the main thread sleeps at most before it looks for an interrupt.
_WAIT_SECONDS = 0.05


class Slicing(NamedTuple):
    """The division of work into slices.

    Attributes:
        seconds: the intended time of one call of a kernel. Ctrl-C waits for it.

        first_rate: operations per second, from which the first slice is sized.

        thread_worth: the number of operations that make a thread worth starting, about a millisecond.
    """

    seconds: float = 0.1
    first_rate: float = 2e8
    thread_worth: float = 2e5


# Threads that the caller's batches may use.
_limit: ContextVar[int | None] = ContextVar("limit", default=None)
_slicing: ContextVar[Slicing] = ContextVar("slicing", default=Slicing())  # noqa: B039 - a NamedTuple cannot change

# advance(first, last, begin, end) takes the steps begin … end - 1 of the problems first … last - 1.
Advance = Callable[[int, int, int, int], None]


class Work(NamedTuple):
    """The amount of work: problems, steps of each, approximate operations per step, and the fewest steps that are worth the
    preparation of a slice.
    """

    n_problems: int
    n_steps: int
    step_cost: float
    least_steps: int = 1


def n_threads() -> int:
    """Return how many threads a batch is spread over: the limit of the block, else `MARGINLENS_THREADS`, else the processors of
    this process.
    """
    limit = _limit.get()
    if limit is not None:
        return limit
    asked = os.environ.get("MARGINLENS_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Limit computations of the calling thread in this block to `count` threads; other threads are not affected."""
    token = _limit.set(min(count, n_threads()))
    try:
        yield
    finally:
        _limit.reset(token)


@contextmanager
def sliced(slicing: Slicing) -> Iterator[None]:
    """Cut computations of the calling thread in this block into slices of this kind."""
    token = _slicing.set(slicing)
    try:
        yield
    finally:
        _slicing.reset(token)


_blas_lock = threading.Lock()
# The limit of each block that has been entered; the first block has set it.
_blas_blocks: list[Any] = []


@contextmanager
def single_blas_thread() -> Iterator[None]:
    """Limit products and factors of matrices to one thread each in this block, which is best if they are small or many run at once.

    The limit holds for the whole process until the last of all such blocks ends; sums inside therefore have a fixed order.
    """
    with _blas_lock:
        _blas_blocks.append(_blas_blocks[0] if _blas_blocks else _blas_libraries().limit(limits=1, user_api="blas"))
    try:
        yield
    finally:
        with _blas_lock:
            limit = _blas_blocks.pop()
            if not _blas_blocks:
                limit.restore_original_limits()


@cache
def _blas_libraries() -> Any:
    """Return what sets the threads of the loaded libraries; to look for them takes as long as a hundred small products."""
    import scipy.linalg  # noqa: F401 - loads SciPy's library, which is not NumPy's
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()


def parallel_over(kernel: Callable[..., Any], n_problems: int, *arguments: Any, step_cost: float = 1e5) -> None:
    """Call `kernel(first, last, *arguments)` on slices that cover `range(n_problems)`.

    The kernel writes its results into arrays among its arguments and releases the interpreter lock, so slices run in parallel.
    The assignment of slices to threads does not change any result.

    Args:
        step_cost: the approximate number of operations per problem, from which the first slices are sized.
    """
    if n_problems == 1:
        kernel(0, 1, *arguments)
    else:
        run_in_slices(lambda first, last, begin, end: kernel(first, last, *arguments), Work(n_problems, 1, step_cost))


def run_in_slices(advance: Advance, work: Work, progress: ProgressCallback | None = None) -> None:
    """Advance all problems by all steps, in slices of several problems or several steps of one; `sliced` sets their length.

    The steps of a problem are taken in order, and problems are independent, so slices and threads do not change any result. An
    interrupt, or an error in `progress`, is raised in the caller's thread as soon as the running slices are finished. The first
    slice runs in that thread, so compilation can be interrupted too.

    Args:
        progress: called as `progress(done, total)` in the caller's thread after slices, in steps of all problems together.
    """
    cost = work.n_problems * work.n_steps * work.step_cost
    slicing = _slicing.get()
    workers = max(1, min(n_threads(), work.n_problems, int(cost / slicing.thread_worth)))
    slices, report = _Slices(advance, work, workers, slicing), Progress(progress, work.n_problems * work.n_steps)
    first_run = slices.run()
    report.advance(next(first_run, 0))
    if workers > 1 and not slices.finished:
        _in_threads(slices, [first_run, *(slices.run() for _ in range(workers - 1))], report)
    else:
        for units in first_run:
            report.advance(units)


class _Slices:
    """Problems for workers, a few at a time, or one in several ranges of steps if it takes long."""

    def __init__(self, advance: Advance, work: Work, workers: int, slicing: Slicing) -> None:
        self.advance, self.work, self.workers, self.seconds = advance, work, workers, slicing.seconds
        # Steps a second of one thread.
        self.rate = slicing.first_rate / max(work.step_cost, 1.0)
        self.stop, self.lock, self.next, self.open = threading.Event(), threading.Lock(), 0, 0

    @property
    def finished(self) -> bool:
        """True if every problem has taken all of its steps."""
        return self.next >= self.work.n_problems and self.open == 0

    def run(self) -> Iterator[int]:
        """Take slices until none is left or `stop` is set, and yield the number of steps of each."""
        n_steps = self.work.n_steps
        while (chunk := self._take()) is not None:
            first, last = chunk
            begin, whole = 0, False
            while not whole:
                window = n_steps if last - first > 1 else max(self.work.least_steps, int(self.rate * self.seconds))
                end = min(n_steps, begin + window)
                clock = time.perf_counter()
                self.advance(first, last, begin, end)
                units = (last - first) * (end - begin)
                measured = units / max(time.perf_counter() - clock, 1e-9)
                self.rate = min(max(measured, self.rate / _MAX_CHANGE), self.rate * _MAX_CHANGE)
                begin, whole = end, end == n_steps
                if whole:
                    with self.lock:
                        self.open -= 1
                yield units
                if self.stop.is_set():
                    return

    def _take(self) -> tuple[int, int] | None:
        with self.lock:
            first = self.next
            if first >= self.work.n_problems or self.stop.is_set():
                return None
            size = max(1, int(self.rate * self.seconds / max(self.work.n_steps, 1)))
            # All workers share the last problems.
            size = min(size, -(-(self.work.n_problems - first) // self.workers))
            self.next, self.open = first + size, self.open + 1
            return first, first + size


def _in_threads(slices: _Slices, runs: list[Iterator[int]], report: Progress) -> None:
    reports: queue.SimpleQueue[int | BaseException | None] = queue.SimpleQueue()

    def worker(run: Iterator[int]) -> None:
        try:
            for units in run:
                reports.put(units)
        # The exception is handed over to the caller's thread.
        except BaseException as problem:
            reports.put(problem)
        reports.put(None)

    threads = [threading.Thread(target=worker, args=(run,), daemon=True) for run in runs]
    try:
        for thread in threads:
            thread.start()
        running = len(threads)
        while running:
            try:
                message = reports.get(timeout=_WAIT_SECONDS)
            except queue.Empty:
                continue
            if message is None:
                running -= 1
            elif isinstance(message, BaseException):
                raise message
            else:
                report.advance(message)
    finally:
        slices.stop.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
