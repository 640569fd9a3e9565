"""Tables in terminals of any width: no word and no number is cut."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from fake_claims import fake_claim
from marginlens.cli._terminal import facts_table, rows_table
from marginlens.cli.tables import Column, Rows
from marginlens_papers.report import reproduce
from marginlens_papers.report.terminal import ledger_table

ROWS = [
    {"kind": "GMM", "direction": "(-0.064, -0.998)", "small_number": -8.904e-05, "status": "optimal"},
    {"kind": "[LMM]", "direction": "(0.903, 0.429)", "small_number": 0.0003241, "status": "infeasible"},
]


def printed(width, rows=ROWS):
    stream = StringIO()
    Console(file=stream, width=width).print(rows_table("A long title over the rows", rows))
    return stream.getvalue()


@pytest.mark.parametrize("width", [120, 80, 60, 48, 44, 40, 30, 24])
def test_every_word_is_whole_and_every_line_fits(width):
    lines = printed(width).splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    assert {"title", "small", "number", "GMM", "[LMM]", "(-0.064,", "-8.904e-05", "0.0003241", "infeasible"} <= set(
        words
    )
    assert "…" not in "".join(lines)


def test_the_frame_goes_before_the_table_does():
    framed, bare, listed = printed(80), printed(44), printed(30)
    assert "│ GMM" in framed
    assert "│" not in bare
    assert any(line.split()[:2] == ["GMM", "(-0.064,"] for line in bare.splitlines())
    assert [line.split() for line in listed.splitlines()[1:5]] == [
        ["kind", "GMM"],
        ["direction", "(-0.064,", "-0.998)"],
        ["small", "number", "-8.904e-05"],
        ["status", "optimal"],
    ]


def test_longer_texts_get_more_room_and_numbers_keep_their_unit():
    stream = StringIO()
    rows = [{"a": "one two three", "b": "many words " * 20, "time": "3.1 s"}]
    columns = [Column(name, [row[name] for row in rows], numeric=name == "time") for row in rows for name in row]
    Console(file=stream, width=70).print(Rows("title", columns))
    lines = stream.getvalue().splitlines()
    assert "│ 3.1 s │" in stream.getvalue()
    assert "│ one two three │" in stream.getvalue()
    assert max(map(len, lines)) == 70  # all of the room is used


@pytest.mark.parametrize("text", ["\\", "[a]\\", "a\\\\", "\\[b]", "[/]"])
def test_signs_of_the_markup_are_printed_as_they_are(text):
    assert f"│ {text} " in printed(40, [{"token": text}])
    assert f"{text}\\" not in printed(40, [{"token": text}])
    stream = StringIO()
    Console(file=stream, width=40).print(facts_table("Facts", {"token": text}))
    assert f"│ token │ {text} │" in stream.getvalue()


def test_the_ledger_cuts_what_was_measured_after_a_word(tmp_path):
    words = [f"number{k}" for k in range(40)]
    entry = reproduce((fake_claim(),), tmp_path / "report").entries[0]
    entry = replace(entry, result=replace(entry.result, measured=" ".join(words)))
    stream = StringIO()
    Console(file=stream, width=400).print(ledger_table([entry]))
    assert f" {' '.join(words[:17])} … " in stream.getvalue()  # 150 letters and no more
