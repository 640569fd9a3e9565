"""How long a step of descent takes in each norm, beside a step of normalised gradient descent on the same data."""

from __future__ import annotations

import os
import time
from typing import Any

from marginlens.data import sphere_queries
from marginlens.dynamics import descend
from marginlens.norms import L1, L2, LInf, Lp, MaxRow, Nuclear, Spectral
from marginlens.optimizers import Adam, MirrorDescent, Muon, NormalizedGD, Optimizer, SteepestDescent
from marginlens.risk import AttentionRisk
from marginlens.runtime.progress import Progress, ProgressCallback

SIZES = ((8, 6, 8, 10), (8, 6, 8, 90))  # problems, inputs, tokens, d_model
N_STEPS, REPEATS = 2000, 5  # the fastest run counts
ON_P: dict[str, Optimizer] = {
    "l1": SteepestDescent(L1(), 0.05),
    "linf": SteepestDescent(LInf(), 0.05),
    "l1.75": SteepestDescent(Lp(1.75), 0.05),
    "l3": SteepestDescent(Lp(3.0), 0.05),
    "linf with momentum": SteepestDescent(LInf(), 0.05, 0.9),
    "Adam": Adam(0.05),
    "mirror descent, p = 3": MirrorDescent(3.0, 0.05, normalized=True),
}
ON_W: dict[str, Optimizer] = {
    "Frobenius": SteepestDescent(L2(), 0.05),
    "l1": SteepestDescent(L1(), 0.05),
    "linf": SteepestDescent(LInf(), 0.05),
    "max row": SteepestDescent(MaxRow(), 0.05),
    "spectral": SteepestDescent(Spectral(), 0.05),
    "Muon": Muon(0.05),
    "nuclear": SteepestDescent(Nuclear(), 0.05),
}


def bench_steps(progress: ProgressCallback | None = None, *, seed: int = 0) -> list[dict[str, Any]]:
    """Time steps of descent on p in seconds of CPU of one thread, and on W with a query for each input at the smaller size.

    Returns:
        One row per variable, size and optimizer, with `times_normalised_gd`: the time of a step over that of normalised GD on p.
    """
    watch = Progress(progress)
    watch.expect(len(SIZES) * (len(ON_P) + 1) + len(ON_W))
    threads, rows = os.environ.get("MARGINLENS_THREADS"), []
    os.environ["MARGINLENS_THREADS"] = "1"
    try:
        for k, size in enumerate(SIZES):
            data, head, queries = sphere_queries(*size, seed)
            of_p = AttentionRisk(data, head)
            listed: list[tuple[str, Any, str, Optimizer]] = [
                ("p", of_p, name, rule) for name, rule in {"normalised GD": NormalizedGD(0.05), **ON_P}.items()
            ]
            if k == 0:
                listed += [("W", of_p.as_matrix(queries), name, rule) for name, rule in ON_W.items()]
            base = 0.0
            for variable, risk, name, rule in listed:
                seconds = _seconds_per_step(risk, rule)
                base = base or seconds
                row = {"n_inputs": size[1], "n_tokens": size[2], "d_model": size[3], "variable": variable}
                rows.append(
                    {**row, "optimizer": name, "seconds_per_step": seconds, "times_normalised_gd": seconds / base}
                )
                watch.advance()
    finally:
        if threads is None:
            del os.environ["MARGINLENS_THREADS"]
        else:
            os.environ["MARGINLENS_THREADS"] = threads
    return rows


def _seconds_per_step(risk: Any, optimizer: Optimizer) -> float:
    descend(risk, optimizer=optimizer, n_steps=10)  # compile, or load what was compiled
    times = []
    for _ in range(REPEATS):
        began = time.process_time()
        descend(risk, optimizer=optimizer, n_steps=N_STEPS)
        times.append(time.process_time() - began)
    return min(times) / N_STEPS / len(risk)
