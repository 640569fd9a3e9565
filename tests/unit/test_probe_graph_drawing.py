"""The drawing of a head's preferences: arrows lead downward, cycles are marked, and no two names overlap."""

import itertools

import numpy as np
import pytest

from marginlens.graphs import graphs_of_edges
from marginlens.probe.heads.preference_graph import MOST, NamedGraph, strongest_graph
from marginlens.probe.heads.preferences import head_preferences, visible_types
from marginlens.probe.pages.graph_drawing import graph_drawing

LETTER, HIGH = 7.3, 14.0  # pixels that a letter of the page's 12-pixel monospace takes, and the height of a name


def named(names, edges):
    head, tail = np.array(edges).T
    return NamedGraph(tuple(names), graphs_of_edges(np.zeros_like(head), head, tail, len(names))[0])


def places(drawing):
    return {name: (x, y) for x, y, name in drawing["names"]}


def overlapping(drawing):
    rooms = [(x, y, LETTER * len(name), name) for x, y, name in drawing["names"]]
    return [
        (a[3], b[3])
        for a, b in itertools.combinations(rooms, 2)
        if abs(a[0] - b[0]) < 0.5 * (a[2] + b[2]) and abs(a[1] - b[1]) < HIGH
    ]


def test_what_is_preferred_stands_above():
    drawing = graph_drawing(named("abcd", [(2, 0), (0, 1), (2, 1), (3, 1)]))
    at = places(drawing)
    assert at["c"][1] < at["a"][1] < at["b"][1]
    assert len(drawing["arrows"]) == 3  # c over b follows from the two others
    for points in drawing["arrows"]:
        assert points[-1] > points[1]
    assert drawing["turns"] == []
    assert {box[4] for box in drawing["boxes"]} == {"one"}


def test_cycles_are_boxes_of_their_own_with_what_leads_around_them():
    drawing = graph_drawing(named(["x", "y", "z", "below"], [(0, 1), (1, 2), (2, 0), (0, 3)]))
    (cycle,) = [box for box in drawing["boxes"] if box[4] == "cycle"]
    left, top, width, height, *_ = cycle
    for name in "xyz":
        x, y = places(drawing)[name]
        assert left < x < left + width
        assert top < y < top + height
    assert len(drawing["turns"]) == 3
    assert len(drawing["arrows"]) == 1


def test_many_tokens_below_the_same_one_share_a_box():
    drawing = graph_drawing(named(["[CLS]", *"abcdefghijk"], [(0, k) for k in range(1, 12)]))
    assert sorted(box[4] for box in drawing["boxes"]) == ["alike", "one"]
    assert len(drawing["arrows"]) == 1
    assert len(drawing["names"]) == 12


@pytest.mark.parametrize("seed", range(30))
def test_no_two_names_overlap_and_all_stand_inside(seed):
    rng = np.random.default_rng(seed)
    names = ["w" * length + str(k) for k, length in enumerate(rng.integers(1, 20, size=MOST).tolist())]
    edges = [
        (i, j) for i, j in itertools.permutations(range(MOST), 2) if rng.random() < 0.04 * (1 + seed % 5) or j == i + 1
    ][:: 1 + seed % 3]
    drawing = graph_drawing(named(names, edges))
    assert overlapping(drawing) == []
    width, height = drawing["size"]
    for x, y, name in drawing["names"]:
        assert 0.5 * LETTER * len(name) <= x <= width - 0.5 * LETTER * len(name)
        assert 0.5 * HIGH <= y <= height - 0.5 * HIGH
        assert len(name) <= 16
    boxes = drawing["boxes"]
    for (a, b, w, h, *_), (c, d, v, g, *_) in itertools.combinations(boxes, 2):
        assert a + w <= c or c + v <= a or b + h <= d or d + g <= b


def test_the_graph_has_the_tokens_of_the_strongest_preferences():
    ids = [np.arange(30), np.arange(30)]
    chosen = [np.full(30, 4), np.full(30, 4)]  # all queries select token 4
    found = head_preferences(visible_types(ids), chosen)
    rows = found.strongest(40)
    graph = strongest_graph(found, rows, {k: f"t{k}" for k in range(30)})
    assert len(graph.names) == MOST
    assert graph.names[4] == "t4"
    assert graph.told()["edges"] == [[4, k, 60] for k in range(MOST) if k != 4]
    assert repr(graph) == "NamedGraph(12 tokens, 11 preferences)"
    assert strongest_graph(found, (), {}) is None
