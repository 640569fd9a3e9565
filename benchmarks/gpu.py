"""How many problems a GPU takes a second: descents and margin problems, beside batched torch on the same GPU and the loops of the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.baselines import batched_descent
from marginlens.data import sphere_problems
from marginlens.dynamics import descend
from marginlens.gpu.device import Device, as_device, to_host
from marginlens.gpu.random_problems import Numbers, RandomArrays, token_scores
from marginlens.losses import Logistic
from marginlens.optimizers import NormalizedGD
from marginlens.runtime.progress import Progress, ProgressCallback
from marginlens.runtime.threads import n_threads
from marginlens.svm import att_svm
from marginlens.svm.on_device import margins_of
from marginlens.sweeps.on_device import Training, made_on_device, trained_on_device

INPUTS, TOKENS, STEPS = 4, 6, 1000
DATA = {10: 1_000_000, 100: 400_000}  # width of keys -> problems that the GPU makes
DESCENTS = {10: 400_000, 100: 400_000, 500: 100_000}  # that it descends on
MARGINS = {10: 1_000_000, 100: 400_000}
TORCH_PROBLEMS, TORCH_STEPS = 200_000, 50  # enough for torch to be bound by memory, not by launches
CPU_PROBLEMS = 2_000
REPEATS = 3  # the fastest counts


def bench_gpu(progress: ProgressCallback | None = None, *, seed: int = 0, device: str = "cuda") -> list[dict[str, Any]]:
    """Time what a sweep does on a GPU: making problems, descents of 1,000 normalised steps on them, and margin problems.

    A descent's time includes centring the keys and forming the Gram matrix, and that of a margin problem its residuals, which prove it.
    The steps of batched torch have the same formulas and the same Gram matrix, without the logarithmic scale; fewer are timed. The CPU
    takes some of the same problems, and `agreement` is the share of them that it makes with the same bits, for which it selects the same
    tokens, or that it solves to the same x.

    Returns:
        One row for each width and method, and a summary of the ratios.
    """
    place = as_device(device)
    assert place is not None
    watch = Progress(progress)
    watch.expect(2 * len(DATA) + 3 * len(DESCENTS) + 2 * len(MARGINS))
    rows: list[dict[str, Any]] = []
    for d, count in DATA.items():
        rows += _data(place, d, count, seed, watch)
    for d, count in DESCENTS.items():
        rows += _descents(place, d, count, seed, watch)
    for d, count in MARGINS.items():
        rows += _margins(place, d, count, seed, watch)
    return [*rows, _summary(rows)]


def _made(device: Device, d: int, count: int, seed: int) -> RandomArrays:
    settings = {"data": "sphere", "n_inputs": INPUTS, "n_tokens": TOKENS, "d": d}
    return made_on_device(device, settings, Numbers(0, seed, 0), count)


def _data(device: Device, d: int, count: int, seed: int, watch: Progress) -> list[dict[str, Any]]:
    """Problems made by counter; the agreement is the share of those that have the same bits on both."""
    made, seconds = _fastest(device, lambda: _made(device, d, count, seed))
    X = to_host(made.X[:CPU_PROBLEMS])
    watch.advance()
    (host, _), cpu_seconds = _fastest(device, lambda: sphere_problems(0, CPU_PROBLEMS, INPUTS, TOKENS, d, seed))
    watch.advance()
    agreement = float((host.X == X).all(axis=(1, 2, 3)).mean())
    return [
        _row("data", d, f"marginlens, {device.name}", count, 1, seconds, agreement),
        _row("data", d, f"marginlens, {n_threads()} threads", len(host), 1, cpu_seconds),
    ]


def _descents(device: Device, d: int, count: int, seed: int, watch: Progress) -> list[dict[str, Any]]:
    made, optimizer = _made(device, d, count, seed), NormalizedGD(1.0)
    training = Training(Logistic(), optimizer, STEPS)
    run, seconds = _fastest(device, lambda: trained_on_device(device, made, training))
    selected = to_host(run.selected)[:CPU_PROBLEMS]
    watch.advance()
    few = min(TORCH_PROBLEMS, count)
    scores = token_scores(device, made)[:few]
    _, torch_seconds = _fastest(device, lambda: batched_descent(made.K[:few], scores, TORCH_STEPS, 1.0))
    watch.advance()
    host, heads = sphere_problems(0, CPU_PROBLEMS, INPUTS, TOKENS, d, seed)
    of_cpu, cpu_seconds = _fastest(device, lambda: descend(host, heads, optimizer=optimizer, n_steps=STEPS))
    watch.advance()
    agreement = float((of_cpu.selected == selected).all(axis=-1).mean())
    return [
        _row("descent", d, f"marginlens, {device.name}", count, STEPS, seconds, agreement),
        _row("descent", d, f"batched torch, {device.name}", few, TORCH_STEPS, torch_seconds),
        _row("descent", d, f"marginlens, {n_threads()} threads", len(host), STEPS, cpu_seconds),
    ]


def _margins(device: Device, d: int, count: int, seed: int, watch: Progress) -> list[dict[str, Any]]:
    made = _made(device, d, count, seed)
    selected = token_scores(device, made).argmax(axis=-1)
    solved, seconds = _fastest(device, lambda: margins_of(device, made.K, selected))
    x = to_host(solved.x[:CPU_PROBLEMS])
    watch.advance()
    host, _ = sphere_problems(0, CPU_PROBLEMS, INPUTS, TOKENS, d, seed)
    host_selected = to_host(selected[:CPU_PROBLEMS])
    of_cpu, cpu_seconds = _fastest(device, lambda: att_svm(host, host_selected))
    watch.advance()
    error = np.linalg.norm(of_cpu.x - x, axis=-1)
    agreement = float(np.mean(~(error > 1e-9 * np.linalg.norm(of_cpu.x, axis=-1))))
    return [
        _row("margin", d, f"marginlens, {device.name}", count, 1, seconds, agreement),
        _row("margin", d, f"marginlens, {n_threads()} threads", len(host), 1, cpu_seconds),
    ]


def _fastest(device: Device, work: Callable[[], Any]) -> tuple[Any, float]:
    """What `work` returns and the time of its fastest call; the first, which compiles, is not timed."""
    result, best = work(), float("inf")
    for _ in range(REPEATS):
        device.synchronize()
        began = time.perf_counter()
        result = work()
        device.synchronize()
        best = min(best, time.perf_counter() - began)
    return result, best


def _row(
    task: str, d: int, method: str, problems: int, steps: int, seconds: float, agreement: float | None = None
) -> dict[str, Any]:
    whole = seconds / steps * (STEPS if task == "descent" else 1)
    return {
        "d": d,
        "task": task,
        "method": method,
        "problems": problems,
        "steps": steps,
        "seconds": seconds,
        "problems_per_second": problems / whole,
        "agreement": agreement,
    }


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The least ratio of problems a second of the first row of each group to those of the others."""
    ratios: dict[str, list[float]] = {"torch": [], "threads": []}
    first = rows[0]
    for row in rows:
        if row["agreement"] is not None:
            first = row
            continue
        kind = "torch" if "torch" in row["method"] else "threads"
        ratios[kind].append(first["problems_per_second"] / row["problems_per_second"])
    return {"method": "summary", **{f"least_times_{name}": min(found) for name, found in ratios.items()}}
