"""Kill -9 at random moments of a sweep, which then has to end up with the same bytes as an undisturbed one.

python tests/sweep_kills.py [N_KILLS [SEED [KIND ...]]]   prints a line a kill, and ends with how many sweeps were whole

A kind is `parent`, the process that runs a sweep on loky's processes, or `worker`, one of these; `dask parent` and `dask worker` are the
same on a local Dask cluster of two workers. All four by turns unless given.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import marginlens as ml

KINDS = ("parent", "worker", "dask parent", "dask worker")
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
# between two looks; between the chunk after which something is killed and the kill
POLL_SECONDS, MAX_DELAY_SECONDS = 0.002, 0.05
MAX_TRIALS_PER_KILL = 10  # some sweeps end before they are killed
RUN = """
import json, os, sys, time
import marginlens as ml

def announce(pids):
    ml.sweep  # imports what it needs
    print(json.dumps(pids), flush=True)

if __name__ == "__main__":
    plan, folder, kind = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
    if kind == "dask":
        from distributed import Client, LocalCluster
        with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster:
            with Client(cluster) as client:
                announce(list(client.run(os.getpid).values()))
                ml.sweep(plan, folder, client.get_executor())
    elif kind == "pool":
        from concurrent.futures import ProcessPoolExecutor
        with ProcessPoolExecutor(2) as executor:
            announce([])
            ml.sweep(plan, folder, executor)
    else:
        announce([])
        ml.sweep(plan, folder)
"""


def chunk_bytes(folder):
    """Chunk file -> its bytes."""
    return {file.name: file.read_bytes() for file in (Path(folder) / "chunks").glob("*.parquet")}


def count_chunks(folder):
    return sum(1 for _ in folder.rglob("*.parquet"))


def start(folder, kind="parent", plan=PLAN):
    """Run a sweep in a process of its own, which leads a group of processes as one started by a terminal does.

    Its kind is `parent`, on loky's processes, `pool`, on a `ProcessPoolExecutor`, or `dask`, on a local cluster of two workers.
    """
    command = [sys.executable, "-c", RUN, json.dumps(plan), str(folder), kind.split()[0]]
    environment = {**os.environ, "MARGINLENS_THREADS": "2"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )


def loky_workers(process):
    """The processes that compute for another one, those that are only starting among them."""
    try:
        listed = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        return [int(child) for child in listed if b"popen_loky" in Path(f"/proc/{child}/cmdline").read_bytes()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def group_members(group):
    """The processes of a group that have not ended."""
    members = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            state, _, in_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            members += [int(entry.name)] if int(in_group) == group and state != "Z" else []
    return members


class Trials:
    """Sweeps of which a process is killed each time."""

    def __init__(self, folder, seed=0):
        self.folder, self.rng = Path(folder), np.random.default_rng(seed)
        undisturbed = ml.sweep(PLAN, self.folder / "undisturbed")
        self.bytes, self.n_chunks = chunk_bytes(undisturbed.folder), undisturbed.status().n_chunks

    def is_whole(self, folder):
        """Go on with a sweep, and say whether every file has the bytes that it has without a disturbance, and no other is left."""
        made = ml.sweep(PLAN, folder)
        return made.status().is_finished and chunk_bytes(folder) == self.bytes and not list(folder.rglob("*.partial"))

    def trial(self, name, kind):
        """Run a sweep, kill a process after a random chunk, go on: (chunks there at the kill, None if it was over; whether it is whole)."""
        folder, at_kill = self.folder / name, None
        n_chunks, delay = self.rng.integers(self.n_chunks), self.rng.uniform(0, MAX_DELAY_SECONDS)
        runner = start(folder, kind)
        workers = json.loads(runner.stdout.readline())
        while runner.poll() is None and count_chunks(folder) < n_chunks:
            time.sleep(POLL_SECONDS)
        time.sleep(delay)
        victims = [runner.pid] if kind.endswith("parent") else workers or loky_workers(runner.pid)
        if runner.poll() is None and victims:
            os.kill(int(self.rng.choice(victims)), signal.SIGKILL)
            at_kill = count_chunks(folder)
        _, error = runner.communicate()
        survived = kind.endswith("parent") or runner.returncode == 0
        return at_kill, self.is_whole(folder) and survived, error


def main(n_kills=40, seed=0, *kinds):
    """Kill these kinds by turns until `n_kills` came before the end of their sweep; True if all sweeps were whole."""
    kinds, killed, trial, spoilt = kinds or KINDS, 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        trials = Trials(folder, seed)
        while killed < n_kills and trial < MAX_TRIALS_PER_KILL * n_kills:
            kind = kinds[trial % len(kinds)]
            at_kill, whole, _ = trials.trial(str(trial), kind)
            trial, killed, spoilt = trial + 1, killed + (at_kill is not None), spoilt + (not whole)
            moment = "not killed, the sweep was over" if at_kill is None else f"killed after {at_kill} chunks"
            print(f"{kind:11} {moment}: {'whole' if whole else 'SPOILT'}", flush=True)
    print(f"{killed} kills: {trial - spoilt} of {trial} sweeps whole")
    return spoilt == 0 and killed == n_kills


if __name__ == "__main__":
    sys.exit(not main(*map(int, sys.argv[1:3]), *sys.argv[3:]))
