"""Kill -9 at random moments of a sweep, which then has to end up as an undisturbed one.

python tests/sweep_kills.py [N_KILLS [SEED [KIND ...]]]   prints a line a kill, and ends with how many sweeps were whole

A kind is process, which runs a sweep; child, one of those that compute for it; or, of a sweep on a Dask cluster, worker, scheduler or
caller, the process that runs it there. Workers and schedulers by turns unless given.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

import marginlens as ml
from dask_cluster import DaskCluster
from marginlens.engines.dask import DaskEngine
from marginlens.errors import EngineError

# 80 chunks of a few milliseconds, so that much of the time is spent on writing them
PLAN = {
    "n_inputs": 2,
    "n_tokens": 3,
    "d": [3, 5],
    "n_steps": [5, 10],
    "n_problems": 400,
    "chunk": 20,
    "seed": 11,
    "record": ["selection", "norm", "final", "margin", "optimality", "status"],
}
CONNECT_SECONDS, POLL_SECONDS = 60.0, 0.002
MAX_DELAY_SECONDS = 0.05  # between the chunk after which something is killed and the kill


def count_chunks(folder):
    return sum(1 for _ in folder.rglob("*.parquet"))


def start(folder, *options):
    """Run the sweep in a process of its own."""
    plan = folder.with_suffix(".toml")
    plan.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in PLAN.items()), encoding="utf-8")
    command = [sys.executable, "-m", "marginlens", "sweep", str(plan), "--out", str(folder), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def children(process):
    """The processes that compute for another one, those that are only starting among them."""
    try:
        found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        return [int(child) for child in found if b"popen_loky" in Path(f"/proc/{child}/cmdline").read_bytes()]
    except (FileNotFoundError, ProcessLookupError):
        return []


class Trials:
    """Sweeps of which something is killed each time, on a cluster of two workers where one is given."""

    def __init__(self, folder, seed=0, cluster=None):
        self.folder, self.rng = Path(folder), np.random.default_rng(seed)
        self.cluster = cluster
        undisturbed = ml.sweep(PLAN, self.folder / "undisturbed")
        self.digest, self.n_chunks = undisturbed.digest(), undisturbed.status().n_chunks

    def resumed(self, out):
        """Go on with a sweep: whether no file is damaged or left half written, every problem is there once, and the content is the same."""
        made = self._run(out)
        status, rows = made.status(check=True), made.table([])
        once = rows.group_by(["cell", "problem"]).aggregate([]).num_rows == rows.num_rows == status.n_problems
        intact = status.is_finished and not status.damaged and not list(out.rglob("*.partial"))
        return once and intact and made.digest() == self.digest

    def _run(self, out):
        if self.cluster is None:
            return ml.sweep(PLAN, out)
        engine = DaskEngine.from_scheduler(self.cluster.address, CONNECT_SECONDS)
        try:
            return ml.sweep(PLAN, out, engine=engine)
        finally:
            engine.close()

    def _victims(self, kind, runner):
        if kind == "child":
            return children(runner.pid)
        if kind == "worker":
            return [process.pid for process in self.cluster.workers[-2:]]
        return [(self.cluster.scheduler if kind == "scheduler" else runner).pid]

    def trial(self, name, kind):
        """Run a sweep, kill meanwhile, go on with it: (chunks there at the kill, None if it was over; whether it is whole)."""
        out, chunks_at_kill = self.folder / name, []
        n_chunks, delay = self.rng.integers(self.n_chunks), self.rng.uniform(0, MAX_DELAY_SECONDS)
        options = {"process": [], "child": ["--processes", "--workers", "2"]}
        if kind == "caller":
            options[kind] = ["--quiet", "--scheduler", self.cluster.address]
        runner = start(out, *options[kind]) if kind in options else None
        over = threading.Event()

        def kill():
            while count_chunks(out) < n_chunks and not over.wait(POLL_SECONDS):
                pass
            if not over.wait(delay) and (victims := self._victims(kind, runner)):
                os.kill(int(self.rng.choice(victims)), signal.SIGKILL)
                chunks_at_kill.append(count_chunks(out))

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            runner.communicate() if runner else self._run(out)
        except EngineError:
            if kind != "scheduler":
                raise
        over.set()
        killer.join()
        if chunks_at_kill and kind == "scheduler":
            self.cluster.stop()
            self.cluster.start()
        elif chunks_at_kill and kind == "worker":
            self.cluster.add_worker()
        survived = kind != "child" or runner.returncode == 0
        return (chunks_at_kill[0] if chunks_at_kill else None), self.resumed(out) and survived


def main(n_kills=100, seed=0, *kinds):
    """Kill these kinds by turns until `n_kills` came before the end of their sweep; True where all sweeps were whole."""
    counts, begin, kinds = Counter(), time.perf_counter(), kinds or ("worker", "scheduler")
    with tempfile.TemporaryDirectory() as folder, DaskCluster(2) as cluster:
        trials = Trials(folder, seed, cluster)
        while counts["kills"] < n_kills:
            kind = kinds[counts["trials"] % len(kinds)]
            n_chunks, whole = trials.trial(str(counts["trials"]), kind)
            killed = int(n_chunks is not None)
            counts.update({"trials": 1, "kills": killed, kind: killed, "spoilt": not whole})
            moment = f"killed after {n_chunks} chunks" if killed else "not killed, the sweep was over"
            print(f"{kind:9} {moment}: {'whole' if whole else 'SPOILT'}", flush=True)
    print(
        f"{counts['kills']} kills ({', '.join(f'{counts[kind]} of {kind}' for kind in kinds)}) in "
        f"{time.perf_counter() - begin:.0f} s: {counts['trials'] - counts['spoilt']} of {counts['trials']} sweeps whole"
    )
    return counts["spoilt"] == 0


if __name__ == "__main__":
    sys.exit(not main(*map(int, sys.argv[1:3]), *sys.argv[3:]))
