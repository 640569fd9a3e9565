"""The picture of priority graphs: every token once, boxes apart, priority downward, nothing written over something else."""

from __future__ import annotations

from itertools import combinations, pairwise

import networkx as nx
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import FancyBboxPatch

from marginlens.data.paper_examples import figure_2
from marginlens.data.sequence_generators import acyclic_sequences, cyclic_sequences, ordered_sequences
from marginlens.data.text_windows import text_windows
from marginlens.graphs import graphs_of_edges, priority_graphs
from marginlens.graphs.export import to_networkx
from marginlens.graphs.picture import Kind, Lettering, layered_layout
from marginlens.graphs.priority import reduced_order
from marginlens.plotting.graphs import draw_graphs
from tolerances import ROUNDING

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def star(n):
    """One token above n others, for the last token 0."""
    return graphs_of_edges(np.zeros(n, dtype=int), np.zeros(n, dtype=int), np.arange(1, n + 1), n + 1)[0]


def cycle_above(n_tied, n_lower):
    """Tokens in a cycle, all of them above others, for the last token 0."""
    ring = np.arange(n_tied)
    heads = np.concatenate([ring, np.zeros(n_lower, dtype=int)])
    tails = np.concatenate([np.roll(ring, -1), np.arange(n_tied, n_tied + n_lower)])
    return graphs_of_edges(np.zeros(len(heads), dtype=int), heads, tails, n_tied + n_lower)[0]


def some_graphs():
    yield from priority_graphs(figure_2()).values()
    yield from priority_graphs(cyclic_sequences(8, 3, 16, 4, 0)).values()
    yield from priority_graphs(acyclic_sequences(12, 3, 60, 4, 1)).values()
    yield priority_graphs(acyclic_sequences(65, 3, 2000, 6, 2))[0]
    yield priority_graphs(cyclic_sequences(65, 3, 3000, 6, 3))[0]
    yield priority_graphs(ordered_sequences(np.arange(26), 3, 20_000, 4, 4))[25]
    yield star(64)


def placed(graph):
    lettering = Lettering(0.12, 0.1, 0.3, max_letters=8, max_ring_letters=4, max_width=5.0)
    return layered_layout(graph, {token: str(token) for token in graph.nodes.tolist()}, lettering)


def test_reduction_is_the_transitively_reduced_condensation():
    for graph in some_graphs():
        condensed = nx.condensation(to_networkx(graph))
        number = {part: graph.component(min(condensed.nodes[part]["members"])) for part in condensed}
        theirs = {(number[i], number[j]) for i, j in nx.transitive_reduction(condensed).edges}
        assert {tuple(pair) for pair in np.argwhere(reduced_order(graph)).tolist()} == theirs


def test_tokens_are_boxed_by_priority_with_arrows_down():
    for graph in some_graphs():
        made = placed(graph)
        assert sorted(token for box in made.boxes for token in box.tokens) == graph.nodes.tolist()
        for one, two in combinations(made.boxes, 2):
            across = abs(one.x - two.x) >= 0.5 * (one.width + two.width) + 0.05
            along = abs(one.y - two.y) >= 0.5 * (one.height + two.height) + 0.05
            assert across or along
        for box in made.boxes:
            assert box.x - 0.5 * box.width >= -ROUNDING
            assert box.x + 0.5 * box.width <= made.width + ROUNDING
            assert box.y - 0.5 * box.height >= -ROUNDING
            assert box.y + 0.5 * box.height <= made.height + ROUNDING
        box_of = {token: box for box in made.boxes for token in box.tokens}
        for i, j in graph.strict.tolist():
            upper, lower = box_of[i], box_of[j]
            if upper is lower:
                assert upper.kind is Kind.CHAIN
                assert upper.tokens.index(i) < upper.tokens.index(j)
            else:
                assert upper.y + 0.5 * upper.height < lower.y - 0.5 * lower.height
        for points in made.arrows:
            line = np.concatenate([np.linspace(a, b, 40) for a, b in pairwise(points)])
            assert np.all(np.diff(line[:, 1]) >= 0.0)
            for box in made.boxes:
                beside = np.abs(line - (box.x, box.y)) >= 0.5 * np.array([box.width, box.height]) - ROUNDING
                assert beside.any(axis=1).all()


def test_many_single_tokens_share_a_box_and_chains_are_grouped():
    kinds = [(box.kind, len(box.tokens)) for box in placed(star(64)).boxes]
    assert kinds == [(Kind.SINGLE, 1), (Kind.ALIKE, 64)]
    chain = placed(priority_graphs(ordered_sequences(np.arange(8), 3, 20_000, 4, 0))[7])
    assert any(box.kind is Kind.CHAIN and box.tokens == sorted(box.tokens) for box in chain.boxes)
    assert [len(placed(star(n)).boxes) for n in (4, 5)] == [5, 2]


def drawn(graphs, names=None):
    fig = draw_graphs(graphs, names)
    FigureCanvasAgg(fig).draw()
    return fig


def test_a_panel_for_every_graph_with_its_last_token():
    fig = drawn(priority_graphs(figure_2()), ["e1", "e2", "e3", "e4"])
    assert len(fig.axes) == 2
    assert {text.get_text() for text in fig.texts} >= {"Last token e1", "Last token e2", "4 tokens, 2 components"}
    for ax in fig.axes:
        assert sorted(text.get_text() for text in ax.texts) == ["e1", "e2", "e3", "e4"]
    assert len(placed(priority_graphs(figure_2())[1]).inner_arrows) == 5


@pytest.mark.parametrize(
    ("graphs", "names"),
    [
        (lambda: [star(64)], [*ALPHABET, *ALPHABET.upper(), *"0123456789!$&"]),
        (lambda: list(priority_graphs(figure_2()).values()), ["long-name-of-it", "to", "question", "of"]),
        (lambda: [priority_graphs(ordered_sequences(np.arange(26), 3, 20_000, 4, 4))[25]], ALPHABET),
        (lambda: [priority_graphs(cyclic_sequences(65, 3, 3000, 6, 3))[0]], None),
        (lambda: [cycle_above(24, 35)], [*ALPHABET, *ALPHABET.upper(), *"0123456"]),
        (lambda: list(priority_graphs(text_windows("to be or not to be " * 3, 5).data).values())[:3], None),
    ],
)
def test_texts_do_not_overlap_or_leave_the_figure(graphs, names):
    fig = drawn(graphs(), names)
    renderer = fig.canvas.get_renderer()
    texts = [text for ax in fig.axes for text in ax.texts] + list(fig.texts) + list(fig.legends[0].get_texts())
    places = [text.get_window_extent(renderer) for text in texts if text.get_text() not in ("-", "")]
    width, height = fig.get_size_inches() * fig.dpi
    for place in places:
        assert place.x0 >= 0.0
        assert place.x1 <= width
        assert place.y0 >= 0.0
        assert place.y1 <= height
    left, right, low, high = np.array([[place.x0, place.x1, place.y0, place.y1] for place in places]).T
    clash = (left[:, None] < right - 1.0) & (left < right[:, None] - 1.0)
    clash &= (low[:, None] < high - 2.0) & (low < high[:, None] - 2.0)
    assert clash.sum() == len(places)  # each with itself
    legend = fig.legends[0].get_window_extent(renderer)
    for ax in fig.axes:
        for patch in ax.patches:
            assert patch.get_window_extent(renderer).y0 >= legend.y1 or not isinstance(patch, FancyBboxPatch)


@pytest.mark.parametrize("seed", [11, 12])
def test_a_graph_of_many_components_is_drawn_as_a_graph_with_every_token(seed):
    rng = np.random.default_rng(seed)
    heads = np.arange(1, 40)
    graph = graphs_of_edges(np.zeros_like(heads), heads, heads + rng.integers(1, 6, len(heads)), 100)[0]
    assert graph.n_components > 30
    ax = graph.plot(names=[f"w{token}" for token in range(100)])
    assert {text.get_text() for text in ax.texts} - {"›"} == {f"w{token}" for token in graph.nodes}
    assert any(isinstance(patch, FancyBboxPatch) for patch in ax.patches)
