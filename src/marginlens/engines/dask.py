"""A Dask cluster as an engine: tasks go to its workers a few at a time, and workers may join, leave and die meanwhile."""

from __future__ import annotations

import logging
import os
import pickle
import time
import warnings
import weakref
from asyncio import CancelledError
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from marginlens import __version__
from marginlens.engines.local import QUEUE_FACTOR, TaskFunction, as_finished
from marginlens.errors import EngineError, missing_extra, reject, whole_number
from marginlens.result import Described
from marginlens.runtime.threads import limited_threads, n_threads

try:
    import cloudpickle  # type: ignore[import-untyped]
    import distributed
    from dask.system import CPU_COUNT
except ImportError as problem:
    raise missing_extra("distributed", "cluster", "A Dask cluster") from problem

_CONNECT_SECONDS = 10.0  # for which a scheduler may take to answer
_COUNT_SECONDS = 2.0  # between two counts of the workers
_LOGGERS = ("distributed", "tornado", "asyncio")  # which log every lost connection at length


class DaskEngine(Described):
    """Tasks on the workers of a Dask cluster, whose number may change at any time.

    Workers need marginlens in the version of this process; the scheduler needs only Dask. A task uses its share of the processors:
    those of the machine, divided by the threads of all workers there; or as many as `MARGINLENS_THREADS` says on the worker.

    Args:
        client: a `distributed.Client`, of dask-jobqueue, Kubernetes, or any other cluster. It stays open.
        connections: what is closed with the engine, by `close()` or when it is no longer used.
    """

    quantities = "{address!r}"

    def __init__(self, client: Any, *, connections: tuple[Any, ...] = ()) -> None:
        if not isinstance(client, distributed.Client) or client.asynchronous or client.status != "running":
            got = f"one that is {client.status}" if isinstance(client, distributed.Client) else type(client).__name__
            raise reject("client", "a Dask client that is connected and not asynchronous", got)
        self.client, self.address = client, client.scheduler.address
        self.close = weakref.finalize(self, _close_all, connections)

    @classmethod
    def from_scheduler(cls, address: str, seconds: float = _CONNECT_SECONDS) -> DaskEngine:
        """The cluster of the scheduler at this address, such as "tcp://host:8786"; the connection is closed with the engine."""
        try:
            with _quiet_loggers():
                client = distributed.Client(address, timeout=seconds, set_as_default=False)
        except (OSError, ValueError, TypeError) as problem:
            expected = "the address of a Dask scheduler that is running, such as tcp://host:8786"
            raise reject("scheduler", expected, repr(address), f"None answered there in {seconds:g} s.") from problem
        return cls(client, connections=(client,))

    @classmethod
    def local(cls, n_workers: int | None = None) -> DaskEngine:
        """A cluster of processes on this machine, which ends with the engine."""
        count = n_threads() if n_workers is None else whole_number(n_workers, "n_workers", at_least=1)
        cluster = distributed.LocalCluster(
            n_workers=count, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=logging.CRITICAL
        )
        client = distributed.Client(cluster, set_as_default=False)
        return cls(client, connections=(client, cluster))

    @property
    def n_workers(self) -> int:
        """How many tasks the workers run at the same time just now."""
        return self._threads().total()

    def run(self, work: TaskFunction, tasks: Iterable[int]) -> Generator[tuple[int, Any], None, None]:
        """Yield (task, work(task)) as tasks are finished; an error of the cluster is one sentence, one of the work as it is."""
        name, threads, counted = f"marginlens-{uuid4().hex}", self._threads(), time.monotonic()
        if not threads:
            sentence = f"The Dask scheduler at {self.address} has no workers yet; waiting for some."
            warnings.warn(sentence, stacklevel=2)

        def in_flight() -> int:
            nonlocal threads, counted
            if self.client.status != "running" or time.monotonic() > counted + _COUNT_SECONDS:
                threads, counted = self._threads(), time.monotonic()
            return max(1, QUEUE_FACTOR * threads.total())

        def submit(task: int) -> Any:
            call = cloudpickle.dumps(_Call(work, task, threads))
            return self.client.submit(pickle.loads, call, key=f"{name}-{task}", pure=False)

        with _quiet_loggers():
            try:
                yield from as_finished(submit, tasks, in_flight)
            except (CancelledError, distributed.client.FutureCancelledError, distributed.comm.CommClosedError) as gone:
                raise _scheduler_gone(self.address) from gone
            except distributed.KilledWorker as problem:
                task = str(problem.task).rpartition("-")[2]
                deaths = f"{problem.allowed_failures + 1} Dask workers, one after the other: killed, or out of memory."
                raise EngineError(f"Task {task} ended {deaths}") from problem
            except ImportError as problem:
                if (problem.name or "").partition(".")[0] == "marginlens":
                    raise _other_version("a worker", "an older one or none") from problem
                raise

    def _threads(self) -> Counter[str]:
        """The threads of all workers, by host."""
        threads: Counter[str] = Counter()
        try:
            if self.client.status != "running":
                raise OSError(f"the connection is {self.client.status}")
            for worker, count in self.client.nthreads(callback_timeout=_CONNECT_SECONDS).items():
                threads[distributed.comm.get_address_host(worker)] += count
        except (OSError, TimeoutError, RuntimeError, AttributeError) as problem:  # a connection that ends meanwhile
            raise _scheduler_gone(self.address) from problem
        return threads


class _Call:
    """A call `_run_on_worker(work, task, …)` that is made when it is unpickled.

    A scheduler unpickles what it is given: this reaches it as `pickle.loads` and bytes, and it needs no marginlens.
    """

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return _run_on_worker, (__version__, *self.arguments)


def _run_on_worker(version: str, work: TaskFunction, task: int, threads_by_host: dict[str, int]) -> Any:
    worker = distributed.get_worker()
    if version != __version__:
        raise _other_version(worker.address, __version__)
    if "MARGINLENS_THREADS" in os.environ:
        return work(task)
    threads, is_confined = worker.state.nthreads, (os.cpu_count() or 1) > CPU_COUNT  # by Slurm, a container, or taskset
    if not is_confined:
        threads = threads_by_host.get(distributed.comm.get_address_host(worker.address), threads)
    with limited_threads(max(1, CPU_COUNT // threads)):
        return work(task)


def _scheduler_gone(address: str) -> EngineError:
    return EngineError(f"The Dask scheduler at {address} is gone; what was finished is kept; run it again to go on.")


def _other_version(worker: str, version: str) -> EngineError:
    return EngineError(f"Workers need marginlens {__version__}, the version of this process; {worker} has {version}.")


def _close_all(connections: Iterable[Any]) -> None:
    with _quiet_loggers():
        for connection in connections:
            connection.close()


@contextmanager
def _quiet_loggers() -> Iterator[None]:
    """Keep Dask from logging each lost connection: what matters of it is raised in one sentence."""
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] in _LOGGERS]
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
