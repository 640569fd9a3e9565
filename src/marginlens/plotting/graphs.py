"""Priority graphs side by side in one figure, with a legend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from marginlens.errors import InputError
from marginlens.graphs.picture import (
    GREY,
    LETTERING,
    MARGIN,
    MARK,
    MIN_WIDTH,
    TEXT,
    Kind,
    draw_layout,
    layered_layout,
    names_of,
)
from marginlens.graphs.priority import PriorityGraph
from marginlens.plotting.style import house_style
from marginlens.result.palette import ACCENTS, INK, LOCAL, NEITHER, PATH, TINTS

_ACROSS = 15.5  # inches at which panels go to a second row
_ABOVE_PANEL = 0.85  # inches


def draw_graphs(
    graphs: Mapping[int, PriorityGraph] | Iterable[PriorityGraph],
    names: Sequence[str] | Mapping[int, str] | None = None,
    *,
    title: str = "",
    headings: Sequence[str] | None = None,
) -> Figure:
    """Draw priority graphs side by side.

    Tokens of equal priority share a shaded box; up to six of them show their edges as dashed arrows. An arrow from one box to a
    lower one means strictly higher priority; arrows that a chain of others implies are left out. Many single tokens with the
    same boxes above and below share a dashed box, and so do single tokens that form a chain.

    Args:
        graphs: all graphs from `priority_graphs`, or some of them.

        names: the name of each token by id, a list or a dictionary; ids by default.

        title: the title of the figure.

        headings: a heading for each panel, instead of its last token.

    Returns:
        A matplotlib figure with one panel per graph, as large as they need.
    """
    chosen = list(graphs.values()) if isinstance(graphs, Mapping) else list(graphs) if np.iterable(graphs) else []
    if not chosen or not all(isinstance(graph, PriorityGraph) for graph in chosen):
        raise InputError(
            "graphs", "at least one PriorityGraph", f"{len(chosen)} entries" if chosen else repr(graphs)[:60]
        )
    if headings is not None and len(headings) != len(chosen):
        raise InputError("headings", f"one for each of {len(chosen)} graphs", len(headings))
    headings = headings or [""] * len(chosen)
    panels = [_Panel(graph, names_of(graph, names), heading) for graph, heading in zip(chosen, headings, strict=True)]
    rows: list[list[_Panel]] = []
    filled = np.inf
    for panel in panels:
        if filled + panel.width > _ACROSS:
            rows.append([])
            filled = 0.0
        rows[-1].append(panel)
        filled += panel.width
    width = max(0.1 * len(title) + 2.0 * MARGIN, *(sum(panel.width for panel in row) for row in rows))
    heights = [max(panel.height for panel in row) + _ABOVE_PANEL + MARGIN for row in rows]
    with mpl.rc_context(house_style()):
        fig = Figure(figsize=(width, sum(heights)))
        bottom, head = sum(heights) + _legend(fig, panels), 0.4 if title else 0.0
        fig.set_size_inches(width, bottom + head)
        fig.text(0.5, 1.0 - 0.12 / (bottom + head), title, ha="center", va="top", fontsize=TEXT, parse_math=False)
        for row, height in zip(rows, heights, strict=True):
            left = 0.5 * (width - sum(panel.width for panel in row))
            for panel in row:
                panel.draw(fig, left, bottom - _ABOVE_PANEL)
                left += panel.width
            bottom -= height
    return fig


class _Panel:
    """A panel with one graph, the names of its tokens and their places."""

    def __init__(self, graph: PriorityGraph, names: dict[int, str], heading: str) -> None:
        self.graph, self.last_name = graph, LETTERING.shortened(names[graph.last])
        self.heading = heading or f"Last token {self.last_name}"
        self.layout = layered_layout(graph, names, LETTERING)
        self.width = max(self.layout.width, MIN_WIDTH, 0.13 * len(heading)) + 2.0 * MARGIN
        self.height = max(self.layout.height, 1.0)  # at least that of the name of its axis

    def draw(self, fig: Figure, left: float, top: float) -> None:
        """Draw the panel with its upper left corner at these inches."""
        wide, high = fig.get_size_inches()
        ax = fig.add_axes((left / wide, (top - self.height) / high, self.width / wide, self.height / high))
        draw_layout(ax, self.layout, self.graph.last, self.last_name, (self.width, self.height))
        middle, graph = (left + 0.5 * self.width) / wide, self.graph
        fig.text(middle, (top + 0.5) / high, self.heading, ha="center", parse_math=False, fontsize=15)
        counts = ((len(graph.nodes), "token"), (graph.n_components, "component"))
        summary = ", ".join(f"{n} {word}" if n == 1 else f"{n} {word}s" for n, word in counts)
        fig.text(middle, (top + 0.22) / high, summary, ha="center", fontsize=12, color=PATH)


def _legend(fig: Figure, panels: list[_Panel]) -> float:
    """Explain the signs that occur below the panels, in as many columns as fit, and return the height in inches."""
    boxes = [box for panel in panels for box in panel.layout.boxes]
    kinds = {box.kind for box in boxes}
    has_arrows = any(panel.layout.arrows for panel in panels)
    arrow = Line2D(
        [], [], color=INK, marker="v", markersize=6, lw=1.3, label="from higher to strictly lower priority (⇒)"
    )
    inner = Line2D([], [], color=LOCAL, ls=(0, (3, 2)), lw=1.2, label="edge inside a component")
    entries: list[tuple[bool, Any]] = [
        (has_arrows, arrow),
        (Kind.EQUAL in kinds, Patch(facecolor=TINTS[LOCAL], edgecolor=LOCAL, label="equal priority (≍)")),
        (any(box.is_ring for box in boxes), inner),
        (Kind.ALIKE in kinds, Patch(facecolor=GREY, edgecolor=PATH, ls="--", label="single tokens, not compared")),
        (
            Kind.CHAIN in kinds,
            Patch(facecolor=GREY, edgecolor=NEITHER, ls="--", label="single tokens, each above the next"),
        ),
        (
            any(panel.graph.last in panel.graph.nodes for panel in panels),
            Patch(facecolor=MARK, edgecolor=ACCENTS[3], label="the last token itself"),
        ),
    ]
    signs = [sign for occurs, sign in entries if occurs]
    for columns in range(max(len(signs), 1), 0, -1):
        legend = fig.legend(handles=signs, loc="lower center", ncols=columns, fontsize=11)
        size = legend.get_window_extent(FigureCanvasAgg(fig).get_renderer())
        if columns == 1 or size.width <= fig.dpi * fig.get_figwidth():
            break
        legend.remove()
    return max(0.6, float(size.y1) / fig.dpi + 0.25)
