"""The benchmark of the monitor at a small size: every kind of call is timed, and the share follows from the times."""

import pytest

from benchmarks import monitor as benchmark
from marginlens.errors import InputError

pytest.importorskip("transformers")


def test_the_share_follows_from_the_times(monkeypatch):
    small = benchmark.Run(
        n_layers=1, n_heads=2, d_model=16, n_words=30, n_inputs=2, n_tokens=8, n_steps=2, n_measurements=2
    )
    monkeypatch.setitem(benchmark.RUNS, "cpu", small)
    *rows, summary = benchmark.bench_monitor()
    step, plain, full = (row["seconds"] for row in rows)
    assert [row["count"] for row in rows] == [2, 2, 2]
    expected = (19 * plain + full) / (20 * 100 * step)
    assert summary["share_of_training"] == pytest.approx(expected)
    assert (summary["smallest_interval"] - 1) <= 100 * expected / 0.05 <= summary["smallest_interval"]


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="cpu or cuda"):
        benchmark.bench_monitor(device="meta")
