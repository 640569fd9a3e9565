"""Why a cyclic correction may be infinite: an order inside components along which the risk falls for ever."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from marginlens.data.tokens import FloatArray, IntArray
from marginlens.graphs.cyclic import pseudo_graphs
from marginlens.graphs.priority import PriorityGraph
from marginlens.graphs.subspace import cyclic_subspace
from marginlens.nexttoken.correction_landscape import Landscape
from marginlens.svm.graph import graph_svm
from marginlens.svm.solution import Status

_FADED = (
    1e-6,
    1e-4,
    1e-3,
)  # attention below this at a point that runs away belongs to tokens left behind: each is tried
_HEIGHTS = (7.0, 8.0, 9.0, 10.0, 11.0, 12.0)  # logit gaps at which the slope along the direction is looked at
_BEYOND = 60.0  # a gap at which e^-gap is below rounding: the risk there is its limit
_NOISE = 1e-9  # how much above the lowest risk found the limit may be: what is left at a gradient of 1e-11
_NAMED = 8  # tokens that a sentence lists


@dataclass(frozen=True)
class Runaway:
    """A proof, in numbers, that the risk has no finite minimum where it was followed.

    Attributes:
        direction: (d_model, d_model) a matrix in S_cyc that puts each token kept at least one above each left behind.
        base: (d_model, d_model) the finite part: base + R direction is a minimising sequence. limit: the risk that it falls to.
        sentence: which last token, component and tokens.
    """

    direction: FloatArray
    base: FloatArray
    limit: float
    sentence: str


def runaway(landscape: Landscape, W: FloatArray) -> Runaway | None:
    """The order that the point W has run towards, certified; None where it proves nothing.

    Tokens whose attention has faded at W are put strictly below those that keep it: the Graph-SVM of that selection gives a direction,
    or else what W itself has outside the ties of that selection. It counts when the risk falls along it at every height looked at, down
    to no more than the lowest risk found.
    """
    found = [one for one in (_certified(landscape, W, faded) for faded in _FADED) if one is not None]
    return min(found, key=lambda one: one.limit, default=None)


def _certified(landscape: Landscape, W: FloatArray, faded: float) -> Runaway | None:
    """The certificate in which attention below `faded` counts as none."""
    space = landscape.space
    attention = landscape.subset.attention(W)
    if (
        attention.min() > faded
        or np.minimum.reduce(np.maximum.reduceat(attention, landscape.subset.offsets[:-1])) <= faded
    ):
        return None
    graphs = pseudo_graphs(landscape.subset, W, faded)
    base = cyclic_subspace(space.E, graphs).project(W)
    pairs = [(int(k), int(i), int(j)) for k, graph in graphs.items() for i, j in graph.strict]
    if not pairs:
        return None
    k, i, j = np.array(pairs).T
    gaps = np.sum((space.E[i] - space.E[j]) @ (W - base) * space.E[k], axis=1)
    candidates = [(W - base) / gaps.min()] if gaps.min() > 0.0 else []
    if landscape.small:
        solution = graph_svm(space.E, graphs)
        candidates = [np.asarray(solution.x)] * (solution.status is Status.OPTIMAL) + candidates
    lowest = landscape.at(space.cells(W)).value
    for direction in candidates:
        limit = _limit(landscape, base, direction, lowest)
        if limit is not None:
            return Runaway(direction, base, limit, _sentence(landscape, graphs, limit))
    return None


def _limit(landscape: Landscape, base: FloatArray, direction: FloatArray, lowest: float) -> float | None:
    """What the risk falls to along base + R direction, if it falls at every height looked at and to no more than `lowest`."""
    space = landscape.space
    towards, finite = space.cells(direction), space.cells(base)
    points = [landscape.at(finite + height * towards) for height in _HEIGHTS]
    slopes = np.array([float(landscape.slope(point) @ towards) for point in points])
    limit = landscape.at(finite + _BEYOND * towards).value
    falls = bool((slopes < 0.0).all()) and all(a.value > b.value for a, b in pairwise(points))
    return limit if falls and limit <= lowest + _NOISE * max(1.0, abs(lowest)) else None


def _sentence(landscape: Landscape, graphs: dict[int, PriorityGraph], limit: float) -> str:
    """Which component comes apart, and how."""
    space, found = landscape.space, []
    for block in landscape.blocks:
        last, members = int(space.queries[space.columns[block.start]]), space.tokens[block]
        ranks = graphs[last].components_of(members)
        if np.ptp(ranks) > 0:
            found.append((last, [members[ranks == rank] for rank in np.unique(ranks)]))
    last, levels = found[0]
    whole, order = _listed(np.sort(np.concatenate(levels))), " above ".join(_listed(level) for level in levels[:4])
    more = f", and {len(found) - 1} more components come apart" if len(found) > 1 else ""
    falls = f"the risk falls towards {limit:.6g} and reaches it nowhere"
    return f"With last token {last} the component {whole} is separated, {order}{more}: {falls}."


def _listed(tokens: IntArray) -> str:
    return "{" + ", ".join(map(str, tokens[:_NAMED].tolist())) + (", …}" if len(tokens) > _NAMED else "}")
