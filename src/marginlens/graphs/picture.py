"""The picture of a priority graph: a layered layout of components in boxes, priority downward, and its drawing by matplotlib.

Graph libraries place nodes without a size. Here a row is as wide as its names, and long rows and many equal neighbours share
boxes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple
from unicodedata import east_asian_width

import numpy as np

from marginlens.errors import InputError, require
from marginlens.result.drawing import axes_for, draw_sentence
from marginlens.result.palette import INK, LOCAL, PATH, TINTS
from marginlens.typing import Axes, FloatArray

if TYPE_CHECKING:
    from marginlens.graphs.priority import PriorityGraph

# So many single tokens above and below the same parts share a box.
MIN_ALIKE = 5
# So many single tokens one below the other share a box.
MIN_CHAIN = 3
# Rounds of ordering a row by its neighbours.
_N_SWEEPS = 8

# Inches.
# Space around the names of a box, height of a line of names, and height of the words above them.
_PADDING, _LINE, _HEADING = 0.09, 0.32, 0.24
# Space between the names of a chain.
_CHAIN_SIGN = 0.2
# Space between boxes and between rows, and what an arrow takes of a row that it passes.
_BOX_GAP, _ROW_GAP, _PASSAGE = 0.22, 0.55, 0.12
# How much wider than high a box of many names is, roughly.
_LIST_ASPECT = 3.0
# Space around the names of a ring, and between two names side by side in it.
_RING_PADDING, _RING_GAP = 0.15, 0.375
# By the number of names: the radius of the ring, and the distance of neighbours relative to it.
_RINGS = {2: (0.5, 2.0), 3: (0.62, 1.73), 4: (0.7, 1.0), 5: (0.8, 1.17), 6: (0.9, 1.73)}

# Space above a graph and around it, and its least width, which its title needs.
ABOVE, MARGIN, MIN_WIDTH = 0.6, 0.36, 3.3

# Colours of the last token itself, and of tokens that share a box without being equal.
MARK, GREY = "#F7E3B5", "#E9EBED"
# Size of the text in points.
TEXT = 13.0


# ---- layout


class Kind(Enum):
    """The kind of a box in the picture."""

    SINGLE = "one token"
    EQUAL = "a component of several tokens"
    ALIKE = "single tokens that stand above and below the same parts, and are not compared with each other"
    CHAIN = "single tokens, each above the next"


class Lettering(NamedTuple):
    """The width and largest length of names: a name of n letters takes max(min_width, padding + n · letter) inches.

    Names are cut at `max_letters`. A component of up to six names of at most `max_ring_letters` shows its edges. Rows of boxes
    and lines of names are broken at `max_width`.
    """

    letter: float
    padding: float
    min_width: float
    max_letters: int
    max_ring_letters: int
    max_width: float

    def width(self, name: str) -> float:
        """Return the width in inches of a name with its margins; Chinese, Japanese and Korean letters count twice."""
        letters = sum(2 if east_asian_width(letter) in "WF" else 1 for letter in name)
        return max(self.min_width, self.padding + self.letter * letters)

    def shortened(self, name: str) -> str:
        """Return the name as it is shown."""
        return name if len(name) <= self.max_letters else name[: self.max_letters - 1] + "…"


@dataclass(eq=False)
class Box:
    """One part of the picture, in inches, y downward: its tokens, its size and its middle.

    `offsets` (n_tokens, 2) are the middles of its names relative to the middle of the box. If `is_ring`, the names are on a
    ring, and the edges among them are shown; any other component of several tokens has a heading above its names.
    """

    kind: Kind
    tokens: list[int]
    level: int = 0
    width: float = 0.0
    height: float = 0.0
    x: float = 0.0
    y: float = 0.0
    row: int = 0
    is_ring: bool = False
    offsets: FloatArray | None = None

    @property
    def has_heading(self) -> bool:
        """True if there is a heading above the names."""
        return self.kind is Kind.EQUAL and not self.is_ring

    @property
    def centres(self) -> dict[int, FloatArray]:
        """The middle (2,) of each name in the picture, by token."""
        return dict(zip(self.tokens, np.array([self.x, self.y]) + self.offsets, strict=True))

    @property
    def corner(self) -> tuple[float, float]:
        """The left and upper end of the box."""
        return self.x - 0.5 * self.width, self.y - 0.5 * self.height


class Layout(NamedTuple):
    """A placed graph, in inches: boxes; arrows as points from the lower edge of a box to the upper edge of another; arrows inside boxes
    of equal tokens; and texts (x, y, text), the names of tokens and the signs between those of a chain.
    """

    width: float
    height: float
    boxes: list[Box]
    arrows: list[list[tuple[float, float]]]
    inner_arrows: list[list[tuple[float, float]]]
    texts: list[tuple[float, float, str]]


def layered_layout(graph: PriorityGraph, names: Mapping[int, str], lettering: Lettering) -> Layout:
    """Place the boxes of a graph, the names in them and the arrows between them: one row, or more, for each level of priority."""
    boxes, edges = _boxes(graph)
    shown = {token: lettering.shortened(names[token]) for box in boxes for token in box.tokens}
    widths = {token: lettering.width(name) for token, name in shown.items()}
    for box in boxes:
        longest = max(len(shown[token]) for token in box.tokens)
        box.is_ring = box.kind is Kind.EQUAL and len(box.tokens) in _RINGS and longest <= lettering.max_ring_letters
        (_place_ring if box.is_ring else _place_list)(
            box, np.array([widths[t] for t in box.tokens]), lettering.max_width
        )
    rows = _rows(boxes, lettering.max_width)
    routes = _routes(boxes, edges, rows)
    _order(rows, routes)
    everything = [box for row in rows for box in row]
    left = min((box.corner[0] for box in everything), default=0.0)
    right = max((box.corner[0] + box.width for box in everything), default=0.0)
    top, floors = 0.0, []
    for row in rows:
        tallest = max(box.height for box in row)
        for box in row:
            box.x -= left
            # An arrow passes the whole row.
            box.height = box.height or tallest
            box.y = top + 0.5 * box.height
        floors.append(top + tallest)
        top += tallest + _ROW_GAP
    inner, texts = [], []
    for box in boxes:
        centres = box.centres
        texts += [(x, y, shown[token]) for token, (x, y) in centres.items()]
        if box.kind is Kind.CHAIN:
            texts += [(centres[t][0] + 0.5 * (widths[t] + _CHAIN_SIGN), centres[t][1], "›") for t in box.tokens[:-1]]
        for i, j in graph.edges[np.isin(graph.edges, box.tokens).all(axis=1)].tolist() if box.is_ring else ():
            sizes = [np.array([widths[token] - 0.5 * lettering.padding, _LINE]) for token in (i, j)]
            inner.append(_between(centres[i], centres[j], *sizes))
    arrows = [_points(route, floors[route[0].row]) for route in routes]
    return Layout(right - left, top - _ROW_GAP, boxes, arrows, inner, texts)


def _boxes(graph: PriorityGraph) -> tuple[list[Box], set[tuple[int, int]]]:
    """Return the boxes, and the pairs of their indices between which an arrow goes."""
    order, levels = graph.reduced_order, graph.levels
    parts = [part.tolist() for part in graph.components]
    # Single tokens with the same neighbours.
    groups: dict[bytes | int, list[int]] = defaultdict(list)
    for part, members in enumerate(parts):
        groups[order[part].tobytes() + order[:, part].tobytes() if len(members) == 1 else part].append(part)
    shared = [[part] for group in groups.values() if len(group) < MIN_ALIKE for part in group]
    boxes: list[Box] = []
    owner: dict[int, int] = {}
    for group in sorted(shared + [group for group in groups.values() if len(group) >= MIN_ALIKE]):
        kind = Kind.EQUAL if len(parts[group[0]]) > 1 else Kind.SINGLE if len(group) == 1 else Kind.ALIKE
        owner |= dict.fromkeys(group, len(boxes))
        boxes.append(Box(kind, [token for part in group for token in parts[part]], int(levels[group[0]])))
    return _chained(boxes, {(owner[i], owner[j]) for i, j in np.argwhere(order).tolist()})


def _chained(boxes: list[Box], edges: set[tuple[int, int]]) -> tuple[list[Box], set[tuple[int, int]]]:
    """Merge long runs of single tokens, each the only neighbour of the next, into one box."""
    above, below = defaultdict(list), defaultdict(list)
    for i, j in edges:
        above[j].append(i)
        below[i].append(j)
    following = {
        i: j
        for i, (j, *others) in below.items()
        if not others and len(above[j]) == 1 and boxes[i].kind is boxes[j].kind is Kind.SINGLE
    }
    owner = list(range(len(boxes)))
    for first in set(following) - set(following.values()):
        run = [first]
        while run[-1] in following:
            run.append(following[run[-1]])
        if len(run) >= MIN_CHAIN and len(boxes) > MIN_CHAIN + 1:
            boxes[first] = Box(Kind.CHAIN, [boxes[k].tokens[0] for k in run], boxes[first].level)
            for k in run:
                owner[k] = first
    index = {box: k for k, box in enumerate(sorted(set(owner)))}
    merged = {(index[owner[i]], index[owner[j]]) for i, j in edges if owner[i] != owner[j]}
    return [boxes[k] for k in index], merged


def _place_ring(box: Box, widths: FloatArray, max_width: float) -> None:
    """Place the names of a small component around its middle, without overlaps."""
    n, widest = len(widths), float(widths.max())
    radius, spacing = _RINGS[n]
    angle = np.pi * (1.0 if n == 2 else -0.5) + 2.0 * np.pi * np.arange(n) / n
    offsets = np.column_stack([max(radius, (widest + _RING_GAP) / spacing) * np.cos(angle), radius * np.sin(angle)])
    box.offsets = offsets - 0.5 * (offsets.min(axis=0) + offsets.max(axis=0))
    width, height = np.ptp(offsets, axis=0)
    box.width, box.height = width + widest + 2.0 * _RING_PADDING, height + _LINE + 2.0 * _RING_PADDING


def _place_list(box: Box, widths: FloatArray, max_width: float) -> None:
    """Lay out names in lines of about the same length, below the heading of a component."""
    sign = _CHAIN_SIGN if box.kind is Kind.CHAIN else 0.0
    widths, limit = widths + sign, max_width - 2.0 * _PADDING
    total = float(widths.sum())
    target = total / max(1, round(total / min(max(float(np.sqrt(_LIST_ASPECT * total * _LINE)), *widths), limit)))
    lines: list[list[int]] = [[]]
    passed = filled = 0.0
    for k, width in enumerate(widths.tolist()):
        if lines[-1] and (passed + 0.5 * width > target * len(lines) + 1e-9 or filled + width > limit):
            lines.append([])
            filled = 0.0
        lines[-1].append(k)
        filled, passed = filled + width, passed + width
    heading = _HEADING if box.has_heading else 0.0
    box.width = max(float(np.sum(widths[line])) for line in lines) + 2.0 * _PADDING
    box.height = _LINE * len(lines) + heading + 2.0 * _PADDING
    box.offsets = np.empty((len(widths), 2))
    for k, line in enumerate(lines):
        middles = np.cumsum(widths[line]) - 0.5 * (widths[line] + sign)
        box.offsets[line, 0] = _PADDING - 0.5 * box.width + middles
        box.offsets[line, 1] = _PADDING - 0.5 * box.height + heading + (k + 0.5) * _LINE


def _rows(boxes: list[Box], max_width: float) -> list[list[Box]]:
    """Return one row for each level, or more if the boxes of a level are too wide together."""
    rows: list[list[Box]] = []
    for level in sorted({box.level for box in boxes}):
        filled = np.inf
        for box in (box for box in boxes if box.level == level):
            if filled + box.width > max_width:
                rows.append([])
                filled = 0.0
            box.row, filled = len(rows) - 1, filled + box.width + _BOX_GAP
            rows[-1].append(box)
    return rows


def _routes(boxes: list[Box], edges: set[tuple[int, int]], rows: list[list[Box]]) -> list[list[Box]]:
    """Return the boxes that each arrow touches: its ends, and a narrow passage in every row between, which arrows from one box share."""
    routes = []
    passages: dict[tuple[int, int], Box] = {}
    for i, j in sorted(edges):
        between = range(boxes[i].row + 1, boxes[j].row)
        for row in between:
            if (i, row) not in passages:
                passages[i, row] = Box(Kind.SINGLE, [], width=_PASSAGE, row=row)
                rows[row].append(passages[i, row])
        routes.append([boxes[i], *(passages[i, row] for row in between), boxes[j]])
    return routes


def _order(rows: list[list[Box]], routes: list[list[Box]]) -> None:
    """Order every row by the mean place of what it is linked to, down and up in turn, with boxes side by side around a common middle."""
    upper, lower = defaultdict(list), defaultdict(list)
    for above, below in dict.fromkeys(pair for route in routes for pair in pairwise(route)):
        upper[below].append(above)
        lower[above].append(below)
    for sweep in range(-1, _N_SWEEPS):
        neighbours = lower if sweep % 2 else upper
        for row in rows if sweep >= 0 else ():
            means = {box: float(np.mean([other.x for other in neighbours[box] or [box]])) for box in row}
            row.sort(key=means.__getitem__)
        for row in rows:
            ends = np.cumsum([box.width + _BOX_GAP for box in row]) - _BOX_GAP
            for box, end in zip(row, ends.tolist(), strict=True):
                box.x = end - 0.5 * box.width - 0.5 * float(ends[-1])


def _points(route: list[Box], floor: float) -> list[tuple[float, float]]:
    """Return the points of an arrow, from the first box down past the `floor` of its row, through the passages, to the last box."""
    first, last = route[0], route[-1]
    start = _nearest(first, route[1].x)
    points = [(start, first.y + 0.5 * first.height)]
    if points[0][1] < floor:
        points.append((start, floor))
    for passage in route[1:-1]:
        points += [(passage.x, passage.corner[1]), (passage.x, passage.corner[1] + passage.height)]
    return [*points, (_nearest(last, points[-1][0]), last.corner[1])]


def _nearest(box: Box, x: float) -> float:
    """Return the point of a box's edge that is nearest to x, a little inside its corners."""
    reach = max(0.5 * box.width - 0.15, 0.0)
    return float(np.clip(x, box.x - reach, box.x + reach))


def _between(
    first: FloatArray, second: FloatArray, first_size: FloatArray, second_size: FloatArray
) -> list[tuple[float, float]]:
    """Return the two points at which the line between the middles of two names leaves the rectangle of each."""
    step = second - first
    with np.errstate(divide="ignore"):
        shares = [min(float(np.min(0.5 * size / np.abs(step))), 0.45) for size in (first_size, second_size)]
    return [tuple(first + shares[0] * step), tuple(second - shares[1] * step)]


# ---- drawing

LETTERING = Lettering(letter=0.125, padding=0.09, min_width=0.34, max_letters=12, max_ring_letters=4, max_width=6.0)


def draw_layout(ax: Axes, layout: Layout, last: int, last_name: str, size: tuple[float, float]) -> None:
    """Draw a layout on axes and set their range to `size`, width and height in inches. The last token of the graph is marked."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    width, height = size
    shift = 0.5 * (width - layout.width)
    ax.set(xlim=(-shift, width - shift), ylim=(height, 0.0), xticks=[], yticks=[], frame_on=False)
    ax.set_ylabel("priority →", loc="top")
    ax.yaxis.set_label_coords(0.24 / width, 1.0)
    ax.grid(visible=False)
    arrow: dict[str, Any] = {"arrowstyle": "-|>", "fill": True, "shrinkA": 0, "shrinkB": 1.5}
    for points in layout.arrows:
        ax.add_patch(FancyArrowPatch(path=Path(points), mutation_scale=14, color=INK, lw=1.3, zorder=2, **arrow))
    for points in layout.inner_arrows:
        look: dict[str, Any] = {"mutation_scale": 12, "color": LOCAL, "lw": 1.2, "ls": (0, (3, 2)), "zorder": 4}
        ax.add_patch(FancyArrowPatch(path=Path(points), **look, **arrow))
    for box in layout.boxes:
        _draw_box(ax, box, last, last_name)
    for x, y, text in layout.texts:
        ax.text(x, y, text, ha="center", va="center_baseline", fontsize=TEXT, zorder=5, parse_math=False)


def _draw_box(ax: Axes, box: Box, last: int, last_name: str) -> None:
    """Draw a box, and mark the last token if it is in it."""
    from matplotlib.patches import FancyBboxPatch

    edge, fill = {Kind.EQUAL: (LOCAL, TINTS[LOCAL]), Kind.SINGLE: (INK, "white")}.get(box.kind, (PATH, GREY))
    has_last = last in box.tokens
    if has_last and box.kind is Kind.SINGLE:
        fill = MARK
    look: dict[str, Any] = {"edgecolor": edge, "linewidth": 1.4, "clip_on": False, "zorder": 3}
    look["linestyle"] = (0, (4, 2)) if box.kind in (Kind.ALIKE, Kind.CHAIN) else "solid"
    style = "round,pad=0,rounding_size="
    ax.add_patch(FancyBboxPatch(box.corner, box.width, box.height, f"{style}0.1", facecolor=fill, **look))
    if box.has_heading:
        words: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 11, "color": LOCAL, "zorder": 5}
        ax.text(box.x, box.corner[1] + _PADDING + 0.1, f"↻ {len(box.tokens)} equal", **words)
    if has_last and box.kind is not Kind.SINGLE:
        x, y = box.centres[last]
        width = LETTERING.width(last_name) - 0.06
        mark: dict[str, Any] = {"facecolor": MARK, "edgecolor": "none", "zorder": 4}
        ax.add_patch(FancyBboxPatch((x - 0.5 * width, y - 0.14), width, 0.28, f"{style}0.06", **mark))


def draw_graph(graph: PriorityGraph, ax: Axes | None, names: Sequence[str] | Mapping[int, str] | None) -> Axes:
    """Draw a graph on axes, or on those of a new figure that is as large as the graph needs."""
    if not len(graph.nodes):
        ax = axes_for(ax)
        draw_sentence(ax, "The graph has no tokens.")
        return ax
    named = names_of(graph, names)
    layout = layered_layout(graph, named, LETTERING)
    size = max(layout.width, MIN_WIDTH) + 2.0 * MARGIN, max(layout.height, 1.0)
    if ax is None:
        require("matplotlib", "plot", "A figure")
        import matplotlib.pyplot as plt

        width, height = size[0], size[1] + ABOVE + MARGIN
        fig = plt.figure(figsize=(width, height))
        ax = fig.add_axes((0.0, MARGIN / height, 1.0, size[1] / height))
    last_name = LETTERING.shortened(named[graph.last])
    draw_layout(ax, layout, graph.last, last_name, size)
    ax.set(
        title=f"Last token {last_name}",
        xlabel="tokens in one box have equal priority" if graph.n_components < len(graph.nodes) else "tokens",
    )
    return ax


def names_of(graph: PriorityGraph, names: Sequence[str] | Mapping[int, str] | None) -> dict[int, str]:
    """Return the names of all tokens of a graph and of its last one, by token; ids if `names` is None."""
    named = {}
    for token in {*graph.nodes.tolist(), graph.last}:
        try:
            named[token] = str(token) if names is None else str(names[token])
        except (IndexError, KeyError, TypeError) as problem:
            raise InputError("names", "a name for each token of the graphs", f"none for token {token}") from problem
    return named
