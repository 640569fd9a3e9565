"""Every benchmark at a small size: it counts its progress, its rows become JSON, every method is timed, and rivals agree."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

import tolerances
from benchmarks import (
    gpu,
    graph,
    nexttoken,
    norms,
    qp_solvers,
    steps,
    svm,
)
from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.baselines import autograd_nexttoken, batched_descent
from gpu.twin import TwinDevice, needs_compiler
from marginlens.data import sphere_tokens
from marginlens.data.sequence_generators import acyclic_sequences, cyclic_sequences
from marginlens.dynamics import descend
from marginlens.errors import MissingExtra
from marginlens.gpu import device as devices
from marginlens.norms import L1
from marginlens.optimizers import NormalizedGD
from progress_counter import ProgressCounter
from refusals import raised

Rows = list[dict[str, Any]]


def check_graph(rows: Rows) -> None:
    each = ["marginlens", "cvxpy with Clarabel", "summary"]
    assert [row["method"] for row in rows] == ["marginlens", *each, *each, "marginlens, dataset and graphs"]
    for row in rows:
        if row.get("kkt_residual") is not None:
            ours = row["method"] == "marginlens"
            assert row["kkt_residual"] <= (tolerances.SVM_KKT if ours else tolerances.SVM_OTHERS)
    assert rows[5]["tied"] > 0
    assert rows[-1]["n"] == 1000


def check_nexttoken(rows: Rows) -> None:
    names = [f"{name}: K = 4, d = 4, n = 3, T = 3" for name in ("small", "small", "short", "short")]
    assert [row["data"] for row in rows] == [*names, "summary"]
    assert rows[1]["times_slower"] == rows[-1]["times_slower_at_fig_3"] > 0.0
    assert max(rows[1]["difference_of_W"], rows[3]["difference_of_W"]) < tolerances.LOOP_AGREEMENT
    assert ["mean_corr_to_svm" in row for row in rows[:4:2]] == [True, False]


def check_norms(rows: Rows) -> None:
    timed = [row for row in rows if row["solver"] != "summary"]
    assert all(row["note"] is None for row in timed)
    assert all(row["gap"] <= (1e-8 if row["solver"] == "marginlens" else 1e-4) for row in timed)
    assert {row["rows"] for row in rows} == {4, 24}
    assert {"L1()", "LInf()", "Lp(p=1.75)", "Lp(p=3.0)"} <= {row["norm"] for row in rows}


def check_steps(rows: Rows) -> None:
    assert len(rows) == 1 + len(steps.ON_P) + len(steps.ON_W)
    assert rows[0]["times_normalised_gd"] == 1.0


SVM_SIZES = ((2, 3, 4, 6), (3, 3, 8, 1), (3, 4, 5, 1))


def check_svm(rows: Rows) -> None:
    others = {"quadprog", "PIQP", "Clarabel", "cvxopt", "scikit-learn SVC", "scikit-learn LinearSVC"}
    for size in SVM_SIZES:
        of_size = [row for row in rows if (row["n"], row["T"], row["d"], row["batch"]) == size]
        ours = [row for row in of_size if row["solver"] in ("marginlens", "summary")]
        rivals, summary = [row for row in of_size if row not in ours], ours[-1]
        assert {row["solver"] for row in rivals} == others
        assert all(row.get("note") is None for row in rivals)
        assert max(row["kkt_residual"] for row in ours) <= tolerances.SVM_KKT
        assert max(row["kkt_residual"] for row in rivals) <= tolerances.SVM_OTHERS
        fastest = min(row["seconds_per_problem"] for row in rivals)
        assert summary["times_faster"] == pytest.approx(
            fastest / summary["seconds_per_problem"], rel=tolerances.SIX_DIGITS, abs=tolerances.ROUNDING
        )


def check_gpu(rows: Rows) -> None:
    *timed, summary = rows
    assert [row["agreement"] for row in timed] == [1.0, None, 1.0, None, None, 1.0, None]
    assert summary["least_times_torch"] > 0.0


class Race(NamedTuple):
    """A benchmark, its constants at a small size, how it is run, what its rows must say, and what it needs."""

    module: ModuleType
    run: Callable[[ProgressCounter], Rows]
    check: Callable[[Rows], None]
    constants: Mapping[str, Any]
    packages: tuple[str, ...] = ()


def small_graph(name: str, draw: Any, shape: tuple[int, ...] = (8, 6, 10, 4)) -> Any:
    return graph._Size(name, draw, shape)


SEQUENCES = (
    nexttoken._Size("small", acyclic_sequences, (4, 4, 3, 3), 2, 40, 1, 40),
    nexttoken._Size("short", cyclic_sequences, (4, 4, 3, 3), 1, 20, 1, 20),
)
GRAPHS = {
    "LARGE": small_graph("acyclic", acyclic_sequences, (20, 10, 40, 6)),
    "SMALL": (small_graph("acyclic", acyclic_sequences), small_graph("cyclic", cyclic_sequences)),
    "PROBLEMS": 2,
    "REPEATS": 1,
    "CVXPY_REPEATS": 1,
    "WINDOWS": 1000,
}
GPU = {
    **{name: {20: 4} for name in ("DATA", "DESCENTS", "MARGINS")},
    "STEPS": 20,
    "TORCH_PROBLEMS": 2,
    "TORCH_STEPS": 3,
    "CPU_PROBLEMS": 3,
    "REPEATS": 1,
}
TINY_NORMS = {"SMALL": (3, 2, 3, 3), "CLUSTERS": (3, 4, 4, 0.1), "LOOPED": 2}
RACES = {
    "gpu": Race(gpu, gpu.bench_gpu, check_gpu, GPU, ("torch",)),
    "graph": Race(graph, graph.bench_graph, check_graph, GRAPHS, ("cvxpy",)),
    "nexttoken": Race(
        nexttoken,
        nexttoken.bench_nexttoken,
        check_nexttoken,
        {"SIZES": SEQUENCES, "COMPARED": 20, "REPEATS": 1},
        ("torch",),
    ),
    "norms": Race(norms, norms.bench_norms, check_norms, TINY_NORMS),
    "steps": Race(steps, steps.bench_steps, check_steps, {"SIZES": ((2, 2, 3, 3),), "N_STEPS": 5, "REPEATS": 1}),
    "svm": Race(svm, lambda progress: svm.bench_svm(progress, repeats=2), check_svm, {"SIZES": SVM_SIZES, "LOOPED": 2}),
}
TIMES = ("seconds", "seconds_per_problem", "seconds_per_step", "times_faster")
MARKS = {"gpu": needs_compiler}


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in RACES])
def test_a_benchmark_times_every_method(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    race, progress = RACES[name], ProgressCounter()
    for package in race.packages:
        pytest.importorskip(package)
    for constant, value in race.constants.items():
        monkeypatch.setattr(race.module, constant, value)
    if name == "gpu":  # timed on its CPU twin
        twin = TwinDevice()
        monkeypatch.setattr(type(twin), "name", "cuda")
        monkeypatch.setattr(devices, "find_device", lambda number: twin)
    rows = json.loads(json.dumps(race.run(progress)))
    assert progress.done == progress.total
    assert progress.total > 0
    timed = [row[key] for row in rows for key in row if key in TIMES]
    rates = [row["problems_per_second"] for row in rows if "problems_per_second" in row]
    assert min([*timed, *rates], default=1.0) > 0.0
    assert timed or rates or name == "nexttoken"  # which times by other names
    race.check(rows)


# ---- rivals


@pytest.mark.parametrize("draw", [acyclic_sequences, cyclic_sequences])
def test_the_autograd_loop_takes_the_same_steps_while_it_is_accurate(draw: Any) -> None:
    pytest.importorskip("torch")
    ds = draw(6, 5, 4, 4, 2)
    ours = descend(ds, optimizer=NormalizedGD(0.02), n_steps=100).final
    assert np.abs(ours - autograd_nexttoken(ds, 100, 0.02)).max() < tolerances.LOOP_AGREEMENT


def test_batched_torch_takes_the_same_steps() -> None:
    pytest.importorskip("torch")
    data, head = sphere_tokens(3, 4, 6, 20, 0)
    p = batched_descent(data.K, np.ascontiguousarray(data.scores(head)), 60, 1.0)
    np.testing.assert_allclose(p, descend(data, head, n_steps=60).final, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", ["svm", "norms"])
def test_missing_and_failing_solvers_are_reported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(*arguments: object) -> Any:
        raise ValueError("no")

    for constant, value in RACES[name].constants.items():
        monkeypatch.setattr(RACES[name].module, constant, value)
    packages = {"absent": "no_such_package", "failing": "numpy"}
    if name == "svm":
        listed = [qp_solvers.Competitor(solver, "", package, lambda *_: unable) for solver, package in packages.items()]
        monkeypatch.setattr(svm, "competitors", lambda n_rows, d: listed)
    else:
        rivals = tuple(norms.Rival(solver, package, unable) for solver, package in packages.items())
        case = norms.cases((3, 3))[0]._replace(norm=L1(), rivals=rivals)
        monkeypatch.setattr(norms, "cases", lambda shape: [case])
    rows = RACES[name].run(ProgressCounter())
    notes = {row["solver"]: row["note"] for row in rows}
    assert "no_such_package" in notes["absent"]
    assert notes["failing"] == "ValueError: no"
    assert "summary" not in notes


# ---- what a benchmark needs and does not find


def test_missing_packages_are_reported_before_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ImportError("Running on a GPU needs the package CuPy")

    monkeypatch.setattr(devices, "import_cupy", missing)
    monkeypatch.setattr(graph, "find_spec", lambda name: None)
    with raised(ImportError, "CuPy"):
        gpu.bench_gpu()
    with raised(MissingExtra, "cvxpy"):
        graph.bench_graph()


def test_the_command_prints_rows_as_a_table_or_as_json(monkeypatch, capsys) -> None:
    rows = [{"method": "fused loop", "problems": 1000, "seconds": 1.23456}, {"method": "summary", "times_faster": 2.5}]
    monkeypatch.setattr(svm, "bench_svm", lambda: rows)
    assert main(["svm"]) == 0
    shown = capsys.readouterr().out
    assert "1.235 s" in shown
    assert "times faster 2.5" in shown
    assert main(["svm", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == rows
    monkeypatch.setattr(graph, "find_spec", lambda name: None)
    assert main(["graph"]) == 2
    assert "cvxpy" in capsys.readouterr().err
    assert set(BENCHMARKS) - {"selection", "probe"} == set(RACES)
