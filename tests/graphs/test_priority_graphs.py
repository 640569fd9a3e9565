"""Priority graphs, their order, evidence, export and cyclic subsets, against brute force and networkx."""

from __future__ import annotations

import json
import sys

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import marginlens as ml
from marginlens.data.paper_examples import figure_2
from marginlens.data.sequences import SequenceDataset
from marginlens.errors import MissingExtra
from marginlens.graphs.export import from_tables, to_networkx, to_table
from marginlens.graphs.priority import PriorityGraph, component_order, sufficient_pairs
from random_examples import examples
from refusals import raised


@st.composite
def datasets(draw: st.DrawFn) -> SequenceDataset:
    """Up to 25 sequences of up to 6 of 7 tokens, each followed by one of its own."""
    K = draw(st.integers(1, 7))
    sequences = draw(st.lists(st.lists(st.integers(0, K - 1), min_size=1, max_size=6), min_size=1, max_size=25))
    return SequenceDataset(sequences, [draw(st.sampled_from(ids)) for ids in sequences], np.eye(K))


def reference(ds: SequenceDataset, last: int) -> nx.DiGraph:
    """The graph of a last token, straight from the definition."""
    graph = nx.DiGraph()
    for i in range(len(ds)):
        ids, label = ds[i]
        if ids[-1] == last:
            graph.add_nodes_from(ids.tolist())
            graph.add_edges_from((label, int(other)) for other in ids if other != label)
    return graph


@pytest.mark.statement("C §3.1")
@examples(60)
@given(ds=datasets())
def test_graphs_follow_the_definition(ds: SequenceDataset) -> None:
    graphs = ml.graphs.priority_graphs(ds)
    assert set(graphs) == set(ds.last.tolist())
    for last, graph in graphs.items():
        theirs, made = reference(ds, last), to_networkx(graph)
        assert made.graph["last"] == last
        assert set(made.nodes) == set(theirs.nodes) == set(graph.nodes.tolist())
        assert set(made.edges) == set(theirs.edges) == set(map(tuple, graph.edges.tolist()))
        parts = sorted(sorted(part) for part in nx.strongly_connected_components(theirs))
        assert sorted(part.tolist() for part in graph.components) == parts
        assert graph.is_acyclic == (len(parts) == len(graph.nodes))
        mutual = {(i, j) for part in parts for i in part for j in part}
        assert set(map(tuple, graph.strict.tolist())) == {edge for edge in theirs.edges if edge not in mutual}
        assert set(map(tuple, graph.tied.tolist())) == {(i, j) for i, j in mutual if i < j}
        for i, j in theirs.edges:
            assert graph.reaches(i, j)
            assert graph.component(i) <= graph.component(j)
            assert made.edges[i, j]["strict"] is ((i, j) not in mutual)
        condensed = nx.condensation(theirs)
        level, order = graph.levels, component_order(graph)
        for depth, generation in enumerate(nx.topological_generations(condensed)):
            for part in generation:
                assert level[graph.component(min(condensed.nodes[part]["members"]))] == depth
        for upper, members in enumerate(graph.components):
            for lower, others in enumerate(graph.components):
                path = upper != lower and nx.has_path(theirs, int(members[0]), int(others[0]))
                assert order.reach[upper, lower] == path
        reduced = nx.transitive_reduction(condensed)
        assert np.count_nonzero(graph.reduced_order) == reduced.number_of_edges()


@examples(40)
@given(ds=datasets())
def test_sufficient_pairs_imply_all_others_with_evidence_counted_once(ds: SequenceDataset) -> None:
    for graph in ml.graphs.priority_graphs(ds).values():
        sufficient = graph.strict[sufficient_pairs(graph)]
        ends = graph.components_of(sufficient)
        chains = nx.transitive_closure(nx.DiGraph(map(tuple, ends.tolist())))
        assert {tuple(pair) for pair in graph.components_of(graph.strict).tolist()} <= set(chains.edges)
        pairs: dict[tuple[int, int], list[int]] = {}
        for i in range(len(ds)):
            ids, label = ds[i]
            for token in set(ids.tolist()) if ids[-1] == graph.last else ():
                if graph.component(label) != graph.component(token):
                    pairs.setdefault((label, token), []).append(i)
        evidence = ml.graphs.ranking_evidence(ds, graph)
        assert evidence.pairs.tolist() == graph.strict.tolist()
        counted = zip(map(tuple, evidence.pairs.tolist()), evidence.samples, evidence.first, strict=True)
        assert {pair: (n, i) for pair, n, i in counted} == {p: (len(i), i[0]) for p, i in pairs.items()}


@pytest.mark.statement("C Eq. (4)", "C Def 1", "C Eq. (5)", "C Def 2")
@examples(40)
@given(ds=datasets())
def test_the_cyclic_subset_drops_what_the_label_dominates(ds: SequenceDataset) -> None:
    expected, tied = [], ml.graphs.tied_positions(ds)
    for i in range(len(ds)):
        ids, label = ds[i]
        mutual = next(p for p in nx.strongly_connected_components(reference(ds, int(ids[-1]))) if label in p)
        inside = np.array([int(x) in mutual for x in ids])
        assert tied[ds.offsets[i] : ds.offsets[i + 1]].tolist() == inside.tolist()
        if len(np.unique(ids[inside])) > 1:
            expected.append((ids[inside].tolist(), label, int(ids[-1]), i))
    subset = ml.graphs.cyclic_subset(ds)
    assert (len(subset) == 0) == ml.graphs.is_acyclic(ml.graphs.priority_graphs(ds))
    sizes = range(len(subset))
    assert [(subset[j][0].tolist(), subset[j][1], subset.last[j], subset.samples[j]) for j in sizes] == expected


@pytest.mark.statement("C §3.1")
def test_edges_are_counted_by_position() -> None:
    graph = ml.graphs.priority_graphs(SequenceDataset([[0, 1, 1, 2], [1, 2], [0, 2]], [0, 1, 0], np.eye(3)))[2]
    counts = dict(zip(map(tuple, graph.edges.tolist()), graph.counts.tolist(), strict=True))
    assert counts == {(0, 1): 2, (0, 2): 2, (1, 2): 1}
    assert to_networkx(graph).edges[0, 1]["count"] == 2
    assert repr(graph) == "PriorityGraph(last=2, 3 tokens, 3 edges, 3 components, 3 strict)"


def test_a_graph_can_be_made_from_edges() -> None:
    last, head, tail = np.array([1, 1, 1, 0]), np.array([2, 0, 3, 3]), np.array([0, 2, 3, 1])
    graphs = ml.graphs.graphs_of_edges(last, head, tail, 4)
    assert {k: [part.tolist() for part in graph.components] for k, graph in graphs.items()} == {
        0: [[3], [1]],
        1: [[0, 2], [3]],
    }
    assert graphs[1].component(1) == -1
    assert graphs[1].components_of(np.array([3, 1, 2])).tolist() == [1, -1, 0]
    assert not graphs[1].reaches(0, 1)
    assert isinstance(graphs[0], PriorityGraph)


def test_many_samples_and_few_give_the_same_graphs() -> None:
    """Counting in a table and counting by sorting agree: the same data repeated has the same edges, counted as often."""
    rng = np.random.default_rng(5)
    ids = rng.integers(60, size=(40, 5))
    labels = ids[:, 1]
    once = ml.graphs.priority_graphs(SequenceDataset(ids, labels, np.eye(60)))
    often = ml.graphs.priority_graphs(SequenceDataset(np.tile(ids, (200, 1)), np.tile(labels, 200), np.eye(60)))
    for last, graph in once.items():
        np.testing.assert_array_equal(graph.edges, often[last].edges)
        np.testing.assert_array_equal(200 * graph.counts, often[last].counts)
        np.testing.assert_array_equal(graph.component_of, often[last].component_of)


def test_the_cyclic_subset_of_acyclic_data_is_a_dataset_without_samples() -> None:
    ds = SequenceDataset([[0, 1], [1, 2, 0]], [0, 1], np.eye(3))
    subset = ml.graphs.cyclic_subset(ds)
    assert len(subset) == len(subset.tokens) == len(subset.last) == len(subset.samples) == 0
    assert repr(subset) == "CyclicSubset(0 sequences × 0 of 3 tokens, d_model=3)"
    assert len(subset.attention(np.eye(3))) == 0
    assert ml.graphs.priority_graphs(subset) == {}
    assert len(ml.graphs.cyclic_subset(subset)) == len(ml.graphs.tied_positions(subset)) == 0


def test_a_table_in_json_gives_the_graph_back() -> None:
    rng = np.random.default_rng(0)
    sequences = rng.integers(9, size=(30, 4))
    graphs = ml.graphs.priority_graphs(SequenceDataset(sequences, sequences[:, 1], np.eye(9)))
    back = from_tables(json.loads(json.dumps([to_table(graph) for graph in graphs.values()])))
    assert list(back) == list(graphs)
    for last, graph in graphs.items():
        for name in ("nodes", "edges", "counts", "component_of"):
            assert np.array_equal(getattr(back[last], name), getattr(graph, name))


def test_without_networkx_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)
    with raised(MissingExtra, "marginlens[graph]"):
        to_networkx(ml.graphs.priority_graphs(figure_2())[0])
