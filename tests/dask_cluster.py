"""A Dask scheduler and workers as processes of their own, which can be killed."""

import asyncio
import multiprocessing
import os
import socket
import sys

PROCESSES = multiprocessing.get_context("forkserver")  # which imports what the others need once
PROCESSES.set_forkserver_preload(["distributed", "marginlens.sweeps", "marginlens.dynamics"])
LOCAL = {"host": "127.0.0.1", "dashboard": False, "dashboard_address": "127.0.0.1:0"}


def run_scheduler(port, path):
    silence(path)
    from distributed import Scheduler

    asyncio.run(serve(Scheduler, port=port, **LOCAL))


def run_worker(address, n_threads, path):
    silence(path)
    from distributed import Worker

    asyncio.run(serve(Worker, address, nthreads=n_threads, **LOCAL))


async def serve(kind, *arguments, **options):
    async with kind(*arguments, **options) as server:
        await server.finished()


def silence(path):
    """Write to nowhere, and take a package of marginlens under `path` for the library, where one is given."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    if path is not None:
        sys.path.insert(0, str(path))
        for name in [name for name in sys.modules if name.partition(".")[0] == "marginlens"]:
            del sys.modules[name]


class DaskCluster:
    """`scheduler` and `workers` are the processes; all of them are killed at the end of the block."""

    def __init__(self, n_workers=2, n_threads=1, scheduler_path=None):
        self.n_workers, self.n_threads, self.scheduler_path = n_workers, n_threads, scheduler_path
        self.start()

    def start(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address, self.workers = f"tcp://127.0.0.1:{port}", []
        self.scheduler = self._begin(run_scheduler, port, self.scheduler_path)
        for _ in range(self.n_workers):
            self.add_worker()

    def add_worker(self, path=None):
        self.workers.append(self._begin(run_worker, self.address, self.n_threads, path))

    def _begin(self, target, *arguments):
        process = PROCESSES.Process(target=target, args=arguments, daemon=True)
        process.start()
        return process

    def stop(self):
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.join()

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        self.stop()
