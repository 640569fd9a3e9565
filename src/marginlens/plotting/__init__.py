"""Figures: the style they share, problems in the plane, priority graphs, and files."""

# ruff: noqa: E402  without matplotlib, one sentence comes first

from typing import TYPE_CHECKING

from marginlens.errors import require

require("matplotlib", "plot", "A figure")

from marginlens.plotting.files import FIGURE_SUFFIXES, pdf, png, svg
from marginlens.plotting.graphs import draw_graphs
from marginlens.plotting.plane import arrowed_path, ray, recorded_steps, scatter_input_tokens, starts
from marginlens.plotting.style import STYLE, PlotStyle, figure, note_at, paper, shades, slides
from marginlens.removed import no_attribute
from marginlens.result.palette import ACCENTS, FAINT, GLOBAL, INK, INPUTS, LOCAL, NEITHER, PATH, SEQUENCE, TINTS

__all__ = [
    "ACCENTS",
    "FAINT",
    "FIGURE_SUFFIXES",
    "GLOBAL",
    "INK",
    "INPUTS",
    "LOCAL",
    "NEITHER",
    "PATH",
    "SEQUENCE",
    "STYLE",
    "TINTS",
    "PlotStyle",
    "arrowed_path",
    "draw_graphs",
    "figure",
    "note_at",
    "paper",
    "pdf",
    "png",
    "ray",
    "recorded_steps",
    "scatter_input_tokens",
    "shades",
    "slides",
    "starts",
    "svg",
]

# Type checkers must refuse names that do not exist, so this is hidden from them.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise no_attribute(__name__, name)
