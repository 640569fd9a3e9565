"""Where the parts of a priority graph stand in its picture: components from high to low priority, one row for each level."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from marginlens.data.tokens import BoolArray, IntArray
from marginlens.graphs.order import reduced_order
from marginlens.graphs.priority import PriorityGraph

_ALIKE = 5  # so many single tokens above and below the same parts share a box
_LONG = 3  # so many single tokens one below the other share a box
_SWEEPS = 8  # rounds of ordering a row by its neighbours


class Kind(Enum):
    """What a box of the picture holds."""

    SINGLE = "one token"
    EQUAL = "a component of several tokens"
    ALIKE = "single tokens that stand above and below the same parts, and are not compared with each other"
    CHAIN = "single tokens, each above the next"


@dataclass(eq=False)
class Box:
    """One part of the picture: its tokens, its size and where it stands, all in inches, y downward."""

    kind: Kind
    tokens: list[int]
    width: float = 0.0
    height: float = 0.0
    x: float = 0.0
    y: float = 0.0
    row: int = 0


@dataclass(eq=False)
class Layout:
    """Boxes with their places, and arrows as lists of points from the lower edge of a box to the upper edge of another."""

    width: float
    height: float
    boxes: list[Box] = field(default_factory=list)
    arrows: list[list[tuple[float, float]]] = field(default_factory=list)


def layout(graph: PriorityGraph, measure: Callable[[Box], tuple[float, float]], widest: float) -> Layout:
    """Place the boxes of a graph.

    Args:
        measure: the width and height of a box, in inches. widest: inches at which a row is broken into two.
    """
    boxes, edges = _boxes(graph)
    for box in boxes:
        box.width, box.height = measure(box)
    _set_rows(boxes, edges, widest)
    way = _Ways(boxes, edges)
    way.order()
    return way.place()


# ---- boxes


def _boxes(graph: PriorityGraph) -> tuple[list[Box], set[tuple[int, int]]]:
    """The boxes, and the pairs of their indices between which an arrow goes."""
    order = reduced_order(graph)
    parts = [part.tolist() for part in graph.components]
    owner = _alike(parts, order)
    groups = defaultdict(list)
    for part, box in enumerate(owner):
        groups[box].append(part)
    boxes = [
        Box(
            Kind.EQUAL if len(parts[members[0]]) > 1 else Kind.SINGLE if len(members) == 1 else Kind.ALIKE,
            [token for part in members for token in parts[part]],
        )
        for members in groups.values()
    ]
    place = {box: k for k, box in enumerate(groups)}
    edges = {(place[owner[i]], place[owner[j]]) for i, j in np.argwhere(order).tolist()}
    return _chained(boxes, edges)


def _alike(parts: Sequence[list[int]], order: BoolArray) -> list[int]:
    """The first component of each component's box: its own, or that of the single tokens it shares all neighbours with."""
    signatures = defaultdict(list)
    for part, members in enumerate(parts):
        if len(members) == 1:
            signatures[order[part].tobytes() + order[:, part].tobytes()].append(part)
    owner = list(range(len(parts)))
    for alike in signatures.values():
        if len(alike) >= _ALIKE:
            for part in alike:
                owner[part] = alike[0]
    return owner


def _chained(boxes: list[Box], edges: set[tuple[int, int]]) -> tuple[list[Box], set[tuple[int, int]]]:
    """The same with long runs of single tokens, each the only neighbour of the next, in one box."""
    above, below = defaultdict(list), defaultdict(list)
    for i, j in edges:
        above[j].append(i)
        below[i].append(j)
    single = [box.kind is Kind.SINGLE for box in boxes]

    def next_of(i: int) -> int | None:
        if single[i] and len(below[i]) == 1 and single[below[i][0]] and len(above[below[i][0]]) == 1:
            return below[i][0]
        return None

    followers = {next_of(i) for i in range(len(boxes))}
    owner = list(range(len(boxes)))
    for i in range(len(boxes)):
        if i in followers:
            continue
        run = [i]
        while (following := next_of(run[-1])) is not None:
            run.append(following)
        if len(run) >= _LONG and len(boxes) > _LONG + 1:
            boxes[i] = Box(Kind.CHAIN, [boxes[k].tokens[0] for k in run])
            for k in run:
                owner[k] = i
    kept = sorted(set(owner))
    place = {box: k for k, box in enumerate(kept)}
    merged = {(place[owner[i]], place[owner[j]]) for i, j in edges if owner[i] != owner[j]}
    return [boxes[k] for k in kept], merged


def _set_rows(boxes: list[Box], edges: set[tuple[int, int]], widest: float) -> None:
    """Give each box a row: the longest chain above it, with levels that are too wide broken into several rows."""
    below = defaultdict(list)
    waiting = np.zeros(len(boxes), dtype=np.int64)
    for i, j in edges:
        below[i].append(j)
        waiting[j] += 1
    level = np.zeros(len(boxes), dtype=np.int64)
    ready = [k for k in range(len(boxes)) if waiting[k] == 0]
    while ready:
        i = ready.pop()
        for j in below[i]:
            level[j] = max(level[j], level[i] + 1)
            waiting[j] -= 1
            if waiting[j] == 0:
                ready.append(j)
    row = -1
    for depth in range(int(level.max(initial=0)) + 1):
        filled = np.inf
        for box in (boxes[k] for k in np.flatnonzero(level == depth)):
            if filled + box.width > widest:
                row, filled = row + 1, 0.0
            box.row, filled = row, filled + box.width + Space.BETWEEN


# ---- places


class Space:
    """Distances of the picture, in inches."""

    BETWEEN = 0.22  # boxes of a row
    ROWS = 0.55  # rows
    WAY = 0.12  # what an arrow takes of a row that it passes


class _Ways:
    """Boxes in rows, with a narrow place in every row that an arrow passes; arrows from one box share it."""

    def __init__(self, boxes: list[Box], edges: set[tuple[int, int]]) -> None:
        self.boxes = boxes
        self.rows: list[list[Box]] = [[] for _ in range(max((box.row for box in boxes), default=0) + 1)]
        for box in boxes:
            self.rows[box.row].append(box)
        self.links: list[tuple[Box, Box]] = []
        self.routes: list[list[Box]] = []
        passing: dict[tuple[int, int], Box] = {}
        for i, j in sorted(edges):
            route = [boxes[i]]
            for row in range(boxes[i].row + 1, boxes[j].row):
                if (i, row) not in passing:
                    passing[i, row] = Box(Kind.SINGLE, [], width=Space.WAY, row=row)
                    self.rows[row].append(passing[i, row])
                    self.links.append((route[-1], passing[i, row]))
                route.append(passing[i, row])
            self.links.append((route[-1], boxes[j]))
            self.routes.append([*route, boxes[j]])

    def order(self) -> None:
        """Order every row by the mean place of what it is linked to, down and up in turn."""
        near: tuple[dict[Box, list[Box]], dict[Box, list[Box]]] = (defaultdict(list), defaultdict(list))
        for upper, lower in self.links:
            near[0][lower].append(upper)
            near[1][upper].append(lower)
        self._spread()
        for sweep in range(_SWEEPS):
            for row in self.rows if sweep % 2 == 0 else reversed(self.rows):
                wanted = {
                    box: float(np.mean([one.x for one in near[sweep % 2][box]])) if near[sweep % 2][box] else box.x
                    for box in row
                }
                row.sort(key=lambda box, wanted=wanted: wanted[box])  # type: ignore[misc]
            self._spread()

    def _spread(self) -> None:
        """Put the boxes of every row side by side, around a common middle."""
        for row in self.rows:
            total = sum(box.width for box in row) + Space.BETWEEN * (len(row) - 1)
            left = -0.5 * total
            for box in row:
                box.x = left + 0.5 * box.width
                left += box.width + Space.BETWEEN

    def place(self) -> Layout:
        """Heights of the rows, and the points of every arrow."""
        left = min((box.x - 0.5 * box.width for row in self.rows for box in row), default=0.0)
        right = max((box.x + 0.5 * box.width for row in self.rows for box in row), default=0.0)
        top, floors = 0.0, []
        for row in self.rows:
            tallest = max((box.height for box in row), default=0.0)
            for box in row:
                box.x -= left
                box.height = box.height or tallest  # a way passes the whole row
                box.y = top + 0.5 * box.height
            floors.append(top + tallest)
            top += tallest + Space.ROWS
        arrows = [_points(route, floors[route[0].row]) for route in self.routes]
        return Layout(right - left, top - Space.ROWS, self.boxes, arrows)


def _points(route: list[Box], floor: float) -> list[tuple[float, float]]:
    """Down from the first box past the `floor` of its row, through the ways, to the last; ends as nearly in line as boxes allow."""
    first, last = route[0], route[-1]
    start = _towards(first, route[1].x)
    points = [(start, first.y + 0.5 * first.height)]
    if points[0][1] < floor:
        points.append((start, floor))
    for way in route[1:-1]:
        points += [(way.x, way.y - 0.5 * way.height), (way.x, way.y + 0.5 * way.height)]
    return [*points, (_towards(last, points[-1][0]), last.y - 0.5 * last.height)]


def _towards(box: Box, x: float) -> float:
    room = max(0.5 * box.width - 0.15, 0.0)
    return float(np.clip(x, box.x - room, box.x + room))


def inner_edges(graph: PriorityGraph, tokens: Sequence[int]) -> IntArray:
    """(n, 2) the edges of a graph between these tokens."""
    return graph.edges[np.isin(graph.edges, np.asarray(tokens)).all(axis=1)]
