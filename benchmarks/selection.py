"""How fast tokens are selected: the compiled exact loop beside a torch autograd loop, and its cost as d grows."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.baselines import autograd_descent
from marginlens.arithmetic.directions import correlation
from marginlens.data import TokenDataset, sphere_tokens
from marginlens.dynamics import descend
from marginlens.optimizers import NormalizedGD
from marginlens.runtime.progress import Progress, ProgressCallback
from marginlens.runtime.threads import n_threads
from marginlens.svm import att_svm

STEPS = 1000
SHAPES = {
    (4, 6, 10): 1000,
    (4, 6, 100): 1000,
    (4, 6, 500): 1000,
    (2, 3, 5): 2000,
    (20, 20, 200): 10,
}  # how many problems
NARROW, WIDE = (4, 6, 10), (4, 6, 500)  # whose times are compared
REPEATS = 5
BASELINE_PROBLEMS = 2


def bench_selection(progress: ProgressCallback | None = None, *, seed: int = 0) -> list[dict[str, Any]]:
    """Time 1,000 normalised steps on problems of several shapes, and the autograd loop on a few of the same problems.

    Both sides run in this process, one after the other; of the repeated runs the fastest counts. The exact loop's time includes centring
    the keys and forming the Gram matrix.

    Returns:
        One row per shape (n_inputs, n_tokens, d) and method, and a summary row with the two ratios that matter.
    """
    watch = Progress(progress)
    watch.expect(len(SHAPES) * (REPEATS + 1))
    rows: list[dict[str, Any]] = []
    batches = {shape: sphere_tokens(count, *shape, np.random.default_rng(seed)) for shape, count in SHAPES.items()}
    seconds = dict.fromkeys(SHAPES, float("inf"))
    runs: dict[Any, Any] = {}
    descend(*batches[NARROW], n_steps=1)  # compile, or load what was compiled before
    for _ in range(REPEATS):  # shapes take turns, so that a slow moment of the machine hits them alike
        for shape in SHAPES:
            began = time.perf_counter()
            runs[shape] = descend(*batches[shape], optimizer=NormalizedGD(1.0), n_steps=STEPS)
            seconds[shape] = min(seconds[shape], time.perf_counter() - began)
            watch.advance()
    autograd_descent(*_first(*batches[NARROW]), 20, 1.0)  # torch's own warm-up is not counted either
    for shape, count in SHAPES.items():
        data, v = batches[shape]
        name = f"marginlens, {n_threads()} threads"
        rows.append(_row(shape, name, count, seconds[shape], runs[shape].final, data, runs[shape].selected))
        few, heads = _first(data, v)
        began = time.perf_counter()
        p = autograd_descent(few, heads, STEPS, 1.0)
        took = time.perf_counter() - began
        selected = np.argmax(np.einsum("bitd,bd->bit", few.K, p), axis=-1)
        rows.append(_row(shape, "torch autograd float64, 1 thread", BASELINE_PROBLEMS, took, p, few, selected))
        rows[-1]["times_slower"] = rows[-1]["ms_per_problem"] / rows[-2]["ms_per_problem"]
        watch.advance()
    slower = {row["shape"]: row["times_slower"] for row in rows if "times_slower" in row}
    rows.append(
        {
            "method": "summary",
            "steps": STEPS,
            "least_times_slower": min(value for shape, value in slower.items() if shape[:2] == NARROW[:2]),
            f"seconds_d{WIDE[-1]}_over_d{NARROW[-1]}": seconds[WIDE] / seconds[NARROW],
        }
    )
    return [{**row, "shape": _name(row["shape"])} if "shape" in row else row for row in rows]


def _name(shape: tuple[int, int, int]) -> str:
    return ", ".join(str(size) for size in shape)


def _first(data: TokenDataset, v: Any) -> tuple[TokenDataset, Any]:
    """The problems that the baseline gets."""
    return TokenDataset(data.X[:BASELINE_PROBLEMS], data.y[:BASELINE_PROBLEMS]), v[:BASELINE_PROBLEMS]


def _row(shape: Any, method: str, problems: int, seconds: float, p: Any, data: Any, selected: Any) -> dict[str, Any]:
    corr = correlation(p, att_svm(data, selected).x)
    return {
        "shape": shape,
        "method": method,
        "problems": problems,
        "steps": STEPS,
        "seconds": seconds,
        "ms_per_problem": 1e3 * seconds / problems,
        "mean_corr_to_svm": float(np.nanmean(corr)),
    }
