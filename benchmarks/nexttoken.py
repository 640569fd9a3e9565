"""How fast W is trained on next tokens: the compiled exact loop beside a torch autograd loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.baselines import autograd_nexttoken
from marginlens.arithmetic.directions import correlation
from marginlens.data import SequenceDataset
from marginlens.data.sequence_generators import acyclic_sequences, cyclic_sequences
from marginlens.dynamics.descend import descend
from marginlens.graphs import priority_graphs
from marginlens.optimizers import NormalizedGD
from marginlens.runtime.progress import Progress, ProgressCallback
from marginlens.runtime.threads import n_threads
from marginlens.svm.graph import graph_svm
from marginlens.typing import FloatArray

STEP = 0.01
REPEATS = 5
COMPARED = 300  # steps after which both W are compared: while no probability is tiny, autograd is accurate


@dataclass(frozen=True)
class _Size:
    """One kind of data: name, generator, (K, d, n, T), trials and steps, and how many of them the baseline gets."""

    name: str
    draw: Callable[..., SequenceDataset]
    shape: tuple[int, int, int, int]
    trials: int
    steps: int
    baseline_trials: int
    baseline_steps: int


SIZES = (
    _Size("C Fig 3, acyclic", acyclic_sequences, (8, 8, 4, 6), 100, 4000, 2, 4000),
    _Size("C Fig 4, cyclic", cyclic_sequences, (6, 8, 6, 4), 100, 4000, 1, 4000),
    _Size("larger, acyclic", acyclic_sequences, (100, 64, 500, 20), 2, COMPARED, 1, COMPARED),
)


def bench_nexttoken(progress: ProgressCallback | None = None, *, seed: int = 0) -> list[dict[str, Any]]:
    """Time normalised descent on W for the data of C's Figures 3 and 4 and for a larger problem, and the autograd loop on a few of them.

    Both sides run in this process, one after the other; of the repeated runs of the exact loop the fastest counts, and its time includes
    reducing the data and forming Gram matrices.

    Returns:
        One row per size and method, and a summary row with the ratio at Figure 3's size. `difference_of_W` is the largest after 300
        steps, relative to ‖W‖.
    """
    watch = Progress(progress)
    watch.expect(len(SIZES) * (REPEATS + 2))
    rows: list[dict[str, Any]] = []
    for number, size in enumerate(SIZES):
        data = [size.draw(*size.shape, np.random.default_rng([seed, number, j])) for j in range(size.trials)]
        descend(data, n_steps=1)  # compile, or load what was compiled before
        seconds, final = float("inf"), np.empty(0)
        for _ in range(REPEATS):
            began = time.perf_counter()
            final = descend(data, optimizer=NormalizedGD(STEP), n_steps=size.steps).final
            seconds = min(seconds, time.perf_counter() - began)
            watch.advance()
        few = data[: size.baseline_trials]
        early = descend(few, optimizer=NormalizedGD(STEP), n_steps=COMPARED).final
        theirs = np.stack([autograd_nexttoken(one, COMPARED, STEP) for one in few])  # and torch is warm
        difference = float(np.max(np.abs(early - theirs)) / np.linalg.norm(theirs, axis=(1, 2)).min())
        watch.advance()
        began = time.perf_counter()
        ends = np.stack([autograd_nexttoken(one, size.baseline_steps, STEP) for one in few])
        took = time.perf_counter() - began
        watch.advance()
        ours = _row(size, f"marginlens, {n_threads()} threads", (size.trials, size.steps), seconds, data, final)
        other = _row(size, "torch autograd float64, 1 thread", (len(few), size.baseline_steps), took, few, ends)
        other["times_slower"] = other["us_per_step"] / ours["us_per_step"]
        other["difference_of_W"] = difference
        rows += [ours, other]
    rows.append({"data": "summary", "times_slower_at_fig_3": rows[1]["times_slower"]})
    return rows


def _row(
    size: _Size, method: str, effort: tuple[int, int], seconds: float, data: list[SequenceDataset], W: FloatArray
) -> dict[str, Any]:
    trials, steps = effort
    sizes = ", ".join(f"{letter} = {number}" for letter, number in zip("KdnT", size.shape, strict=True))
    row: dict[str, Any] = {"data": f"{size.name}: {sizes}", "method": method, "trials": trials, "steps": steps}
    row |= {"seconds": seconds, "ms_per_trial": 1e3 * seconds / trials, "us_per_step": 1e6 * seconds / trials / steps}
    if size.steps > COMPARED:  # else nothing has turned towards the limit yet
        margin = [graph_svm(one.E, priority_graphs(one)).x for one in data]
        row["mean_corr_to_svm"] = float(np.nanmean([correlation(a, b, axes=2) for a, b in zip(W, margin, strict=True)]))
    return row
