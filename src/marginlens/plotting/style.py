"""The style of every figure: one palette that survives colour-blindness, one type size, and empty figures in it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Meanings, not decorations: the same thing has the same colour in every figure.
GLOBAL = "#C4420F"  # the globally optimal max-margin direction (vermilion)
LOCAL = "#0F6FB4"  # a locally optimal max-margin direction (blue)
NEITHER = "#B9BDC2"  # neither, or not saturated (grey)
PATH = "#5B6168"  # a trajectory
ACCENTS = ("#C4420F", "#0F6FB4", "#0B8A64", "#C58A00", "#8A4F9E", "#4D4D4D")  # unordered series
INPUTS = ("#0B8A64", "#C58A00", "#8A4F9E")  # the tokens of the first, second and third input
INK, FAINT = "#23272B", "#D9DCDF"
TINTS = {GLOBAL: "#FBE6DD", LOCAL: "#DFECF7"}  # the starts that lead to a direction
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


def shades(count: int) -> list[Any]:
    """`count` colours of the ordered palette, without its palest end."""
    return [mpl.colormaps[SEQUENCE](level) for level in np.linspace(0.0, 0.86, count)]


def note_at(ax: Axes, text: str, at: Any, offset: tuple[float, float], **style: Any) -> None:
    """A short text beside a point, `offset` in points, on a white ground that keeps it readable over lines."""
    ground = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    look = {"fontsize": 10, "ha": "left", "va": "center", "zorder": 8, "bbox": ground, **style}
    ax.annotate(text, xy=tuple(at), xytext=offset, textcoords="offset points", **look)
