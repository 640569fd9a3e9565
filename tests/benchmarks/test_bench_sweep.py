"""The benchmark of sweeps: a loop, the sweep of the same chunks, and the memory of a larger one."""

import json

from benchmarks import sweep
from progress_counter import ProgressCounter


def test_loop_and_sweep_are_timed_and_memory_is_measured(monkeypatch):
    monkeypatch.setattr(sweep, "SHAPE", {"n_inputs": 2, "n_tokens": 3, "d": 3})
    monkeypatch.setattr(sweep, "ROUNDS", 2)
    monkeypatch.setattr(sweep, "memory_row", lambda n_problems: {"n_problems": n_problems})
    progress = ProgressCounter()
    rows = json.loads(json.dumps(sweep.bench_sweep(progress, n_problems=20)))
    assert progress.done == progress.total == 5
    assert [row.get("method") for row in rows] == ["loop over the chunks", "sweep", None]
    assert rows[1]["cpu_overhead_percent"] == 100.0 * (rows[1]["cpu_seconds"] / rows[0]["cpu_seconds"] - 1.0)
    assert rows[2]["n_problems"] == 200
