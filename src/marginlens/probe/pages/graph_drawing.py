"""A head's preferences as the page's script draws them: the layout of their graph in pixels."""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.data.tokens import FloatArray
from marginlens.plotting.graph_layout import CHAIN_SIGN, LINE, Box, Kind, Lettering, inner_edges, layered_layout
from marginlens.probe.heads.preference_graph import NamedGraph

_INCH = 70.0  # pixels of an inch of the layout
_FRAME = 4.0  # pixels around the whole
_LETTERING = Lettering(7.5 / _INCH, 16.0 / _INCH, 0.0, max_letters=16, max_ring_letters=16, widest=500.0 / _INCH)
_KINDS = {Kind.SINGLE: "one", Kind.EQUAL: "cycle", Kind.ALIKE: "alike", Kind.CHAIN: "chain"}


def graph_drawing(named: NamedGraph) -> dict[str, Any]:
    """The drawing as plain values, in pixels.

    Returns:
        size: width and height. boxes: left, top, width, height, kind (one, cycle, alike or chain) and whether words stand above its
        names. arrows, turns: points x, y, x, y, …; turns are those inside a cycle. names: x and y of the middle, and the text.
    """
    names = {token: _LETTERING.shortened(name) for token, name in enumerate(named.names)}
    placed = layered_layout(named.graph, names, _LETTERING)
    boxes, turns, signs = [], [], []
    for box in placed.boxes:
        boxes.append([*_pixels(box.corner), *_pixels((box.width, box.height), 0.0), _KINDS[box.kind], box.has_heading])
        centres = dict(zip(box.tokens, box.centres, strict=True))
        if box.is_ring:
            for i, j in inner_edges(named.graph, box.tokens).tolist():
                ends = _outside(centres[i], centres[j], names[i]), _outside(centres[j], centres[i], names[j])
                turns.append(_pixels(np.concatenate(ends)))
        signs += [[*_pixels(centres[token]), names[token]] for token in box.tokens]
        signs += [[*_pixels(place), "›"] for place in _chain_signs(box, centres, names)]
    return {
        "size": _pixels((placed.width, placed.height), 2.0 * _FRAME),
        "boxes": boxes,
        "arrows": [_pixels(np.ravel(points)) for points in placed.arrows],
        "turns": turns,
        "names": signs,
    }


def _pixels(inches: Any, offset: float = _FRAME) -> list[int]:
    return [round(_INCH * float(number) + offset) for number in inches]


def _chain_signs(box: Box, centres: dict[int, FloatArray], names: dict[int, str]) -> list[tuple[float, float]]:
    """Where the signs between the names of a chain stand."""
    before = box.tokens[:-1] if box.kind is Kind.CHAIN else []
    widths = [_LETTERING.width(names[token]) for token in before]
    return [
        (centres[token][0] + 0.5 * (width + CHAIN_SIGN), centres[token][1])
        for token, width in zip(before, widths, strict=True)
    ]


def _outside(centre: FloatArray, other: FloatArray, name: str) -> FloatArray:
    """Where the line from the middle of a name to that of another one leaves the room of the name."""
    step = other - centre
    half = np.array([0.5 * (_LETTERING.width(name) - 0.5 * _LETTERING.room), 0.5 * LINE])
    with np.errstate(divide="ignore"):
        return np.asarray(centre + step * min(float(np.min(half / np.abs(step))), 0.45))
