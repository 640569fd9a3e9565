"""Tables in the terminal: of rows, of facts, of the ledger and of benchmarks."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from fake_claims import fake_claim
from marginlens.cli._terminal import facts_table, rows_table
from marginlens.cli.bench import timings_table
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


@pytest.mark.parametrize("width", [120, 80, 60])
def test_every_word_is_whole_and_every_line_fits(width):
    lines = printed(width).splitlines()
    assert max(map(len, lines)) <= width
    words = {"title", "small", "number", "GMM", "[LMM]", "(-0.064,", "-8.904e-05", "0.0003241", "infeasible"}
    assert words <= set(" ".join(lines).split())


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


def test_timings_have_units_notes_and_sums():
    rows = [
        {"n": 4, "solver": "ours", "seconds_per_problem": 5.698e-06, "kkt_residual": 4.321e-15, "note": None},
        {
            "n": 4,
            "solver": "[theirs]",
            "seconds_per_problem": 0.0014,
            "kkt_residual": 1e-9,
            "note": "half of them failed",
        },
        {"n": 4, "solver": "summary", "form": "ours beside theirs", "times_faster": 245.7},
    ]
    stream = StringIO()
    Console(file=stream, width=100).print(timings_table("Timings [all]", rows))
    for words in (
        "Timings [all]",
        "5.698 µs",
        "1.4 ms",
        "4e-15",
        "[theirs]: half of them failed",
        "n = 4, times faster 245.7: ours beside theirs",
    ):
        assert words in stream.getvalue()
