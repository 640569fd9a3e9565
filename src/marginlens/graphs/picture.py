"""Priority graphs as a picture: one panel per last token, components as boxes, priority downward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch
from matplotlib.path import Path

from marginlens.colours import ACCENTS, INK, LOCAL, NEITHER, PATH, STYLE, TINTS
from marginlens.data.tokens import FloatArray
from marginlens.errors import reject
from marginlens.graphs.layout import Box, Kind, Layout, inner_edges, layout
from marginlens.graphs.priority import PriorityGraph

_LETTERS = 12  # of a name that a picture shows
_CELL, _LETTER = 0.34, 0.125  # inches of a token, and of each letter after its first two
_LINE, _PAD = 0.32, 0.09  # inches of a line of tokens, and of the room around them
_CIRCLE, _SHORT = 5, 4  # components of up to so many tokens, with names of up to so many letters, show the edges inside
_SHAPE = 3.0  # how much wider than high a box of many tokens is, about
_ACROSS = 15.5  # inches at which panels go to a second row
_WIDEST = 6.0  # inches at which a row of boxes is broken
_HEAD, _FOOT, _MARGIN = 0.85, 0.6, 0.36  # inches above and below the panels, and around each
_SIGN, _LEGEND_LINE = 2.9, 0.25  # inches across of an entry of the legend, and of each line of entries after the first
_MARK = "#F7E3B5"  # the last token itself
_TEXT = 13.0


def draw_graphs(
    graphs: Mapping[int, PriorityGraph] | Iterable[PriorityGraph],
    names: Any = None,
    *,
    title: str = "",
    headings: Sequence[str] | None = None,
) -> Figure:
    """Priority graphs side by side.

    Tokens of equal priority share a shaded box; up to five of them show their edges as dashed arrows. An arrow from one box to a
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
    pens = [
        _Pen(graph, _names(graph, names), "" if headings is None else headings[k]) for k, graph in enumerate(chosen)
    ]
    rows = _rows([pen.width for pen in pens])
    width = max(sum(pens[k].width for k in row) for row in rows)
    heights = [max(pens[k].tall for k in row) + _HEAD + _MARGIN for row in rows]
    width = max(width, 0.1 * len(title) + 2.0 * _MARGIN)
    signs = _signs(pens)
    columns = max(1, min(len(signs), int(width / _SIGN)))
    foot = _FOOT + _LEGEND_LINE * max(0, -(-len(signs) // columns) - 1)
    bottom, head = sum(heights) + foot, 0.4 if title else 0.0
    with mpl.rc_context(STYLE):
        fig = Figure(figsize=(width, bottom + head))
        fig.text(0.5, 1.0 - 0.12 / (bottom + head), title, ha="center", va="top", fontsize=_TEXT, parse_math=False)
        for row, height in zip(rows, heights, strict=True):
            left = 0.5 * (width - sum(pens[k].width for k in row))
            for k in row:
                pens[k].draw(fig, left, bottom - _HEAD)
                left += pens[k].width
            bottom -= height
        fig.legend(handles=signs, loc="lower center", ncols=columns, fontsize=11)
    return fig


@dataclass(eq=False)
class _Pen:
    """One panel: a graph, the names of its tokens, and their places."""

    graph: PriorityGraph
    names: dict[int, str]
    heading: str

    def __post_init__(self) -> None:
        self.layout: Layout = layout(self.graph, self.measure, _WIDEST)
        self.width = max(self.layout.width, 3.3, 0.13 * len(self.heading)) + 2.0 * _MARGIN

    @property
    def tall(self) -> float:
        """Height of the panel in inches: at least that of the name of its axis."""
        return max(self.layout.height, 1.0)

    def letters(self, token: int, *, chained: bool = False) -> float:
        """Inches that a token takes in a line."""
        return _CELL + _LETTER * max(len(self.names[token]) - 2, 0) + (0.2 if chained else 0.0)

    def lines(self, box: Box) -> list[list[int]]:
        """The tokens of a box, line by line, with lines of about the same length."""
        widths = [self.letters(token, chained=box.kind is Kind.CHAIN) for token in box.tokens]
        total, room = sum(widths), _WIDEST - 2.0 * _PAD
        wanted = max(float(np.sqrt(_SHAPE * total * _LINE)), *widths)
        target = total / max(1, round(total / min(wanted, room)))
        lines: list[list[int]] = [[]]
        passed = filled = 0.0
        for token, width in zip(box.tokens, widths, strict=True):
            if lines[-1] and (passed + 0.5 * width > target * len(lines) or filled + width > room):
                lines.append([])
                filled = 0.0
            lines[-1].append(token)
            filled, passed = filled + width, passed + width
        return lines

    def measure(self, box: Box) -> tuple[float, float]:
        """Width and height of a box, in inches."""
        if self.is_circle(box):
            wide, high = np.ptp(self.corners(box), axis=0)
            return float(wide) + max(map(self.letters, box.tokens)) + 0.3, float(high) + 0.62
        lines = self.lines(box)
        chained = box.kind is Kind.CHAIN
        width = max(sum(self.letters(token, chained=chained) for token in line) for line in lines)
        head = 0.24 if box.kind is Kind.EQUAL else 0.0
        return width + 2.0 * _PAD, len(lines) * _LINE + 2.0 * _PAD + head

    def is_circle(self, box: Box) -> bool:
        """Whether a component is small enough to show its edges."""
        short = all(len(self.names[token]) <= _SHORT for token in box.tokens)
        return box.kind is Kind.EQUAL and len(box.tokens) <= _CIRCLE and short

    def corners(self, box: Box) -> FloatArray:
        """(n_tokens, 2) where the tokens of a small component stand, in inches around its middle."""
        count = len(box.tokens)
        radius = (0.5, 0.62, 0.7, 0.8)[count - 2] + 0.6 * (max(map(self.letters, box.tokens)) - _CELL)
        turn = np.pi * (1.0 if count == 2 else -0.5) + 2.0 * np.pi * np.arange(count) / count
        places: FloatArray = radius * np.stack([np.cos(turn), np.sin(turn)], axis=1)
        return places - 0.5 * (places.min(axis=0) + places.max(axis=0))

    # ---- drawing

    def draw(self, fig: Figure, left: float, top: float) -> None:
        """Draw the panel with its upper left corner at these inches."""
        wide, high = fig.get_size_inches()
        tall = self.tall
        ax = fig.add_axes((left / wide, (top - tall) / high, self.width / wide, tall / high))
        ax.set(xlim=(0.0, self.width), ylim=(tall, 0.0))
        ax.set(xticks=[], yticks=[], frame_on=False)
        ax.set_ylabel("priority →", loc="top")
        ax.yaxis.set_label_coords(0.24 / self.width, 1.0)
        shift = 0.5 * (self.width - self.layout.width)
        for points in self.layout.arrows:
            _arrow(ax, [(x + shift, y) for x, y in points])
        for box in self.layout.boxes:
            self.box(ax, box, box.x + shift)
        middle = (left + 0.5 * self.width) / wide
        graph = self.graph
        heading = self.heading or f"Last token {self.names[graph.last]}"
        fig.text(middle, (top + 0.5) / high, heading, ha="center", parse_math=False, fontsize=15)
        summary = f"{_count(len(graph.nodes), 'token')}, {_count(graph.n_components, 'component')}"
        fig.text(middle, (top + 0.22) / high, summary, ha="center", fontsize=12, color=PATH)

    def box(self, ax: Axes, box: Box, x: float) -> None:
        """Draw one box around its middle."""
        equal = box.kind is Kind.EQUAL
        edge, fill = (
            (LOCAL, TINTS[LOCAL]) if equal else (INK, "white") if box.kind is Kind.SINGLE else (PATH, "#F4F5F6")
        )
        style = (0, (4, 2)) if box.kind in (Kind.ALIKE, Kind.CHAIN) else "solid"
        corner = (x - 0.5 * box.width, box.y - 0.5 * box.height)
        look: dict[str, Any] = {"facecolor": fill, "edgecolor": edge, "linewidth": 1.4, "linestyle": style, "zorder": 3}
        if box.kind is Kind.SINGLE and box.tokens[0] == self.graph.last:
            look["facecolor"] = _MARK
        ax.add_patch(_round(corner, box.width, box.height, 0.1, **look))
        if self.is_circle(box):
            self.circle(ax, box, x)
            return
        top = corner[1] + _PAD
        if equal:
            head: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 11, "color": LOCAL, "zorder": 5}
            ax.text(x, top + 0.1, f"↻ {len(box.tokens)} equal", **head)
            top += 0.24
        for row, line in enumerate(self.lines(box)):
            self.line(ax, line, corner[0] + _PAD, top + (row + 0.5) * _LINE, box)

    def line(self, ax: Axes, line: list[int], left: float, y: float, box: Box) -> None:
        """Write tokens side by side from `left` on; those of a chain with signs between."""
        chained = box.kind is Kind.CHAIN
        for token in line:
            width = self.letters(token, chained=chained)
            room = 0.2 if chained else 0.0
            self.token(ax, token, left + 0.5 * (width - room), y, chip=box.kind is not Kind.SINGLE)
            left += width
            if chained and token != box.tokens[-1]:
                ax.text(left - 0.5 * room, y, "›", ha="center", va="center_baseline", fontsize=_TEXT, zorder=5)

    def token(self, ax: Axes, token: int, x: float, y: float, *, chip: bool) -> None:
        """Write a token; the last token stands on a mark of its own."""
        if chip and token == self.graph.last:
            width = self.letters(token) - 0.06
            ax.add_patch(
                _round((x - 0.5 * width, y - 0.14), width, 0.28, 0.06, facecolor=_MARK, edgecolor="none", zorder=4)
            )
        look: dict[str, Any] = {"ha": "center", "va": "center_baseline", "fontsize": _TEXT, "zorder": 5}
        ax.text(x, y, self.names[token], parse_math=False, **look)

    def circle(self, ax: Axes, box: Box, x: float) -> None:
        """The tokens of a small component around its middle, with the edges among them."""
        places = self.corners(box) + np.array([x, box.y])
        where = dict(zip(box.tokens, places, strict=True))
        for i, j in inner_edges(self.graph, box.tokens).tolist():
            ax.add_patch(
                FancyArrowPatch(
                    tuple(where[i]), tuple(where[j]), arrowstyle="-|>", mutation_scale=12, color=LOCAL, linewidth=1.2,
                    linestyle=(0, (3, 2)), connectionstyle="arc3,rad=0.22", shrinkA=13, shrinkB=13, zorder=4,
                )
            )  # fmt: skip
        for token, (at, y) in where.items():
            self.token(ax, token, float(at), float(y), chip=True)


def _arrow(ax: Axes, points: list[tuple[float, float]]) -> None:
    """A line through these points with a head at its end."""
    look: dict[str, Any] = {"color": INK, "linewidth": 1.3, "zorder": 2, "shrinkA": 0, "shrinkB": 1.5}
    ax.add_patch(FancyArrowPatch(path=Path(points), arrowstyle="-|>", mutation_scale=14, fill=True, **look))


def _round(corner: tuple[float, float], width: float, height: float, radius: float, **look: Any) -> FancyBboxPatch:
    return FancyBboxPatch(corner, width, height, boxstyle=f"round,pad=0,rounding_size={radius}", clip_on=False, **look)


def _signs(pens: list[_Pen]) -> list[Any]:
    """What the signs that occur mean, one entry of the legend below the panels for each."""
    boxes = [box for pen in pens for box in pen.layout.boxes]
    kinds = {box.kind for box in boxes}
    shown: list[Any] = []
    if any(pen.layout.arrows for pen in pens):
        shown.append(
            Line2D(
                [], [], color=INK, marker="v", markersize=6, lw=1.3, label="from higher to strictly lower priority (⇒)"
            )
        )
    if Kind.EQUAL in kinds:
        shown.append(Patch(facecolor=TINTS[LOCAL], edgecolor=LOCAL, label="equal priority (≍)"))
    if any(pen.is_circle(box) for pen in pens for box in pen.layout.boxes):
        shown.append(Line2D([], [], color=LOCAL, ls=(0, (3, 2)), lw=1.2, label="edge inside a component"))
    if Kind.ALIKE in kinds:
        shown.append(Patch(facecolor="#F4F5F6", edgecolor=PATH, ls="--", label="single tokens, not compared"))
    if Kind.CHAIN in kinds:
        shown.append(Patch(facecolor="#F4F5F6", edgecolor=NEITHER, ls="--", label="single tokens, each above the next"))
    if any(pen.graph.last in pen.graph.nodes for pen in pens):
        shown.append(Patch(facecolor=_MARK, edgecolor=ACCENTS[3], label="the last token itself"))
    return shown


def _rows(widths: list[float]) -> list[list[int]]:
    """Which panels stand in which row."""
    rows: list[list[int]] = []
    filled = np.inf
    for k, width in enumerate(widths):
        if filled + width > _ACROSS:
            rows.append([])
            filled = 0.0
        rows[-1].append(k)
        filled += width
    return rows


def _names(graph: PriorityGraph, names: Any) -> dict[int, str]:
    named = {}
    for token in {*graph.nodes.tolist(), graph.last}:
        try:
            name = str(token) if names is None else str(names[token])
        except (IndexError, KeyError, TypeError) as problem:
            raise reject("names", "a name for each token of the graphs", f"none for token {token}") from problem
        named[token] = name if len(name) <= _LETTERS else name[: _LETTERS - 1] + "…"
    return named


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
