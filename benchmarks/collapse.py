"""How well collapse is seen coming: small GPT-2s are trained, half of them at rates that provoke it, and `AttentionMonitor` watches.

`python -m benchmarks.collapse` runs it and writes what comes of every run to the package's results.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.probe.monitor.alarms import HORIZON_STEPS, MIN_FORECAST_STEP, AlarmKind, find_alarms
from marginlens.probe.monitor.forecast import EXPLODED_LOGIT, ForecastKind, happened, steps_until
from marginlens.probe.result import CheckpointCurves
from marginlens.runtime.progress import Progress, ProgressCallback
from marginlens.runtime.versions import versions
from marginlens.typing import Figure, FloatArray

N_STEPS, EVERY = 1000, 10  # of each run, and steps from one measurement to the next
AHEAD = 100  # steps before a collapse, at least, that a forecast is made
N_WORDS, N_TOKENS, N_INPUTS, D_MODEL, N_LAYERS, N_HEADS = 16, 24, 16, 64, 2, 4
NOISE = 0.2  # of the labels are random, so that no run ends without a gradient
# Three tasks that heads learn by selecting one token, and two that they do not.
TASKS = ("first", "previous", "copy", "majority", "own")
# Thresholds that are compared: QK-clip's, the monitor's, and of the loss in nats.
MAX_LOGIT, MIN_ENTROPY, LOSS_RISE = 100.0, 0.1, 0.1


@dataclass(frozen=True)
class Spec:
    """One run: what is learned, how, and whether this is meant to make attention collapse."""

    task: str
    optimizer: str
    rate: float
    warm_up: int
    qk_norm: bool
    seed: int
    is_provoked: bool


def _specs() -> list[Spec]:
    """All runs: rates that are usual, high ones under QK-norm, and too high ones with a long warm-up, so that collapse takes its time."""
    plan = [  # optimizer, rates, warm-ups, QK-norm, seeds, provoked
        ("adam", (1e-3, 3e-3), (20, 400), False, (10, 11), False),
        ("adam", (1e-2,), (20, 400), False, (10,), False),
        ("adam", (3e-3, 3e-2), (20, 400), True, (10,), False),
        ("adam", (1e-1,), (400,), True, (10, 11), False),
        ("muon", (1e-2,), (20, 400), False, (10, 11), False),
        ("sgd", (1e-1,), (20, 400), False, (10,), False),
        ("adam", (3e-2, 6e-2, 1e-1), (400, 800), False, (10, 11), True),
        ("muon", (1e-1, 3e-1), (400, 800), False, (10, 11), True),
        ("sgd", (5e-1, 1.0), (800,), False, (10,), True),
    ]
    return [
        Spec(task, optimizer, rate, warm_up, qk_norm, seed, is_provoked)
        for optimizer, rates, warm_ups, qk_norm, seeds, is_provoked in plan
        for rate in rates
        for warm_up in warm_ups
        for seed in seeds
        for task in TASKS
    ]


SPECS = _specs()
STORY = Spec("copy", "adam", 6e-2, 800, False, 10, True)  # the run of docs/monitor.md


# ---- one run


def watched_run(spec: Spec) -> dict[str, Any]:
    """Train one model, and say what came of it and what each way of watching said before."""
    curves, losses = trained(spec)
    return {**asdict(spec), **outcome(curves, losses)}


def trained(spec: Spec, n_steps: int | None = None) -> tuple[CheckpointCurves, FloatArray]:
    """Train one model, and give the curves of its heads and its loss at every step."""
    import torch

    from marginlens.probe.monitor.callback import AttentionMonitor

    torch.set_num_threads(1)
    logging.getLogger("marginlens").setLevel(logging.ERROR)
    model, optimizers = _model(spec)
    draws = torch.Generator().manual_seed(spec.seed)
    monitor = AttentionMonitor(every=EVERY)
    monitor.attach(model)
    rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    losses = []
    for step in range(n_steps or N_STEPS):
        for optimizer, rate in zip(optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / spec.warm_up)
        ids, labels = task_batch(spec.task, draws)
        logits = model(input_ids=ids).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(loss.detach()))
        if not np.isfinite(losses[-1]):
            break
        monitor.step(model, loss=loss)
    return monitor.curves, np.array(losses)


def outcome(curves: CheckpointCurves, losses: FloatArray) -> dict[str, Any]:
    """When a head collapsed, and the highest score of each way of watching until `AHEAD` steps before that, or ever."""
    steps = curves.steps
    is_collapsed = happened(curves, ForecastKind.EXPLODES) & happened(
        curves, ForecastKind.SELECTS
    )  # (n_measurements, layers, heads)
    places = np.flatnonzero(is_collapsed.any(axis=(1, 2)))
    collapse = int(steps[places[0]]) if len(places) else None
    counted = (steps >= MIN_FORECAST_STEP) & (steps <= (np.inf if collapse is None else collapse - AHEAD))
    loss = curves["loss"][:, 0, 0]
    smooth = np.array(
        [np.nanmean(loss[max(0, k - 4) : k + 1]) if np.isfinite(loss[: k + 1]).any() else 0.0 for k in range(len(loss))]
    )
    scores = {
        "forecast": -steps_until(curves, ForecastKind.EXPLODES).n_steps.min(axis=(1, 2)),
        "logit": curves["max_logit"].max(axis=(1, 2)),
        "entropy": -curves["entropy"].min(axis=(1, 2)),
        "loss": smooth - np.minimum.accumulate(smooth),
    }
    return {
        "collapse": collapse,
        "is_finite": bool(np.isfinite(losses).all()),
        "last_loss": _rounded(float(losses[-100:].mean())),
        "scores": {
            name: _rounded(float(values[counted].max())) if counted.any() else None for name, values in scores.items()
        },
    }


def _rounded(value: float) -> float | None:
    """Four digits, as JSON has them: no nan, and 1e30 for infinity."""
    if np.isnan(value):
        return None
    return float(f"{value:.4g}") if np.isfinite(value) else float(np.sign(value) * 1e30)


def _model(spec: Spec) -> tuple[Any, list[Any]]:
    """A GPT-2 without dropout, and its optimizers: Muon for the matrices of its blocks has Adam beside it."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(spec.seed)
    sizes = {"n_layer": N_LAYERS, "n_head": N_HEADS, "n_embd": D_MODEL, "vocab_size": N_WORDS, "n_positions": N_TOKENS}
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model = GPT2LMHeadModel(GPT2Config(**sizes, **dropouts, bos_token_id=0, eos_token_id=0, attn_implementation="sdpa"))
    if spec.qk_norm:
        for block in model.transformer.h:
            block.attn.c_attn.register_forward_hook(_normalised)
    blocks = [weight for name, weight in model.named_parameters() if weight.ndim == 2 and ".h." in name]
    others = [weight for weight in model.parameters() if not any(weight is block for block in blocks)]
    if spec.optimizer == "adam":
        return model, [torch.optim.Adam(model.parameters(), lr=spec.rate, betas=(0.9, 0.95))]
    if spec.optimizer == "sgd":
        return model, [torch.optim.SGD(model.parameters(), lr=spec.rate, momentum=0.9)]
    muon = torch.optim.Muon(blocks, lr=spec.rate, weight_decay=0.0)
    return model, [muon, torch.optim.Adam(others, lr=min(spec.rate, 0.1) * 0.1)]


def _normalised(module: Any, inputs: Any, output: Any) -> Any:
    """QK-norm: queries and keys of each head with entries of root mean square 1."""
    import torch

    queries, keys, values = output.split(D_MODEL, dim=-1)
    width = D_MODEL // N_HEADS
    queries, keys = (
        torch.nn.functional.rms_norm(part.view(*part.shape[:2], N_HEADS, width), (width,)).flatten(2)
        for part in (queries, keys)
    )
    return torch.cat((queries, keys, values), dim=-1)


def task_batch(task: str, draws: Any) -> tuple[Any, Any]:
    """Random tokens and what is to be told at each of them, -100 where nothing is, with noise.

    first: the first token. previous: the one before. copy: of a word that comes twice, the next letter, the second time. majority: the most
    frequent letter of the first half, in the second. own: a letter that belongs to the token itself.
    """
    import torch

    shape, half = (N_INPUTS, N_TOKENS), N_TOKENS // 2
    ids = torch.randint(1, N_WORDS, shape, generator=draws)
    labels = torch.full_like(ids, -100)
    if task == "first":
        labels[:, 1:] = ids[:, :1]
    elif task == "previous":
        labels[:, 1:] = ids[:, :-1]
    elif task == "copy":
        ids[:, half:] = ids[:, :half]
        labels[:, half:-1] = ids[:, half + 1 :]
    elif task == "majority":
        ids = torch.where(torch.rand(shape, generator=draws) < 0.4, ids[:, :1], ids)
        labels[:, half:] = torch.mode(ids[:, :half], dim=1).values[:, None]
    else:
        labels[:] = (ids * 7 + 3) % (N_WORDS - 1) + 1
    is_noise = (torch.rand(shape, generator=draws) < NOISE) & (labels != -100)
    return ids, torch.where(is_noise, torch.randint(1, N_WORDS, shape, generator=draws), labels)


# ---- all of them


def bench_collapse(progress: ProgressCallback | None = None, specs: Sequence[Spec] = ()) -> list[dict[str, Any]]:
    """Train all models, one on each core at a time.

    Returns:
        One row for each way of watching, and a summary; what a collapse is, and how rows are made, is in docs/monitor.md.
    """
    return table(all_runs(progress, specs))


def all_runs(progress: ProgressCallback | None = None, specs: Sequence[Spec] = ()) -> list[dict[str, Any]]:
    """What came of every run, in the order of the plan."""
    plan = list(specs or SPECS)
    watch = Progress(progress)
    watch.expect(len(plan))
    found: dict[Spec, dict[str, Any]] = {}
    with ProcessPoolExecutor(min(len(plan), os.cpu_count() or 1), mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(watched_run, spec): spec for spec in plan}
        for done in as_completed(waiting):
            found[waiting[done]] = done.result()
            watch.advance()
    return [found[spec] for spec in plan]


def table(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the benchmark from what came of all runs.

    A run is told from others by the highest score that it has at least `AHEAD` steps before its collapse, or ever without one; runs that
    collapse before there is such a step are left out of this and counted. Alarms are scores beyond a limit. False alarms are shares of
    runs without collapse: of the healthy ones, which nothing provokes, and of all; `alarmed_ahead` is the share of collapsing runs with an
    alarm `AHEAD` steps before or earlier, so that above a half the median lead is as long.
    """
    collapsed = [run for run in runs if run["collapse"] is not None]
    late = [run for run in collapsed if run["scores"]["forecast"] is not None]
    calm = [run for run in runs if run["collapse"] is None and run["is_finite"]]
    healthy = [run for run in calm if not run["is_provoked"]]
    ways = {
        "forecast": (-float(HORIZON_STEPS), f"forecast of the monitor: explodes within {HORIZON_STEPS} steps"),
        "logit": (MAX_LOGIT, f"largest logit at least {MAX_LOGIT:g}"),
        "entropy": (-MIN_ENTROPY, f"entropy of a head at most {MIN_ENTROPY:g}"),
        "loss": (LOSS_RISE, f"loss {LOSS_RISE:g} above its lowest"),
    }
    rows: list[dict[str, Any]] = []
    for name, (limit, title) in ways.items():
        ahead, quiet, well = ([run["scores"][name] for run in group] for group in (late, calm, healthy))
        shares = {"false_alarms_healthy": well, "false_alarms": quiet, "alarmed_ahead": ahead}
        aucs = {"auc": _auc(ahead, quiet), "auc_healthy": _auc(ahead, well)}
        rows.append(
            {
                "watching": title,
                **aucs,
                **{of: float(np.mean(np.array(values) >= limit)) for of, values in shares.items()},
            }
        )
    return [
        *rows,
        {
            "watching": "summary",
            "runs": len(runs),
            "provoked": sum(run["is_provoked"] for run in runs),
            "collapsed": len(collapsed),
            "too_early_to_tell": len(collapsed) - len(late),
            "not_finite_without_collapse": sum(run["collapse"] is None and not run["is_finite"] for run in runs),
            "healthy": len(healthy),
            "note": "a run collapses where a head has a largest logit of at least 1,000 and an entropy of at most 0.1 nats",
        },
    ]


def _auc(positive: Sequence[float], negative: Sequence[float]) -> float:
    """The share of pairs in which the positive has the higher score; ties count half."""
    above, below = np.array(positive)[:, None], np.array(negative)[None]
    return float(np.mean((above > below) + 0.5 * (above == below)))


def write_archive(runs: Sequence[dict[str, Any]], out: Path | None) -> None:
    """Write the rows and what came of every run, a line each, to a file, or to the package's results."""
    if out is None:
        from marginlens_papers.archive import results_folder

        out = results_folder() / "collapse-bench.json"
    facts = {"command": "python -m benchmarks.collapse", "versions": versions(), "rows": table(runs)}
    lines = ",\n".join(json.dumps(run) for run in runs)
    out.write_text(f'{json.dumps(facts, indent=1)[:-2]},\n "runs": [\n{lines}\n]}}\n', encoding="utf-8")


def draw_story(curves: CheckpointCurves, losses: FloatArray) -> Figure:
    """One collapse: the largest logit of every head with the first forecast, the entropies, and the loss, over the steps of the run."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from marginlens.plotting import STYLE

    explosions = [alarm for alarm in find_alarms(curves) if alarm.kind is AlarmKind.EXPLODES]
    first = min(explosions, key=lambda alarm: alarm.step)
    place = int(np.searchsorted(curves.steps, first.step))
    times = steps_until(curves, ForecastKind.EXPLODES)
    at = (place, first.layer, int(times.n_steps[place, first.layer].argmin()))
    waiting = [float(values[at]) for values in times]
    is_collapsed = (happened(curves, ForecastKind.EXPLODES) & happened(curves, ForecastKind.SELECTS)).any(axis=(1, 2))
    collapse = float(curves.steps[np.argmax(is_collapsed)])
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 6.8), layout="constrained")
        panels = figure.subplots(3, 1, sharex=True)
        for axes, name in zip(panels, ("max_logit", "entropy"), strict=False):
            for layer, colour in enumerate(("#0072B2", "#D55E00")):
                for head in range(curves.n_heads):
                    label = f"heads of layer {layer}" if head == 0 and name == "max_logit" else None
                    axes.plot(curves.steps, curves[name][:, layer, head], color=colour, linewidth=1.0, label=label)
        now = float(curves.steps[place])
        panels[0].fill_betweenx(
            [EXPLODED_LOGIT / 1.25, EXPLODED_LOGIT * 1.25],
            now + waiting[1],
            now + waiting[2],
            color="#999999",
            alpha=0.5,
        )
        panels[0].plot(
            [now, now + waiting[0]],
            [curves["max_logit"][at], EXPLODED_LOGIT],
            color="black",
            linestyle=":",
            label="forecast at the alarm",
        )
        panels[0].set(yscale="log", ylim=(0.1, None), ylabel="largest logit")
        panels[1].set(ylim=(0.0, None), ylabel="entropy in nats")
        mean = np.convolve(losses, np.ones(20) / 20, mode="valid")
        panels[2].plot(np.arange(len(mean)) + 19, mean, color="black", linewidth=1.2)
        panels[2].set(ylim=(0.0, None), ylabel="loss, mean of 20 steps", xlabel="optimizer step")
        for axes in panels:
            axes.axvline(now, color="#009E73", linewidth=1.4)
            axes.axvline(collapse, color="#CC3311", linewidth=1.4, linestyle="--")
        panels[2].text(now, 0.1, "alarm ", color="#007A58", ha="right")
        panels[2].text(collapse, 0.1, " collapse", color="#CC3311")
        panels[0].legend(loc="lower right", fontsize="small")
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--picture", type=Path, help="train the run of docs/monitor.md alone, and draw it to this SVG file"
    )
    parser.add_argument("--out", type=Path, help="the file; collapse-bench.json of the package's results by default")
    options = parser.parse_args()
    if options.picture is not None:
        from marginlens.plotting import svg

        told = trained(STORY, 700)
        print(*find_alarms(told[0]), sep="\n")
        options.picture.write_bytes(svg(draw_story(*told)))
    else:
        finished = all_runs()
        write_archive(finished, options.out)
        print(json.dumps(table(finished), indent=1))
