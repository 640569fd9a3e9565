"""The benchmark of streams: one run at a small size, whose graphs equal those of one pass."""

from __future__ import annotations

import json

import pytest

from benchmarks import stream
from progress_counter import ProgressCounter


def test_every_run_is_timed_and_the_graphs_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (
        ("TOKENS", 3_000),
        ("COMPARED_TOKENS", 2_000),
        ("VOCABULARY", 40),
        ("BLOCK", 700),
        ("TEXT_BYTES", 4_000),
    ):
        monkeypatch.setattr(stream, name, size)
    progress = ProgressCounter()
    rows = json.loads(json.dumps(stream.bench_stream(progress)))
    assert progress.done == progress.total == 6
    texts = ["one line without blanks", "one line with blanks", "lines"]
    assert [row["method"] for row in rows] == ["stream", "stream", "one pass in memory", *texts, "summary"]
    assert [row["tokens"] for row in rows] == [3_000, 2_000, 2_000, 4_000, 4_000, 4_000, 2_000]
    assert [row["K"] for row in rows[3:6]] == [26, 27, 28]
    large, streamed, at_once, *_, summary = rows
    assert min(large["seconds"], large["disk_gb"], large["peak_gb"]) > 0.0
    for name in ("graphs", "edges", "acyclic"):
        assert streamed[name] == at_once[name] > 0
    assert summary["different_graphs"] == 0
    assert summary["graphs"] == at_once["graphs"]
