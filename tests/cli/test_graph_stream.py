"""`marginlens graph --stream`: what it prints, its folder, and how it refuses."""

from __future__ import annotations

import gzip
import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import marginlens as ml
from marginlens.cli.app import app
from one_command import command

TEXT = "to be or not to be that is the question\n" * 5

graph, numbers = command("graph")


@pytest.fixture
def text(here):
    """A short text as a file."""
    Path("t.txt").write_text(TEXT, encoding="utf-8")
    return "t.txt"


def test_the_numbers_are_those_of_the_graphs_in_memory(text):
    row = numbers("--stream", text, "--window", "5", "--last", "␣", "--last", "t")
    graphs = ml.priority_graphs(ml.data.text_windows(TEXT, 5).data)
    assert row["windows"] == len(TEXT) - 5
    assert row["last_tokens"] == len(graphs)
    assert row["edges"] == sum(len(each.edges) for each in graphs.values())
    assert row["acyclic"] == sum(each.is_acyclic for each in graphs.values())
    names = sorted(set(TEXT))
    for shown, name in zip(row["graphs"], " t", strict=True):
        expected = graphs[names.index(name)]
        assert shown["components"] == expected.n_components
        assert shown["strict_pairs"] == len(expected.strict)
    assert row["graphs"][0]["last"] == "␣"


def test_it_prints_a_summary_and_goes_on_in_its_folder(text):
    for _ in range(2):
        result = graph("--stream", text, text, "--words", "--window", "5", "--out", "graphs")
        assert result.exit_code == 0, result.output
        assert "different last tokens" in result.stdout
        assert '"to"' in result.stdout
        assert "Written to graphs" in result.stdout
    assert len(ml.graphs.StoredGraphs("graphs")) > 0
    refused = graph("--stream", text, "--words", "--window", "4", "--out", "graphs")
    assert refused.exit_code == 2
    assert "which holds the graphs of another stream" in refused.stderr


def test_texts_may_be_packed_and_in_another_encoding(text):
    Path("plain.txt").write_bytes(gzip.compress("naïf, très naïf\r\n".encode("latin-1") * 9))
    Path("utf8.txt").write_text("naïf, très naïf\n" * 9, encoding="utf-8")
    rows = [
        numbers("--stream", "plain.txt", "--encoding", "latin-1", "--window", "12"),
        numbers("--stream", "utf8.txt", "--window", "12"),
    ]
    assert rows[0]["graphs"] == rows[1]["graphs"]
    refused = graph("--stream", "plain.txt")
    assert refused.exit_code == 2
    assert "--encoding must be the encoding of the text" in refused.stderr


def test_a_pipe_is_a_stream_too(text):
    expected = numbers("--stream", text, "--window", "5")
    packed = CliRunner().invoke(
        app, ["graph", "--stream", "-", "--window", "5", "--json"], input=gzip.compress(TEXT.encode())
    )
    assert json.loads(packed.stdout) == {**expected, "files": ["-"]}
    for _ in range(2):  # the folder knows the stream by what came through the pipe
        result = CliRunner().invoke(app, ["graph", "--stream", "-", "--window", "5", "--out", "graphs"], input=TEXT)
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith("-: 195 windows of 5 tokens")
    os.mkfifo("pipe")
    writer = threading.Thread(target=lambda: Path("pipe").write_text(TEXT, encoding="utf-8"))
    writer.start()
    assert numbers("--stream", "pipe", "--window", "5") == {**expected, "files": ["pipe"]}
    writer.join()


def test_token_ids_are_read_from_raw_files_and_arrays(here):
    ids = np.random.default_rng(0).integers(9, size=400)
    ids.astype("<u2").tofile("ids.bin")
    ids.astype("<u4").tofile("ids.u32")
    ids.astype("<i4").tofile("ids.raw")
    np.save("ids.npy", ids)
    rows = [numbers("--stream", name, "--window", "3") for name in ("ids.bin", "ids.u32", "ids.npy")]
    rows.append(numbers("--stream", "ids.raw", "--dtype", "int32", "--window", "3"))
    assert all(row["graphs"] == rows[0]["graphs"] for row in rows)
    separated = numbers("--stream", "ids.bin", "--window", "3", "--separator", "4")
    assert separated["windows"] < rows[0]["windows"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--stream", "missing.txt"), "which is not there"),
        (("--stream", "t.txt", "--window", "10000"), "--window "),
        (("--stream", "t.txt", "--last", "xyz"), "--last must be one of the 14 tokens of the vocabulary"),
        (("--stream", "t.txt", "--last", "q", "--window", "2"), "--last "),
        (("--stream", "t.txt", "--d-model", "3"), "--d-model must be left out for a stream"),
        (("--stream", "t.txt", "--plot", "p.png"), "--plot "),
        (("--stream", "t.txt", "--separator", "3"), "--separator "),
        (("--stream", "t.txt", "--vocabulary", "3"), "--vocabulary "),
        (("--stream", "t.txt", "--dtype", "uint16", "--words"), "--words "),
        (("--stream", "t.txt", "--dtype", "uint16", "--encoding", "latin-1"), "--encoding "),
        (("--stream", "t.txt", "--encoding", "utf-9"), "--encoding must be an encoding that Python knows"),
        (("--stream", "t.txt", "t.bin"), "either texts or files of token ids; got 't.bin' beside 't.txt'"),
        (("--stream", "t.json"), "a text or a file of token ids"),
        (("t.txt", "t.txt"), "a single one unless --stream"),
        (("t.txt", "--out", "graphs"), "--out must be left out unless --stream is given"),
    ],
)
def test_it_refuses_in_one_sentence(text, arguments, words):
    result = graph(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
