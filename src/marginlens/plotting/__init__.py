"""Figures: the style they share, problems in the plane, priority graphs, clouds of tokens, and files."""

# ruff: noqa: E402, F401  the names that figures use, under one roof: `plotting.figure`, `plotting.INK`, `plotting.ray`

from marginlens.errors import require

require("matplotlib", "plot", "A figure")

from marginlens.plotting.animation import animate
from marginlens.plotting.files import FIGURE_SUFFIXES, pdf, png, svg, write_figure
from marginlens.plotting.graphs import draw_graphs
from marginlens.plotting.plane import (
    BasinLook,
    arrowed_path,
    log_radius,
    log_radius_disc,
    log_radius_rings,
    ray,
    recorded_steps,
    rim_label,
    scatter_input_tokens,
    separating_line,
    starts,
)
from marginlens.plotting.style import STYLE, PlotStyle, figure, in_style, note_at, paper, shades, slides
from marginlens.plotting.tokens import TokenPoints, draw_tokens
from marginlens.result.palette import ACCENTS, FAINT, GLOBAL, INK, INPUTS, LOCAL, NEITHER, PATH, SEQUENCE, TINTS
