"""The look of every figure: one palette that survives colour-blindness, one type size, arrows, rays and bands."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import beta

FloatArray = npt.NDArray[np.float64]

# Meanings, not decorations: the same thing has the same colour in every figure.
GLOBAL = "#C4420F"  # the globally optimal max-margin direction (vermilion)
LOCAL = "#0F6FB4"  # a locally optimal max-margin direction (blue)
NEITHER = "#B9BDC2"  # neither, or not saturated (grey)
PATH = "#5B6168"  # a trajectory
ACCENTS = ("#C4420F", "#0F6FB4", "#0B8A64", "#C58A00", "#8A4F9E", "#4D4D4D")  # unordered series
INK, FAINT = "#23272B", "#D9DCDF"
SEQUENCE = "viridis"  # ordered series

STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.labelsize": 11,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "legend.fontsize": 10,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "svg.fonttype": "none",
}


def figure(n_panels: int = 1, *, width: float = 4.6, height: float = 4.0) -> tuple[Figure, list[Axes]]:
    """A figure with `n_panels` axes side by side, each `width` × `height` inches, in the house style."""
    with mpl.rc_context(STYLE):
        fig = Figure(figsize=(width * n_panels, height), layout="constrained")
        axes = [fig.add_subplot(1, n_panels, k + 1) for k in range(n_panels)]
    return fig, axes


def in_style(draw: Callable[..., Any]) -> Callable[..., Any]:
    """`draw` with the house style in force while it runs and nothing changed afterwards."""

    @wraps(draw)
    def styled(*arguments: Any, **options: Any) -> Any:
        with mpl.rc_context(STYLE):
            return draw(*arguments, **options)

    return styled


def ray(ax: Axes, direction: FloatArray, length: float, **style: Any) -> None:
    """A dashed half-line from the origin along `direction`."""
    tip = length * direction / np.linalg.norm(direction)
    ax.plot([0.0, tip[0]], [0.0, tip[1]], **{"linestyle": (0, (5, 3)), "linewidth": 2.2, "zorder": 3, **style})


def separating_line(ax: Axes, normal: FloatArray, through: FloatArray, length: float, **style: Any) -> None:
    """The line through a point that is perpendicular to `normal`."""
    along = np.array([-normal[1], normal[0]]) / np.linalg.norm(normal)
    ends = np.stack([through - length * along, through + length * along])
    ax.plot(ends[:, 0], ends[:, 1], **{"color": PATH, "linestyle": ":", "linewidth": 1.4, "zorder": 2, **style})


def arrowed_path(ax: Axes, points: FloatArray, *, arrows: int = 3, **style: Any) -> None:
    """A trajectory (n_points, 2) with arrow heads at equal arc length, pointing forward."""
    look = {"color": PATH, "linewidth": 1.6, "zorder": 4, **style}
    ax.plot(points[:, 0], points[:, 1], **look)
    travelled = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1))])
    if travelled[-1] == 0.0:
        return
    for share in (np.arange(arrows) + 1.0) / arrows:
        k = int(np.clip(np.searchsorted(travelled, share * travelled[-1]), 1, len(points) - 1))
        ax.annotate(
            "",
            xy=points[k],
            xytext=points[k - 1] if travelled[k] > travelled[k - 1] else points[max(k - 2, 0)],
            arrowprops={
                "arrowstyle": "-|>",
                "color": look["color"],
                "lw": 0.0,
                "mutation_scale": 13,
                "shrinkA": 0,
                "shrinkB": 0,
            },
            zorder=look["zorder"],
        )


def proportion_interval(successes: Any, trials: Any, confidence: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """Clopper–Pearson interval of a proportion, elementwise: the exact one, also at 0 and at all."""
    k, n = np.asarray(successes, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    tail = (1.0 - confidence) / 2.0
    low = np.where(k == 0, 0.0, beta.ppf(tail, np.maximum(k, 1e-12), n - k + 1.0))
    high = np.where(k == n, 1.0, beta.ppf(1.0 - tail, k + 1.0, np.maximum(n - k, 1e-12)))
    return low, high
