"""The brute force of claim C-G agrees with the library, and notices when the library is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from marginlens.data.paper_examples import figure_2
from marginlens.graphs import priority_graphs
from marginlens_papers.claims.c import text_graphs as c_g


def test_the_library_and_brute_force_agree_on_figure_2():
    assert not any(c_g.compare(figure_2()).values())
    assert c_g.figure_2_missed() == 0
    graph = c_g.brute_graphs(figure_2())[1]
    assert graph.nodes == {0, 1, 2, 3}
    assert graph.reach()[0].all()
    assert graph.reach()[3].tolist() == [False, False, False, True]


def without_an_edge(graph):
    return replace(graph, edges=graph.edges[1:], counts=graph.counts[1:])


def all_apart(graph):
    return replace(graph, component_of=np.arange(len(graph.nodes)))


def upside_down(graph):
    return replace(graph, component_of=graph.n_components - 1 - graph.component_of)


@pytest.mark.parametrize(
    ("fault", "noticed"),
    [
        (without_an_edge, {"wrong_edges"}),
        (
            all_apart,
            {"wrong_components", "wrong_strict_pairs", "wrong_equal_pairs", "wrong_token_sets", "wrong_subsets"},
        ),
        (upside_down, {"wrong_numberings"}),
    ],
)
def test_faults_are_noticed(monkeypatch, fault, noticed):
    monkeypatch.setattr(
        c_g, "priority_graphs", lambda ds: {k: fault(graph) for k, graph in priority_graphs(ds).items()}
    )
    wrong = {name for name, count in c_g.compare(figure_2()).items() if count}
    assert noticed <= wrong


def test_the_kept_graphs_are_checked():
    table = c_g.text_table(3)
    assert c_g._text_differs(table) == 0
    first = table["graphs"][0]
    first["components"] = first["components"][::-1]
    assert c_g._text_differs(table) == 1
