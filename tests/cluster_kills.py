"""Kill -9 of Dask workers, schedulers and callers at random moments of a sweep, which then has to end up as an undisturbed one.

python tests/cluster_kills.py [N_KILLS [SEED [KIND ...]]]   prints a line a kill, and ends with how many sweeps were whole

A kind is worker, scheduler or caller, the process that runs the sweep on the cluster; the first two by turns unless given.
"""

import json
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

PLAN = {
    "n_inputs": 4,
    "n_tokens": 6,
    "d": [4, 10],
    "step": [0.01, 0.1],
    "n_steps": 300,
    "n_problems": 300,
    "chunk": 30,
    "seed": 11,
    "record": ["selection", "norm", "status"],
}
CONNECT_SECONDS, POLL_SECONDS = 60.0, 0.002
MAX_DELAY_SECONDS = 0.05  # between the chunk after which something is killed and the kill


def count_chunks(folder):
    return sum(1 for _ in folder.rglob("*.parquet"))


class Trials:
    """Sweeps on a cluster of two workers, of which something is killed each time."""

    def __init__(self, folder, seed, cluster):
        self.folder, self.rng = Path(folder), np.random.default_rng(seed)
        self.cluster = cluster
        undisturbed = ml.sweep(PLAN, self.folder / "undisturbed")
        self.digest, self.n_chunks = undisturbed.digest(), undisturbed.status().n_chunks

    def _run(self, out):
        engine = DaskEngine.from_scheduler(self.cluster.address, CONNECT_SECONDS)
        try:
            return ml.sweep(PLAN, out, engine=engine)
        finally:
            engine.close()

    def _caller(self, out):
        """A process that runs the sweep."""
        plan = self.folder / "plan.toml"
        plan.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in PLAN.items()), encoding="utf-8")
        command = [sys.executable, "-m", "marginlens", "sweep", str(plan), "--out", str(out), "--quiet"]
        return subprocess.Popen([*command, "--scheduler", self.cluster.address])

    def trial(self, name, victim):
        """Run a sweep, kill `victim` meanwhile, go on with it: (chunks there at the kill, None if it was over; whether it is whole)."""
        out, chunks_at_kill = self.folder / name, []
        n_chunks, delay = self.rng.integers(self.n_chunks), self.rng.uniform(0, MAX_DELAY_SECONDS)
        target = self.cluster.scheduler if victim == "scheduler" else self.cluster.workers[-1 - self.rng.integers(2)]
        target = self._caller(out) if victim == "caller" else target
        over = threading.Event()

        def kill():
            while count_chunks(out) < n_chunks and not over.wait(POLL_SECONDS):
                pass
            if not over.wait(delay):
                target.kill()
                chunks_at_kill.append(count_chunks(out))

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            target.wait() if victim == "caller" else self._run(out)
        except EngineError:
            if victim != "scheduler":
                raise
        over.set()
        killer.join()
        if chunks_at_kill and victim == "scheduler":
            self.cluster.stop()
            self.cluster.start()
        elif chunks_at_kill and victim == "worker":
            self.cluster.add_worker()
        made = self._run(out)
        status, rows = made.status(check=True), made.table([])
        once = rows.group_by(["cell", "problem"]).aggregate([]).num_rows == rows.num_rows == status.n_problems
        whole = once and status.is_finished and not status.damaged and made.digest() == self.digest
        return (chunks_at_kill[0] if chunks_at_kill else None), whole


def main(n_kills=100, seed=0, *kinds):
    """Kill these kinds by turns until `n_kills` came before the end of their sweep; True where all sweeps were whole."""
    counts, begin = Counter(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, DaskCluster(2) as cluster:
        trials = Trials(folder, seed, cluster)
        while counts["kills"] < n_kills:
            kinds = kinds or ("worker", "scheduler")
            victim = kinds[counts["trials"] % len(kinds)]
            n_chunks, whole = trials.trial(str(counts["trials"]), victim)
            killed = n_chunks is not None
            counts.update({"trials": 1, "kills": killed, victim: killed, "spoilt": not whole})
            moment = f"killed after {n_chunks} chunks" if killed else "not killed, the sweep was over"
            print(f"{victim:9} {moment}: {'whole' if whole else 'SPOILT'}", flush=True)
    print(
        f"{counts['kills']} kills ({', '.join(f'{counts[kind]} of {kind}s' for kind in kinds)}) in "
        f"{time.perf_counter() - begin:.0f} s: {counts['trials'] - counts['spoilt']} of {counts['trials']} sweeps whole"
    )
    return counts["spoilt"] == 0


if __name__ == "__main__":
    sys.exit(not main(*map(int, sys.argv[1:3]), *sys.argv[3:]))
