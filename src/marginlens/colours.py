"""The look of every picture: one palette that survives colour-blindness, and one type size."""

from __future__ import annotations

from typing import Any

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
