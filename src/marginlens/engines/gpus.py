"""The GPUs of this machine as an engine: one thread for each, whose work runs on that device."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from queue import SimpleQueue
from typing import Any

from marginlens.engines.local import run_in_threads
from marginlens.engines.protocol import TaskFunction
from marginlens.errors import missing_extra, reject, whole_number
from marginlens.result import Described


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
