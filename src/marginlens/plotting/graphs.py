"""Priority graphs as a picture: one panel per last token, components as boxes, priority downward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch
from matplotlib.path import Path

from marginlens.errors import reject
from marginlens.graphs.priority import PriorityGraph
from marginlens.plotting.graph_layout import CHAIN_SIGN, PADDING, Box, Kind, Lettering, inner_edges, layered_layout
from marginlens.plotting.style import ACCENTS, INK, LOCAL, NEITHER, PATH, STYLE, TINTS

_LETTERING = Lettering(letter=0.125, room=0.09, least=0.34, max_letters=12, max_ring_letters=4, widest=6.0)
_ACROSS = 15.5  # inches at which panels go to a second row
_HEAD, _MARGIN = 0.85, 0.36  # inches above each panel, and around it
_MARK, _GREY = "#F7E3B5", "#F4F5F6"  # the last token itself; tokens that share a box without being equal
_TEXT = 13.0


def draw_graphs(
    graphs: Mapping[int, PriorityGraph] | Iterable[PriorityGraph],
    names: Any = None,
    *,
    title: str = "",
    headings: Sequence[str] | None = None,
) -> Figure:
    """Priority graphs side by side.

    Tokens of equal priority share a shaded box; up to six of them show their edges as dashed arrows. An arrow from one box to a
    lower one means strictly higher priority; arrows that a chain of others implies are left out. Many single tokens that stand
    above and below the same boxes share a dashed box, and so do single tokens that form a chain.

    Args:
        graphs: as from `priority_graphs`, or some of them.
        names: what to call each token, by id: a list or a dictionary. Ids by default.
        title: a line above all panels. headings: one above each panel in place of its last token.
    Returns:
        A matplotlib figure with one panel per graph, as large as they need.
    """
    try:
        chosen = list(graphs.values() if isinstance(graphs, Mapping) else graphs)
    except TypeError as problem:
        raise reject("graphs", "at least one PriorityGraph", type(graphs).__name__) from problem
    if not chosen or not all(isinstance(graph, PriorityGraph) for graph in chosen):
        raise reject("graphs", "at least one PriorityGraph", f"{len(chosen)} entries" if chosen else "none")
    if headings is not None and len(headings) != len(chosen):
        raise reject("headings", f"one for each of {len(chosen)} graphs", len(headings))
    headings = headings or [""] * len(chosen)
    panels = [_Panel(graph, _names(graph, names), words) for graph, words in zip(chosen, headings, strict=True)]
    rows = _rows(panels)
    width = max(0.1 * len(title) + 2.0 * _MARGIN, *(sum(panel.width for panel in row) for row in rows))
    heights = [max(panel.height for panel in row) + _HEAD + _MARGIN for row in rows]
    with mpl.rc_context(STYLE):
        fig = Figure(figsize=(width, sum(heights)))
        bottom, head = sum(heights) + _legend(fig, panels), 0.4 if title else 0.0
        fig.set_size_inches(width, bottom + head)
        fig.text(0.5, 1.0 - 0.12 / (bottom + head), title, ha="center", va="top", fontsize=_TEXT, parse_math=False)
        for row, height in zip(rows, heights, strict=True):
            left = 0.5 * (width - sum(panel.width for panel in row))
            for panel in row:
                panel.draw(fig, left, bottom - _HEAD)
                left += panel.width
            bottom -= height
    return fig


class _Panel:
    """One graph with the names of its tokens and their places."""

    def __init__(self, graph: PriorityGraph, names: dict[int, str], heading: str) -> None:
        self.graph, self.names, self.heading = graph, names, heading
        self.layout = layered_layout(graph, names, _LETTERING)
        self.width = max(self.layout.width, 3.3, 0.13 * len(heading)) + 2.0 * _MARGIN
        self.height = max(self.layout.height, 1.0)  # at least that of the name of its axis

    def draw(self, fig: Figure, left: float, top: float) -> None:
        """Draw the panel with its upper left corner at these inches."""
        wide, high = fig.get_size_inches()
        ax = fig.add_axes((left / wide, (top - self.height) / high, self.width / wide, self.height / high))
        shift = 0.5 * (self.width - self.layout.width)
        ax.set(xlim=(-shift, self.width - shift), ylim=(self.height, 0.0))
        ax.set(xticks=[], yticks=[], frame_on=False)
        ax.set_ylabel("priority →", loc="top")
        ax.yaxis.set_label_coords(0.24 / self.width, 1.0)
        for points in self.layout.arrows:
            look: dict[str, Any] = {"color": INK, "linewidth": 1.3, "zorder": 2, "shrinkA": 0, "shrinkB": 1.5}
            ax.add_patch(FancyArrowPatch(path=Path(points), arrowstyle="-|>", mutation_scale=14, fill=True, **look))
        for box in self.layout.boxes:
            self._draw_box(ax, box)
        middle, graph = (left + 0.5 * self.width) / wide, self.graph
        heading = self.heading or f"Last token {self.names[graph.last]}"
        fig.text(middle, (top + 0.5) / high, heading, ha="center", parse_math=False, fontsize=15)
        summary = f"{_count(len(graph.nodes), 'token')}, {_count(graph.n_components, 'component')}"
        fig.text(middle, (top + 0.22) / high, summary, ha="center", fontsize=12, color=PATH)

    def _draw_box(self, ax: Axes, box: Box) -> None:
        edge, fill = {Kind.EQUAL: (LOCAL, TINTS[LOCAL]), Kind.SINGLE: (INK, "white")}.get(box.kind, (PATH, _GREY))
        if box.kind is Kind.SINGLE and box.tokens[0] == self.graph.last:
            fill = _MARK
        style = (0, (4, 2)) if box.kind in (Kind.ALIKE, Kind.CHAIN) else "solid"
        look: dict[str, Any] = {"facecolor": fill, "edgecolor": edge, "linewidth": 1.4, "linestyle": style, "zorder": 3}
        ax.add_patch(_rounded(box.corner, box.width, box.height, 0.1, **look))
        if box.has_heading:
            words: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 11, "color": LOCAL, "zorder": 5}
            ax.text(box.x, box.corner[1] + PADDING + 0.1, f"↻ {len(box.tokens)} equal", **words)
        places = dict(zip(box.tokens, box.centres.tolist(), strict=True))
        for i, j in inner_edges(self.graph, box.tokens).tolist() if box.is_ring else []:
            ax.add_patch(
                FancyArrowPatch(
                    places[i], places[j], arrowstyle="-|>", mutation_scale=12, color=LOCAL, linewidth=1.2,
                    linestyle=(0, (3, 2)), connectionstyle="arc3,rad=0.22", shrinkA=13, shrinkB=13, zorder=4,
                )
            )  # fmt: skip
        text: dict[str, Any] = {"ha": "center", "va": "center_baseline", "fontsize": _TEXT, "zorder": 5}
        for token, (x, y) in places.items():
            width = _LETTERING.width(self.names[token])
            if token == self.graph.last and box.kind is not Kind.SINGLE:
                corner = (x - 0.5 * width + 0.03, y - 0.14)
                ax.add_patch(_rounded(corner, width - 0.06, 0.28, 0.06, facecolor=_MARK, edgecolor="none", zorder=4))
            ax.text(x, y, self.names[token], parse_math=False, **text)
            if box.kind is Kind.CHAIN and token != box.tokens[-1]:
                ax.text(x + 0.5 * (width + CHAIN_SIGN), y, "›", **text)


def _rounded(corner: tuple[float, float], width: float, height: float, radius: float, **look: Any) -> FancyBboxPatch:
    return FancyBboxPatch(corner, width, height, boxstyle=f"round,pad=0,rounding_size={radius}", clip_on=False, **look)


def _legend(fig: Figure, panels: list[_Panel]) -> float:
    """Explain the signs that occur, below the panels, in as many columns as the figure is wide; the inches that it takes."""
    signs, wide = _signs(panels), fig.get_figwidth()
    for columns in range(max(len(signs), 1), 0, -1):
        legend = fig.legend(handles=signs, loc="lower center", ncols=columns, fontsize=11)
        size = legend.get_window_extent(FigureCanvasAgg(fig).get_renderer())
        if columns == 1 or size.width <= fig.dpi * wide:
            break
        legend.remove()
    return max(0.6, float(size.y1) / fig.dpi + 0.25)


def _signs(panels: list[_Panel]) -> list[Any]:
    """What the signs that occur mean, one entry of the legend for each."""
    boxes = [box for panel in panels for box in panel.layout.boxes]
    kinds = {box.kind for box in boxes}
    shown: list[Any] = []
    if any(panel.layout.arrows for panel in panels):
        words = "from higher to strictly lower priority (⇒)"
        shown.append(Line2D([], [], color=INK, marker="v", markersize=6, lw=1.3, label=words))
    if Kind.EQUAL in kinds:
        shown.append(Patch(facecolor=TINTS[LOCAL], edgecolor=LOCAL, label="equal priority (≍)"))
    if any(box.is_ring for box in boxes):
        shown.append(Line2D([], [], color=LOCAL, ls=(0, (3, 2)), lw=1.2, label="edge inside a component"))
    if Kind.ALIKE in kinds:
        shown.append(Patch(facecolor=_GREY, edgecolor=PATH, ls="--", label="single tokens, not compared"))
    if Kind.CHAIN in kinds:
        shown.append(Patch(facecolor=_GREY, edgecolor=NEITHER, ls="--", label="single tokens, each above the next"))
    if any(panel.graph.last in panel.graph.nodes for panel in panels):
        shown.append(Patch(facecolor=_MARK, edgecolor=ACCENTS[3], label="the last token itself"))
    return shown


def _rows(panels: list[_Panel]) -> list[list[_Panel]]:
    """Which panels stand in which row."""
    rows: list[list[_Panel]] = []
    filled = np.inf
    for panel in panels:
        if filled + panel.width > _ACROSS:
            rows.append([])
            filled = 0.0
        rows[-1].append(panel)
        filled += panel.width
    return rows


def _names(graph: PriorityGraph, names: Any) -> dict[int, str]:
    named = {}
    for token in {*graph.nodes.tolist(), graph.last}:
        try:
            name = str(token) if names is None else str(names[token])
        except (IndexError, KeyError, TypeError) as problem:
            raise reject("names", "a name for each token of the graphs", f"none for token {token}") from problem
        named[token] = _LETTERING.shortened(name)
    return named


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
