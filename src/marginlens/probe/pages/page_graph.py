"""Where everything stands in the drawing of a head's preferences: boxes, names and arrows in pixels, for the page's script."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from unicodedata import east_asian_width

import numpy as np

from marginlens.data.tokens import FloatArray
from marginlens.graphs.layout import Box, Kind, inner_edges, layout
from marginlens.probe.heads.preference_graph import NamedGraph

_INCH = 80.0  # pixels of an inch of the layout
_WIDEST = 500.0  # pixels of a row of boxes
_LETTER, _LINE, _PAD = 7.5, 22.0, 8.0  # pixels of a letter, of a line, and around names
_LETTERS = 16  # of a name that the drawing shows
_EDGE = 4.0  # pixels around the whole
_HEAD = 18.0  # pixels that the word on a cycle takes
_SHAPES = {  # of a cycle that is small enough to show its preferences: distance of names side by side over the radius, and the radius
    3: (1.73, 34.0),
    4: (1.0, 48.0),
    5: (1.17, 60.0),
    6: (1.73, 72.0),
}


@dataclass(eq=False)
class _Drawing:
    """What is drawn, in the order of the page: boxes, arrows, arrows inside cycles, names."""

    boxes: list[list[Any]] = field(default_factory=list)
    arrows: list[list[int]] = field(default_factory=list)
    turns: list[list[int]] = field(default_factory=list)
    names: list[list[Any]] = field(default_factory=list)


def graph_drawing(named: NamedGraph) -> dict[str, Any]:
    """The drawing as plain values.

    Returns:
        size: width and height. boxes: left, top, width, height and kind, which is one, cycle, alike or chain. arrows, turns: points
        x, y, x, y, …; turns are those inside a cycle. names: x and y of the middle, and the text.
    """
    pen = _Pen(named)
    placed = layout(named.graph, pen.measure, _WIDEST / _INCH)
    drawing = _Drawing()
    for points in placed.arrows:
        drawing.arrows.append([round(_INCH * one + _EDGE) for point in points for one in point])
    for box in placed.boxes:
        pen.draw(box, drawing)
    size = [round(_INCH * one + 2.0 * _EDGE) for one in (placed.width, placed.height)]
    return {"size": size, **vars(drawing)}


class _Pen:
    """Names of the tokens as they are shown, and the sizes that follow from them."""

    def __init__(self, named: NamedGraph) -> None:
        self.graph = named.graph
        self.names = [_short(one) for one in named.names]

    def width(self, token: int) -> float:
        """Pixels of a name with the room around it."""
        wide = sum(2 if east_asian_width(letter) in "WF" else 1 for letter in self.names[token])
        return _LETTER * wide + 2.0 * _PAD

    def measure(self, box: Box) -> tuple[float, float]:
        """Width and height of a box, in inches."""
        if self.is_round(box):
            places = self.corners(box)
            wide = float(np.ptp(places[:, 0])) + max(map(self.width, box.tokens))
            high = float(np.ptp(places[:, 1])) + _LINE + _HEAD
        else:
            lines = self.lines(box)
            wide = max(sum(map(self.width, line)) + self.signs(box) * len(line) for line in lines)
            high = _LINE * len(lines) + (_HEAD if box.kind is Kind.EQUAL else 0.0)
        return (max(wide, 64.0 if box.kind is Kind.EQUAL else 0.0) + 2.0) / _INCH, (high + 4.0) / _INCH

    def signs(self, box: Box) -> float:
        """Pixels after a name for the sign of a chain."""
        return 10.0 if box.kind is Kind.CHAIN else 0.0

    def is_round(self, box: Box) -> bool:
        """Whether a cycle is small enough to show what is preferred over what inside it."""
        return box.kind is Kind.EQUAL and len(box.tokens) in _SHAPES

    def corners(self, box: Box) -> FloatArray:
        """(n_tokens, 2) where the names of a small cycle stand around its middle, in pixels: no two overlap."""
        count = len(box.tokens)
        share, high = _SHAPES[count]
        wide = (max(map(self.width, box.tokens)) + 30.0) / share
        turn = -0.5 * np.pi + 2.0 * np.pi * np.arange(count) / count
        places = np.stack([wide * np.cos(turn), high * np.sin(turn)], axis=1)
        return places - 0.5 * (places.min(axis=0) + places.max(axis=0))

    def lines(self, box: Box) -> list[list[int]]:
        """The tokens of a box, in lines of about the same length, three times as wide as high."""
        total = sum(map(self.width, box.tokens))
        room = min(max(np.sqrt(3.0 * _LINE * total), *map(self.width, box.tokens)) * 1.1, _WIDEST)
        lines: list[list[int]] = [[]]
        filled = 0.0
        for token in box.tokens:
            if lines[-1] and filled + self.width(token) > room:
                lines.append([])
                filled = 0.0
            lines[-1].append(token)
            filled += self.width(token) + self.signs(box)
        return lines

    def draw(self, box: Box, drawing: _Drawing) -> None:
        """One box with its names."""
        kinds = {Kind.SINGLE: "one", Kind.EQUAL: "cycle", Kind.ALIKE: "alike", Kind.CHAIN: "chain"}
        left, top = (_INCH * (at - 0.5 * size) + _EDGE for at, size in ((box.x, box.width), (box.y, box.height)))
        sizes = [round(_INCH * one) for one in (box.width, box.height)]
        drawing.boxes.append([round(left), round(top), *sizes, kinds[box.kind]])
        top += 2.0 + (_HEAD if box.kind is Kind.EQUAL else 0.0)
        middle = _INCH * box.x + _EDGE
        if self.is_round(box):
            self._round(box, middle, top, drawing)
            return
        for row, line in enumerate(self.lines(box)):
            at = middle - 0.5 * (sum(map(self.width, line)) + self.signs(box) * len(line))
            for token in line:
                y = round(top + (row + 0.5) * _LINE)
                drawing.names.append([round(at + 0.5 * self.width(token)), y, self.names[token]])
                at += self.width(token)
                if box.kind is Kind.CHAIN and token != box.tokens[-1]:
                    drawing.names.append([round(at + 0.5 * self.signs(box)), y, "›"])
                at += self.signs(box)

    def _round(self, box: Box, middle: float, top: float, drawing: _Drawing) -> None:
        places = self.corners(box)
        places += np.array([middle, top + 0.5 * _LINE - places[:, 1].min()])
        where = dict(zip(box.tokens, places, strict=True))
        for i, j in inner_edges(self.graph, box.tokens).tolist():
            ends = self._outside(where[i], where[j], i), self._outside(where[j], where[i], j)
            drawing.turns.append([round(float(one)) for end in ends for one in end])
        for token, (x, y) in where.items():
            drawing.names.append([round(float(x)), round(float(y)), self.names[token]])

    def _outside(self, place: FloatArray, other: FloatArray, token: int) -> FloatArray:
        """Where the line from a name to another one leaves the room of the name."""
        step = other - place
        half = np.array([0.5 * self.width(token) - 0.5 * _PAD, 0.5 * _LINE])
        with np.errstate(divide="ignore"):
            return np.asarray(place + step * min(float(np.min(half / np.abs(step))), 0.45))


def _short(name: str) -> str:
    return name if len(name) <= _LETTERS else name[: _LETTERS - 1] + "…"
