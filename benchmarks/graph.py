"""How fast priority graphs are built and Graph-SVM is solved: this library beside cvxpy with Clarabel, and at sizes that no other holds."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from marginlens.data.sequence_generators import acyclic_sequences, cyclic_sequences
from marginlens.data.sequences import SequenceDataset
from marginlens.errors import missing_extra
from marginlens.graphs import priority_graphs
from marginlens.runtime.progress import Progress, ProgressCallback
from marginlens.svm.graph import GraphSolution, graph_svm

REPEATS, CVXPY_REPEATS = 20, 3
PROBLEMS = 5  # of each small size, so that no single one decides
WINDOWS, WINDOW, CHARACTERS = 1_000_000, 16, 65


@dataclass(frozen=True)
class _Size:
    """Random data of one kind: its generator and (K, d, n, T)."""

    kind: str
    draw: Callable[..., SequenceDataset]
    shape: tuple[int, int, int, int]


LARGE = _Size("acyclic", acyclic_sequences, (200, 128, 2000, 20))
SMALL = (
    _Size("acyclic", acyclic_sequences, (30, 12, 40, 12)),
    _Size("cyclic", cyclic_sequences, (30, 12, 60, 4)),
)


def bench_graph(progress: ProgressCallback | None = None, *, seed: int = 0) -> list[dict[str, Any]]:
    """Time one large Graph-SVM, small ones beside cvxpy, and the graphs of a million windows.

    Embeddings are uniform on the sphere, tokens uniform; acyclic labels are the token of highest priority under one random order. cvxpy
    gets explicit rows and the squared norm, the quickest of its forms here, and its own default accuracy; its time is that of building
    and solving the problem. Ours includes checks and the certificate. Of repeated runs the fastest counts. Residuals are those of
    `MarginSolution.kkt_residual`, for both.

    Returns:
        One row per size and method with `seconds` per problem and the largest `kkt_residual`, `peak_gb` for the process up to then, and a
        summary row with `times_faster` for each small size.
    """
    if find_spec("cvxpy") is None:
        raise missing_extra("cvxpy", "bench", "The benchmark of Graph-SVM")
    watch = Progress(progress)
    watch.expect(2 + len(SMALL) * PROBLEMS)
    rows = [_large(seed)]
    watch.advance()
    for size in SMALL:
        rows += _small(size, seed, watch)
    rows.append(_windows(np.random.default_rng(seed)))
    watch.advance()
    return rows


def _large(seed: int) -> dict[str, Any]:
    _solved(LARGE.draw(6, 4, 6, 4, seed))  # compile, or load what was compiled before
    ds = LARGE.draw(*LARGE.shape, seed)
    graphs = priority_graphs(ds)
    began = time.perf_counter()
    solution = graph_svm(ds.E, graphs)
    took = time.perf_counter() - began
    return _row(LARGE, "marginlens", [solution], took, _peak())


def _small(size: _Size, seed: int, progress: Progress) -> list[dict[str, Any]]:
    """Both methods on the same problems, problem by problem."""
    ours, theirs, seconds = [], [], np.zeros(2)
    for k in range(PROBLEMS):
        ds = size.draw(*size.shape, seed + k)
        graphs = priority_graphs(ds)
        solution, mine = _fastest(partial(graph_svm, ds.E, graphs), REPEATS)
        answer, other = _fastest(partial(_by_cvxpy, solution), CVXPY_REPEATS)
        ours.append(solution)
        theirs.append(answer)
        seconds += (mine, other)
        progress.advance()
    mine, other = (float(one) for one in seconds / PROBLEMS)
    rows = [
        _row(size, "marginlens", ours, mine, None),
        _row(size, "cvxpy with Clarabel", theirs, other, None),
    ]
    summary = {**_sizes(size), "method": "summary", "kind": f"{size.kind}, mean of {PROBLEMS} problems"}
    return [*rows, {**summary, "times_faster": other / mine}]


def _windows(rng: np.random.Generator) -> dict[str, Any]:
    """The graphs of all windows of a random stream whose characters are about as uneven as those of a text."""
    weights = 1.0 / np.arange(1, CHARACTERS + 1)
    stream = rng.choice(CHARACTERS, size=WINDOWS + WINDOW, p=weights / weights.sum())
    windows = np.lib.stride_tricks.sliding_window_view(stream, WINDOW)[:WINDOWS]
    labels = windows[np.arange(WINDOWS), rng.integers(WINDOW, size=WINDOWS)]
    began = time.perf_counter()
    ds = SequenceDataset(windows, labels, np.eye(CHARACTERS))
    graphs = priority_graphs(ds)
    took = time.perf_counter() - began
    return {
        "K": CHARACTERS, "d": CHARACTERS, "n": WINDOWS, "T": WINDOW, "kind": "windows", "method": "marginlens, dataset and graphs",
        "strict": sum(len(graph.strict) for graph in graphs.values()), "tied": None, "seconds": took, "kkt_residual": None,
        "peak_gb": _peak(),
    }  # fmt: skip


def _solved(ds: SequenceDataset) -> GraphSolution:
    return graph_svm(ds.E, priority_graphs(ds))


def _fastest(solve: Callable[[], GraphSolution], repeats: int) -> tuple[GraphSolution, float]:
    solution, best = solve(), np.inf
    gc.collect()
    for _ in range(repeats):
        began = time.perf_counter()
        solution = solve()
        best = min(best, time.perf_counter() - began)
    return solution, best


def _by_cvxpy(ours: GraphSolution) -> GraphSolution:
    """The same problem, as a user of cvxpy would state it at its quickest."""
    import cvxpy

    rows, equalities, d = np.asarray(ours.rows), np.asarray(ours.equalities), ours.x.shape[0]
    x = cvxpy.Variable(d * d)
    constraints = [rows @ x >= 1.0] + ([equalities @ x == 0.0] if len(equalities) else [])
    cvxpy.Problem(cvxpy.Minimize(0.5 * cvxpy.sum_squares(x)), constraints).solve(solver=cvxpy.CLARABEL)
    forces = -np.asarray(constraints[1].dual_value) if len(equalities) else np.zeros(0)
    return replace(
        ours,
        x=np.asarray(x.value).reshape(d, d),
        multipliers=np.asarray(constraints[0].dual_value),
        equality_multipliers=forces,
    )


def _row(
    size: _Size, method: str, solutions: list[GraphSolution], seconds: float, peak: float | None
) -> dict[str, Any]:
    return {
        **_sizes(size),
        "kind": size.kind,
        "method": method,
        "strict": max(len(one.lower) for one in solutions),
        "tied": max(len(one.tied) for one in solutions),
        "seconds": seconds,
        "kkt_residual": max(float(one.kkt_residual()) for one in solutions),
        "peak_gb": peak,
    }


def _sizes(size: _Size) -> dict[str, Any]:
    return dict(zip("KdnT", size.shape, strict=True))


def _peak() -> float | None:
    """The most memory that the process has held so far, in units of 1e9 bytes; None where the system does not say."""
    if find_spec("resource") is None:
        return None
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
