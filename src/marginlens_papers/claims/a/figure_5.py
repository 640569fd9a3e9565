"""A Fig 5: on the way to the max-margin direction, the loss decides which input's token descent favours."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from marginlens import plotting
from marginlens.data import figure_5
from marginlens.dynamics import Record, descend
from marginlens.losses.margin import CorrelationLoss, Logistic, Loss
from marginlens.optimizers import NormalizedGD
from marginlens.svm import att_svm
from marginlens_papers.claim import Bound, Effort, Finding, Progress

ID = "A-F5"
LABELS = ("A Fig 5", "A ATT-SVM")
TITLE = "Transient bias: the correlation loss favours the high score, the logistic loss the low one"
STATEMENT = (
    "Two inputs with optimal scores 1 and C share one max-margin direction whatever C is, but descent approaches it from different "
    "sides: under the correlation loss it leans towards the token with the high score, under the logistic loss towards the one with "
    "the low score, the more so the larger C is."
)
PROTOCOL = (
    "Two inputs: keys (1, 1) with score C beside (0, 0) with score 0, and (1, -1) with score 1 beside (0, 0) with score 0; C ∈ {1, …, "
    "10, 100}; start 0; NGD with step .1. The lean is the angle of p above (1, 0), positive towards the token with score C; the "
    "height is its second coordinate. Balancing the two inputs' pulls on saturated attention predicts the height at which p settles: "
    "½ log(C |ℓ'(C)| / |ℓ'(1)|)."
)
PAPER_VALUE = (
    "no numbers: as C grows, the correlation loss is biased towards the high score and the logistic loss towards the low one; the limit "
    "(1, 0) for every C is by hand"
)
SCORES = (*range(1, 11), 100)
LOSSES: dict[str, Loss] = {"correlation": CorrelationLoss(), "logistic": Logistic()}
SETTLED = 100  # the step from which the bias is read
EXPECTED = {
    "largest_error_of_svm_direction": Bound(high=1e-12),
    "smallest_height_correlation": Bound(low=0.01),
    "largest_height_logistic": Bound(high=-0.01),
    "lean_grows_with_C_correlation": Bound(1.0, 1.0),
    "lean_grows_with_C_logistic": Bound(1.0, 1.0),
    "corr_end": Bound(low=0.99),
    "corr_logistic_100_at_5000": Bound(low=0.99),
    "largest_error_of_height": Bound(high=1e-3),
}
WINDOW: plotting.Window = ((-1.0, 6.2), (-4.6, 2.9))
FloatArray = npt.NDArray[np.float64]


def compute(effort: Effort, progress: Progress) -> Finding:
    """Descend for every score and both losses; measure side, order, limit and settled height."""
    n_steps = 50_000 if effort is Effort.PAPER else 5000
    progress.expect(len(LOSSES) * len(SCORES))
    steps = plotting.steps_to_keep(n_steps, dense=5000)
    points: dict[str, FloatArray] = {}
    directions = []
    for name, loss in LOSSES.items():
        paths = []
        for C in SCORES:
            data, v = figure_5(C)
            directions.append(att_svm(data, data.optimal(v)).direction)
            run = descend(data, v, loss=loss, optimizer=NormalizedGD(0.1), n_steps=n_steps, record=Record(steps))
            paths.append(run.saved["x"])
            progress.advance()
        points[name] = np.stack(paths)  # (n_scores, n_kept, 2)
    return _finding(np.array(steps), points, np.array(directions))


def _finding(steps: npt.NDArray[np.int64], points: dict[str, FloatArray], directions: FloatArray) -> Finding:
    limit = np.array([1.0, 0.0])
    unequal = np.array(SCORES) > 1
    lean = {name: np.arctan2(path[..., 1], path[..., 0]) for name, path in points.items()}
    corr = {name: 1.0 - plotting.misalignment(path[:, 1:], limit) for name, path in points.items()}  # from step 1 on
    early = lean["logistic"][unequal, 1:SETTLED]
    turned = [C for C, one in zip(np.array(SCORES)[unequal], early, strict=True) if one.max() > 0.0]
    turn = max(int(np.flatnonzero(one > 0.0).max()) + 1 for one in early if one.max() > 0.0) if turned else 0
    height = {name: path[:, -1, 1] for name, path in points.items()}
    error = float(np.max([np.abs(height[name] - predicted_height(loss, SCORES)) for name, loss in LOSSES.items()]))
    numbers = {
        "largest_error_of_svm_direction": float(np.abs(directions - limit).max()),
        "smallest_height_correlation": float(points["correlation"][unequal, 1:, 1].min()),
        "largest_height_logistic": float(points["logistic"][unequal, SETTLED:, 1].max()),
        "lean_grows_with_C_correlation": float(np.all(np.diff(lean["correlation"][:, SETTLED]) > 0.0)),
        "lean_grows_with_C_logistic": float(np.all(np.diff(lean["logistic"][:, SETTLED]) < 0.0)),
        "corr_end": float(np.min([one[:, -1] for one in corr.values()])),
        "corr_logistic_100_at_1000": float(corr["logistic"][-1, 999]),
        "corr_logistic_100_at_5000": float(corr["logistic"][-1, 4999]),
        "corr_rest_at_1000": float(min(corr["correlation"][:, 999].min(), corr["logistic"][:-1, 999].min())),
        "largest_error_of_height": error,
    }
    measured = (
        f"Smallest correlation with (1, 0) over both losses and all C: {numbers['corr_end']:.6f} at step {steps[-1]:,}. Logistic with "
        f"C = 100: {numbers['corr_logistic_100_at_1000']:.3f} at step 1,000, {numbers['corr_logistic_100_at_5000']:.3f} at 5,000; "
        f"every other run has at least {numbers['corr_rest_at_1000']:.4f} at 1,000. At step {SETTLED} the lean is "
        f"{_degrees(lean['correlation'][unequal, SETTLED])} (correlation) and {_degrees(lean['logistic'][unequal, SETTLED])} "
        f"(logistic) from C = 2 to 100. The settled heights agree with ½ log(C |ℓ'(C)| / |ℓ'(1)|) to {error:.0e}."
    )
    note = (
        f"With the logistic loss and C = {', '.join(map(str, turned))} the lean is first towards the high score, for at most {turn} "
        "steps: while attention is still uniform the margins are half the scores and the slope of the loss has not yet fallen enough. "
        "From then on it is towards the low score, as stated."
        if turned
        else ""
    )
    return Finding(measured, numbers, {"steps": steps, "points": points, "height": height}, note)


def predicted_height(loss: Loss, scores: Any) -> FloatArray:
    """Where the second coordinate of p settles: the pulls C|ℓ'(C)| and |ℓ'(1)| of two saturated inputs balance there."""
    C = np.asarray(scores, dtype=np.float64)
    return np.asarray(0.5 * (np.log(C) + loss.log_abs_derivative(C) - loss.log_abs_derivative(np.ones_like(C))))


def _degrees(lean: FloatArray) -> str:
    return f"{np.rad2deg(lean[0]):.2f}° … {np.rad2deg(lean[-1]):.1f}°"


def draw(finding: Finding) -> dict[str, Figure]:
    """Paths under either loss, coloured by C, and the heights at which they settle against the prediction."""
    at = finding.arrays
    fig, axes = plotting.figure(3, width=4.6, height=4.7)
    colours = plotting.shades(len(SCORES))
    for ax, name in zip(axes, LOSSES, strict=False):
        _draw_paths(ax, at["points"][name], colours)
        ax.set_title(f"{name.capitalize()} loss")
    axes[1].set_ylabel("")
    scale = ScalarMappable(BoundaryNorm(np.arange(len(SCORES) + 1), len(SCORES)), ListedColormap(colours))
    bar = fig.colorbar(scale, ax=axes[:2], ticks=np.arange(len(SCORES)) + 0.5, pad=0.02, aspect=30)
    bar.set_ticklabels([str(C) for C in SCORES])
    bar.set_label("score C of the token (1, 1)")
    bar.ax.tick_params(length=0)
    _draw_heights(axes[2], at["height"])
    return {"paths": fig}


def _draw_paths(ax: Axes, paths: FloatArray, colours: list[Any]) -> None:
    ax.set_aspect("equal", adjustable="box")
    plotting.ray(ax, np.array([1.0, 0.0]), 20.0, color=plotting.GLOBAL, zorder=5)
    for colour, path in zip(colours, paths, strict=True):
        plotting.arrowed_path(ax, plotting.until_it_leaves(path, WINDOW), arrows=2, color=colour)
    keys = np.array([(1.0, 1.0), (1.0, -1.0)])
    ax.scatter(keys[:, 0], keys[:, 1], marker="*", s=260, color=plotting.INPUTS[:2], edgecolor="white", zorder=7)
    ax.scatter(0.0, 0.0, s=60, color=plotting.PATH, edgecolor="white", zorder=7)
    plotting.note_at(ax, "γ = C", keys[0], (-12, 7), ha="right")
    plotting.note_at(ax, "γ = 1", keys[1], (-12, -7), ha="right")
    plotting.note_at(ax, "γ = 0", (0.0, 0.0), (-7, 0), ha="right")
    plotting.note_at(
        ax, "GMM", (6.2, 0.0), (-2, 9 if paths[-1, 1, 1] < 0.0 else -10), ha="right", color=plotting.GLOBAL
    )
    ax.set(xlim=WINDOW[0], ylim=WINDOW[1], xlabel="first coordinate of p and of the keys", ylabel="second coordinate")


def _draw_heights(ax: Axes, height: dict[str, FloatArray]) -> None:
    fine = np.geomspace(1.0, 100.0, 200)
    for name, colour, marker in (("correlation", plotting.ACCENTS[4], "o"), ("logistic", plotting.ACCENTS[3], "s")):
        ax.plot(fine, predicted_height(LOSSES[name], fine), color=colour, lw=1.4)
        ax.plot(SCORES, height[name], marker, color=colour, ms=6, label=f"{name} loss")
    ax.plot([], [], color=plotting.PATH, lw=1.4, label="½ log (C |ℓ′(C)| / |ℓ′(1)|)")
    ax.axhline(0.0, color=plotting.GLOBAL, ls=(0, (5, 3)), lw=1.6)
    ax.set_xscale("log")
    ax.set_yscale("symlog", linthresh=1.0)
    ax.set(xlabel="score C", ylabel="second coordinate of p in the end", ylim=(-90, 9))
    ax.set_yticks([-50, -10, -5, -1, 0, 1, 5], ["−50", "−10", "−5", "−1", "0", "1", "5"])
    ax.set_xticks([1, 2, 5, 10, 100], ["1", "2", "5", "10", "100"])
    ax.minorticks_off()
    ax.set_title("Where they settle beside the direction")
    ax.legend(loc="lower left")
