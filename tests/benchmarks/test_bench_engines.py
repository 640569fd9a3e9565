"""The benchmark of engines at a small size: every engine gives back every task."""

from benchmarks.engines import bench_engines


def test_every_engine_is_timed():
    rows = bench_engines(n_tasks=6)
    assert {"a thread", "2 threads", "2 processes"} <= {row["method"] for row in rows}
    assert all(row["tasks"] == 6 and row["seconds"] > 0.0 for row in rows)
