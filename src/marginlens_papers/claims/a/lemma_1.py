"""A Lemma 1: descent on the matrix W shadows descent on the vector p, step by step."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from marginlens import plotting
from marginlens.data import TokenDataset, sphere_tokens
from marginlens.dynamics import descend, matching_optimizer
from marginlens.losses.margin import CorrelationLoss, Exponential, Logistic
from marginlens.optimizers import GradientDescent, NormalizedGD
from marginlens.risk import AttentionRisk, matrix_from_vector
from marginlens_papers.claim import Bound, Effort, Finding, Progress

ID = "A-L1"
LABELS = ("A Lemma 1", "A Eq. (15b)")
TITLE = "Training W with a fixed query is training p"
STATEMENT = (
    "Started from W(0) = u p(0)ᵀ/‖u‖² and with steps scaled by 1/‖u‖², gradient descent on the key-query matrix W keeps W(t) = u "
    "p(t)ᵀ/‖u‖² for ever, whatever the loss and the head."
)
PROTOCOL = (
    "Random problems with n = 4, T = 6, d = 8 and a random query u of width 5; random p(0); logistic, exponential and correlation "
    "loss; linear heads, and a random tanh network with the logistic loss; plain and normalised steps. Both sides are stepped "
    "separately, W in all its entries, for 1,000 steps; the deviation is the largest entry of W(t) - u p(t)ᵀ/‖u‖² over the largest "
    "entry of W(t). Normalised steps are compared on the problems where p diverges: where it stays finite they hop about a minimum "
    "and amplify rounding."
)
PAPER_VALUE = "exact"
EXPECTED = {"largest_deviation": Bound(high=1e-10), "fewest_problems_compared": Bound(low=1)}
SEED = 1
CHECKPOINTS = (1, 3, 10, 30, 100, 300, 1000)


def compute(effort: Effort, progress: Progress) -> Finding:
    """Step both sides from the same start and compare them at a few steps."""
    problems = 20 if effort is Effort.PAPER else 2
    rng = np.random.default_rng(SEED)
    data, v = sphere_tokens(problems, 4, 6, 8, rng)
    u, start = rng.normal(size=5), rng.normal(size=(problems, 8))
    heads: dict[str, Any] = {"linear head": v}
    if find_spec("torch"):
        heads["network head"] = _network(8)
    losses = (Logistic(), Exponential(), CorrelationLoss())
    steps = (GradientDescent(0.5), NormalizedGD(0.1))
    settings = [
        (name, loss, step)
        for name in heads
        for loss in losses
        for step in steps
        if name == "linear head" or loss == losses[0]
    ]
    progress.expect(len(settings))
    curves: dict[str, Any] = {}
    compared: list[int] = []
    for name, loss, step in settings:
        rule = "plain" if isinstance(step, GradientDescent) else "normalised"
        last = 1000 if name == "linear head" or effort is Effort.PAPER else 100
        marks = [mark for mark in CHECKPOINTS if mark <= last]
        found, count = _deviations(data, heads[name], u, (loss, step), start, marks)
        compared.append(count)
        curves[f"{name}, {type(loss).__name__.lower()} loss, {rule}"] = (marks, found)
        progress.advance()
    worst = {name: float(np.max(values)) for name, (_, values) in curves.items()}
    largest = float(np.max(list(worst.values())))
    note = "" if "network head" in heads else "Only linear heads were run, because torch is not installed."
    measured = (
        f"Largest relative deviation {largest:.1e} over {problems} problems × {len(worst)} settings (median over "
        f"settings {np.median(list(worst.values())):.1e}); every setting compares {min(compared)} problems or more."
    )
    numbers = {"largest_deviation": largest, "fewest_problems_compared": float(min(compared))}
    return Finding(measured, numbers, {"curves": curves}, note=note)


def _deviations(
    data: TokenDataset, head: Any, u: Any, rule: Any, start: Any, marks: list[int]
) -> tuple[list[float], int]:
    """Largest relative deviation over the compared problems after each number of steps, each run going on; and how many are compared."""
    loss, step = rule
    p, W = start, matrix_from_vector(start, u)
    gaps, done = [], 0
    for mark in marks:
        p = descend(data, head, loss=loss, optimizer=step, n_steps=mark - done, start=p).final
        of_W = AttentionRisk(data, head, loss).as_matrix(u)
        W = descend(of_W, optimizer=matching_optimizer(step, u), n_steps=mark - done, start=W).final
        gaps.append(np.abs(W - matrix_from_vector(p, u)).max(axis=(1, 2)) / np.abs(W).max(axis=(1, 2)))
        done = mark
    diverged = np.linalg.norm(p, axis=-1) > 0.5 * step.size * done
    counted = np.ones(len(p), dtype=bool) if isinstance(step, GradientDescent) else diverged
    return [float(gap[counted].max(initial=0.0)) for gap in gaps], int(counted.sum())


def _network(d_model: int) -> Any:
    """A random tanh network from d_model numbers to one."""
    import torch

    generator = torch.Generator().manual_seed(SEED)
    first = torch.randn(d_model, 16, generator=generator, dtype=torch.float64)
    second = torch.randn(16, generator=generator, dtype=torch.float64)
    return lambda z: torch.tanh(z @ first) @ second / 4


def draw(finding: Finding) -> dict[str, Figure]:
    """Deviation against step, one line per setting, on logarithmic axes."""
    fig, (ax,) = plotting.figure(1, width=7.2, height=4.0)
    colours = {"logistic": plotting.ACCENTS[0], "exponential": plotting.ACCENTS[1], "correlation": plotting.ACCENTS[2]}
    for name, (marks, values) in finding.arrays["curves"].items():
        head, loss, rule = name.split(", ")
        style = "-" if rule == "plain" else "--"
        marker = "o" if head == "linear head" else "^"
        shown = np.maximum(values, 1e-17)
        ax.loglog(marks, shown, style, marker=marker, ms=5, lw=1.2, color=colours[loss.split()[0]])
    ax.axhline(1e-10, color=plotting.INK, lw=1.2, ls=":")
    ax.text(1.0, 1.3e-10, "bar of the claim", va="bottom")
    handles = [ax.plot([], [], color=colour, lw=2)[0] for colour in colours.values()]
    handles += [ax.plot([], [], style, color=plotting.INK, lw=1.2)[0] for style in ("-", "--")]
    handles += [ax.plot([], [], marker, color=plotting.INK, ms=5)[0] for marker in ("o", "^")]
    names = [*(f"{name} loss" for name in colours), "plain steps", "normalised steps", "linear head", "network head"]
    ax.legend(handles, names, loc="center left", bbox_to_anchor=(1.01, 0.5))
    ax.set(xlabel="step t", ylabel="largest relative deviation of W(t)", ylim=(5e-18, 1e-8))
    ax.set_title("W(t) against u p(t)ᵀ/‖u‖²")
    return {"deviation": fig}
