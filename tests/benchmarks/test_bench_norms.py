"""The benchmark of margin problems in other norms: one run, JSON, rivals that agree, absent packages noted and not fatal."""

from __future__ import annotations

import json

import pytest

from benchmarks import norms
from marginlens.norms import L1
from progress_counter import ProgressCounter


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "SMALL", (3, 2, 3, 3))
    monkeypatch.setattr(norms, "CLUSTERS", (3, 4, 4, 0.1))
    monkeypatch.setattr(norms, "LOOPED", 2)


def test_every_solver_is_timed_and_agrees() -> None:
    progress = ProgressCounter()
    rows = json.loads(json.dumps(norms.bench_norms(progress)))
    assert progress.done == progress.total == 2 * len(norms.cases((3, 3)))
    for row in rows:
        if row["solver"] == "summary":
            assert row["times_faster"] > 0.0
            continue
        assert row["note"] is None
        assert row["seconds_per_problem"] > 0.0
        assert row["gap"] <= (1e-8 if row["solver"] == "marginlens" else 1e-4), row
    assert {row["rows"] for row in rows} == {4, 24}
    assert {"L1()", "LInf()", "Lp(p=1.75)", "Lp(p=3.0)"} <= {row["norm"] for row in rows}


def test_absent_and_failing_solvers_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(rows: object) -> norms.Answer:
        raise ValueError("no")

    (case, *_) = norms.cases((3, 3))
    rivals = (norms.Rival("absent", "no_such_package", unable), norms.Rival("failing", "numpy", unable))
    monkeypatch.setattr(norms, "cases", lambda shape: [case._replace(norm=L1(), rivals=rivals)])
    rows = norms.bench_norms()
    notes = {row["solver"]: row["note"] for row in rows}
    assert notes["absent"] == "the package no_such_package is not installed"
    assert notes["failing"] == "ValueError: no"
    assert not any(row["solver"] == "summary" for row in rows)
