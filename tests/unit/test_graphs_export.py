"""Priority graphs as networkx graphs and as tables."""

from __future__ import annotations

import json
import sys

import networkx as nx
import numpy as np
import pytest

from marginlens.data.paper_examples import figure_2
from marginlens.data.random_sequences import cyclic_sequences
from marginlens.data.sequences import SequenceDataset
from marginlens.errors import InputError, MissingExtra
from marginlens.graphs import priority_graphs
from marginlens.graphs.export import from_tables, to_networkx, to_table


def random_graphs(n=12):
    for seed in range(n):
        yield from priority_graphs(cyclic_sequences(9, 3, 14, 4, seed)).values()


def test_networkx_finds_the_same_components_and_strict_edges():
    for graph in random_graphs():
        made = to_networkx(graph)
        assert made.graph["last"] == graph.last
        assert sorted(made.nodes) == graph.nodes.tolist()
        assert {tuple(edge) for edge in graph.edges.tolist()} == set(made.edges)
        theirs = sorted(sorted(part) for part in nx.strongly_connected_components(made))
        assert sorted(part.tolist() for part in graph.components) == theirs
        for i, j, told in made.edges(data=True):
            assert told["strict"] is (not nx.has_path(made, j, i))
            assert made.nodes[i]["component"] <= made.nodes[j]["component"]
            assert told["strict"] is (made.nodes[i]["component"] != made.nodes[j]["component"])


def test_edges_carry_how_many_positions_show_them():
    graph = priority_graphs(SequenceDataset([[1, 1, 0], [1, 2, 0]], [0, 0], np.eye(3)))[0]
    assert to_networkx(graph).edges[0, 1]["count"] == 3
    assert to_networkx(graph).edges[0, 2]["count"] == 1


def test_a_table_in_json_gives_the_graph_back():
    graphs = {graph.last: graph for graph in random_graphs(1)}
    back = from_tables(json.loads(json.dumps([to_table(graph) for graph in graphs.values()])))
    assert list(back) == list(graphs)
    for last, graph in graphs.items():
        for name in ("nodes", "edges", "counts", "component_of"):
            assert np.array_equal(getattr(back[last], name), getattr(graph, name))


def test_a_node_without_edges_survives_the_table():
    graph = priority_graphs(SequenceDataset([[2, 2]], [2], np.eye(3)))[2]
    (back,) = from_tables([to_table(graph)]).values()
    assert back.nodes.tolist() == [2]
    assert len(back.edges) == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"nodes": None}, r"'tables\[0\]' argument must be whole numbers, ids of tokens; got"),
        ({"nodes": [0, 1]}, "edges between tokens that are no nodes"),
        ({"edges": [[0, 1, 1], [0, 1, 2]]}, "an edge listed twice"),
        ({"edges": [[0, 1, 1.5]]}, r"'tables\[0\]' argument must be whole numbers.*float64"),
        ({"nodes": [0.5, 1, 2, 3]}, r"'tables\[0\]' argument must be whole numbers.*float64"),
        ({"edges": [[0, 1]]}, r"'tables\[0\]' argument must be nodes of shape .* got .* edges of shape \(1, 2\)"),
        ({"last": -1}, r"'tables\[0\]' argument must be a whole number of at least 0"),
    ],
)
def test_other_tables_are_refused(change, sentence):
    table = {**to_table(priority_graphs(figure_2())[0]), **change}
    with pytest.raises(InputError, match=sentence):
        from_tables([table])


@pytest.mark.parametrize("table", [{"nodes": [0], "edges": []}, 3])
def test_tables_that_lack_something_are_refused(table):
    with pytest.raises(InputError, match="'tables' argument must be made by to_table; got one that lacks"):
        from_tables([table])


@pytest.mark.parametrize("tables", [None, 3, "nonsense", {}, np.eye(2), len])
def test_what_is_no_list_of_tables_is_refused(tables):
    with pytest.raises(InputError, match="'tables' argument must be a list of tables made by to_table"):
        from_tables(tables)


def test_what_is_no_graph_is_refused():
    with pytest.raises(InputError, match="'graph' argument must be a PriorityGraph; got dict"):
        to_networkx({})


def test_without_networkx_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(MissingExtra, match=r"pip install 'marginlens\[graph\]'"):
        to_networkx(priority_graphs(figure_2())[0])
