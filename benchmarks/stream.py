"""How fast priority graphs of a corpus that does not fit in memory are counted, and that they equal those of one pass."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.data.sequences import SequenceDataset
from marginlens.data.text_stream import TextStream
from marginlens.data.token_stream import TokenStream
from marginlens.graphs import PriorityGraph, StoredGraphs, priority_graphs
from marginlens.runtime.progress import Progress, ProgressCallback
from marginlens.typing import IntArray

TOKENS, COMPARED_TOKENS = 100_000_000, 1_000_000
VOCABULARY, WINDOW = 50_000, 8
BLOCK = 1 << 22  # tokens that are drawn at a time
TEXT_BYTES, TEXT_WINDOW = 60_000_000, 3


def bench_stream(progress: ProgressCallback | None = None, *, seed: int = 0) -> list[dict[str, Any]]:
    """Count the windows of a synthetic corpus in a mapped file of 16-bit ids, then those of a smaller one twice: as a stream and at once.
    Then those of the characters of three texts: in lines, as one line with blanks, and as one line without.

    Tokens are independent, with Zipf's law over the vocabulary: the r-th most frequent has a share of 1/r. Files are in temporary folders.

    Returns:
        One row for each run with `seconds`, `cpu_seconds` of all threads, `peak_gb` of the process up to then, and `disk_gb`, the most
        that its folder held after a chunk or a range of last tokens; and a summary row with the number of `different_graphs`.
    """
    watch = Progress(progress)
    watch.expect(6)
    with tempfile.TemporaryDirectory(prefix="marginlens-bench-") as folder:
        corpus = Path(folder) / "corpus.bin"
        rng = np.random.default_rng(seed)
        _write_corpus(corpus, 10 * WINDOW, rng)
        _streamed(_tokens(corpus), folder)  # compile, or load what was compiled before
        _write_corpus(corpus, TOKENS, rng)
        rows = [_streamed(_tokens(corpus), folder)[1]]
        watch.advance()
        _write_corpus(corpus, COMPARED_TOKENS, rng)
        graphs, row = _streamed(_tokens(corpus), folder)
        watch.advance()
        expected, at_once = _at_once(np.fromfile(corpus, dtype="<u2").astype(np.int64))
        watch.advance()
        different = _n_different(graphs, expected)
        letters = rng.integers(ord("a"), ord("z") + 1, size=TEXT_BYTES, dtype=np.uint8)
        texts = []
        for method, sign in (("one line without blanks", None), ("one line with blanks", " "), ("lines", "\n")):
            letters[:: 6 if sign == " " else 60] = ord(sign or "a")
            letters.tofile(corpus)
            texts.append(_streamed(TextStream(corpus, TEXT_WINDOW), folder)[1] | {"method": method})
            watch.advance()
    summary = {"method": "summary", "tokens": COMPARED_TOKENS, "graphs": len(expected), "different_graphs": different}
    return [*rows, row, at_once, *texts, summary]


def _write_corpus(place: Path, n_tokens: int, rng: np.random.Generator) -> None:
    weights = 1.0 / np.arange(1, VOCABULARY + 1)
    bounds = np.cumsum(weights / weights.sum())[:-1]
    with place.open("wb") as file:
        for first in range(0, n_tokens, BLOCK):
            drawn = rng.random(min(BLOCK, n_tokens - first))
            file.write(np.searchsorted(bounds, drawn, side="right").astype("<u2").data)


def _tokens(corpus: Path) -> TokenStream:
    return TokenStream(corpus, WINDOW, n_vocabulary=VOCABULARY)


def _streamed(stream: TokenStream | TextStream, folder: str) -> tuple[StoredGraphs, dict[str, Any]]:
    """The graphs of a stream, in a folder of their own."""
    out, disk = Path(tempfile.mkdtemp(dir=folder)), 0

    def look(done: int, total: int) -> None:
        nonlocal disk
        disk = max(disk, sum(file.stat().st_size for file in out.rglob("*") if file.is_file()))

    clocks = time.perf_counter(), time.process_time()
    graphs = priority_graphs(stream, out=out, progress=look)
    row = _row(graphs.facts["n_windows"] + stream.window, "stream", graphs, clocks)
    row |= {"K": graphs.facts["n_vocabulary"], "T": stream.window}
    return graphs, row | {"disk_gb": disk / 1e9}


def _at_once(ids: IntArray) -> tuple[Mapping[int, PriorityGraph], dict[str, Any]]:
    """The graphs of all windows in one dataset in memory."""
    angles = np.arange(VOCABULARY) / VOCABULARY
    E = np.stack([np.cos(angles), np.sin(angles)], axis=1)  # the graphs do not depend on it
    clocks = time.perf_counter(), time.process_time()
    windows = np.lib.stride_tricks.sliding_window_view(ids, WINDOW)[:-1]
    graphs = priority_graphs(SequenceDataset(windows, ids[WINDOW:], E, unrealizable="drop"))
    return graphs, _row(len(ids), "one pass in memory", graphs, clocks) | {"disk_gb": None}


def _row(
    n_tokens: int, method: str, graphs: Mapping[int, PriorityGraph], clocks: tuple[float, float]
) -> dict[str, Any]:
    took = time.perf_counter() - clocks[0], time.process_time() - clocks[1]
    summary = graphs.summary() if isinstance(graphs, StoredGraphs) else None
    n_edges = summary.n_edges if summary else sum(len(graph.edges) for graph in graphs.values())
    n_acyclic = summary.n_acyclic if summary else sum(graph.is_acyclic for graph in graphs.values())
    return {
        "tokens": n_tokens,
        "K": VOCABULARY,
        "T": WINDOW,
        "method": method,
        "graphs": len(graphs),
        "edges": n_edges,
        "acyclic": n_acyclic,
        "seconds": took[0],
        "cpu_seconds": took[1],
        "peak_gb": _peak(),
    }


def _n_different(graphs: Mapping[int, PriorityGraph], others: Mapping[int, PriorityGraph]) -> int:
    """How many last tokens have graphs that differ in nodes, edges, counts or components, or in one of the mappings alone."""
    names = ("nodes", "edges", "counts", "component_of")
    equal = sum(
        all(np.array_equal(getattr(graphs[last], name), getattr(others[last], name)) for name in names)
        for last in graphs
        if last in others
    )
    return len({*graphs, *others}) - equal


def _peak() -> float | None:
    """The most memory that the process has held so far, in units of 1e9 bytes; None where the system does not say."""
    if find_spec("resource") is None:
        return None
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
