"""Priority graphs of streams: equal to those of one pass, whatever the chunks, and safe in their folder."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import marginlens as ml
from marginlens.data.sequences import SequenceDataset
from marginlens.graphs import PriorityGraph
from refusals import refused


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


def test_the_evidence_of_a_stream_is_that_of_its_windows_in_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    ids = np.concatenate([np.sort(rng.integers(11, size=40)) for _ in range(30)])  # sorted runs rank tokens strictly
    for texts, separator in (([ids], None), ([ids[:500], ids[500:520], ids[520:]], None), ([ids], 7)):
        stream = ml.data.TokenStream(texts, 5, n_vocabulary=11, separator=separator, chunk=97)
        graphs, data = ml.priority_graphs(stream), stream.sequences(np.eye(11))
        assert graphs.tokens is stream
        assert_same(ml.priority_graphs(data), graphs)
        origins = np.cumsum([0, *map(len, texts[:-1])])  # then the first place of every window among all tokens
        places = np.concatenate([a + np.arange(len(run) - 5) for a, run in zip(origins, texts, strict=True)])
        if separator is not None:
            places = np.array([a for a in places if separator not in ids[a : a + 6]])
        n_strict = 0
        for graph in graphs.values():
            found, expected = (ml.graphs.ranking_evidence(source, graph) for source in (stream, data))
            for name in ("pairs", "samples", "components", "component_samples"):
                np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
            np.testing.assert_array_equal(found.first, places[data.original_samples()][expected.first])
            n_strict += len(found.pairs)
        assert n_strict > 20


def test_what_is_held_out_is_not_counted(tmp_path: Path) -> None:
    text = "one day the old man met the old dog, and the old dog met a man; the day after it met the cat\n" * 12
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    words = ml.data.Words(max_vocabulary=12)
    expected = ml.data.split_text_windows(text, 6, words, held_out=0.17)
    graphs = ml.priority_graphs(ml.data.TextStream(tmp_path / "text.txt", 6, words, chunk=40).hold_out(0.17))
    assert_same(graphs, ml.priority_graphs(expected.training.data))
    assert graphs.tokens is not None
    split = graphs.tokens.split(expected.training.vocabulary, expected.training.data.E)
    assert split.training.data == expected.training.data
    assert split.held_out == expected.held_out
    np.testing.assert_array_equal(split.samples, expected.samples)
    np.testing.assert_array_equal(split.text, expected.text)
    np.testing.assert_array_equal(split.held_out_text, expected.held_out_text)
    whole = ml.data.TextStream(tmp_path / "text.txt", 6, words)
    ml.priority_graphs(whole, out=tmp_path / "graphs")
    with pytest.raises(ml.InputError, match="the graphs of another stream"):
        ml.priority_graphs(whole.hold_out(0.17), out=tmp_path / "graphs")
    with refused("held_out"):
        whole.hold_out(1.5)
    opened = ml.graphs.StoredGraphs(tmp_path / "graphs").tokens
    assert opened is not None
    assert opened.sequences(expected.training.data.E) == ml.data.text_windows(text, 6, words).data


def test_sequences_are_those_of_the_first_tokens_where_not_all_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ml.data.token_stream, "MAX_POSITIONS_IN_MEMORY", 4 * 300)
    ids = zipf(1_000, 20, seed=4)
    stream = ml.data.TokenStream(ids, 4, n_vocabulary=20).hold_out(0.5)
    assert stream.sequences(np.eye(20)) == ml.data.TokenStream(ids[:300], 4).sequences(np.eye(20))
    split = stream.split(ml.data.Vocabulary(tuple("abcdefghijklmnopqrst"), ml.data.Characters()), np.eye(20))
    np.testing.assert_array_equal(split.text, ids[:300])
    assert split.held_out == ml.data.TokenStream(ids[500:800], 4).sequences(np.eye(20))


KILLED = """
import os, shutil, signal, sys
import marginlens as ml
from marginlens.graphs import stream

def remove_some(folder, **_):
    for chunk in sorted(folder.iterdir())[:2]:
        chunk.unlink()
    os.kill(os.getpid(), signal.SIGKILL)

stream.shutil = type("", (), {"rmtree": staticmethod(remove_some)})
ml.priority_graphs(ml.data.TokenStream(sys.argv[1], 6, chunk=700), out=sys.argv[2])
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no SIGKILL")
def test_a_run_that_is_killed_while_chunks_are_removed_leaves_nothing(
    stream: ml.data.TokenStream, tmp_path: Path
) -> None:
    out = tmp_path / "graphs"
    command = [sys.executable, "-c", KILLED, str(tmp_path / "tokens.bin"), str(out)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == -signal.SIGKILL
    assert (out / "graphs.index").is_file()
    assert len([*(out / "chunks").iterdir()]) == stream.n_chunks - 2
    assert_same(ml.priority_graphs(stream, out=out), one_pass([zipf(3_000, 50)], 6, 50))
    assert not (out / "chunks").exists()


def test_what_a_killed_run_left_beside_a_whole_index_goes(stream: ml.data.TokenStream, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("what the cat saw the dog saw, what the dog saw the cat did not\n" * 20, encoding="utf-8")
    for source in (stream, ml.data.TextStream(text, 4, chunk=300)):
        out, counted = tmp_path / type(source).__name__, []
        expected = {last: graph.edges.tolist() for last, graph in ml.priority_graphs(source, out=out).items()}
        whole = {file for file in out.rglob("*") if file.is_file()}
        (out / "chunks").mkdir()
        for name in ("chunks/000001.counts", ".first.partial", ".tokens.ids.partial", "parts/.000000.graphs-x.partial"):
            (out / name).write_bytes(b"left over")
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
