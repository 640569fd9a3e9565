"""Kill a sweep with signal 9 at random moments, go on with it, and hold its table to that of an undisturbed run.

Run by itself it kills as often as it is told: python tests/sweeps/kill_at_random.py 100
Of a sweep in processes it kills the one that was started, or the others: python tests/sweeps/kill_at_random.py 20 parents | workers
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import marginlens as ml

PLAN = """
n_inputs = 2
n_tokens = 3
d = [3, 5]
n_steps = [5, 10]
n_problems = 500
chunk = 20
record = ["selection", "norm", "final", "margin", "optimality"]
"""  # 100 chunks of a few milliseconds, so that much of the time is spent on writing them


def start(plan, folder, *options):
    """Start the command in a process of its own."""
    command = [sys.executable, "-m", "marginlens", "sweep", str(plan), "--out", str(folder), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ.copy())


def chunks(folder):
    """How many chunks the folder has."""
    return len(list((folder / "chunks").glob("*.parquet"))) if folder.exists() else 0


def killed(plan, folder, n_before, delay, *options):
    """Start a sweep, wait until it has so many chunks and for `delay` seconds more, and kill it; how many it has then."""
    process = start(plan, folder, *options)
    while process.poll() is None and chunks(folder) < n_before:
        time.sleep(0.001)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return chunks(folder), process.returncode == -signal.SIGKILL


def killed_fork(plan, folder, n_before, delay):
    """The same with a copy of this process, which has everything imported and compiled: many times quicker."""
    process = os.fork()
    if process == 0:
        ml.sweep(plan, folder)
        os._exit(0)
    status = 0
    while chunks(folder) < n_before:
        time.sleep(0.0005)
    time.sleep(delay)
    os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    return chunks(folder), os.WIFSIGNALED(status)


def check_after(plan, folder, digest, *, delays):
    """Go on with a sweep that was killed, and compare: no file is damaged, every problem is there once, the content is the same.

    Args:
        delays: seconds after which it is killed again, counted from when the process that goes on is started.
    """
    for delay in delays:
        killed(plan, folder, 0, delay)
    if (folder / "plan.json").exists():
        assert not ml.sweep.status(folder, check=True).damaged
    finished = ml.sweep(plan, folder)
    table = finished.table(["norm"])
    rows = np.stack([table["cell"].to_numpy(), table["problem"].to_numpy()], axis=1)
    grid = finished.store.grid
    expected = np.array([(cell, j) for cell in range(len(grid.cells)) for j in range(grid.n_problems)])
    np.testing.assert_array_equal(rows, expected)
    assert finished.digest() == digest
    assert not list(folder.rglob("*.partial"))


def worker_processes(parent):
    """The processes that compute for another one, those that are only starting among them."""
    try:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return [int(child) for child in children if b"popen_loky" in Path(f"/proc/{child}/cmdline").read_bytes()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def kill_in_processes(n_kills, whom):
    """Kill a sweep in processes at random moments, or the processes that compute for it, which must then not end it."""
    rng, done, sweeps = np.random.default_rng(5), 0, 0
    with tempfile.TemporaryDirectory() as name:
        plan = Path(name) / "plan.toml"
        plan.write_text(PLAN, encoding="utf-8")
        digest = ml.sweep(plan, Path(name) / "undisturbed").digest()
        while done < n_kills:
            sweeps += 1
            folder = Path(name) / f"{sweeps:03d}"
            if whom == "parents":
                there, was_killed = killed(plan, folder, int(rng.integers(90)), rng.uniform(0.0, 0.02), "--processes")
                done += was_killed
            else:
                process, there = start(plan, folder, "--processes", "--workers", "2"), -1
                while process.poll() is None:
                    # faster than they start, none would begin
                    while process.poll() is None and chunks(folder) <= there:
                        time.sleep(0.01)
                    time.sleep(rng.uniform(0.0, 1.0))
                    for victim in rng.permutation(worker_processes(process.pid))[: int(done < n_kills)].tolist():
                        there = chunks(folder)
                        os.kill(victim, signal.SIGKILL)
                        done += 1
                        print(f"{done} of {n_kills}: killed a worker with {there} chunks there", flush=True)
                assert process.returncode == 0, process.communicate()[1].decode()
            check_after(plan, folder, digest, delays=())
            print(
                f"{done} of {n_kills} kills of {whom} in {sweeps} sweeps, the last with {there} chunks: same table",
                flush=True,
            )


def main(n_kills):
    """Kill at `n_kills` moments, each in a folder of its own, and say how many tables were the same."""
    rng, same, at = np.random.default_rng(0), 0, []
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        plan = base / "plan.toml"
        plan.write_text(PLAN, encoding="utf-8")
        undisturbed = ml.sweep(plan, base / "undisturbed")
        digest, n_chunks = undisturbed.digest(), undisturbed.store.grid.n_chunks
        for k in range(n_kills):
            folder = base / f"{k:03d}"
            kill = killed if k % 10 == 0 else killed_fork
            there, was_killed = kill(plan, folder, int(rng.integers(n_chunks - 10)), float(rng.uniform(0.0, 0.02)))
            at.append(there)
            check_after(plan, folder, digest, delays=rng.uniform(0.0, 3.0, size=1) if k % 10 == 0 else ())
            same += 1
            print(
                f"{k + 1} of {n_kills}: killed with {there} of {n_chunks} chunks ({was_killed}), same table", flush=True
            )
    print(
        f"{same} of {n_kills} tables equal that of the undisturbed run; killed with {min(at)} to {max(at)} of {n_chunks} chunks"
    )


if __name__ == "__main__":
    main(int(sys.argv[1])) if len(sys.argv) == 2 else kill_in_processes(int(sys.argv[1]), sys.argv[2])
