"""Layered layout of a priority graph: components as boxes in rows from high to low priority, with their names and arrows placed.

Both pictures of priority graphs, matplotlib's in `plotting.graphs` and the one inside a probe's page, paint what this module places.
Graph libraries place nodes without a size; here a row is as wide as its names, and long rows and many equal neighbours share boxes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from unicodedata import east_asian_width

import numpy as np

from marginlens.data.tokens import FloatArray, IntArray
from marginlens.graphs.priority import PriorityGraph, component_levels, reduced_order

MIN_ALIKE = 5  # so many single tokens above and below the same parts share a box
MIN_CHAIN = 3  # so many single tokens one below the other share a box
_SWEEPS = 8  # rounds of ordering a row by its neighbours
_TIE = 1e-9  # inches by which a name may pass the middle of a line's end through rounding

# Inches.
PADDING, LINE, HEADING = 0.09, 0.32, 0.24  # around the names of a box, a line of names, the words above them
CHAIN_SIGN = 0.2  # between the names of a chain
_BOX_GAP, _ROW_GAP, _PASSAGE = (
    0.22,
    0.55,
    0.12,
)  # between boxes, between rows, and what an arrow takes of a row that it passes
_LIST_ASPECT = 3.0  # how much wider than high a box of many names is, about
_RING_PADDING, _RING_GAP = 0.15, 0.375  # around the names of a ring, and between two names side by side in it
_RINGS = {
    2: (0.5, 2.0),
    3: (0.62, 1.73),
    4: (0.7, 1.0),
    5: (0.8, 1.17),
    6: (0.9, 1.73),
}  # radius; distance of names side by side over it


class Kind(Enum):
    """What a box of the picture holds."""

    SINGLE = "one token"
    EQUAL = "a component of several tokens"
    ALIKE = "single tokens that stand above and below the same parts, and are not compared with each other"
    CHAIN = "single tokens, each above the next"


@dataclass(frozen=True)
class Lettering:
    """How wide names are, in inches, and how long they may get.

    Args:
        letter, room, least: a name of n letters takes max(least, room + n · letter).
        max_letters: longer names are cut. max_ring_letters: a component of up to six names of this length shows its edges.
        widest: a row of boxes, and a line of names, is broken there.
    """

    letter: float
    room: float
    least: float
    max_letters: int
    max_ring_letters: int
    widest: float

    def width(self, name: str) -> float:
        """Inches of a name with the room around it; Chinese, Japanese and Korean letters count twice."""
        letters = sum(2 if east_asian_width(letter) in "WF" else 1 for letter in name)
        return max(self.least, self.room + self.letter * letters)

    def shortened(self, name: str) -> str:
        """The name as it is shown."""
        return name if len(name) <= self.max_letters else name[: self.max_letters - 1] + "…"


@dataclass(eq=False)
class Box:
    """One part of the picture, in inches, y downward: its tokens, its size and its middle.

    `places` (n_tokens, 2) are the middles of its names, relative to its own. `is_ring` says that they stand on a ring, with the edges
    among them shown; any other component of several tokens has a heading above its names.
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
    places: FloatArray = field(default_factory=lambda: np.zeros((0, 2)))

    @property
    def has_heading(self) -> bool:
        """Whether words stand above the names."""
        return self.kind is Kind.EQUAL and not self.is_ring

    @property
    def centres(self) -> FloatArray:
        """(n_tokens, 2) the middles of its names in the picture."""
        return self.places + np.array([self.x, self.y])

    @property
    def corner(self) -> tuple[float, float]:
        """Its left and upper end."""
        return self.x - 0.5 * self.width, self.y - 0.5 * self.height


@dataclass(eq=False)
class Layout:
    """Boxes with their places, and arrows as lists of points from the lower edge of a box to the upper edge of another."""

    width: float
    height: float
    boxes: list[Box]
    arrows: list[list[tuple[float, float]]]


def layered_layout(graph: PriorityGraph, names: Mapping[int, str], lettering: Lettering) -> Layout:
    """Place the boxes of a graph, the names in them and the arrows between them."""
    boxes, edges = _boxes(graph)
    for box in boxes:
        _place_names(box, [names[token] for token in box.tokens], lettering)
    rows = _rows(boxes, lettering.widest)
    routes = _routes(boxes, edges, rows)
    _order(rows, routes)
    left = min((box.x - 0.5 * box.width for row in rows for box in row), default=0.0)
    right = max((box.x + 0.5 * box.width for row in rows for box in row), default=0.0)
    top, floors = 0.0, []
    for row in rows:
        tallest = max(box.height for box in row)
        for box in row:
            box.x -= left
            box.height = box.height or tallest  # an arrow passes the whole row
            box.y = top + 0.5 * box.height
        floors.append(top + tallest)
        top += tallest + _ROW_GAP
    arrows = [_points(route, floors[route[0].row]) for route in routes]
    return Layout(right - left, top - _ROW_GAP, boxes, arrows)


def inner_edges(graph: PriorityGraph, tokens: Sequence[int]) -> IntArray:
    """(n, 2) the edges of a graph between these tokens."""
    return graph.edges[np.isin(graph.edges, np.asarray(tokens)).all(axis=1)]


# ---- which tokens share a box


def _boxes(graph: PriorityGraph) -> tuple[list[Box], set[tuple[int, int]]]:
    """The boxes, and the pairs of their indices between which an arrow goes."""
    order, levels = reduced_order(graph), component_levels(graph)
    parts = [part.tolist() for part in graph.components]
    groups: dict[bytes | int, list[int]] = defaultdict(list)  # single tokens with the same neighbours
    for part, members in enumerate(parts):
        groups[order[part].tobytes() + order[:, part].tobytes() if len(members) == 1 else part].append(part)
    shared: list[list[int]] = []
    for group in groups.values():
        shared += [group] if len(group) >= MIN_ALIKE else [[part] for part in group]
    boxes: list[Box] = []
    owner: dict[int, int] = {}
    for group in sorted(shared):
        kind = Kind.EQUAL if len(parts[group[0]]) > 1 else Kind.SINGLE if len(group) == 1 else Kind.ALIKE
        owner |= dict.fromkeys(group, len(boxes))
        boxes.append(Box(kind, [token for part in group for token in parts[part]], int(levels[group[0]])))
    return _chained(boxes, {(owner[i], owner[j]) for i, j in np.argwhere(order).tolist()})


def _chained(boxes: list[Box], edges: set[tuple[int, int]]) -> tuple[list[Box], set[tuple[int, int]]]:
    """The same with long runs of single tokens, each the only neighbour of the next, in one box."""
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


# ---- names inside a box


def _place_names(box: Box, names: Sequence[str], lettering: Lettering) -> None:
    """Set the size of a box and the places of its names."""
    longest = max(map(len, names))
    box.is_ring = box.kind is Kind.EQUAL and len(names) in _RINGS and longest <= lettering.max_ring_letters
    widths = np.array([lettering.width(name) for name in names])
    if box.is_ring:
        box.places = _ring(len(names), widths.max())
        wide, high = np.ptp(box.places, axis=0)
        box.width, box.height = wide + widths.max() + 2.0 * _RING_PADDING, high + LINE + 2.0 * _RING_PADDING
        return
    sign = CHAIN_SIGN if box.kind is Kind.CHAIN else 0.0
    lines = _lines(widths + sign, lettering.widest - 2.0 * PADDING)
    heading = HEADING if box.has_heading else 0.0
    box.width = max(float(np.sum(widths[line] + sign)) for line in lines) + 2.0 * PADDING
    box.height = LINE * len(lines) + heading + 2.0 * PADDING
    box.places = np.empty((len(names), 2))
    for k, line in enumerate(lines):
        ends = np.cumsum(widths[line] + sign)
        box.places[line, 0] = PADDING - 0.5 * box.width + ends - sign - 0.5 * widths[line]
        box.places[line, 1] = PADDING - 0.5 * box.height + heading + (k + 0.5) * LINE


def _lines(widths: FloatArray, room: float) -> list[list[int]]:
    """The indices of names, line by line, with lines of about the same length."""
    total = float(widths.sum())
    target = total / max(1, round(total / min(max(float(np.sqrt(_LIST_ASPECT * total * LINE)), *widths), room)))
    lines: list[list[int]] = [[]]
    passed = filled = 0.0
    for k, width in enumerate(widths.tolist()):
        if lines[-1] and (passed + 0.5 * width > target * len(lines) + _TIE or filled + width > room):
            lines.append([])
            filled = 0.0
        lines[-1].append(k)
        filled, passed = filled + width, passed + width
    return lines


def _ring(count: int, widest: float) -> FloatArray:
    """(count, 2) where the names of a small component stand around its middle: no two overlap."""
    radius, share = _RINGS[count]
    angle = np.pi * (1.0 if count == 2 else -0.5) + 2.0 * np.pi * np.arange(count) / count
    places = np.stack([max(radius, (widest + _RING_GAP) / share) * np.cos(angle), radius * np.sin(angle)], axis=1)
    return np.asarray(places - 0.5 * (places.min(axis=0) + places.max(axis=0)))


# ---- rows


def _rows(boxes: list[Box], widest: float) -> list[list[Box]]:
    """One row for each level, two or more where the boxes of a level are too wide together."""
    rows: list[list[Box]] = []
    for level in sorted({box.level for box in boxes}):
        filled = np.inf
        for box in (box for box in boxes if box.level == level):
            if filled + box.width > widest:
                rows.append([])
                filled = 0.0
            box.row, filled = len(rows) - 1, filled + box.width + _BOX_GAP
            rows[-1].append(box)
    return rows


def _routes(boxes: list[Box], edges: set[tuple[int, int]], rows: list[list[Box]]) -> list[list[Box]]:
    """The boxes that each arrow touches: its ends, and a narrow passage in every row between, which arrows from one box share."""
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
    links = {(upper, lower): None for route in routes for upper, lower in pairwise(route)}
    upper, lower = defaultdict(list), defaultdict(list)
    for high, low in links:
        upper[low].append(high)
        lower[high].append(low)
    _spread(rows)
    for sweep in range(_SWEEPS):
        near = lower if sweep % 2 else upper
        for row in reversed(rows) if sweep % 2 else rows:
            wanted = {box: float(np.mean([other.x for other in near[box] or [box]])) for box in row}
            row.sort(key=wanted.__getitem__)
        _spread(rows)


def _spread(rows: list[list[Box]]) -> None:
    for row in rows:
        widths = np.array([box.width for box in row])
        ends = np.cumsum(widths + _BOX_GAP) - _BOX_GAP
        for box, end in zip(row, ends.tolist(), strict=True):
            box.x = end - 0.5 * box.width - 0.5 * float(ends[-1])


def _points(route: list[Box], floor: float) -> list[tuple[float, float]]:
    """Down from the first box past the `floor` of its row, through the passages, to the last; ends as nearly in line as boxes allow."""
    first, last = route[0], route[-1]
    start = _towards(first, route[1].x)
    points = [(start, first.y + 0.5 * first.height)]
    if points[0][1] < floor:
        points.append((start, floor))
    for passage in route[1:-1]:
        points += [(passage.x, passage.y - 0.5 * passage.height), (passage.x, passage.y + 0.5 * passage.height)]
    return [*points, (_towards(last, points[-1][0]), last.y - 0.5 * last.height)]


def _towards(box: Box, x: float) -> float:
    """The point of a box's edge that is nearest to x, a little inside its corners."""
    reach = max(0.5 * box.width - 0.15, 0.0)
    return float(np.clip(x, box.x - reach, box.x + reach))
