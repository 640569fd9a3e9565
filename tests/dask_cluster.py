"""A Dask scheduler and workers as processes of their own, which can be killed."""

import os
import socket
import subprocess
import sys

QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


class DaskCluster:
    """`scheduler` and `workers` are the processes; all of them are killed at the end of the block."""

    def __init__(self, n_workers=2, n_threads=1, scheduler_path=None, worker_path=None):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address, self.n_threads = f"tcp://127.0.0.1:{port}", n_threads
        options = ("--host", "127.0.0.1", "--port", str(port), "--no-dashboard", "--no-show")
        self.scheduler = self._start(scheduler_path, "dask_scheduler", *options)
        self.workers = []
        for _ in range(n_workers):
            self.add_worker(worker_path)

    def _start(self, path, name, *options):
        paths = [*([] if path is None else [str(path)]), *filter(None, sys.path)]  # the modules of this process
        command = [sys.executable, "-W", "ignore", "-m", f"distributed.cli.{name}", *options]
        return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)}, **QUIET)

    def add_worker(self, path=None):
        options = ("--nthreads", str(self.n_threads), "--no-nanny", "--no-dashboard", "--death-timeout", "60")
        self.workers.append(self._start(path, "dask_worker", self.address, *options))

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()
