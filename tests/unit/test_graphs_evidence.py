"""Which sequences stand behind a strict pair, counted one by one, and which components a graph compares."""

import networkx as nx
import numpy as np
import pytest

from marginlens import InputError, SequenceDataset, priority_graphs
from marginlens.data import acyclic_sequences, cyclic_sequences
from marginlens.graphs import component_order, ranking_evidence
from marginlens.graphs.export import to_networkx


def counted(ds, graph):
    """For each strict pair the samples that say so, by looking at every sample; and for each ordered pair of components."""
    pairs, components = {}, {}
    for i in range(len(ds)):
        ids, label = ds[i]
        if ids[-1] != graph.last:
            continue
        for token in set(ids.tolist()):
            upper, lower = graph.component(label), graph.component(token)
            if upper != lower:
                pairs.setdefault((label, token), []).append(i)
                components.setdefault((upper, lower), set()).add(i)
    return pairs, components


@pytest.mark.parametrize("seed", range(6))
def test_every_sequence_that_ranks_two_tokens_is_counted_once(seed):
    ds = (cyclic_sequences if seed % 2 else acyclic_sequences)(7, 4, 30, 6, seed)
    for graph in priority_graphs(ds).values():
        evidence = ranking_evidence(ds, graph)
        pairs, components = counted(ds, graph)
        assert evidence.pairs.tolist() == graph.strict.tolist()
        found = {
            tuple(pair): (n, i)
            for pair, n, i in zip(evidence.pairs.tolist(), evidence.samples, evidence.first, strict=True)
        }
        assert found == {pair: (len(samples), samples[0]) for pair, samples in pairs.items()}
        between = dict(zip(map(tuple, evidence.components.tolist()), evidence.component_samples.tolist(), strict=True))
        assert between == {pair: len(samples) for pair, samples in components.items()}


@pytest.mark.parametrize("seed", range(6))
def test_components_are_compared_by_paths_alone(seed):
    for graph in priority_graphs(cyclic_sequences(9, 4, 25, 4, seed)).values():
        order, theirs = component_order(graph), to_networkx(graph)
        for upper, members in enumerate(graph.components):
            for lower, others in enumerate(graph.components):
                path = upper != lower and nx.has_path(theirs, int(members[0]), int(others[0]))
                assert order.reach[upper, lower] == path
        assert not (order.direct & ~order.reach).any()


def test_a_graph_of_other_sequences_is_refused():
    graph = priority_graphs(SequenceDataset([[0, 1]], [0], np.eye(3)))[1]
    with pytest.raises(InputError, match="'graph' argument must be one of the priority graphs of these sequences"):
        ranking_evidence(SequenceDataset([[2, 1]], [2], np.eye(3)), graph)
