"""What a sweep costs beside its problems: time against a bare loop over the same chunks, and memory at ten million problems."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from marginlens.runtime.progress import Progress, ProgressCallback
from marginlens.sweeps import Plan, sweep
from marginlens.sweeps.chunk import measured

SHAPE = {"n_inputs": 4, "n_tokens": 6, "d": 10}
N_PROBLEMS, N_STEPS = (
    1_000_000,
    200,
)  # a minute or two on two cores; more steps make the rest of the work a smaller share
ROUNDS = 10  # in which loop and sweep take turns, so that whatever else the machine does meets both
MEMORY_PROBLEMS, MEMORY_STEPS = 10_000_000, 5  # memory does not depend on the steps


class Clock:
    """Seconds of wall time and of CPU in all threads that were spent in its blocks."""

    def __init__(self) -> None:
        self.wall, self.cpu = 0.0, 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def __exit__(self, *_: Any) -> None:
        self.wall += time.perf_counter() - self._began[0]
        self.cpu += time.process_time() - self._began[1]


def bench_sweep(progress: ProgressCallback | None = None, *, n_problems: int = N_PROBLEMS) -> list[dict[str, Any]]:
    """Time a bare loop over the chunks of a plan, and the sweep of it with engine, checksums and files brought to the disk.

    Returns:
        A row for the loop, one for the sweep with its `overhead` over the loop in per cent of wall time and of CPU time, and one for
        the largest memory of a process that runs a sweep of ten times as many problems, sums it up and computes its digest.
    """
    watch, loop, whole = Progress(progress), Clock(), Clock()
    watch.expect(2 * ROUNDS + 1)
    for k in range(ROUNDS):
        plan = Plan.of({**SHAPE, "n_steps": N_STEPS, "n_problems": n_problems // ROUNDS, "seed": k})
        if k == 0:
            measured(plan, plan.grid.chunk_at(0))  # compile, or load what was compiled
        with loop:
            for index in range(plan.grid.n_chunks):
                measured(plan, plan.grid.chunk_at(index))
        watch.advance()
        with tempfile.TemporaryDirectory() as folder, whole:
            sweep(plan, Path(folder) / "sweep")
        watch.advance()
    common = {"n_problems": n_problems, "n_steps": N_STEPS}
    rows: list[dict[str, Any]] = [
        {**common, "method": "loop over the chunks", "seconds": loop.wall, "cpu_seconds": loop.cpu},
        {
            **common,
            "method": "sweep",
            "seconds": whole.wall,
            "cpu_seconds": whole.cpu,
            "overhead_percent": 100.0 * (whole.wall / loop.wall - 1.0),
            "cpu_overhead_percent": 100.0 * (whole.cpu / loop.cpu - 1.0),
        },
    ]
    rows.append(memory_row(MEMORY_PROBLEMS * n_problems // N_PROBLEMS))
    watch.advance()
    return rows


def memory_row(n_problems: int) -> dict[str, Any]:
    """Run, sum up and digest a sweep in a process of its own, and ask for its largest memory."""
    done = subprocess.run([sys.executable, __file__, str(n_problems)], capture_output=True, text=True, check=True)
    return {
        "n_problems": n_problems,
        "n_steps": MEMORY_STEPS,
        "method": "sweep, summary, digest",
        **json.loads(done.stdout),
    }


def main(n_problems: int) -> None:
    """The process whose memory is measured."""
    import resource

    began = time.perf_counter()
    plan = Plan.of({**SHAPE, "n_steps": MEMORY_STEPS, "n_problems": n_problems})
    with tempfile.TemporaryDirectory() as folder:
        made = sweep(plan, Path(folder) / "sweep")
        summary, digest = made.summary(), made.digest()
        assert (summary[0].n_problems, len(digest)) == (n_problems, 64)
        size = made.status().bytes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(
        json.dumps(
            {"seconds": time.perf_counter() - began, "memory_gigabytes": peak / 1e9, "disk_gigabytes": size / 1e9}
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
