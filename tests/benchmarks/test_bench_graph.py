"""The benchmark of Graph-SVM: one run, JSON, and one sentence where cvxpy is absent."""

from __future__ import annotations

import json

import pytest

import tolerances
from benchmarks import graph
from marginlens.data.sequence_generators import acyclic_sequences, cyclic_sequences
from marginlens.errors import MissingExtra
from progress_counter import ProgressCounter


def test_every_part_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cvxpy")
    monkeypatch.setattr(graph, "LARGE", graph._Size("acyclic", acyclic_sequences, (20, 10, 40, 6)))
    sizes = (
        graph._Size("acyclic", acyclic_sequences, (8, 6, 10, 4)),
        graph._Size("cyclic", cyclic_sequences, (8, 6, 10, 4)),
    )
    monkeypatch.setattr(graph, "SMALL", sizes)
    monkeypatch.setattr(graph, "PROBLEMS", 2)
    monkeypatch.setattr(graph, "REPEATS", 1)
    monkeypatch.setattr(graph, "CVXPY_REPEATS", 1)
    monkeypatch.setattr(graph, "WINDOWS", 1000)
    progress = ProgressCounter()
    rows = json.loads(json.dumps(graph.bench_graph(progress)))
    assert progress.done == progress.total == 6
    assert [row["method"] for row in rows] == [
        "marginlens",
        *["marginlens", "cvxpy with Clarabel", "summary"] * 2,
        "marginlens, dataset and graphs",
    ]
    for row in rows:
        if row["method"] == "summary":
            assert row["times_faster"] > 0.0
            continue
        assert row["seconds"] > 0.0
        if row["kkt_residual"] is not None:
            ours = row["method"] == "marginlens"
            assert row["kkt_residual"] <= (tolerances.SVM_KKT if ours else tolerances.SVM_OTHERS)
    assert rows[5]["tied"] > 0
    assert rows[-1]["n"] == 1000


def test_without_cvxpy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "find_spec", lambda name: None)
    with pytest.raises(
        MissingExtra, match=r"needs the package cvxpy: install it with pip install 'marginlens\[bench\]'"
    ):
        graph.bench_graph()
