"""How fast tokens are selected: the compiled exact loop beside a torch autograd loop, and its cost as d grows."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.baselines import autograd_descent
from marginlens.data import TokenDataset, sphere_tokens
from marginlens.directions import correlation
from marginlens.dynamics import descend
from marginlens.optimizers import NormalizedGD
from marginlens.runtime.progress import Progress, ProgressCallback
from marginlens.runtime.threads import n_threads
from marginlens.svm import att_svm

PROBLEMS, INPUTS, TOKENS, STEPS = 1000, 4, 6, 1000
WIDTHS = (10, 100, 500)
REPEATS = 5
BASELINE_PROBLEMS = 2


def bench_selection(progress: ProgressCallback | None = None, *, seed: int = 0) -> list[dict[str, Any]]:
    """Time 1,000 problems × 1,000 normalised steps for several widths, and the autograd loop on a few of the same problems.

    Both sides run in this process, one after the other; of the repeated runs the fastest counts. The exact loop's time includes centring
    the keys and forming the Gram matrix.

    Returns:
        One row per width and method, and a summary row with the two ratios that matter.
    """
    watch = Progress(progress)
    watch.expect(len(WIDTHS) * (REPEATS + 1))
    rows: list[dict[str, Any]] = []
    batches = {d: sphere_tokens(PROBLEMS, INPUTS, TOKENS, d, np.random.default_rng(seed)) for d in WIDTHS}
    seconds = dict.fromkeys(WIDTHS, float("inf"))
    runs: dict[int, Any] = {}
    descend(*batches[WIDTHS[0]], n_steps=1)  # compile, or load what was compiled before
    for _ in range(REPEATS):  # widths take turns, so that a slow moment of the machine hits them alike
        for d in WIDTHS:
            began = time.perf_counter()
            runs[d] = descend(*batches[d], optimizer=NormalizedGD(1.0), n_steps=STEPS)
            seconds[d] = min(seconds[d], time.perf_counter() - began)
            watch.advance()
    autograd_descent(*_first(*batches[WIDTHS[0]]), 20, 1.0)  # torch's own warm-up is not counted either
    for d in WIDTHS:
        data, v = batches[d]
        rows.append(
            _row(d, f"marginlens, {n_threads()} threads", PROBLEMS, seconds[d], runs[d].final, data, runs[d].selected)
        )
        few, heads = _first(data, v)
        began = time.perf_counter()
        p = autograd_descent(few, heads, STEPS, 1.0)
        took = time.perf_counter() - began
        selected = np.argmax(np.einsum("bitd,bd->bit", few.K, p), axis=-1)
        rows.append(_row(d, "torch autograd float64, 1 thread", BASELINE_PROBLEMS, took, p, few, selected))
        rows[-1]["times_slower"] = rows[-1]["ms_per_problem"] / rows[-2]["ms_per_problem"]
        watch.advance()
    rows.append(
        {
            "method": "summary",
            "problems": PROBLEMS,
            "steps": STEPS,
            "least_times_slower": min(row["times_slower"] for row in rows if "times_slower" in row),
            f"seconds_d{WIDTHS[-1]}_over_d{WIDTHS[0]}": seconds[WIDTHS[-1]] / seconds[WIDTHS[0]],
        }
    )
    return rows


def _first(data: TokenDataset, v: Any) -> tuple[TokenDataset, Any]:
    """The problems that the baseline gets."""
    return TokenDataset(data.X[:BASELINE_PROBLEMS], data.y[:BASELINE_PROBLEMS]), v[:BASELINE_PROBLEMS]


def _row(d: int, method: str, problems: int, seconds: float, p: Any, data: Any, selected: Any) -> dict[str, Any]:
    corr = correlation(p, att_svm(data, selected).x)
    return {
        "d": d,
        "method": method,
        "problems": problems,
        "steps": STEPS,
        "seconds": seconds,
        "ms_per_problem": 1e3 * seconds / problems,
        "mean_corr_to_svm": float(np.nanmean(corr)),
    }
