"""Priority graphs, components and cyclic subsets against brute-force reachability."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from marginlens.data.sequences import SequenceDataset
from marginlens.errors import InputError
from marginlens.graphs import (
    component_levels,
    cyclic_subset,
    cyclic_subspace,
    graphs_of_edges,
    is_acyclic,
    priority_graphs,
    reduced_order,
    tied_positions,
)
from marginlens.graphs.priority import PriorityGraph


def random_sequences(rng: np.random.Generator, K: int, n: int, longest: int) -> SequenceDataset:
    sequences = [rng.integers(K, size=rng.integers(1, longest + 1)) for _ in range(n)]
    return SequenceDataset(sequences, [rng.choice(one) for one in sequences], np.eye(K))


def reachability(ds: SequenceDataset, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Edges and reachability (K, K) by repeated squaring, straight from the definition."""
    K = ds.n_vocabulary
    edge = np.zeros((K, K), dtype=bool)
    for i in range(len(ds)):
        ids, label = ds[i]
        if ids[-1] == last:
            edge[label, ids] = True
    np.fill_diagonal(edge, False)
    reach = edge | np.eye(K, dtype=bool)
    for _ in range(K):
        reach = reach | ((reach.astype(int) @ reach.astype(int)) > 0)
    return edge, reach


DATASETS = [
    random_sequences(np.random.default_rng(seed), *shape)
    for seed in range(8)
    for shape in ((5, 8, 4), (7, 25, 6), (4, 3, 2))
]


@pytest.mark.statement("C §3.1")
@pytest.mark.parametrize("ds", DATASETS, ids=range(len(DATASETS)))
def test_graphs_equal_brute_force_reachability(ds: SequenceDataset) -> None:
    graphs = priority_graphs(ds)
    assert set(graphs) == set(ds.last.tolist())
    for last, graph in graphs.items():
        edge, reach = reachability(ds, last)
        seen = sorted({int(x) for i in range(len(ds)) if ds.last[i] == last for x in ds[i][0]})
        assert graph.nodes.tolist() == seen
        assert sorted(map(tuple, graph.edges.tolist())) == sorted(
            zip(*map(np.ndarray.tolist, np.nonzero(edge)), strict=True)
        )
        mutual = reach & reach.T
        strict = edge & ~mutual
        assert sorted(map(tuple, graph.strict.tolist())) == sorted(
            zip(*map(np.ndarray.tolist, np.nonzero(strict)), strict=True)
        )
        tied = np.triu(mutual, k=1)
        assert sorted(map(tuple, graph.tied.tolist())) == sorted(
            zip(*map(np.ndarray.tolist, np.nonzero(tied)), strict=True)
        )
        for i in seen:
            for j in seen:
                assert graph.reaches(i, j) == reach[i, j]
                assert (graph.component(i) == graph.component(j)) == mutual[i, j]
                if edge[i, j]:
                    assert graph.component(i) <= graph.component(j)
        assert [sorted(part.tolist()) for part in graph.components] == [part.tolist() for part in graph.components]
        assert graph.is_acyclic == all(len(part) == 1 for part in graph.components)


@pytest.mark.statement("C §3.1")
def test_edges_are_counted_by_position() -> None:
    graph = priority_graphs(SequenceDataset([[0, 1, 1, 2], [1, 2], [0, 2]], [0, 1, 0], np.eye(3)))[2]
    assert {tuple(edge): count for edge, count in zip(graph.edges.tolist(), graph.counts.tolist(), strict=True)} == {
        (0, 1): 2,
        (0, 2): 2,
        (1, 2): 1,
    }
    assert [part.tolist() for part in graph.components] == [[0], [1], [2]]
    assert repr(graph) == "PriorityGraph(last=2, 3 tokens, 3 edges, 3 components, 3 strict)"


@pytest.mark.statement("C Eq. (4)")
@pytest.mark.parametrize("ds", DATASETS, ids=range(len(DATASETS)))
def test_tied_positions_are_those_of_the_labels_component(ds: SequenceDataset) -> None:
    tied, labelled = tied_positions(ds), ds.is_label
    for i in range(len(ds)):
        ids, label = ds[i]
        mutual = reachability(ds, int(ds.last[i]))[1]
        mutual = mutual & mutual.T
        here = slice(ds.offsets[i], ds.offsets[i + 1])
        assert tied[here].tolist() == mutual[label, ids].tolist()
        assert labelled[here].tolist() == (ids == label).tolist()


@pytest.mark.statement("C Def 1", "C Eq. (5)", "C Def 2")
@pytest.mark.parametrize("ds", DATASETS, ids=range(len(DATASETS)))
def test_the_cyclic_subset_drops_what_the_label_dominates(ds: SequenceDataset) -> None:
    expected = []
    for i in range(len(ds)):
        ids, label = ds[i]
        mutual = reachability(ds, int(ds.last[i]))[1]
        mutual = mutual & mutual.T
        kept = ids[mutual[label, ids]]
        if len(np.unique(kept)) > 1:
            expected.append((kept.tolist(), label, int(ds.last[i]), i))
    subset, graphs = cyclic_subset(ds), priority_graphs(ds)
    assert (len(subset) == 0) == (not expected) == is_acyclic(graphs)
    if len(subset):
        found = [
            (subset[i][0].tolist(), subset[i][1], int(subset.last[i]), int(subset.samples[i]))
            for i in range(len(subset))
        ]
        assert found == expected


def test_a_graph_can_be_made_from_edges() -> None:
    last, head, tail = np.array([1, 1, 1, 0]), np.array([2, 0, 3, 3]), np.array([0, 2, 3, 1])
    graphs = graphs_of_edges(last, head, tail, 4)
    assert {k: [part.tolist() for part in graph.components] for k, graph in graphs.items()} == {
        0: [[3], [1]],
        1: [[0, 2], [3]],
    }
    assert graphs[1].component(1) == -1
    assert graphs[1].components_of(np.array([3, 1, 2])).tolist() == [1, -1, 0]
    assert not graphs[1].reaches(0, 1)
    assert isinstance(graphs[0], PriorityGraph)


def test_ids_as_high_as_they_may_be_are_kept_apart() -> None:
    K = 2**21 - 1
    (graph,) = graphs_of_edges([K - 1, K - 1], [K - 1, 0], [K - 2, K - 1], K).values()
    assert graph.last == K - 1
    assert graph.edges.tolist() == [[0, K - 1], [K - 1, K - 2]]
    assert [part.tolist() for part in graph.components] == [[0], [K - 1], [K - 2]]


def test_many_samples_and_few_give_the_same_graphs() -> None:
    """Counting in a table and counting by sorting agree: the same data repeated has the same edges, counted as often."""
    rng = np.random.default_rng(5)
    ids = rng.integers(60, size=(40, 5))
    labels = ids[:, 1]
    once = priority_graphs(SequenceDataset(ids, labels, np.eye(60)))
    often = priority_graphs(SequenceDataset(np.tile(ids, (200, 1)), np.tile(labels, 200), np.eye(60)))
    for last, graph in once.items():
        np.testing.assert_array_equal(graph.edges, often[last].edges)
        np.testing.assert_array_equal(200 * graph.counts, often[last].counts)
        np.testing.assert_array_equal(graph.component_of, often[last].component_of)


def test_the_cyclic_subset_of_acyclic_data_is_a_dataset_without_samples() -> None:
    ds = SequenceDataset([[0, 1], [1, 2, 0]], [0, 1], np.eye(3))
    subset = cyclic_subset(ds)
    assert len(subset) == len(subset.tokens) == len(subset.last) == len(subset.samples) == 0
    assert repr(subset) == "CyclicSubset(0 sequences × 0 of 3 tokens, d_model=3)"
    assert len(subset.attention(np.eye(3))) == 0
    assert priority_graphs(subset) == {}
    assert len(cyclic_subset(subset)) == len(tied_positions(subset)) == 0


def test_what_is_no_graph_and_no_token_is_refused_by_name() -> None:
    graph = priority_graphs(SequenceDataset([[0, 1], [1, 0, 2]], [0, 1], np.eye(3)))[1]
    for function in (component_levels, reduced_order):
        with pytest.raises(InputError, match="'graph' argument must be a PriorityGraph; got NoneType"):
            function(None)
    for wrong, got in ((None, "NoneType"), ({0: None}, "NoneType"), ({"a": graph}, "the key 'a'")):
        with pytest.raises(InputError, match=f"'graphs'.*mapping from last tokens.*got {got}"):
            is_acyclic(wrong)
    with pytest.raises(InputError, match=r"'graphs'.*got the graph of last token 1 at 0"):
        is_acyclic({0: graph})
    below = replace(graph, last=-1)
    for wrong in ({-1: below}, {1: replace(graph, nodes=graph.nodes - 1)}):
        with pytest.raises(
            InputError, match="'graphs' argument must be graphs of tokens 0 to 2, one for each row of E; got a graph"
        ):
            cyclic_subspace(np.eye(3), wrong)
    with pytest.raises(InputError, match="graphs of tokens 0 to 0, one for each row of E"):
        cyclic_subspace(np.eye(1), {1: graph})
    for token in ("0", 0.0, None, [0], True):
        with pytest.raises(InputError, match="'token' argument must be a whole number"):
            graph.component(token)
        with pytest.raises(InputError, match="'token' argument must be a whole number"):
            graph.reaches(0, token)
    for tokens in (["a"], [0.5], [[0], [0, 1]], None):
        with pytest.raises(InputError, match="'tokens' argument must be whole numbers"):
            graph.components_of(tokens)
    assert graph.components_of([]).shape == (0,)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"last": None}, "'last' argument must be whole numbers"),
        ({"head": [0, -1]}, r"'head' argument must be a list of ids from 0 to 2; got ids from -1 to 0"),
        ({"tail": [[0, 1]]}, r"'tail' argument must be a list of ids from 0 to 2; got shape \(1, 2\)"),
        ({"tail": [0]}, "'tail' argument must be as long as"),
        ({"n_vocabulary": 0}, "'n_vocabulary' argument must be a whole number of at least 1"),
        ({"n_vocabulary": 2**21}, "'n_vocabulary' argument must be at most 2097151 tokens; got 2097152"),
    ],
)
def test_edges_that_are_none_are_refused_by_name(change: dict[str, object], sentence: str) -> None:
    edges = {"last": [2, 2], "head": [0, 1], "tail": [1, 0], "n_vocabulary": 3}
    assert graphs_of_edges(**edges)[2].n_components == 1
    with pytest.raises(InputError, match=sentence):
        graphs_of_edges(**edges | change)
