"""A Fig 1(a) and Thm 2: with one input and equal non-optimal scores, every start leads to the globally optimal direction."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from marginlens import plotting
from marginlens.data import figure_1a
from marginlens.directions import correlation
from marginlens.dynamics import Record, descend
from marginlens.optimizers import NormalizedGD
from marginlens.theory import token_optimality
from marginlens_papers.claim import Bound, Effort, Finding, Progress

ID = "A-F1a"
LABELS = ("A Fig 1(a)", "A Thm 2")
TITLE = "One input, equal non-optimal scores: every start leads to the globally optimal direction"
STATEMENT = (
    "With a single input whose non-optimal tokens all score the same, gradient descent from any start grows without bound and its "
    "direction converges to the max-margin direction of the optimal token."
)
PROTOCOL = (
    "Keys (-.1, 1), (1, 0), (0, 0) with scores 1, .9, .9; logistic loss; starts (0, y), y ∈ {1, .5, 0, -.5, -1, -1.5}, as in the authors' "
    "notebook; NGD with step "
    ".1 for 100,000 steps, compared with the ATT-SVM of the optimal token."
)
PAPER_VALUE = (
    "no numbers: every start reaches the GMM direction, and the correlation with it consistently increases; by hand the direction is that "
    "of (-.1, 1), (-.099, .990)"
)
HEIGHTS = (1.0, 0.5, 0.0, -0.5, -1.0, -1.5)
STEP = 0.1
EXPECTED = {
    "globally_optimal": Bound(1.0, 1.0),
    "corr_1000": Bound(low=0.99),
    "corr_end": Bound(low=0.999),
    "norm_growth": Bound(low=0.99),
    "smallest_rise_of_norm": Bound(low=0.0),
    "largest_late_fall": Bound(high=1e-12),
}
WINDOW: plotting.Window = ((-3.3, 1.7), (-1.8, 3.2))


def compute(effort: Effort, progress: Progress) -> Finding:
    """Descend from the six starts and compare direction and norm with the SVM solution along the way."""
    n_steps = 100_000 if effort is Effort.PAPER else 10_000
    progress.expect(1)
    data, v = figure_1a()
    best = token_optimality(data, v, data.optimal(v))
    start = np.array([(0.0, y) for y in HEIGHTS])
    record = Record(plotting.steps_to_keep(n_steps, dense=1000))
    run = descend(data.repeat(len(start)), v, optimizer=NormalizedGD(STEP), n_steps=n_steps, start=start, record=record)
    progress.advance()
    steps, points = run.saved.steps, run.saved["x"]  # (n_kept,), (n_starts, n_kept, 2)
    norm = np.linalg.norm(points, axis=-1)
    corr = 1.0 - plotting.misalignment(points, best.direction)
    corr[norm == 0.0] = -1.0  # the start at 0 has no direction yet
    late, settled = steps >= 1000, steps >= 100
    fall = np.maximum.accumulate(corr, axis=1) - corr
    early_fall = np.max(fall, axis=1)
    numbers = {
        "globally_optimal": float(best.is_globally_optimal),
        "corr_1000": float(corr[:, steps == 1000].min()),
        "corr_end": float(np.min(correlation(run.final, best.direction))),
        "norm_growth": float(np.min((norm[:, -1] - norm[:, late][:, 0]) / (STEP * (n_steps - 1000)))),
        "smallest_rise_of_norm": float(np.min(np.diff(norm[:, settled], axis=1))),
        "largest_late_fall": float(-np.min(np.diff(corr[:, settled], axis=1))),
        "largest_early_fall": float(early_fall.max()),
    }
    fallen = early_fall > 1e-6
    measured = (
        f"GMM direction ({best.direction[0]:.4f}, {best.direction[1]:.4f}). Smallest correlation over the six starts: "
        f"{numbers['corr_1000']:.5f} at step 1,000 and 1 - {1.0 - numbers['corr_end']:.0e} at step {n_steps:,}. From step 100 on the norm "
        f"changes by {numbers['smallest_rise_of_norm']:.3f} or more from one kept step to the next, and it ends at "
        f"{norm[:, -1].min():,.0f} … {norm[:, -1].max():,.0f}."
    )
    note = (
        f"The correlation does not rise from the first step everywhere: the {fallen.sum()} starts that already point near the GMM "
        f"first lose up to {early_fall.max():.3f} (to {corr[fallen].min():.3f}, at step "
        f"{steps[np.argmax(fall, axis=1)].max()} at the latest), because the token (1, 0), which is no neighbour, still pulls while the "
        "softmax is soft. From step 100 on it rises at every kept step for all starts."
        if fallen.any()
        else ""
    )
    arrays = {
        "keys": data.K,
        "scores": data.scores(v),
        "direction": best.direction,
        "steps": steps,
        "points": points,
        "norm": norm,
        "gap": plotting.misalignment(points, best.direction),
    }
    return Finding(measured, numbers, arrays, note)


def draw(finding: Finding) -> dict[str, Figure]:
    """Paths among the tokens; distance from the predicted direction; norm."""
    at = finding.arrays
    fig, plane, upper, lower = plotting.plane_and_curves()
    colours = plotting.shades(len(HEIGHTS))
    plotting.ray(plane, at["direction"], 20.0, color=plotting.GLOBAL, label="GMM direction")
    plotting.common_separating_line(plane, at["keys"], [0], at["direction"], label="separating line")
    for colour, path in zip(colours, at["points"], strict=True):
        inside = plotting.until_it_leaves(path, WINDOW)
        plotting.arrowed_path(plane, inside, color=colour)
        plotting.starts(plane, inside[0], edgecolor=colour)
    plotting.scatter_tokens(plane, at["keys"], at["scores"])
    plotting.note_at(plane, "γ = 1", at["keys"][0, 0], (18, 0))
    plotting.note_at(plane, "γ = .9", at["keys"][0, 1], (0, 15), ha="center")
    plotting.note_at(plane, "γ = .9", at["keys"][0, 2], (9, 11))
    plotting.finish_plane(plane, WINDOW, "First steps of six runs among the tokens")
    for colour, gap, norm, y in zip(colours, at["gap"], at["norm"], HEIGHTS, strict=True):
        upper.loglog(at["steps"][1:], gap[1:], color=colour, label=plotting.point(0, y))
        lower.loglog(at["steps"][1:], norm[1:], color=colour)
    upper.set(ylabel="1 − correlation with GMM", ylim=(3e-9, 5.0))
    upper.set_title("The direction converges …")
    upper.legend(title="start", ncols=2, loc="lower left")
    lower.set(xlabel="step", ylabel="‖p‖")
    lower.set_title("… while the norm diverges")
    return {"paths": fig}
