"""A Thm 3 by its own algorithm: constant steps 1/L_p from inside the cone, and the flow that they follow to any norm."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from scipy.special import logsumexp

from marginlens import plotting
from marginlens.data import TokenDataset, figure_1b
from marginlens.directions import angle, unit
from marginlens.dynamics import Record, UntilLength, UntilNorm, descend, gradient_flow
from marginlens.optimizers import GradientDescent
from marginlens.risk import excess_risk, risk_gradient
from marginlens.theory import BasinCone, basin_cone, smoothness
from marginlens_papers.claim import Bound, Effort, Finding, Progress
from marginlens_papers.claims.a import figure_2 as a_f2

ID = "A-T3"
LABELS = ("A Thm 3", "A Lemma 6", "A Eq. (6)", "A Eq. (46)")
TITLE = "With the theorem's own step 1/L_p, descent from inside the cone goes to its locally optimal direction"
STATEMENT = (
    "From any start in the cone of a locally optimal direction beyond R, gradient descent with a constant step of at most 1/L_p diverges "
    "in "
    "norm and converges in direction to it."
)
PROTOCOL = (
    "Random sphere problems with one locally optimal direction each (those of claim A-F2 whose margin at R is at most 18 logits, so that "
    "plain steps can be seen in float64); starts over the cone beyond R of Eq. (46). Descent with the constant step 1/L_p for 1,000,000 "
    "steps (quick: 20,000): between all kept steps the risk must fall and the norm grow, and the same tokens stay selected. The direction "
    "needs a time that is exponential in the norm. It is followed to thirty times R along the gradient flow, by arc length with the time "
    "∫ ds/‖∇L‖ as a logarithm; steps this small follow the flow, which is measured: both go the same way. A flow counts "
    "when 1 - correlation ends at a hundredth of μ or below. Control, outside the cone: from the GMM direction of Figure 1(b) at the "
    "LMM's R, "
    "the flow must not reach the LMM."
)
PAPER_VALUE = "‖p(t)‖ → ∞ and p(t)/‖p(t)‖ → p^mm/‖p^mm‖ from every start in the cone"
EXPECTED = {
    "rises_of_the_risk": Bound(0.0, 0.0),
    "falls_of_the_norm": Bound(0.0, 0.0),
    "share_with_the_same_tokens": Bound(1.0, 1.0),
    "largest_angle_to_the_flow": Bound(high=1e-2),
    "smallest_move": Bound(low=1e-6),
    "share_of_flows_that_converge": Bound(1.0, 1.0),
    "share_converged_before_the_first_step": Bound(high=0.1),
    "outside_corr": Bound(high=0.5),
}
LOGITS = 18.0  # the largest margin at R at which plain steps move p by more than its last digits
GROWTH = 30.0
FloatArray = npt.NDArray[np.float64]


def compute(effort: Effort, progress: Progress) -> Finding:
    """Take plain steps and follow the flow from inside every cone; then start outside one."""
    n_steps, n_problems, n_starts = (1_000_000, 8, 6) if effort is Effort.PAPER else (20_000, 2, 3)
    progress.expect(n_problems + 1)
    found: list[dict[str, Any]] = []
    seed = 0
    while len(found) < n_problems:
        rng = np.random.default_rng([a_f2.SEED, seed])
        data, v, cone = a_f2._problem(rng)
        seed += 1
        if cone.radius * cone.theta <= LOGITS:
            found.append(_from_inside(data, v, cone, cone.sample(n_starts, rng), n_steps))
            progress.advance()
    width = np.repeat([one["mu"] for one in found], n_starts)
    left, first = (np.concatenate([one[name] for one in found]) for name in ("left", "first"))
    numbers = {
        "rises_of_the_risk": float(sum(one["rises"] for one in found)),
        "falls_of_the_norm": float(sum(one["falls"] for one in found)),
        "share_with_the_same_tokens": float(np.mean(np.concatenate([one["same"] for one in found]))),
        "largest_angle_to_the_flow": float(max(one["apart"] for one in found)),
        "smallest_move": float(min(one["move"] for one in found)),
        "share_of_flows_that_converge": float(np.mean(a_f2._converged(left, width))),
        "share_converged_before_the_first_step": float(np.mean(a_f2._converged(first, width))),
        "largest_remainder": float(np.max(left / width)),
        "largest_log10_time": float(max(np.max(one["log_time"][:, -1]) for one in found) / np.log(10.0)),
        "outside_corr": _outside(),
    }
    progress.advance()
    measured = (
        f"{n_problems} cones × {n_starts} starts. In {n_steps:,} plain steps of 1/L_p: {numbers['rises_of_the_risk']:.0f} rises of the "
        f"risk, "
        f"{numbers['falls_of_the_norm']:.0f} falls of the norm; they move p by {numbers['smallest_move']:.0e} or more, within "
        f"{numbers['largest_angle_to_the_flow']:.0e} radians of the flow's way. Of the flows, "
        f"{100 * numbers['share_of_flows_that_converge']:.0f}% converge: 1 - correlation ends at {numbers['largest_remainder']:.0e} μ or "
        f"below, "
        f"after up to 10^{numbers['largest_log10_time']:.0f} units of time. From outside the cone the correlation ends at "
        f"{numbers['outside_corr']:.3f}."
    )
    return Finding(measured, numbers, {"found": found})


def _from_inside(data: TokenDataset, v: Any, cone: BasinCone, start: FloatArray, n_steps: int) -> dict[str, Any]:
    eta = float(smoothness(data, v).largest_step)
    many = data.repeat(len(start))
    chosen = cone.optimality.selected
    nearest = cone.radius * unit(start)  # plain steps from the smallest norm, where they are longest
    record = Record(sorted({round(float(one)) for one in np.geomspace(n_steps / 100, n_steps, 30)}))
    run = descend(many, v, optimizer=GradientDescent(eta), n_steps=n_steps, start=nearest, record=record)
    points = run.saved["x"]
    far = UntilNorm(GROWTH * float(np.max(np.linalg.norm(start, axis=-1))))
    flow = gradient_flow(many, v, until=far, start=start, record=_stops(start))
    curve = np.concatenate([flow.saved["x"], flow.final[:, None]], axis=1)
    return {
        "mu": cone.mu,
        "rises": int(np.sum(np.diff(_log_excess(data, v, points, chosen), axis=1) >= 0.0)),
        "falls": int(np.sum(np.diff(np.linalg.norm(points, axis=-1), axis=1) <= 0.0)),
        "same": np.all(run.selected == chosen, axis=-1) & np.all(flow.selected == chosen, axis=-1),
        "move": float(np.min(np.linalg.norm(run.final - nearest, axis=-1))),
        "apart": _apart(data, v, nearest, run.final),
        "first": plotting.misalignment(start, cone.p),
        "left": plotting.misalignment(flow.final, cone.p),
        "curve_gap": plotting.misalignment(curve, cone.p) / cone.mu,
        "log_time": _log_time(data, v, curve),
    }


def _stops(start: FloatArray) -> Record:
    """About forty arc lengths at which a flow is kept."""
    longest = GROWTH * float(np.max(np.linalg.norm(start, axis=-1)))
    return Record(sorted({0, *(round(float(one)) for one in np.geomspace(1.0, max(longest / 2.0, 2.0), 40))}))


def _apart(data: TokenDataset, v: Any, start: FloatArray, final: FloatArray) -> float:
    """The largest angle between the way that plain descent went and the way of the flow over the same length."""
    worst = 0.0
    for begin, way in zip(start, final - start, strict=True):
        until = UntilLength(float(np.linalg.norm(way)))
        flow = gradient_flow(data, v, until=until, start=begin, tolerance=1e-10)
        worst = max(worst, float(angle(flow.final - begin, way)))
    return worst


def _log_excess(data: TokenDataset, v: Any, points: FloatArray, selected: Any) -> FloatArray:
    """Logarithm of the risk above that of selecting the given tokens, at points (n_runs, n_kept, d_key)."""
    flat = points.reshape(-1, points.shape[-1])
    chosen = np.broadcast_to(selected, (len(flat), data.n_inputs))
    return np.asarray(excess_risk(data.repeat(len(flat)), v, flat, selected=chosen).log).reshape(points.shape[:-1])


def _log_time(data: TokenDataset, v: Any, curve: FloatArray) -> FloatArray:
    """log ∫ ds/‖∇L‖ up to each point of the curves (n_runs, n_kept, d_key), by the smaller gradient of each piece's ends."""
    flat = curve.reshape(-1, curve.shape[-1])
    log_norm = risk_gradient(data.repeat(len(flat)), v, flat).log_norm.reshape(curve.shape[:-1])
    with np.errstate(divide="ignore"):
        pieces = np.log(np.linalg.norm(np.diff(curve, axis=1), axis=-1)) - np.minimum(log_norm[:, 1:], log_norm[:, :-1])
    total = [logsumexp(pieces[:, : k + 1], axis=1) for k in range(pieces.shape[1])]
    return np.stack([np.full(len(curve), -np.inf), *total], axis=1)


def _outside() -> float:
    """On Figure 1(b), the correlation with the LMM where the flow from the GMM's direction ends, at the LMM's R and beyond."""
    data, v = figure_1b()
    cone, other = basin_cone(data, v, [1]), basin_cone(data, v, [0])
    flow = gradient_flow(data, v, until=UntilNorm(GROWTH * cone.radius), start=cone.radius * unit(other.p))
    return float(1.0 - plotting.misalignment(flow.final, cone.p))


def draw(finding: Finding) -> dict[str, Figure]:
    """How much of μ the direction still lacks along every flow, over the logarithm of the time."""
    fig, (ax,) = plotting.figure(1, width=7.0, height=4.2)
    found = finding.arrays["found"]
    for colour, one in zip(plotting.shades(len(found)), found, strict=True):
        for gap, log_time in zip(one["curve_gap"], one["log_time"], strict=True):
            ax.loglog(log_time[1:] / np.log(10.0), np.maximum(gap[1:], 1e-12), color=colour, lw=1.2)
    ax.axhline(a_f2.NEARER, color=plotting.INK, ls="--", lw=1.2)
    ax.text(0.99, a_f2.NEARER, "a hundredth of μ", ha="right", va="bottom", transform=ax.get_yaxis_transform())
    ax.set(xlabel="log₁₀ of the time along the flow", ylabel="(1 − correlation) / μ")
    ax.set_title("The direction converges, in exponential time")
    return {"flow": fig}
