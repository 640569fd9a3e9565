"""A Fig 1(c): several inputs at once, whose optimal tokens one direction separates from all others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from scipy.optimize import minimize_scalar

from marginlens import plotting
from marginlens.data import TokenDataset, figure_1c
from marginlens.directions import correlation
from marginlens.dynamics import Record, descend
from marginlens.optimizers import NormalizedGD
from marginlens.theory import token_optimality
from marginlens_papers.claim import Bound, Effort, Finding, Progress

ID = "A-F1c"
LABELS = ("A Fig 1(c)", "A ATT-SVM")
TITLE = "Three inputs: every start leads to the direction that separates all optimal tokens"
STATEMENT = (
    "Trained on several inputs at once, descent converges in direction to the one max-margin solution that separates the optimal token of "
    "every input from its other tokens."
)
PROTOCOL = (
    "Three inputs with seven tokens each in the plane; the first token of each scores 1, the others .5; logistic loss; starts (x, 0), "
    "x ∈ {1, .5, 0, -.5, -1, -1.5}; tokens and starts are those of the authors' notebook. NGD with step .1 for 100,000 steps, compared "
    "with "
    "the ATT-SVM and with the best of all angles in the plane, which uses no solver."
)
PAPER_VALUE = "no numbers: the figure shows that every start reaches the GMM direction"
STARTS = np.array([(x, 0.0) for x in (1.0, 0.5, 0.0, -0.5, -1.0, -1.5)])
STEP = 0.1
EXPECTED = {
    "globally_optimal": Bound(1.0, 1.0),
    "distance_to_best_angle": Bound(high=1e-6),
    "corr_1000": Bound(low=0.999),
    "corr_end": Bound(low=0.99999),
    "corr_end_with_best_angle": Bound(low=0.99999),
}
FloatArray = npt.NDArray[np.float64]
WINDOW: plotting.Window = ((-2.3, 3.1), (-2.6, 2.0))


def compute(effort: Effort, progress: Progress) -> Finding:
    """Solve the ATT-SVM of the optimal tokens and descend towards it from six starts."""
    n_steps = 100_000 if effort is Effort.PAPER else 10_000
    progress.expect(1)
    data, v = figure_1c()
    best = token_optimality(data, v, data.optimal(v))
    record = Record(plotting.steps_to_keep(n_steps, dense=1000))
    run = descend(
        data.repeat(len(STARTS)), v, optimizer=NormalizedGD(STEP), n_steps=n_steps, start=STARTS, record=record
    )
    progress.advance()
    steps, points = run.saved.steps, run.saved["x"]  # (n_kept,), (n_starts, n_kept, 2)
    gap = plotting.misalignment(points, best.direction)
    solution = best.solution.x
    tight = np.argwhere(best.neighbours)
    by_angle = max_margin_by_angle(data)
    numbers = {
        "globally_optimal": float(best.is_globally_optimal),
        "distance_to_best_angle": float(np.abs(solution - by_angle).max()),
        "kkt_residual": float(best.solution.kkt_residual()),
        "corr_1000": float(1.0 - gap[:, steps == 1000].max()),
        "corr_end": float(1.0 - gap[:, -1].max()),
        "corr_end_with_best_angle": float(np.min(correlation(run.final, by_angle))),
        "n_neighbours": float(len(tight)),
    }
    measured = (
        f"The ATT-SVM gives p^mm = ({solution[0]:.4f}, {solution[1]:.4f}), margin {best.margin:.4f}, held by {len(tight)} neighbours "
        f"(KKT residual {numbers['kkt_residual']:.0e}). Smallest correlation over {len(STARTS)} starts: {numbers['corr_1000']:.5f} at "
        f"step 1,000, 1 - {gap[:, -1].max():.0e} at step {n_steps:,}; the norm there is {run.norm.min():,.0f} … {run.norm.max():,.0f}."
    )
    arrays = {
        "keys": data.K,
        "scores": data.scores(v),
        "direction": best.direction,
        "neighbours": best.neighbours,
        "steps": steps,
        "points": points,
        "gap": gap,
        "attention": run.attention,
    }
    return Finding(measured, numbers, arrays)


def max_margin_by_angle(data: TokenDataset) -> FloatArray:
    """p^mm of the first tokens of a problem in the plane by trying angles: its smallest margin is one, so it is the direction over the "
    "margin."""
    gaps = (data.K[:, :1] - data.K[:, 1:]).reshape(-1, 2)

    def margin(angle: float) -> float:
        return float(np.min(gaps @ (np.cos(angle), np.sin(angle))))

    angles = np.linspace(-np.pi, np.pi, 3601)
    near = float(angles[np.argmax([margin(angle) for angle in angles])])
    ends = (near - angles[1] + angles[0], near + angles[1] - angles[0])
    angle = float(minimize_scalar(lambda one: -margin(one), bounds=ends, method="bounded", options={"xatol": 1e-13}).x)
    return np.array([np.cos(angle), np.sin(angle)]) / margin(angle)


def draw(finding: Finding) -> dict[str, Figure]:
    """Paths among the tokens of the three inputs; distance from the predicted direction; norm."""
    at = finding.arrays
    fig, plane, upper, lower = plotting.plane_and_curves(height=5.4)
    colours = plotting.shades(len(STARTS))
    plotting.ray(plane, at["direction"], 20.0, color=plotting.GLOBAL, label="GMM direction")
    plotting.common_separating_line(plane, at["keys"], [0, 0, 0], at["direction"], label="separating line")
    for colour, path in zip(colours, at["points"], strict=True):
        inside = plotting.until_it_leaves(path, WINDOW)
        plotting.arrowed_path(plane, inside, color=colour)
        plotting.starts(plane, inside[0], edgecolor=colour)
    plotting.scatter_tokens(plane, at["keys"], at["scores"], size=50.0)
    plotting.note_at(plane, "γ = 1", (0.8, 0.0), (0, 32), ha="center")
    plotting.note_at(plane, "γ = .5", (-1.0, 1.3), (0, 14), ha="center")
    plotting.note_at(plane, "γ = .5", (-0.55, -0.8), (0, -14), ha="center")
    plotting.finish_plane(plane, WINDOW, "First steps of six runs among 3 × 7 tokens", "lower right", n_inputs=3)
    for colour, gap, path, start in zip(colours, at["gap"], at["points"], STARTS, strict=True):
        upper.loglog(at["steps"][1:], gap[1:], color=colour, label=plotting.point(*start))
        lower.loglog(at["steps"][1:], np.linalg.norm(path[1:], axis=-1), color=colour)
    upper.set(ylabel="1 − correlation with GMM", ylim=(1e-9, 5.0))
    upper.set_title("The direction converges …")
    upper.legend(title="start", loc="lower left")
    lower.set(xlabel="step", ylabel="‖p‖")
    lower.set_title("… while the norm diverges")
    return {"paths": fig}
