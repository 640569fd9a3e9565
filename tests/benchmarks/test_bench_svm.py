"""The benchmark of hard-margin problems: one run, JSON, absent packages noted and not fatal."""

from __future__ import annotations

import json
from typing import Any

import pytest

import tolerances
from benchmarks import qp_solvers, svm
from progress_counter import ProgressCounter


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svm, "SIZES", ((2, 3, 4, 6), (3, 3, 8, 1), (3, 4, 5, 1)))
    monkeypatch.setattr(svm, "LOOPED", 2)


@pytest.mark.usefixtures("tiny")
def test_every_solver_is_timed_and_agrees() -> None:
    progress = ProgressCounter()
    rows = json.loads(json.dumps(svm.bench_svm(progress, repeats=2)))
    assert progress.done == progress.total == 6
    for size in ((2, 3, 4, 6), (3, 3, 8, 1), (3, 4, 5, 1)):
        here = [row for row in rows if (row["n"], row["T"], row["d"], row["batch"]) == size]
        assert {row["solver"] for row in here} == {
            "marginlens", "quadprog", "PIQP", "Clarabel", "cvxopt", "scikit-learn SVC", "scikit-learn LinearSVC", "summary",
        }  # fmt: skip
        for row in here:
            assert row.get("note") is None
            assert row["seconds_per_problem"] > 0.0
            ours = row["solver"] in ("marginlens", "summary")
            assert row["kkt_residual"] <= (tolerances.SVM_KKT if ours else tolerances.SVM_OTHERS), row["solver"]
        rivals = [row["seconds_per_problem"] for row in here if row["solver"] not in ("marginlens", "summary")]
        assert here[-1]["times_faster"] == pytest.approx(min(rivals) / here[-1]["seconds_per_problem"])


@pytest.mark.usefixtures("tiny")
def test_absent_and_failing_solvers_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(n_rows: int, d: int) -> qp_solvers.Solve:
        def solve(A: Any, b: Any) -> Any:
            raise ValueError("no")

        return solve

    listed = [
        qp_solvers.Competitor("absent", "", "no_such_package", unable),
        qp_solvers.Competitor("failing", "", "numpy", unable),
    ]
    monkeypatch.setattr(svm, "competitors", lambda n_rows, d: listed)
    rows = svm.bench_svm(repeats=1)
    notes = {row["solver"]: row["note"] for row in rows}
    assert notes["absent"] == "the package no_such_package is not installed"
    assert notes["failing"] == "ValueError: no"
    assert not any(row["solver"] == "summary" for row in rows)
