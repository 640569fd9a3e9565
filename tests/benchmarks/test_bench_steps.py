"""The benchmark of descent steps: every optimizer is timed beside normalised gradient descent."""

import json

from benchmarks import steps
from progress_counter import ProgressCounter


def test_every_optimizer_is_timed(monkeypatch):
    monkeypatch.setattr(steps, "SIZES", ((2, 2, 3, 3),))
    monkeypatch.setattr(steps, "N_STEPS", 5)
    monkeypatch.setattr(steps, "REPEATS", 1)
    progress = ProgressCounter()
    rows = json.loads(json.dumps(steps.bench_steps(progress)))
    assert progress.done == progress.total == len(rows) == 1 + len(steps.ON_P) + len(steps.ON_W)
    assert rows[0]["times_normalised_gd"] == 1.0
    assert all(row["seconds_per_step"] > 0.0 for row in rows)
