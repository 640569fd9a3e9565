"""`marginlens graph`: what it prints, what its JSON holds, what it draws and keeps, of texts of any length and of lists."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shlex
import threading
from pathlib import Path

import numpy as np
import pytest

from marginlens import words
from marginlens.cli import rankings
from marginlens.data import text_tokens
from marginlens.data.files import write_sequences
from marginlens.data.paper_examples import figure_2
from marginlens.data.text_windows import split_text_windows, text_windows
from marginlens.data.vocabulary import Words
from marginlens.graphs import counting, priority_graphs
from marginlens.graphs.export import from_tables
from marginlens.nexttoken.automaton import NextTokenAutomaton
from marginlens.nexttoken.scores import WindowNgram
from marginlens.svm.graph import graph_svm
from one_command import command
from tolerances import CONDITIONED, ROUNDING, SVM_KKT

TEXT = "to be or not to be that is the question\n"
LONG_TEXT = 5 * TEXT
NAMES = ["e1", "e2", "e3", "e4"]

graph, numbers = command("graph")


@pytest.fixture
def long_text(here):
    """A text of several lines as a file, in the place of the short one."""
    Path("t.txt").write_text(LONG_TEXT, encoding="utf-8")
    return "t.txt"


@pytest.fixture
def example(here):
    """Figure 2's sequences as a file."""
    write_sequences("f.json", figure_2(), NAMES)
    return "f.json"


@pytest.fixture
def text(here):
    """A short text as a file, beside a list of sequences."""
    Path("t.txt").write_text(TEXT, encoding="utf-8")
    Path("s.json").write_text('{"sequences": [[0, 1], [1, 0], [0, 1], [2, 1]], "labels": [0, 0, 1, 1]}')
    return "t.txt"


def test_a_text_can_be_compressed_reencoded_or_on_stdin(here):
    text = "Es war ein König, und der König war gut.\n"
    Path("t.txt").write_text(text, encoding="utf-8")
    Path("t.txt.gz").write_bytes(gzip.compress(text.encode()))
    Path("latin.txt").write_text(text, encoding="latin-1")
    plain = numbers("t.txt")
    for line in (["t.txt.gz"], ["latin.txt", "--encoding", "latin-1"]):
        assert {**numbers(*line), "file": "t.txt"} == plain
    assert {**numbers("-", stdin=text), "file": "t.txt"} == plain


def test_graph_prints_priorities_and_separability(example):
    result = graph(example)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("f.json: 7 sequences of 3 over 4 tokens, d_model = 4\n")
    assert "2 different last tokens, 1 without ties." in result.stdout
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert '[1] = 3 equal tokens: "e1" "e2" "e3"' in lines
    assert '[1] > "e4" (2)' in lines
    assert (
        lines.index('"e4" > "e2" (1)  "e1" (1)')
        < lines.index('"e2" > "e3" (1)  "e1" (1)')
        < lines.index('"e3" > "e1" (1)')
    )
    assert "Graph-SVM" not in result.stdout
    assert "One-hot embeddings separate every order" in result.stdout
    solution = graph_svm(np.eye(4), priority_graphs(figure_2()))
    solved = " ".join(graph(example, "--margin").stdout.split())
    assert "Graph-SVM of all last tokens: The shortest vector was found" in solved
    assert (
        f"W needs norm {np.log(99.0) * np.linalg.norm(solution.x):,.0f} to rank every pair at least 99 to 1" in solved
    )


def test_graph_ranks_only_compared_tokens(here):
    """Two tokens on one level of the graph, and two chains side by side: nothing stands between them."""
    listed = {
        "sequences": [["a", ">", "z"], ["a", ">", "z"], ["b", "<unk>", "z"], [">", "x", "z"]],
        "labels": ["a", "a", "b", ">"],
    }
    Path("s.json").write_text(json.dumps(listed))
    (row,) = numbers("s.json")["graphs"]
    pairs = {(one["above"], one["below"]): one for one in row["order"]["pairs"]}
    assert set(pairs) == {("a", ">"), ("a", "z"), ("b", "<unk>"), ("b", "z"), (">", "x"), (">", "z")}
    assert (pairs["a", ">"]["sequences"], pairs["a", ">"]["first"]) == (2, 0)
    assert pairs[">", "x"]["first"] == 3
    assert row["order"]["compared"] == {"directly": 6, "through_chains": 1, "not": 8}
    shown = graph("s.json").stdout
    assert '"a" > ">" (2)  "z" (2)' in shown
    assert '"b" > "<unk>" (1)  "z" (1)' in shown


def test_graph_lists_the_sequences_behind_an_edge(text):
    told = numbers(text, "--window", "6", "--last", "o")["graphs"][0]["order"]
    assert told["pairs"]
    for pair in told["pairs"]:
        window = TEXT[pair["first"] : pair["first"] + 6]
        assert window.endswith("o")
        assert pair["below"].replace("␣", " ").replace("↵", "\n") in window
        assert pair["above"].replace("␣", " ") == TEXT[pair["first"] + 6]


def test_graph_json_has_the_printed_numbers(example):
    told = numbers(example, "--margin")
    assert [row["last"] for row in told["graphs"]] == ["e2", "e1"]  # the more frequent first
    unsolved = numbers(example)
    assert {**unsolved, "separability": told["separability"]} == told
    assert set(unsolved["separability"]) == set(told["separability"])
    assert [name for name, value in unsolved["separability"].items() if value is None] == [
        "status",
        "margin",
        "residual",
        "smallest_gap",
    ]
    assert unsolved["separability"]["separable"] is True
    tied, ordered = told["graphs"]
    assert (tied["samples"], tied["tokens"], tied["components"], tied["largest_component"]) == (4, 4, 2, 3)
    assert (tied["strict_pairs"], tied["tied_pairs"], tied["acyclic"]) == (2, 3, False)
    assert (ordered["strict_pairs"], ordered["tied_pairs"], ordered["acyclic"]) == (5, 0, True)
    solution = graph_svm(np.eye(4), priority_graphs(figure_2()))
    assert told["separability"]["separable"] is True
    assert told["separability"]["margin"] == pytest.approx(float(solution.margin), rel=CONDITIONED, abs=ROUNDING)
    assert told["separability"]["residual"] <= SVM_KKT
    assert told["separability"]["strict_pairs"] == 7
    assert told["separability"]["smallest_gap"] == pytest.approx(1.0, abs=CONDITIONED, rel=0.0)  # some pair is tight


def test_inseparable_sequences_are_reported_with_a_proof(here):
    crowded = {"sequences": [[0, 1], [1, 2, 1]], "labels": [0, 2], "E": [[0.0], [1.0], [2.0]]}
    Path("c.json").write_text(json.dumps(crowded))
    found = numbers("c.json", "--prefix", "0 1")
    told = found["separability"]
    assert (told["separable"], told["status"], told["margin"]) == (False, "INFEASIBLE", 0.0)
    assert told["residual"] <= SVM_KKT
    rankings = {(one["last"], one["above"], one["below"], one["sequences"]) for one in told["conflict"]["rankings"]}
    assert rankings == {("1", "0", "1", 1), ("1", "2", "1", 1)}
    assert "Graph-SVM" in found["continuation"]["reason"]  # why there is no automaton
    assert found["continuation"]["next"] == []
    shown = " ".join(graph("c.json").stdout.split())
    assert "the certificate proves it. Residual" in shown
    assert 'After "1", 2 rankings contradict each other' in shown
    assert '"0" over "1" (weight 0.5) and "2" over "1" (weight 0.5)' in shown


@pytest.mark.parametrize(("options", "unit"), [((), None), (("--words",), Words(max_vocabulary=300))])
def test_windows_of_a_text_are_counted(text, options, unit):
    told = numbers(text, "--window", "4", *options)
    found = text_windows(TEXT, 4, unit)
    assert told["samples"] == len(found.data)
    assert told["dropped"] == len(found.data.dropped)
    assert told["last_tokens"] == len(priority_graphs(found.data))
    assert told["settings"]["window"] == 4
    shown = " ".join(graph(text, "--window", "4", *options).stdout.split())
    assert f"{told['dropped']} sequences" in shown
    assert f"({told['dropped'] / (told['dropped'] + told['samples']):.0%})" in shown


def test_last_tokens_are_chosen_by_name_or_by_sign(text):
    told = numbers(text, "--window", "6", "--last", "␣", "--last", "o", "--last", " ")
    assert [row["last"] for row in told["graphs"]] == ["␣", "o"]


def test_the_automaton_continues_a_prefix(text):
    found = text_windows(TEXT, 6)
    told = numbers(text, "--window", "6", "--prefix", "or not t", "--tokens", "12", "--seed", "3")["continuation"]
    automaton = NextTokenAutomaton.fit(found.data)
    prefix = found.vocabulary.encode("or not t")
    expected = automaton.predict_proba(prefix[-6:], slow="limit")
    for row in told["next"]:
        token = found.vocabulary.shown.index(row["token"])
        assert row["probability"] == pytest.approx(expected[token], abs=CONDITIONED, rel=0.0)
        assert row["probability"] > 0.0
    assert sum(row["probability"] for row in told["next"]) == pytest.approx(1.0, abs=CONDITIONED, rel=0.0)
    assert len(told["text"]) == 12
    assert told["whole"] == "or not t" + told["text"]
    assert set(told["text"]) <= set("or not t")  # attention outputs what it reads
    again = graph(text, "--window", "6", "--prefix", "or not t", "--tokens", "12", "--seed", "3")
    assert "The automaton continues:\nor not t" in again.stdout
    assert "ends in repetition" in again.stdout


def test_the_automaton_is_scored_on_held_out_data(text):
    options = ("--window", "3", "--held-out", "0.5")
    content = "abca " * 8 + "abcb " * 8  # the second half contradicts the first
    Path(text).write_text(content, encoding="utf-8")
    told = numbers(text, *options)
    split = split_text_windows(content, 3, held_out=0.5)
    automaton = NextTokenAutomaton.fit(split.training.data)
    scores = {row["rule"]: row for row in told["held_out"]["scores"]}
    assert told["samples"] == len(split.training.data)
    assert told["held_out"]["sequences"] == len(split.held_out)
    assert "prediction" not in told
    assert scores["automaton"]["accuracy"] == automaton.score(split.held_out).accuracy
    bigram = WindowNgram.fit(split.training.data, 2).score(split.held_out)
    assert scores["bigram of the same windows"]["accuracy"] == bigram.accuracy
    assert scores["4-gram of all of the text"]["mixed_log_loss"] > 0.0
    assert told["held_out"]["windows"] == len(split.held_out) + len(split.held_out.dropped)
    assert scores["automaton"]["impossible"] > 0.0
    assert scores["automaton"]["log_loss"] is None  # JSON has no ∞
    shown = " ".join(graph(text, *options).stdout.split())
    assert words.text("held_out.heading", sequences=len(split.held_out)) in shown
    assert "∞" in shown
    right = scores["automaton"]["accuracy"] * len(split.held_out) / told["held_out"]["windows"]
    holding = len(split.held_out) / told["held_out"]["windows"]
    assert f"{holding:.1%} contain the next token" in shown
    assert f"The automaton predicts it in {right:.1%}" in shown
    listed = numbers("s.json", "--held-out", "0.25", "--seed", "1")
    assert (listed["samples"], listed["held_out"]["sequences"]) == (3, 1)


def test_graph_plot_writes_a_figure(example):
    for name, start in (("g.png", b"\x89PNG"), ("g.svg", b"<?xml")):
        result = graph(example, "--plot", name)
        assert result.exit_code == 0, result.output
        assert f"Written to {name}" in result.stdout
        assert Path(name).read_bytes().startswith(start)


OPTIONS = {
    "characters": ("t.txt", "--window", "6"),
    "embedded": ("t.txt", "--window", "6", "--d-model", "60", "--seed", "3"),
    "words": ("t.txt", "--window", "4", "--words", "--vocabulary", "7", "--last", "not"),
    "listed": ("s.json", "--drop"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_graph_saves_edges_with_their_evidence(text, case):
    Path("s.json").write_text('{"sequences": [[0, 1], [0, 1]], "labels": [2, 1]}')
    name, *options = OPTIONS[case]
    folder = Path("deep")
    folder.mkdir()
    (folder / name).write_bytes(Path(name).read_bytes())
    result = graph(str(folder / name), *options, "--save", "kept.json")
    assert result.exit_code == 0, result.output
    kept = json.loads(Path("kept.json").read_text(encoding="utf-8"))
    assert "deep" not in Path("kept.json").read_text(encoding="utf-8")
    assert kept["sha256"] == hashlib.sha256(Path(name).read_bytes()).hexdigest()
    words = shlex.split(kept["command"])
    assert words[:3] == ["marginlens", "graph", name]
    first = Path("kept.json").read_bytes()
    assert graph(*words[2:]).exit_code == 0  # the command that it names makes it again
    assert Path("kept.json").read_bytes() == first


def test_saved_edges_equal_those_of_the_graphs(text):
    graph(text, "--window", "6", "--save", "kept.json")
    kept = json.loads(Path("kept.json").read_text(encoding="utf-8"))
    data = text_windows(TEXT, 6).data
    graphs = priority_graphs(data)
    for table, (last, back) in zip(kept["graphs"], from_tables(kept["graphs"]).items(), strict=True):
        assert np.array_equal(back.edges, graphs[last].edges)
        assert np.array_equal(back.counts, graphs[last].counts)
        assert table["samples"] == np.sum(data.last == last)


def test_windows_followed_by_unknown_words_are_counted_not_scored(here):
    content = "the cat saw the dog and the dog saw the cat and the bird saw the newt and the newt saw the bird . " * 4
    Path("w.txt").write_text(content, encoding="utf-8")
    options = ("--words", "--vocabulary", "4", "--window", "5", "--held-out", "0.4")
    found = numbers("w.txt", *options)["held_out"]
    split = split_text_windows(content, 5, Words(max_vocabulary=4), held_out=0.4)
    unknown = int(np.sum(split.held_out.labels == split.training.vocabulary.unknown))
    assert 0 < unknown < len(split.held_out)
    assert found["left_out"] == unknown
    assert {row["samples"] for row in found["scores"]} == {len(split.held_out) - unknown}
    shown = " ".join(graph("w.txt", *options).stdout.split())
    assert words.text("held_out.left_out", sequences=unknown, share=unknown / len(split.held_out)) in shown


# ---- texts of any length


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
def test_a_text_in_many_chunks_answers_like_one_in_memory(here, options, monkeypatch):
    text = "the cat saw a dog; a dog saw the cat, and the old cat saw that the dog saw it.\nThen a bird sang:\n" * 7
    Path("t.txt").write_text(text + text[::-1], encoding="utf-8")
    whole = numbers("t.txt", *options)
    monkeypatch.setattr(counting, "BLOCK_POSITIONS", 400)
    monkeypatch.setattr(text_tokens, "CHUNK_TOKENS", 33)
    monkeypatch.setattr(text_tokens, "MAX_SPOOLED_BYTES", 100)
    found = numbers("t.txt", *options)
    assert found == whole
    assert found["text"]["windows"] == found["samples"] + found["dropped"]
    assert found["graphs"][0]["order"]["pairs"] or "--words" in options


def test_the_rankings_are_those_of_the_windows_in_memory(long_text):
    told = numbers(long_text, "--window", "5", "--words", "--last", "to")
    found = text_windows(LONG_TEXT, 5, Words(max_vocabulary=300))
    graph_of_to = priority_graphs(found.data)[found.vocabulary.names.index("to")]
    (row,) = told["graphs"]
    assert (row["tokens"], row["components"]) == (len(graph_of_to.nodes), graph_of_to.n_components)
    assert row["strict_pairs"] == len(graph_of_to.strict)


def test_chains_are_followed_among_few_components(long_text, monkeypatch):
    few = numbers(long_text, "--window", "5")
    monkeypatch.setattr(rankings, "MAX_COMPONENTS", 1)
    many = numbers(long_text, "--window", "5")
    assert sum(graph["components"] > 1 for graph in few["graphs"]) >= 3
    for followed, others in zip(few["graphs"], many["graphs"], strict=True):
        assert others["order"]["compared"]["directly"] == followed["order"]["compared"]["directly"]
        if followed["components"] > 1:
            assert others["order"]["compared"]["through_chains"] is others["order"]["compared"]["not"] is None
    assert "chains are not followed among so many" in graph(long_text, "--window", "5").stdout


def test_a_text_beyond_the_limit_is_learned_from_its_first_tokens(long_text, monkeypatch):
    monkeypatch.setattr(rankings, "MAX_POSITIONS_IN_MEMORY", 4 * 60)
    Path("t.txt").write_text(LONG_TEXT[:60] + "bnoe " * 30, encoding="utf-8")
    Path("first.txt").write_text(LONG_TEXT[:60], encoding="utf-8")
    result = graph("t.txt", "--window", "4", "--prefix", "to b")
    assert "What follows is learned from the first 60 of 210 tokens" in " ".join(result.stdout.split())
    row = numbers("t.txt", "--window", "4", "--prefix", "to b")
    assert row["text"]["learned_tokens"] == 60
    first = numbers("first.txt", "--window", "4", "--prefix", "to b")
    assert row["continuation"] == first["continuation"]
    assert row["samples"] > first["samples"]
    assert numbers("t.txt", "--window", "4")["text"]["learned_tokens"] is None


def test_texts_can_be_compressed_and_reencoded(long_text):
    Path("plain.txt").write_bytes(gzip.compress("naïf, très naïf\r\n".encode("latin-1") * 9))
    Path("utf8.txt").write_text("naïf, très naïf\n" * 9, encoding="utf-8")
    rows = [numbers("plain.txt", "--encoding", "latin-1", "--window", "12"), numbers("utf8.txt", "--window", "12")]
    assert rows[0]["graphs"] == rows[1]["graphs"]
    refused = graph("plain.txt")
    assert refused.exit_code == 2
    assert "--encoding must be the encoding of the text" in refused.stderr


@pytest.mark.posix("named pipe in a folder")
def test_a_pipe_is_read_as_a_file(long_text):
    expected = numbers(long_text, "--window", "5")
    packed = numbers("-", "--window", "5", stdin=gzip.compress(LONG_TEXT.encode()))
    assert packed["graphs"] == expected["graphs"]
    result = graph("-", "--window", "5", stdin=LONG_TEXT)
    assert result.stdout.startswith(f"-: {expected['samples']} sequences of 5 over 14 tokens")
    os.mkfifo("pipe")
    writer = threading.Thread(target=lambda: Path("pipe").write_text(LONG_TEXT, encoding="utf-8"))
    writer.start()
    assert numbers("pipe", "--window", "5")["graphs"] == expected["graphs"]
    writer.join()


def test_a_tokenizer_cuts_the_text(long_text):
    """Of its 5,000 tokens the 9 that occur have ids, so that one-hot embeddings are not too wide."""
    tokenizers = pytest.importorskip("tokenizers")
    words = ["[UNK]", *(f"unused{k}" for k in range(5_000)), "to", "be", "or", "not", "that", "is", "the", "question"]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: k for k, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save("t.json")
    Path("t.txt").write_text(LONG_TEXT + LONG_TEXT.replace("question", "answer"), encoding="utf-8")
    told = numbers("t.txt", "--tokenizer", "t.json", "--window", "6", "--held-out", "0.2", "--prefix", "to be or")
    assert told["settings"]["tokens"] == "tokenizer t.json"
    assert (told["size"]["tokens"], told["size"]["d_model"]) == (9, 9)
    assert {row["rule"] for row in told["held_out"]["scores"]} >= {"automaton", "bigram of the same windows"}
    assert told["continuation"]["whole"].startswith("to be or")
    by_words = numbers("t.txt", "--words", "--window", "6", "--held-out", "0.2")
    assert told["samples"] < by_words["samples"] + by_words["dropped"]
    shown = told["graphs"][-1]["last"]
    again = numbers("t.txt", "--tokenizer", "t.json", "--window", "6", "--held-out", "0.2", "--last", shown)
    assert [row["last"] for row in again["graphs"]] == [shown]
    for refused in (graph("t.txt", "--tokenizer", "t.json", "--words"), graph("t.txt", "--tokenizer", "t.txt")):
        assert refused.exit_code == 2
        assert len(refused.stderr) < 300
