"""S_cyc against its definition, in every way of computing it; pseudo-graphs and local subsets against networkx."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

import tolerances
from marginlens.data.sequence_generators import cyclic_sequences
from marginlens.data.sequences import SequenceDataset
from marginlens.graphs import cyclic_subset, graphs_of_edges, priority_graphs, subspace
from marginlens.graphs.cyclic import (
    LocalRule,
    leading_subset,
    local_subset,
    local_subspace,
    pseudo_graphs,
    selected_positions,
)
from marginlens.graphs.subspace import cyclic_subspace
from refusals import refused

SHAPES = [(6, 8, 12, 4), (9, 4, 20, 5), (12, 12, 60, 4)]  # K, d, n, T


def generators(ds: SequenceDataset) -> np.ndarray:
    """(n, d²) the matrices (e_j - ē)e_kᵀ of Definition 3."""
    return np.array([
        np.outer(ds.E[j] - ds.E[members].mean(axis=0), ds.E[last]).ravel()
        for last, graph in priority_graphs(ds).items()
        for members in graph.components
        if len(members) > 1
        for j in members
    ])  # fmt: skip


@pytest.mark.statement("C Def 3")
@pytest.mark.parametrize("shape", SHAPES)
def test_the_basis_is_orthonormal_and_spans_the_definition(shape: tuple[int, int, int, int]) -> None:
    ds = cyclic_sequences(*shape, 3)
    space, rows = cyclic_subspace(ds.E, priority_graphs(ds)), generators(ds)
    basis = space.basis.reshape(space.rank, -1)
    np.testing.assert_allclose(basis @ basis.T, np.eye(space.rank), rtol=0.0, atol=tolerances.ROUNDING)
    np.testing.assert_allclose(rows @ basis.T @ basis, rows, rtol=0.0, atol=tolerances.ROUNDING)
    assert space.rank == np.linalg.matrix_rank(rows)


WAYS = {
    "basis": {"_QUICK_BASIS": 10_000},
    "factor": {"_QUICK_BASIS": 0},
    "iteration": {"_QUICK_BASIS": 0, "_MAX_BASIS": 0, "_MAX_FACTORED": 0},
}


@pytest.mark.statement("C Def 3")
@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("shape", SHAPES)
def test_every_way_of_projecting_is_the_projection(
    shape: tuple[int, int, int, int], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, limit in WAYS[way].items():
        monkeypatch.setattr(subspace, name, limit)
    rng, ds = np.random.default_rng(1), cyclic_sequences(*shape, 4)
    space, rows = cyclic_subspace(ds.E, priority_graphs(ds)), generators(ds)
    W = rng.normal(size=(3, ds.d_model, ds.d_model))
    inside = space.project(W)
    nearest = np.stack([np.linalg.lstsq(rows.T, one.ravel(), rcond=1e-12)[0] @ rows for one in W]).reshape(W.shape)
    np.testing.assert_allclose(inside, nearest, rtol=0.0, atol=tolerances.CONDITIONED)
    np.testing.assert_allclose(space.complement(W).reshape(3, -1) @ rows.T, 0.0, rtol=0.0, atol=tolerances.CONDITIONED)
    np.testing.assert_allclose(space.project(inside[0]), inside[0], rtol=0.0, atol=tolerances.CONDITIONED)


@pytest.mark.statement("C Def 3")
@pytest.mark.parametrize("scales", [(1e-13, 1.0), (1e-20, 1.0), (1.0, 1e-20), (1e-20, 1e20)])
@pytest.mark.parametrize("way", ["basis", "factor"])
def test_short_tokens_and_last_tokens_count_as_much_as_long_ones(
    scales: tuple[float, float], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subspace, "_QUICK_BASIS", WAYS[way]["_QUICK_BASIS"])
    rng = np.random.default_rng(7)
    plain, W = rng.normal(size=(6, 8)), rng.normal(size=(8, 8))  # 0 ≍ 1 and 2 ≍ 3 for the last tokens 4 and 5
    graphs = graphs_of_edges([4] * 4 + [5] * 4, [0, 1, 2, 3] * 2, [1, 0, 3, 2] * 2, 6)
    one = cyclic_subspace(plain, graphs)
    scaled = cyclic_subspace(plain * np.repeat([1.0, *scales], [2, 2, 2])[[0, 1, 2, 3, 0, 4], None], graphs)
    assert scaled.rank == len(scaled.basis) == 4
    np.testing.assert_allclose(scaled.project(W), one.project(W), rtol=0.0, atol=tolerances.ROUNDING)


@pytest.mark.statement("C Def 3")
def test_one_hot_tokens_need_no_basis() -> None:
    """With thousands of directions a projection is centring within components; scaled and rotated one-hot rows do as well."""
    rng = np.random.default_rng(0)
    K = 300
    ids = rng.integers(K, size=(1500, 3))
    ids[:, -1] %= 3
    ds = SequenceDataset(ids, ids[np.arange(1500), rng.integers(3, size=1500)], np.eye(K))
    graphs = priority_graphs(ds)
    space = cyclic_subspace(ds.E, graphs)
    W = rng.normal(size=(K, K))
    expected = np.zeros((K, K))
    for last, graph in graphs.items():
        for members in graph.components:
            expected[members, last] = W[members, last] - W[members, last].mean()
    np.testing.assert_allclose(space.project(W), expected, rtol=0.0, atol=tolerances.ROUNDING)
    assert space.rank == space.n_generators > 100
    assert "_reduced" not in vars(space)
    turn = np.linalg.qr(rng.normal(size=(K, K)))[0]
    turned = cyclic_subspace(2.0 * turn, graphs)
    np.testing.assert_allclose(
        turned.project(turn.T @ W @ turn), turn.T @ expected @ turn, rtol=0.0, atol=tolerances.ROUNDING
    )


# ---- pseudo-graphs


@pytest.mark.statement("C §6")
def test_pseudo_graphs_have_an_edge_from_each_selected_token_to_every_other() -> None:
    rng = np.random.default_rng(2)
    for _ in range(10):
        ds = cyclic_sequences(6, 5, 10, 5, rng)
        W = 3.0 * rng.normal(size=(5, 5))
        expected: dict[int, set[tuple[int, int]]] = {int(last): set() for last in ds.last}
        for i in range(len(ds)):
            ids, _ = ds[i]
            logits = ds.E[ids] @ W @ ds.E[ids[-1]]
            s = np.exp(logits - logits.max())
            s /= s.sum()
            for t in np.flatnonzero(s > 0.05):
                expected[int(ids[-1])] |= {(int(ids[t]), int(other)) for other in ids if other != ids[t]}
        graphs = pseudo_graphs(ds, W, 0.05)
        assert {last: set(map(tuple, graph.edges.tolist())) for last, graph in graphs.items()} == expected
        chosen = selected_positions(ds, W, 0.05)
        for i in range(len(ds)):
            ids, _ = ds[i]
            here = ids[chosen[ds.offsets[i] : ds.offsets[i + 1]]]
            assert len(set(graphs[int(ds.last[i])].components_of(here).tolist())) == 1


@pytest.mark.statement("C §6")
def test_a_repeated_token_counts_one_occurrence_at_a_time() -> None:
    ds = SequenceDataset([[0, 0, 0, 0, 1]], [0], np.eye(2))
    assert selected_positions(ds, np.zeros((2, 2)), 0.19).tolist() == [True] * 5
    with refused("threshold"):  # four equal weights
        selected_positions(SequenceDataset([[0, 0, 1, 1]], [0], np.eye(2)), np.zeros((2, 2)), 0.25)
    assert selected_positions(ds, np.array([[0.0, 1.0], [0.0, 0.0]]), 0.2).tolist() == [True] * 4 + [False]


@pytest.mark.statement("C §6")
def test_the_leading_subset_of_own_graphs_is_the_cyclic_subset() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        ds = cyclic_sequences(6, 5, 10, 5, rng)
        ours, theirs = leading_subset(ds, priority_graphs(ds)), cyclic_subset(ds)
        assert len(ours) == len(theirs) > 0
        for name in ("tokens", "offsets", "labels", "queries", "samples"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


# ---- the two rules of the local cyclic subset


def reference_rule(ds: SequenceDataset, W: np.ndarray, threshold: float, rule: LocalRule) -> tuple[list, np.ndarray]:
    """What every sample keeps, and the projection onto the local S_cyc, from networkx and the definitions."""
    graphs: dict[int, nx.DiGraph] = {}
    tops = []
    for i in range(len(ds)):
        ids, _ = ds[i]
        logits = ds.E[ids] @ W @ ds.E[ids[-1]]
        s = np.exp(logits - logits.max())
        chosen = {int(ids[t]) for t in np.flatnonzero(s / s.sum() > threshold)}
        tops.append(chosen)
        graph = graphs.setdefault(int(ids[-1]), nx.DiGraph())
        graph.add_nodes_from(ids.tolist())
        graph.add_edges_from((a, int(b)) for a in chosen for b in ids if b != a)
    component = {
        (k, x): tuple(sorted(members))
        for k, graph in graphs.items()
        for members in nx.strongly_connected_components(graph)
        for x in members
    }
    samples, rows = [], []
    for i in range(len(ds)):
        ids, label = ds[i]
        last = int(ids[-1])
        lead = int(label) if rule is LocalRule.LABELS_COMPONENT else min(tops[i])
        left = [int(x) for x in ids if int(x) in component[last, lead]]
        if len(set(left)) > 1:
            samples.append((i, left, int(label)))
            members = list(component[last, lead])
            rows += [np.outer(ds.E[j] - ds.E[members].mean(axis=0), ds.E[last]).ravel() for j in members]
    width = ds.d_model**2
    return samples, np.linalg.pinv(np.array(rows)) @ np.array(rows) if rows else np.zeros((width, width))


@pytest.mark.statement("C §6")
@pytest.mark.parametrize("rule", list(LocalRule), ids=lambda one: one.name)
def test_both_subset_rules_agree_with_networkx(rule: LocalRule) -> None:
    rng = np.random.default_rng(5)
    kept = smaller = 0
    for trial in range(60):
        ds = cyclic_sequences(7, 9, 6, 5, rng)
        W = (2.0 + trial % 7) * rng.normal(size=(9, 9))
        graphs = pseudo_graphs(ds, W, 0.05)
        subset = local_subset(ds, graphs, rule)
        samples, projection = reference_rule(ds, W, 0.05, rule)
        found = [(int(i), subset[j][0].tolist(), int(subset[j][1])) for j, i in enumerate(subset.samples)]
        assert found == samples
        space = local_subspace(graphs, subset)
        point = rng.normal(size=(9, 9))
        np.testing.assert_allclose(
            space.project(point).ravel(), projection @ point.ravel(), rtol=0.0, atol=tolerances.CONDITIONED
        )
        kept += len(samples) > 0
        smaller += space.rank < cyclic_subspace(ds.E, graphs).rank
    assert kept > 20
    assert (smaller > 0) == (rule is LocalRule.LABELS_COMPONENT)  # ties that no label belongs to count by one rule only
