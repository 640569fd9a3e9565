"""Priority graphs of streams: windows counted by chunks, merged by ranges of last tokens, and graphs read from a folder one at a time."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from marginlens import core
from marginlens.data.text_stream import TextStream, stored_tokens
from marginlens.data.token_stream import TokenStream
from marginlens.engines import Threads, as_engine
from marginlens.errors import reject
from marginlens.graphs.priority import MAX_TOKENS, GraphArrays, PriorityGraph, graph_arrays
from marginlens.result import Displayed, Result, Tabular, drawn, table
from marginlens.result.palette import LOCAL
from marginlens.runtime.array_file import ArrayFile, DamagedFile, read_arrays, write_arrays
from marginlens.runtime.files import as_path, resolved, unusable, write_whole
from marginlens.runtime.locks import locked_folder
from marginlens.runtime.progress import Progress, ProgressCallback
from marginlens.runtime.threads import n_threads
from marginlens.typing import Axes, BoolArray, IntArray

FORMAT = 1
STREAM, INDEX, CHUNKS, PARTS = "stream.json", "graphs.index", "chunks", "parts"  # what the folder of a stream holds
_RANGE_ENTRIES = 1 << 20  # counted edges that are merged at a time, unless one last token has more


def stream_graphs(
    source: TokenStream | TextStream,
    out: str | os.PathLike[str] | None,
    engine: Any,
    progress: ProgressCallback | None,
) -> StoredGraphs:
    """The graphs of a stream in the folder `out`, with what is there already; see `priority_graphs`."""
    if out is not None:
        folder = resolved(as_path(out, "out", "the path of a folder"))
        tokens = _fill(folder, source, engine, Progress(progress))
        return StoredGraphs(folder, tokens)
    temporary = Path(tempfile.mkdtemp(prefix="marginlens-graphs-"))
    try:
        tokens = _fill(temporary, source, engine, Progress(progress))
        graphs = StoredGraphs(temporary, tokens)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    weakref.finalize(graphs, shutil.rmtree, temporary, ignore_errors=True)
    return graphs


def _fill(folder: Path, source: TokenStream | TextStream, engine: Any, progress: Progress) -> TokenStream:
    """Count and merge what the folder does not hold yet; the tokens that are counted."""
    _check_folder(folder, source)
    with locked_folder(folder):
        for entry in (*folder.iterdir(), *(folder / CHUNKS).iterdir(), *(folder / PARTS).iterdir()):
            if _is_left_over(entry):
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        store = _Store(folder, source.fingerprint)
        stream = source.tokens(folder, progress)
        if not store.is_complete():
            if stream.n_vocabulary > MAX_TOKENS:
                remedy = "Number the tokens that occur from 0 on."
                raise reject("n_vocabulary", f"at most {MAX_TOKENS} tokens", stream.n_vocabulary, remedy)
            store.fill(stream, engine, progress)
        shutil.rmtree(
            folder / CHUNKS, ignore_errors=True
        )  # also those of a run that was killed when its index was there
        return stream


def _check_folder(folder: Path, source: TokenStream | TextStream) -> None:
    """Make the folder one of this stream, or refuse it where it is one of another or of something else."""
    expected, place = "an empty folder, or one of the same stream", folder / STREAM
    identity = {"format": FORMAT, "stream": source.fingerprint, "window": source.window}
    try:
        if place.is_file():
            if json.loads(place.read_text(encoding="utf-8")) != identity:
                raise reject("out", expected, f"{str(folder)!r}, which holds the graphs of another stream")
        elif folder.exists() and (not folder.is_dir() or any(not _is_left_over(entry) for entry in folder.iterdir())):
            raise reject("out", expected, f"{str(folder)!r}, which holds something else")
        else:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(place, json.dumps(identity).encode(), "out")
        for name in (CHUNKS, PARTS):
            (folder / name).mkdir(exist_ok=True)
    except OSError as problem:
        raise reject("out", expected, unusable(folder, problem)) from problem
    except json.JSONDecodeError as problem:
        raise reject("out", expected, f"{str(place)!r}, which cannot be read") from problem


def _is_left_over(entry: Path) -> bool:
    """Whether a file or folder is one that a process was writing to when it was ended."""
    return entry.name.startswith(".") and entry.name.endswith(".partial")


# ---- counting the windows of a chunk


class EdgeCounts(NamedTuple):
    """Edges of priority graphs and how often each occurs.

    Attributes:
        keys: (n_edges,) (last · K + label) · K + token, distinct and increasing. counts: (n_edges,) in how many positions.
    """

    keys: IntArray
    counts: IntArray


class ChunkCounts(NamedTuple):
    """The edges of the windows of a chunk that hold their label, and how many windows there are in all."""

    edges: EdgeCounts
    n_windows: int


def count_chunk(stream: TokenStream, index: int) -> ChunkCounts:
    """Count the edges of the windows of a chunk, in time linear in its tokens but for sorting the edges."""
    chunk, K, separator = stream.read(index), stream.n_vocabulary, -1 if stream.separator is None else stream.separator
    places, n_windows = np.empty(len(chunk.ids), dtype=np.int64), np.zeros(1, dtype=np.int64)
    n_places = core.find_followed(K, chunk.ids, chunk.starts, chunk.first, stream.window, separator, places, n_windows)
    windows = np.empty((n_places, stream.window), dtype=np.int64)
    core.fill_edge_keys(chunk.ids, places[:n_places], K, windows)
    keys = windows.reshape(-1)
    keys.sort()
    counts = np.empty(len(keys), dtype=np.int64)
    n_edges = core.count_keys(keys, counts)
    return ChunkCounts(EdgeCounts(keys[:n_edges].copy(), counts[:n_edges].copy()), int(n_windows[0]))


# ---- merging counts


def merged(parts: list[EdgeCounts]) -> EdgeCounts:
    """The counts of all parts together; in whatever order they are merged, the result is the same."""
    while len(parts) > 1:
        odd = parts[-1:] if len(parts) % 2 else []
        parts = [_merged_pair(*parts[k : k + 2]) for k in range(0, len(parts) - 1, 2)] + odd
    return parts[0]


def _merged_pair(a: EdgeCounts, b: EdgeCounts) -> EdgeCounts:
    keys, counts = (np.empty(len(a.keys) + len(b.keys), dtype=np.int64) for _ in range(2))
    n = core.merge_counts(*a, *b, keys, counts)
    return EdgeCounts(keys[:n], counts[:n])


class Range(NamedTuple):
    """Last tokens from `first` to `end` - 1."""

    first: int
    end: int


class MergedRange(NamedTuple):
    """The graphs of a range of last tokens; positions: (n_graphs,) the tokens of all windows behind each."""

    graphs: GraphArrays
    positions: IntArray


def merge_range(files: list[Path], ranges: list[Range], n_vocabulary: int, index: int) -> MergedRange:
    """The graphs of a range of last tokens, from the counts in the files of all chunks."""
    K, (first, end) = n_vocabulary, ranges[index]
    edges = merged([_edges_of(read_arrays(file), first, end, K) for file in files])
    graphs = graph_arrays(edges.keys, edges.counts, K)
    begins = np.searchsorted(edges.keys, graphs.last * (K * K))
    return MergedRange(graphs, np.add.reduceat(edges.counts, begins))


def _edges_of(file: ArrayFile, first: int, end: int, n_vocabulary: int) -> EdgeCounts:
    """The edges of a chunk's file whose last token is in a range."""
    last, offsets = np.asarray(file.arrays["last"]), np.asarray(file.arrays["offsets"])
    a, b = np.searchsorted(last, (first, end))
    chosen = slice(offsets[a], offsets[b])
    begins = np.repeat(last[a:b].astype(np.int64) * (n_vocabulary * n_vocabulary), np.diff(offsets[a : b + 1]))
    return EdgeCounts(
        begins + file.arrays["pairs"][chosen].astype(np.int64), file.arrays["counts"][chosen].astype(np.int64)
    )


# ---- the folder


@dataclass(frozen=True, eq=False)
class _Store:
    """The folder of a stream: files of chunks while they are counted, then files of graphs by ranges of last tokens, then their index."""

    folder: Path
    fingerprint: str

    def fill(self, stream: TokenStream, engine: Any, progress: Progress) -> None:
        """Count the chunks that are missing, merge them, and write the index."""
        threads, indices = Threads(n_threads()), range(stream.n_chunks)
        missing = [k for k in indices if not self._is_whole(self._chunk(k), self._chunk_facts(k, stream))]
        progress.expect(progress.done + len(missing))
        for k, counted in (threads if engine is None else as_engine(engine)).run(partial(count_chunk, stream), missing):
            self._write_chunk(k, counted, stream)
            progress.advance()
        ranges, totals = self._ranges(stream)
        missing = [p for p, tokens in enumerate(ranges) if not self._is_whole(self._part(p), self._part_facts(tokens))]
        progress.expect(progress.done + len(missing))
        files = [self._chunk(k) for k in indices]
        for p, part in threads.run(partial(merge_range, files, ranges, stream.n_vocabulary), missing):
            self._write_part(p, ranges[p], part, stream.n_vocabulary)
            progress.advance()
        self._write_index(ranges, totals, stream)

    def is_complete(self) -> bool:
        """Whether the index is there and every file that it lists is whole; otherwise the index goes."""
        index = self.folder / INDEX
        if not self._is_whole(index, {"stream": self.fingerprint}):
            return False
        ranges = [Range(*pair) for pair in read_arrays(index).facts["ranges"]]
        parts = [self._is_whole(self._part(p), self._part_facts(tokens)) for p, tokens in enumerate(ranges)]
        if not all(parts):
            index.unlink()
        return all(parts)

    # ---- files

    def _chunk(self, index: int) -> Path:
        return self.folder / CHUNKS / f"{index:06d}.counts"

    def _part(self, index: int) -> Path:
        return self.folder / PARTS / part_name(index)

    def _chunk_facts(self, index: int, stream: TokenStream) -> dict[str, Any]:
        return {"stream": self.fingerprint, "chunk": index, "tokens_per_chunk": stream.tokens_per_chunk}

    def _part_facts(self, tokens: Range) -> dict[str, Any]:
        return {"stream": self.fingerprint, "first": tokens.first, "end": tokens.end}

    def _is_whole(self, path: Path, facts: Mapping[str, Any]) -> bool:
        """Whether a file is there, undamaged and of these facts; a damaged one is named and will be made again."""
        if not path.exists():
            return False
        try:
            file = read_arrays(path)
            file.verify()
        except DamagedFile as problem:
            warnings.warn(f"{str(path)!r} is damaged ({problem}) and is made again.", stacklevel=2)
            return False
        return all(file.facts.get(name) == value for name, value in facts.items())

    def _write_chunk(self, index: int, counted: ChunkCounts, stream: TokenStream) -> None:
        K, (keys, counts) = stream.n_vocabulary, counted.edges
        tokens = np.arange(K + 1) * (K * K)
        offsets = np.searchsorted(keys, tokens)
        present = np.flatnonzero(np.diff(offsets))
        arrays = {
            "last": present.astype(np.uint32),
            "offsets": np.append(offsets[present], len(keys)),
            "pairs": (keys % (K * K)).astype(_smallest(K * K)),
            "counts": counts.astype(np.uint32),
        }
        facts = {**self._chunk_facts(index, stream), "windows": counted.n_windows, "positions": int(counts.sum())}
        write_arrays(self._chunk(index), facts, arrays, "out")

    def _write_part(self, index: int, tokens: Range, part: MergedRange, n_vocabulary: int) -> None:
        graphs, small = part.graphs, _smallest(n_vocabulary)
        arrays = graphs._asdict() | {
            "nodes": graphs.nodes.astype(small),
            "component_of": graphs.component_of.astype(small),
            "edges": graphs.edges.astype(small),
            "counts": graphs.counts.astype(_smallest(int(graphs.counts.max(initial=0)) + 1)),
            "positions": part.positions,
        }
        write_arrays(self._part(index), self._part_facts(tokens), arrays, "out")

    def _ranges(self, stream: TokenStream) -> tuple[list[Range], dict[str, int]]:
        """Ranges of last tokens with about as many edges each, and the windows of all chunks."""
        entries = np.zeros(stream.n_vocabulary, dtype=np.int64)
        windows = positions = 0
        for k in range(stream.n_chunks):
            file = read_arrays(self._chunk(k))
            entries[np.asarray(file.arrays["last"])] += np.diff(file.arrays["offsets"])
            windows += file.facts["windows"]
            positions += file.facts["positions"]
        if not positions:
            window = stream.window
            raise reject("window", "long enough that some window holds the token that follows it", window)
        total, edges = np.cumsum(entries), [0]
        while edges[-1] < len(total):
            before = total[edges[-1] - 1] if edges[-1] else 0
            edges.append(max(edges[-1] + 1, int(np.searchsorted(total, before + _RANGE_ENTRIES, side="right"))))
        ranges = [Range(a, b) for a, b in pairwise(edges) if total[b - 1] > (total[a - 1] if a else 0)]
        return ranges, {"n_windows": windows, "n_dropped": windows - positions // stream.window}

    def _write_index(self, ranges: list[Range], totals: dict[str, int], stream: TokenStream) -> None:
        rows: list[dict[str, Any]] = []
        for p in range(len(ranges)):
            arrays = read_arrays(self._part(p)).arrays
            n_graphs, node_offsets = len(arrays["last"]), np.asarray(arrays["node_offsets"])
            highest = np.maximum.reduceat(arrays["component_of"], node_offsets[:-1]).astype(np.int64)
            places = {"last": arrays["last"], "part": np.full(n_graphs, p), "place": np.arange(n_graphs)}
            sizes = (np.diff(node_offsets), np.diff(arrays["edge_offsets"]), highest + 1)
            rows.append({**places, **dict(zip(_SIZES, (*sizes, arrays["positions"] // stream.window), strict=True))})
        facts = {
            "stream": self.fingerprint,
            "window": stream.window,
            "n_vocabulary": stream.n_vocabulary,
            "ranges": ranges,
            "names": stream.names,
            **totals,
        }
        arrays = {name: np.concatenate([row[name] for row in rows]).astype(np.int64) for name in rows[0]}
        write_arrays(self.folder / INDEX, facts, arrays, "out")


_COLUMNS = ("windows", "tokens", "edges", "components")  # of a summary
_SIZES = ("tokens", "edges", "components", "windows")  # of each graph, in the index


def part_name(index: int) -> str:
    """The file of a range of last tokens."""
    return f"{index:06d}.graphs"


def _smallest(n_values: int) -> type[np.unsignedinteger[Any]]:
    """The smallest of three types that holds 0 to n_values - 1."""
    return np.uint16 if n_values <= 2**16 else np.uint32 if n_values <= 2**32 else np.uint64


# ---- the graphs of a folder


@dataclass(frozen=True, repr=False, eq=False)
class GraphSummary(Result, Tabular):
    """The sizes of many priority graphs.

    Attributes:
        n_windows: windows of the stream. n_dropped: those that lack the token which follows them. n_graphs: last tokens of the others.
        n_edges, n_components, n_acyclic: of all graphs together. share_acyclic: n_acyclic / n_graphs.
        last, windows, tokens, edges, components: (n_graphs,) of each graph.

    `to_frame()` has one row per graph: last, windows, tokens, edges, components.
    """

    n_windows: int
    n_dropped: int
    n_graphs: int
    n_edges: int
    n_components: int
    n_acyclic: int
    share_acyclic: float
    last: IntArray
    windows: IntArray
    tokens: IntArray
    edges: IntArray
    components: IntArray
    quantities = "n_windows={n_windows:,}, n_graphs={n_graphs:,}, n_edges={n_edges:,}, n_components={n_components:,}"

    @drawn
    def plot(self, ax: Axes) -> None:
        """Draw the components of each graph over its tokens; graphs without ties lie on the diagonal."""
        ax.loglog(self.tokens, self.components, ".", color=LOCAL, alpha=0.3)
        ax.set(xlabel="tokens", ylabel="components")

    _columns = table("", "last", *_COLUMNS)


class StoredGraphs(Mapping[int, PriorityGraph], Displayed, Tabular):
    """The priority graphs in the folder of a stream, from last token to `PriorityGraph`; each is read when it is asked for.

    Args:
        folder: what `priority_graphs(stream, out=folder)` has filled.
        tokens: the stream that was counted; by default that in the folder, which holds the ids of texts.

    Attributes:
        tokens: the stream, None where the folder does not hold it: `tokens.sequences(E)` has its windows, as far as they fit in memory,
            and `ranking_evidence(tokens, graph)` what stands behind a ranking.
        names: (n_vocabulary,) what the tokens are called, where the stream knows it. facts: n_windows, n_dropped, window and others.

    `to_frame()` has one row per graph, as that of `summary()`.
    """

    folder: Path
    tokens: TokenStream | None
    names: tuple[str, ...] | None
    facts: Mapping[str, Any]

    def __init__(self, folder: str | os.PathLike[str], tokens: TokenStream | None = None) -> None:
        self.folder = as_path(folder, "folder", "the path of a folder")
        try:
            index = read_arrays(self.folder / INDEX)
            index.verify()
        except DamagedFile as problem:
            expected = "a folder that priority_graphs has filled from a stream"
            raise reject(
                "folder", expected, f"{str(self.folder)!r}, whose {INDEX} is not usable ({problem})"
            ) from problem
        self.facts = index.facts
        self.tokens = stored_tokens(self.folder, self.facts["window"]) if tokens is None else tokens
        self.names = None if index.facts["names"] is None else tuple(index.facts["names"])
        self._arrays = {name: np.array(array) for name, array in index.arrays.items()}
        self._verified: BoolArray = np.zeros(len(index.facts["ranges"]), dtype=bool)
        self._opened: tuple[int, Any] = (-1, None)

    def __repr__(self) -> str:
        n_edges = int(self._arrays["edges"].sum())
        return f"StoredGraphs({len(self)} graphs, {n_edges} edges in {str(self.folder)!r})"

    __eq__, __hash__ = object.__eq__, object.__hash__  # to compare all graphs is to read them all

    def __len__(self) -> int:
        return len(self._arrays["last"])

    def __iter__(self) -> Iterator[int]:
        return iter(self._arrays["last"].tolist())

    def __contains__(self, last: object) -> bool:
        return self._place(last) >= 0

    def __getitem__(self, last: int) -> PriorityGraph:
        place = self._place(last)
        if place < 0:
            raise KeyError(last)
        return self._part(int(self._arrays["part"][place])).graph(int(self._arrays["place"][place]))

    def _part(self, index: int) -> GraphArrays:
        """The graphs of one file, mapped; the last one stays open, since neighbours are often asked for together."""
        opened, graphs = self._opened
        if opened == index:
            return graphs
        path = self.folder / PARTS / part_name(index)
        try:
            file = read_arrays(path)
            if not self._verified[index]:
                file.verify()
                self._verified[index] = True
        except DamagedFile as problem:
            remedy = "Count the stream into this folder again: it is then made anew."
            got = f"{str(path)!r}, which is damaged ({problem})"
            raise reject("folder", "one of whole files", got, remedy) from problem
        graphs = GraphArrays(*(np.asarray(file.arrays[name]) for name in GraphArrays._fields))
        self._opened = index, graphs
        return graphs

    def _place(self, last: object) -> int:
        if isinstance(last, bool) or not isinstance(last, int | np.integer):
            return -1
        tokens = self._arrays["last"]
        place = int(np.searchsorted(tokens, last))
        return place if place < len(tokens) and tokens[place] == last else -1

    def plot(self, ax: Any = None) -> Any:
        """Draw the components of each graph over its tokens. Returns the axes."""
        return self.summary().plot(ax)

    def _columns(self) -> dict[str, Any]:
        return self.summary()._columns()

    def _facts(self) -> Mapping[str, Any]:
        return self.summary()._facts()

    def summary(self) -> GraphSummary:
        """The sizes of all graphs, from the index alone."""
        sizes = {name: self._arrays[name].copy() for name in ("last", *_SIZES)}
        n_acyclic = int(np.sum(sizes["tokens"] == sizes["components"]))
        return GraphSummary(
            n_windows=self.facts["n_windows"],
            n_dropped=self.facts["n_dropped"],
            n_graphs=len(self),
            n_edges=int(sizes["edges"].sum()),
            n_components=int(sizes["components"].sum()),
            n_acyclic=n_acyclic,
            share_acyclic=n_acyclic / len(self),
            **sizes,
        )
