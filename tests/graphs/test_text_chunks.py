"""Priority graphs of a text in chunks: those of one pass over all windows, in memory that does not grow with the text."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marginlens as ml
from marginlens.graphs import PriorityGraph, counting
from marginlens.graphs.priority import MAX_GRAPH_TOKENS
from marginlens.typing import IntArray
from refusals import refused


def zipf(n: int, K: int, seed: int = 0) -> IntArray:
    shares = 1.0 / np.arange(1, K + 1)
    return np.random.default_rng(seed).choice(K, n, p=shares / shares.sum())


def one_pass(texts: list[IntArray], window: int, K: int) -> ml.SequenceDataset:
    """All windows of all texts at once, followed by their next tokens."""
    view = np.lib.stride_tricks.sliding_window_view
    long = [ids for ids in texts if len(ids) > window]
    windows = np.concatenate([view(ids, window)[:-1] for ids in long])
    return ml.SequenceDataset(windows, np.concatenate([ids[window:] for ids in long]), np.eye(K), unrealizable="drop")


def assert_same(found: Mapping[int, PriorityGraph], expected: Mapping[int, PriorityGraph]) -> None:
    assert list(found) == list(expected)
    for last, graph in found.items():
        for name in ("nodes", "edges", "counts", "component_of"):
            np.testing.assert_array_equal(getattr(graph, name), getattr(expected[last], name))


@pytest.mark.statement("C §3.1")
@pytest.mark.parametrize(("n", "K", "window"), [(3_000, 40, 5), (900, 6, 11), (4_000, 900, 3), (400, 30, 1)])
@pytest.mark.parametrize("n_chunks", [1, 7, 250])
def test_chunked_graphs_equal_those_of_all_windows(
    n: int, K: int, window: int, n_chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "BLOCK_POSITIONS", 300)
    ids = zipf(n, K, seed=3)
    cuts = np.sort(np.random.default_rng(n_chunks).integers(0, n, n_chunks - 1))  # some chunks are empty
    chunks = np.split(ids, cuts)
    data = one_pass([ids], window, K)
    expected = ml.priority_graphs(data)
    graphs = ml.priority_graphs(iter(chunks), window=window)
    assert_same(graphs, expected)
    counted = counting.count_windows(chunks, window)
    assert (counted.n_windows, counted.n_dropped, counted.n_tokens) == (n - window, len(data.dropped), n)
    np.testing.assert_array_equal(counted.ending_in(K), np.bincount(data.last, minlength=K))
    places = data.original_samples()
    for last in list(graphs)[:4]:
        found = ml.graphs.ranking_evidence(chunks, graphs[last], window=window)
        evidence = ml.graphs.ranking_evidence(data, expected[last])
        for name in ("pairs", "samples", "components", "component_samples"):
            np.testing.assert_array_equal(getattr(found, name), getattr(evidence, name))
        np.testing.assert_array_equal(found.first, places[evidence.first])


def test_a_lost_window_changes_the_graphs() -> None:
    """The control of the test above: chunks that forget what came before give other graphs."""
    ids = zipf(2_000, 12, seed=1)
    whole = ml.priority_graphs([ids], window=6)
    counts = [counting.count_windows([part], 6) for part in np.split(ids, 4)]
    assert sum(one.n_windows for one in counts) == 2_000 - 4 * 6
    assert sum(int(graph.counts.sum()) for one in counts for graph in one.graphs().values()) < sum(
        int(graph.counts.sum()) for graph in whole.values()
    )


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "int64"])
def test_windows_do_not_cross_a_separator(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "BLOCK_POSITIONS", 90)
    texts = [zipf(n, 20, seed=n) for n in (150, 3, 80, 1, 200)]
    joined = np.concatenate([part for ids in texts for part in (ids, [20])]).astype(dtype)
    expected = ml.priority_graphs(one_pass(texts, 4, 20))
    for n_chunks in (1, 5, 60):
        chunks = np.array_split(joined, n_chunks)
        graphs = ml.priority_graphs(chunks, window=4, separator=20)
        assert_same(graphs, expected)
        last = next(iter(graphs))
        found = ml.graphs.ranking_evidence(chunks, graphs[last], window=4, separator=20)
        assert found.samples.sum() == ml.graphs.ranking_evidence(one_pass(texts, 4, 20), graphs[last]).samples.sum()


def test_large_ids_are_counted_and_larger_ones_refused() -> None:
    top = MAX_GRAPH_TOKENS - 1
    (graph,) = ml.priority_graphs([[top, 5], [top, 7, top]], window=3).values()
    assert (graph.last, graph.edges.tolist(), graph.counts.tolist()) == (7, [[top, 5], [top, 7]], [1, 1])
    with refused("data"):
        ml.priority_graphs([[0, top + 1]], window=1)


@pytest.mark.parametrize(
    ("chunks", "options", "argument"),
    [
        ([[0, 1, 0]], {}, "window"),
        ([[0, 1, 0]], {"window": 0}, "window"),
        ([[0, 1, 0]], {"window": 3}, "window"),
        ([[0, 1, 2]], {"window": 2}, "window"),
        ([], {"window": 2}, "window"),
        ([[0, -1]], {"window": 1}, "data"),
        ([[0.5, 1.0]], {"window": 1}, "data"),
        ([[[0, 1]]], {"window": 1}, "data"),
        (np.array([0, 1, 0]), {"window": 1}, "data"),
        ("text", {"window": 1}, "data"),
        (7, {"window": 1}, "data"),
        ([[0, 1, 0]], {"window": 2, "head": np.eye(2)}, "head"),
        (ml.data.figure_2(), {"window": 2}, "window"),
        (ml.data.figure_2(), {"separator": 2}, "separator"),
    ],
)
def test_tokens_that_cannot_be_counted_are_refused(chunks: Any, options: dict[str, Any], argument: str) -> None:
    with refused(argument):
        ml.priority_graphs(chunks, **options)


# ---- memory

CORPUS_BYTES, SMALL_BYTES = 100_000_000, 1_000_000
BYTES_PER_EDGE = 400  # of keys, counts and graphs, with room to merge and sort them
BUFFER_BYTES = 40_000_000  # ids in memory before they go to disk, and a block of windows, whatever the text
MEASURE = """
import resource, sys
import marginlens as ml
import marginlens.graphs
if sys.argv[2] == "whole":
    text = open(sys.argv[1], encoding="utf-8").read().split()
    print(len(text))
else:
    text = ml.data.TextTokens(sys.argv[1], str.split)
    graphs = ml.priority_graphs(text, window=4)
    print(sum(len(graph.edges) for graph in graphs.values()))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
"""


def peak(path: Path, how: str) -> tuple[int, int]:
    """The number of edges, or of words, and the most memory that a process of its own held."""
    done = subprocess.run([sys.executable, "-c", MEASURE, str(path), how], capture_output=True, text=True, check=True)
    count, size = map(int, done.stdout.split())
    return count, size


@pytest.mark.posix("measure of a process's memory in its standard library")
@pytest.mark.slow
def test_memory_grows_with_edges_not_with_text(tmp_path: Path) -> None:
    """100 MB of words beside the first of them; reading all of them at once is the control that breaks the bound."""
    path, small = tmp_path / "corpus.txt", tmp_path / "small.txt"
    words = np.array([f"{a}{b}" for a in "bdgklmnprt" for b in ("a", "ei", "o", "u", "an", "el")])
    rng, shares = np.random.default_rng(2), 1.0 / np.arange(1, len(words) + 1)
    with path.open("w", encoding="utf-8") as file:
        written = 0
        while written < CORPUS_BYTES:
            written += file.write(" ".join(rng.choice(words, 200_000, p=shares / shares.sum())) + "\n")
    with path.open(encoding="utf-8") as file:
        small.write_text(file.read(SMALL_BYTES), encoding="utf-8")
    _, before = peak(small, "chunks")
    edges, after = peak(path, "chunks")
    bound = BUFFER_BYTES + BYTES_PER_EDGE * edges
    assert bound < CORPUS_BYTES
    assert after - before < bound
    assert peak(path, "whole")[1] - before > bound
