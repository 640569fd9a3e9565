"""A Eq. (6) and Lemma 6: the risk is L_p-smooth, and steps up to 1/L_p never climb."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from marginlens import plotting
from marginlens.data import TokenDataset, gaussian_tokens
from marginlens.dynamics import Record, descend
from marginlens.losses.margin import CorrelationLoss, Exponential, Logistic, Loss
from marginlens.optimizers import GradientDescent
from marginlens.risk import risk, risk_gradient
from marginlens.theory import smoothness
from marginlens_papers.claim import Bound, Effort, Finding, Progress

ID = "A-S"
LABELS = ("A Eq. (6)", "A Lemma 6", "A Assumption A")
TITLE = "The risk is L_p-smooth, so gradient descent with steps up to 1/L_p decreases it at every step"
STATEMENT = (
    "Under Assumption A the gradient of the risk is Lipschitz with the constant L_p of Eq. (6), and a step of size η ≤ 1/L_p lowers "
    "the risk by at least η/2 times the squared norm of the gradient."
)
PROTOCOL = (
    "Random Gaussian tokens, heads and key-query matrices of several sizes; three losses. Lipschitz: gradients at random pairs of "
    "points at distances from 1e-3 to 10, some pairs aligned with the direction of largest curvature. Descent: 200 steps of size "
    "1/L_p from random starts, each held against the guaranteed decrease. Looseness: L_p over the largest curvature met."
)
PAPER_VALUE = "–"
EXPECTED = {
    "lipschitz_violations": Bound(high=0),
    "descent_violations": Bound(high=0),
    "largest_observed_over_bound": Bound(high=1),
    "largest_observed_over_sharper_bound": Bound(high=1),
    "largest_sharper_over_bound": Bound(high=1),
}
SIZES = ((1, 3, 2), (3, 4, 5), (6, 8, 10), (4, 6, 40))
SEED = 6
ROUNDING = 4e-15  # of a risk of order one


def compute(effort: Effort, progress: Progress) -> Finding:
    """Hold random gradients and descents against the constant."""
    problems, pairs = (60, 60) if effort is Effort.PAPER else (6, 20)
    losses = (Logistic(), Exponential(), CorrelationLoss())
    progress.expect(len(SIZES) * len(losses))
    shares: dict[str, list[Any]] = {type(loss).__name__: [] for loss in losses}
    sharper, climbs, steps = [], 0, 0
    for k, (n, T, d) in enumerate(SIZES):
        for loss in losses:
            rng = np.random.default_rng([SEED, k, loss.code])
            data, v = gaussian_tokens(problems, n, T, d, rng)
            constants = smoothness(data, v, loss)
            observed = _largest_slope(data, v, loss, pairs, rng)
            shares[type(loss).__name__].append(observed / constants.L_p)
            sharper.append(constants.from_keys / constants.L_p)
            failed, taken = _descents(data, v, loss, constants.L_p, rng)
            climbs, steps = climbs + failed, steps + taken
            progress.advance()
    share, tighter = np.concatenate([one for values in shares.values() for one in values]), np.concatenate(sharper)
    numbers = {
        "lipschitz_violations": float(np.sum(~(share <= 1))),
        "descent_violations": float(climbs),
        "largest_observed_over_bound": float(share.max()),
        "largest_observed_over_sharper_bound": float(np.max(share / tighter)),
        "largest_sharper_over_bound": float(np.max(tighter)),
        "median_looseness": float(np.median(1 / share)),
        "median_looseness_from_keys": float(np.median(tighter / share)),
    }
    measured = (
        f"No violation among {share.size} problems × {pairs} pairs, nor among {steps:,} steps. L_p is a median "
        f"{numbers['median_looseness']:.0f} × (range {np.min(1 / share):.1f} to {np.max(1 / share):.0f}) the largest curvature "
        f"met; the sharper constant from key and score norms {numbers['median_looseness_from_keys']:.0f} ×."
        if numbers["lipschitz_violations"] + climbs == 0
        else f"{int(numbers['lipschitz_violations'])} problems exceed L_p and {climbs} of {steps:,} steps decrease too little."
    )
    return Finding(measured, numbers, {"shares": {name: np.concatenate(values) for name, values in shares.items()}})


def _largest_slope(data: TokenDataset, v: Any, loss: Loss, pairs: int, rng: np.random.Generator) -> Any:
    """The largest ‖∇L(p) - ∇L(q)‖/‖p - q‖ met, per problem; q is pushed along the last difference of gradients to climb."""
    largest = np.zeros(len(data))
    p = rng.normal(size=(len(data), data.d_key))
    step = rng.normal(size=p.shape)
    for k in range(pairs):
        distance = 10.0 ** rng.uniform(-3, 1, size=(len(data), 1))
        q = p + distance * step / np.linalg.norm(step, axis=-1, keepdims=True)
        difference = risk_gradient(data, v, q, loss).value() - risk_gradient(data, v, p, loss).value()
        largest = np.maximum(largest, np.linalg.norm(difference, axis=-1) / np.linalg.norm(q - p, axis=-1))
        if k % 3 == 2:
            p, step = rng.normal(size=p.shape) * rng.choice([0.1, 1.0, 3.0]), rng.normal(size=p.shape)
        else:
            step = difference
    return largest


def _descents(data: TokenDataset, v: Any, loss: Loss, L_p: Any, rng: np.random.Generator) -> tuple[int, int]:
    """How many steps of size 1/L_p fall short of the guaranteed decrease, and how many were taken."""
    failed, taken = 0, 0
    for j in range(0, len(data), max(1, len(data) // 6)):
        one, head, eta = data[j], v[j], 1.0 / L_p[j]
        run = descend(
            one,
            head,
            loss=loss,
            optimizer=GradientDescent(eta),
            n_steps=200,
            start=rng.normal(size=one.d_key),
            record=Record(1),
        )
        points = run.saved["x"]
        many = one.repeat(len(points))
        value = risk(many, head, points, loss)
        square = np.sum(risk_gradient(many, head, points, loss).value()[:-1] ** 2, axis=-1)
        allowed = -eta / 2 * square + ROUNDING * np.maximum(1.0, np.abs(value[:-1]))
        failed, taken = failed + int(np.sum(~(np.diff(value) <= allowed))), taken + len(points) - 1
    return failed, taken


def draw(finding: Finding) -> dict[str, Figure]:
    """Distribution of the largest curvature met relative to L_p, by loss."""
    fig, (ax,) = plotting.figure(1, width=6.4, height=3.8)
    for (name, share), colour in zip(finding.arrays["shares"].items(), plotting.ACCENTS, strict=False):
        ordered = np.sort(share)
        ax.step(
            ordered,
            np.arange(1, len(ordered) + 1) / len(ordered),
            where="post",
            color=colour,
            label=f"{name.lower()} loss",
        )
    ax.axvline(1, color=plotting.INK, ls="--", lw=1.2)
    ax.text(0.93, 0.5, "L_p", ha="right", va="center")
    ax.set(xscale="log", xlabel="largest curvature met / L_p", ylabel="share of problems", ylim=(0, 1.02))
    ax.set_title("How loose the smoothness constant is")
    ax.legend(loc="upper left")
    return {"looseness": fig}
