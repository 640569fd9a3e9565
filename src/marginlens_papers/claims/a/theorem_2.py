"""A Thm 2 by its own algorithm: one input, equal non-optimal scores, and gradient descent with the constant step 1/L_p."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from marginlens import plotting
from marginlens.data import TokenDataset, figure_1b, figure_8, scored_tokens
from marginlens.directions import correlation, unit
from marginlens.dynamics import Record, descend
from marginlens.optimizers import GradientDescent
from marginlens.risk import excess_risk, risk, risk_gradient
from marginlens.theory import check_assumption_b, globally_optimal_direction, smoothness
from marginlens_papers.claim import Bound, Effort, Finding, Progress

ID = "A-T2"
LABELS = ("A Thm 2", "A Lemma 6", "A Assumption B", "A Eq. (6)")
TITLE = "With the theorem's own step 1/L_p, descent on one input diverges towards the globally optimal direction"
STATEMENT = (
    "Under Assumption B, gradient descent with a constant step of at most 1/L_p from any start lowers the risk at every step and its norm "
    "diverges; for n = 1 its direction converges to that of the globally optimal max-margin solution."
)
PROTOCOL = (
    "Random problems with n = 1, T ≤ 5 tokens on the sphere, d ≤ 4, scores 1 and 0, logistic loss, margins of at least .4; random starts "
    "of "
    "norm up to 3; descent with the constant step η = 1/L_p for 1,000,000 steps (quick: 100,000). The norm grows like log t over the "
    "margin, "
    "so that the angle to the limit falls like 1/log t only. What is held against theory is therefore that the risk falls between all "
    "kept steps, that Σ‖∇L‖² over the first 200 steps is at most (2/η)(L(0) - L(200)), the sum of Eq. (25) that gives (30), the norm's "
    "growth over the last decade against log 10 over the margin, and that what is across the limit hardly grows, so that the angle falls "
    "like one over the norm. Controls without the theorem's conditions, which must not reach the GMM: Figure 1(b), where Assumption B "
    "does not hold, from "
    "(0, -1.5), and Figure 8, with two inputs, from (1, -1)."
)
PAPER_VALUE = "‖p(t)‖ → ∞ and p(t)/‖p(t)‖ → p^mm*/‖p^mm*‖ from any start"
EXPECTED = {
    "assumption_b": Bound(1.0, 1.0),
    "rises_of_the_risk": Bound(0.0, 0.0),
    "largest_share_of_the_bound_on_squared_gradients": Bound(high=1.0),
    "smallest_growth_over_predicted": Bound(low=0.9),
    "largest_growth_over_predicted": Bound(high=1.1),
    "largest_growth_across_over_along": Bound(high=0.15),  # over the last decade
    "falls_of_the_correlation_in_the_last_decade": Bound(0.0, 0.0),
    "smallest_corr": Bound(low=0.9),
    "corr_without_assumption_b": Bound(high=0.5),
    "corr_with_two_inputs": Bound(high=0.5),
}
SEED = 2_2
DENSE = 200  # first steps, all of which are kept
FloatArray = npt.NDArray[np.float64]


def compute(effort: Effort, progress: Progress) -> Finding:
    """Descend with steps 1/L_p on random problems and hold risk, norm and direction against the theorem; then break its conditions."""
    n_steps, n_problems, n_starts = (1_000_000, 12, 3) if effort is Effort.PAPER else (100_000, 3, 2)
    progress.expect(n_problems + 1)
    rng = np.random.default_rng(SEED)
    steps = np.array(plotting.steps_to_keep(n_steps, dense=DENSE))
    runs = []
    for _ in range(n_problems):
        data, v = _problem(rng)
        start = unit(rng.standard_normal((n_starts, data.d_key))) * rng.uniform(0.0, 3.0, (n_starts, 1))
        runs.append(_run(data, v, start, steps))
        progress.advance()
    numbers = {
        "assumption_b": float(all(run["assumption_b"] for run in runs)),
        "rises_of_the_risk": float(sum(run["rises"] for run in runs)),
        "largest_share_of_the_bound_on_squared_gradients": float(max(np.max(run["gradient_share"]) for run in runs)),
        "smallest_growth_over_predicted": float(min(np.min(run["growth"]) for run in runs)),
        "largest_growth_over_predicted": float(max(np.max(run["growth"]) for run in runs)),
        "largest_growth_across_over_along": float(max(np.max(run["across"]) for run in runs)),
        "falls_of_the_correlation_in_the_last_decade": float(sum(run["falls"] for run in runs)),
        "smallest_corr": float(1.0 - max(np.max(run["gap"][:, -1]) for run in runs)),
        "corr_without_assumption_b": _correlation_with_gmm(*figure_1b(), (0.0, -1.5), n_steps),
        "corr_with_two_inputs": _correlation_with_gmm(*figure_8(), (1.0, -1.0), n_steps),
    }
    progress.advance()
    norms = np.concatenate([run["norm"][:, -1] for run in runs])
    measured = (
        f"{n_problems} problems × {n_starts} starts, {n_steps:,} steps of 1/L_p: {numbers['rises_of_the_risk']:.0f} rises of the risk; "
        f"the squared gradients use at most {numbers['largest_share_of_the_bound_on_squared_gradients']:.2f} of their bound; norms end at "
        f"{norms.min():.1f} … {norms.max():.1f}, growing by {numbers['smallest_growth_over_predicted']:.3f} … "
        f"{numbers['largest_growth_over_predicted']:.3f} of log 10 over the margin in the last decade, and what is across the "
        f"limit by at most {numbers['largest_growth_across_over_along']:.3f} of that; correlations rise to {numbers['smallest_corr']:.4f} "
        f"or more. "
        f"Controls: {numbers['corr_without_assumption_b']:.3f} without Assumption B, {numbers['corr_with_two_inputs']:.3f} with two inputs."
    )
    return Finding(measured, numbers, {"runs": runs, "steps": steps})


def _problem(rng: np.random.Generator) -> tuple[TokenDataset, FloatArray]:
    """One input on the sphere whose optimal token can be separated by a margin of at least .4."""
    while True:
        T, d = int(rng.integers(3, 6)), int(rng.integers(2, 5))
        data, v = scored_tokens(unit(rng.standard_normal((1, T, d))), [[1.0] + [0.0] * (T - 1)])
        best = globally_optimal_direction(data, v)
        if best.is_feasible and best.margin >= 0.4:
            return data, v


def _run(data: TokenDataset, v: Any, start: FloatArray, steps: npt.NDArray[np.int64]) -> dict[str, Any]:
    eta = float(smoothness(data, v).largest_step)
    best = globally_optimal_direction(data, v)
    many = data.repeat(len(start))
    run = descend(
        many, v, optimizer=GradientDescent(eta), n_steps=int(steps[-1]), start=start, record=Record(steps.tolist())
    )
    points = run.saved["x"]  # (n_starts, n_kept, d_key)
    norm = np.linalg.norm(points, axis=-1)
    height = _log_excess(data, v, points, best.selected)
    gap = plotting.misalignment(points, best.direction)
    decade = steps >= steps[-1] // 10
    first = int(np.flatnonzero(decade)[0])
    across = norm * np.sin(
        np.minimum(np.sqrt(2.0 * gap), np.pi / 2)
    )  # the length of what is not along the limit, for small angles
    values = risk(many, v, points[:, 0]) - risk(many, v, points[:, DENSE])
    early = points[:, :DENSE].reshape(-1, data.d_key)
    log_norm = risk_gradient(data.repeat(len(early)), v, early).log_norm.reshape(len(start), DENSE)
    squares = np.sum(np.exp(2.0 * log_norm), axis=1)
    return {
        "assumption_b": bool(check_assumption_b(data, v)),
        "rises": int(np.sum(np.diff(height, axis=1) >= 0.0)),
        "gradient_share": squares * eta / (2.0 * values),
        "growth": (norm[:, -1] - norm[:, first]) * best.margin / np.log(steps[-1] / steps[first]),
        "across": (across[:, -1] - across[:, first]) / (norm[:, -1] - norm[:, first]),
        "falls": int(np.sum(np.diff(gap[:, decade], axis=1) > 0.0)),
        "gap": gap,
        "norm": norm,
    }


def _log_excess(data: TokenDataset, v: Any, points: FloatArray, selected: Any) -> FloatArray:
    """Logarithm of the risk above that of selecting the optimal token, at points (n_runs, n_kept, d_key)."""
    flat = points.reshape(-1, points.shape[-1])
    chosen = np.broadcast_to(selected, (len(flat), data.n_inputs))
    return np.asarray(excess_risk(data.repeat(len(flat)), v, flat, selected=chosen).log).reshape(points.shape[:-1])


def _correlation_with_gmm(data: TokenDataset, v: FloatArray, start: tuple[float, float], n_steps: int) -> float:
    """Where plain descent with step 1/L_p from a start ends: its correlation with the GMM direction."""
    step = GradientDescent(float(smoothness(data, v).largest_step))
    run = descend(data, v, optimizer=step, n_steps=n_steps, start=start)
    return float(correlation(run.final, globally_optimal_direction(data, v).direction))


def draw(finding: Finding) -> dict[str, Figure]:
    """Norm and distance of the direction from its limit over the steps, on a logarithmic axis."""
    fig, axes = plotting.figure(2, width=5.0, height=4.0)
    steps, runs = finding.arrays["steps"], finding.arrays["runs"]
    for colour, run in zip(plotting.shades(len(runs)), runs, strict=True):
        for norm, gap in zip(run["norm"], run["gap"], strict=True):
            axes[0].semilogx(steps[1:], norm[1:], color=colour, lw=1.2)
            axes[1].loglog(steps[1:], gap[1:], color=colour, lw=1.2)
    titles = ("The norm grows like log t", "The direction converges like 1/(log t)²")
    for ax, title, label in zip(axes, titles, ("‖p‖", "1 − correlation with GMM"), strict=True):
        ax.set(xlabel="step of size 1/L_p", ylabel=label, title=title)
    return {"curves": fig}
