"""The order of a graph's components: its levels, and the edges that say all of it."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from marginlens.data.paper_examples import figure_2
from marginlens.data.random_sequences import acyclic_sequences, cyclic_sequences
from marginlens.graphs import priority_graphs
from marginlens.graphs.export import to_networkx
from marginlens.graphs.priority import component_levels, thinned
from marginlens.svm.graph import graph_svm
from tolerances import CONDITIONED


def datasets():
    for seed in range(8):
        yield cyclic_sequences(7, 8, 25, 4, seed)
        yield acyclic_sequences(7, 8, 25, 4, seed)


def test_levels_count_the_longest_chain_above():
    for ds in datasets():
        for graph in priority_graphs(ds).values():
            condensed = nx.condensation(to_networkx(graph))
            level = component_levels(graph)
            for depth, generation in enumerate(nx.topological_generations(condensed)):
                for part in generation:
                    assert level[graph.component(min(condensed.nodes[part]["members"]))] == depth


def test_thinned_graphs_keep_the_components_and_one_edge_for_each_pair_that_counts():
    graph = thinned(priority_graphs(figure_2())[1])
    assert [part.tolist() for part in graph.components] == [[0, 1, 2], [3]]
    assert graph.strict.tolist() == [[0, 3]]
    assert len(graph.edges) == 6  # five inside the component
    chain = thinned(priority_graphs(figure_2())[0])
    assert chain.strict.tolist() == [[1, 2], [2, 0], [3, 1]]


def test_thinned_graphs_have_the_same_svm():
    fewer = 0
    for ds in datasets():
        graphs = priority_graphs(ds)
        thin = {k: thinned(graph) for k, graph in graphs.items()}
        whole, short = graph_svm(ds.E, graphs), graph_svm(ds.E, thin)
        fewer += len(whole.pairs) - len(short.pairs)
        assert short.status is whole.status
        np.testing.assert_allclose(short.x, whole.x, atol=CONDITIONED * max(1.0, np.abs(whole.x).max()))
        for k, graph in graphs.items():
            height = ds.E @ short.x @ ds.E[k]
            gaps = height[graph.strict[:, 0]] - height[graph.strict[:, 1]]
            assert gaps.min(initial=np.inf) >= 1.0 - CONDITIONED
    assert fewer > 100


@pytest.mark.parametrize("n_vocabulary", [1, 2])
def test_graphs_without_edges(n_vocabulary):
    ds = acyclic_sequences(n_vocabulary, 2, 3, 1, 0)
    for graph in priority_graphs(ds).values():
        assert component_levels(graph).tolist() == [0]
        assert len(thinned(graph).edges) == 0
