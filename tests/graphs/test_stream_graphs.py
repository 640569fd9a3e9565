"""Priority graphs of streams: equal to those of one pass, whatever the chunks, and safe in their folder."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import marginlens as ml
from marginlens.data.sequences import SequenceDataset
from marginlens.graphs import PriorityGraph


def one_pass(texts: list[np.ndarray], window: int, n_vocabulary: int) -> Mapping[int, PriorityGraph]:
    """The graphs of all windows of all texts in one dataset in memory."""
    views = [np.lib.stride_tricks.sliding_window_view(ids, window)[:-1] for ids in texts if len(ids) > window]
    labels = [ids[window:] for ids in texts if len(ids) > window]
    data = SequenceDataset(np.concatenate(views), np.concatenate(labels), np.eye(n_vocabulary), unrealizable="drop")
    return ml.priority_graphs(data)


def assert_same(graphs: Mapping[int, PriorityGraph], others: Mapping[int, PriorityGraph]) -> None:
    assert list(graphs) == list(others)
    for last, graph in graphs.items():
        for name in ("nodes", "edges", "counts", "component_of"):
            mine, theirs = getattr(graph, name), getattr(others[last], name)
            assert mine.dtype == theirs.dtype == np.int64
            np.testing.assert_array_equal(mine, theirs)


def zipf(n_tokens: int, n_vocabulary: int, seed: int = 0) -> np.ndarray:
    weights = 1.0 / np.arange(1, n_vocabulary + 1)
    return np.random.default_rng(seed).choice(n_vocabulary, size=n_tokens, p=weights / weights.sum())


@pytest.mark.statement("C §3.1")
@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=5).filter(lambda sizes: max(sizes) > 5),
    window=st.integers(1, 5),
    n_vocabulary=st.integers(1, 4),
    chunk=st.integers(5, 60),
    seed=st.integers(0, 100),
)
def test_the_graphs_of_a_stream_are_those_of_one_pass(
    lengths: list[int], window: int, n_vocabulary: int, chunk: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    texts = [rng.integers(n_vocabulary, size=length) for length in lengths]
    stream = ml.data.TokenStream(texts, window, n_vocabulary=n_vocabulary, chunk=chunk)
    try:
        expected = one_pass(texts, window, n_vocabulary)
    except ml.InputError:
        with pytest.raises(ml.InputError, match="some window holds the token"):
            ml.priority_graphs(stream)
        return
    assert_same(ml.priority_graphs(stream), expected)


@pytest.fixture
def stream(tmp_path: Path) -> ml.data.TokenStream:
    """3,000 tokens of a vocabulary of 50 in a file, in chunks of 700."""
    zipf(3_000, 50).astype("<u2").tofile(tmp_path / "tokens.bin")
    return ml.data.TokenStream(tmp_path / "tokens.bin", 6, chunk=700)


def test_a_separator_ends_a_text_and_belongs_to_none() -> None:
    ids = zipf(2_000, 9)
    texts = [part[part != 8] for part in np.split(ids, np.flatnonzero(ids == 8))]
    stream = ml.data.TokenStream(ids, 4, n_vocabulary=9, separator=8, chunk=300)
    assert_same(ml.priority_graphs(stream), one_pass(texts, 4, 9))


def test_engines_give_the_same_graphs(stream: ml.data.TokenStream) -> None:
    from marginlens.engines import Processes, Threads

    expected = one_pass([zipf(3_000, 50)], 6, 50)
    for engine in (Threads(1), Threads(2), Processes(1)):
        assert_same(ml.priority_graphs(stream, engine=engine), expected)


def test_the_summary_adds_up_the_graphs(stream: ml.data.TokenStream) -> None:
    graphs = ml.priority_graphs(stream)
    summary = graphs.summary()
    assert summary.n_windows == 3_000 - 6
    assert summary.n_graphs == len(graphs) == len(summary.last)
    assert summary.n_edges == sum(len(graph.edges) for graph in graphs.values())
    assert summary.n_components == sum(graph.n_components for graph in graphs.values())
    assert summary.n_acyclic == sum(graph.is_acyclic for graph in graphs.values())
    data = SequenceDataset(
        np.lib.stride_tricks.sliding_window_view(zipf(3_000, 50), 6)[:-1],
        zipf(3_000, 50)[6:],
        np.eye(50),
        unrealizable="drop",
    )
    assert summary.n_dropped == len(data.dropped)
    np.testing.assert_array_equal(summary.windows, np.bincount(data.last, minlength=50)[summary.last])
    assert 51 not in graphs
    assert "0" not in graphs
    with pytest.raises(KeyError):
        graphs[51]
    summary.plot()


def test_a_folder_is_gone_on_with_and_damaged_files_are_made_again(stream: ml.data.TokenStream, tmp_path: Path) -> None:
    out, totals = tmp_path / "graphs", []

    def interrupt(n: int, total: int) -> None:
        if n == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ml.priority_graphs(stream, out=out, progress=interrupt)
    files = sorted((out / "chunks").iterdir())
    assert len(files) >= 3
    content = bytearray(files[0].read_bytes())
    content[-70] ^= 1
    files[0].write_bytes(content)
    with pytest.warns(UserWarning, match=rf"{files[0].name}' is damaged .* made again"):
        graphs = ml.priority_graphs(stream, out=out, progress=lambda n, total: totals.append(total))
    assert totals[0] == stream.n_chunks - len(files) + 1
    assert not (out / "chunks").exists()
    assert_same(graphs, one_pass([zipf(3_000, 50)], 6, 50))
    assert_same(ml.graphs.StoredGraphs(out), graphs)

    part = out / "parts" / "000000.graphs"
    part.write_bytes(part.read_bytes()[:-64])
    with pytest.raises(ml.InputError, match=r"000000\.graphs', which is damaged"):
        ml.graphs.StoredGraphs(out)[0]
    with pytest.warns(UserWarning, match=r"000000\.graphs' is damaged"):
        assert_same(ml.priority_graphs(stream, out=out), one_pass([zipf(3_000, 50)], 6, 50))


def test_what_a_killed_run_left_beside_a_whole_index_goes(stream: ml.data.TokenStream, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("what the cat saw the dog saw, what the dog saw the cat did not\n" * 20, encoding="utf-8")
    for source in (stream, ml.data.TextStream(text, 4, chunk=300)):
        out, counted = tmp_path / type(source).__name__, []
        expected = {last: graph.edges.tolist() for last, graph in ml.priority_graphs(source, out=out).items()}
        whole = {file for file in out.rglob("*") if file.is_file()}
        (out / "chunks").mkdir()
        left = [out / "chunks" / "000001.counts", out / ".first.partial", out / "parts" / ".000000.graphs-x.partial"]
        if source is not stream:
            left += [out / "tokens.ids", out / "tokens.json"]
        for place in left:
            place.write_bytes(b"left over")
        graphs = ml.priority_graphs(source, out=out, progress=lambda done, _: counted.append(done))  # noqa: B023
        assert not counted
        assert {last: graph.edges.tolist() for last, graph in graphs.items()} == expected
        assert not (out / "chunks").exists()
        assert {file for file in out.rglob("*") if file.is_file()} == whole


def test_the_folder_of_something_else_is_refused(stream: ml.data.TokenStream, tmp_path: Path) -> None:
    ml.priority_graphs(stream, out=tmp_path / "graphs")
    other = ml.data.TokenStream(zipf(3_000, 50, seed=1), 6)
    with pytest.raises(ml.InputError, match="holds the graphs of another stream"):
        ml.priority_graphs(other, out=tmp_path / "graphs")
    with pytest.raises(ml.InputError, match="holds something else"):
        ml.priority_graphs(other, out=tmp_path)
    with pytest.raises(ml.InputError, match="a folder that priority_graphs has filled"):
        ml.graphs.StoredGraphs(tmp_path)


def test_arguments_of_streams_are_for_streams(stream: ml.data.TokenStream, tmp_path: Path) -> None:
    data = SequenceDataset([[0, 1]], [1], np.eye(2))
    with pytest.raises(ml.InputError, match="'out'"):
        ml.priority_graphs(data, out=tmp_path)  # type: ignore[call-overload]
    with pytest.raises(ml.InputError, match="'head'"):
        ml.priority_graphs(stream, head=np.eye(50))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    command = [mount or "", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(place)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("a file system can be mounted by root alone")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_fills_up_ends_in_a_sentence_and_loses_nothing(small_disk: Path) -> None:
    stream = ml.data.TokenStream(zipf(30_000, 300), 6, chunk=4_000)
    out = small_disk / "graphs"
    with pytest.raises(ml.InputError, match="No space left on device"):
        ml.priority_graphs(stream, out=out)
    counted = len([*(out / "chunks").iterdir()])
    assert counted > 0
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    totals: list[int] = []
    graphs = ml.priority_graphs(stream, out=out, progress=lambda done, total: totals.append(total))
    assert totals[0] == stream.n_chunks - counted
    assert_same(graphs, one_pass([zipf(30_000, 300)], 6, 300))
