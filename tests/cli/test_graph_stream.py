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
from marginlens.cli import _rankings
from marginlens.cli.app import app
from one_command import command

TEXT = "to be or not to be that is the question\n" * 5

graph, numbers = command("graph")


@pytest.fixture
def text(here):
    """A short text as a file."""
    Path("t.txt").write_text(TEXT, encoding="utf-8")
    return "t.txt"


@pytest.mark.parametrize(
    "options",
    [
        ("--window", "5", "--last", "␣", "--last", "t"),
        ("--window", "4", "--words", "--vocabulary", "6"),
        ("--window", "7", "--margin"),
        ("--window", "3", "--words", "--d-model", "4", "--seed", "3"),
        ("--window", "6", "--words", "--held-out", "0.3", "--prefix", "the cat saw a"),
        ("--window", "3", "--held-out", "0.21"),
        ("--window", "8", "--prefix", "the cat s", "--tokens", "12", "--seed", "5"),
    ],
    ids=["characters", "words", "margin", "random", "both", "held-out", "prefix"],
)
def test_a_stream_answers_like_a_file(here, options, monkeypatch):
    monkeypatch.setattr(ml.data.token_stream, "MAX_CHUNK_POSITIONS", 400)  # many chunks
    text = "the cat saw a dog; a dog saw the cat, and the old cat saw that the dog saw it.\nThen a bird sang:\n" * 7
    Path("t.txt").write_text(text + text[::-1], encoding="utf-8")
    expected = numbers("t.txt", *options)
    found = numbers("--stream", "t.txt", *options)
    counts = found.pop("stream")
    assert found == expected
    assert counts["windows"] == expected["samples"] + expected["dropped"]
    assert found["graphs"][0]["order"]["pairs"] or "--words" in options


def test_graphs_are_drawn_and_saved_as_those_of_a_file(text):
    for place, options in (("file", [text]), ("stream", ["--stream", text])):
        outputs = ["--plot", f"{place}.svg", "--save", f"{place}.json", "--sequences", f"{place}.npz"]
        result = graph(*options, "--window", "5", *outputs)
        assert result.exit_code == 0, result.output
        assert f"Written to {place}.json" in result.stdout
    saved = [json.loads(Path(f"{place}.json").read_text(encoding="utf-8")) for place in ("file", "stream")]
    for name in ("graphs", "vocabulary", "samples", "dropped", "settings"):
        assert saved[0][name] == saved[1][name]
    assert "--stream" in saved[1]["command"]
    assert Path("file.svg").read_text(encoding="utf-8") == Path("stream.svg").read_text(encoding="utf-8")
    data = [ml.data.read_sequences(f"{place}.npz").data for place in ("file", "stream")]
    assert data[0] == data[1]


def test_chains_are_followed_among_few_components(text, monkeypatch):
    few = numbers("--stream", text, "--window", "5")
    monkeypatch.setattr(_rankings, "_MAX_COMPONENTS", 1)
    many = numbers("--stream", text, "--window", "5")
    for followed, others in zip(few["graphs"], many["graphs"], strict=True):
        assert others["order"]["compared"]["directly"] == followed["order"]["compared"]["directly"]
        if followed["components"] > 1:
            assert others["order"]["compared"]["through_chains"] is others["order"]["compared"]["not"] is None
    assert "chains are not followed among more than 1" in graph("--stream", text, "--window", "5").stdout


def test_it_learns_from_the_first_tokens_where_not_all_fit(text, monkeypatch):
    monkeypatch.setattr(ml.data.token_stream, "MAX_POSITIONS_IN_MEMORY", 4 * 60)
    Path("t.txt").write_text(TEXT[:60] + "bnoe " * 30, encoding="utf-8")
    Path("first.txt").write_text(TEXT[:60], encoding="utf-8")
    result = graph("--stream", "t.txt", "--window", "4", "--prefix", "to b")
    assert "What follows is learned from the first 60 of 210 tokens" in " ".join(result.stdout.split())
    row = numbers("--stream", "t.txt", "--window", "4", "--prefix", "to b")
    assert row["stream"]["learned_tokens"] == 60
    first = numbers("first.txt", "--window", "4", "--prefix", "to b")
    assert row["continuation"] == first["continuation"]
    assert row["samples"] > first["samples"]


def test_it_prints_a_summary_and_goes_on_in_its_folder(text):
    for _ in range(2):
        result = graph("--stream", text, text, "--words", "--window", "5", "--out", "graphs")
        assert result.exit_code == 0, result.output
        assert "different last tokens" in result.stdout
        assert '"to"' in result.stdout
        assert "Above > below (sequences that say so)" in result.stdout
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
    assert json.loads(packed.stdout)["graphs"] == expected["graphs"]
    for _ in range(2):  # the folder knows the stream by what came through the pipe
        result = CliRunner().invoke(app, ["graph", "--stream", "-", "--window", "5", "--out", "graphs"], input=TEXT)
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith(f"-: {expected['samples']} sequences of 5 over 14 tokens")
    os.mkfifo("pipe")
    writer = threading.Thread(target=lambda: Path("pipe").write_text(TEXT, encoding="utf-8"))
    writer.start()
    assert numbers("--stream", "pipe", "--window", "5")["graphs"] == expected["graphs"]
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
    assert separated["stream"]["windows"] < rows[0]["stream"]["windows"]
    continued = numbers("--stream", "ids.bin", "--window", "3", "--prefix", "3 1 4", "--held-out", "0.2")
    assert continued["continuation"]["whole"].startswith("3 1 4 ")
    assert continued["prediction"]["scores"]
