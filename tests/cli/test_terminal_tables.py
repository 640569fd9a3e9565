"""Tables in the terminal: of rows, of facts and of the ledger."""

from io import StringIO

import pytest
from rich.console import Console

from marginlens.cli import _terminal
from marginlens.cli._terminal import facts_table, rows_table

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


def test_columns_that_do_not_fit_are_named_instead():
    rows = [{"token": "wonderful", "contribution": "+6.7594", "posterior_difference": "+1.000"}]
    assert "posterior" in printed(45, rows).splitlines()[2]
    narrow = printed(35, rows)
    assert "contribution" in narrow
    assert "Too narrow for posterior" in narrow


@pytest.mark.parametrize("text", ["\\", "[a]\\", "a\\\\", "\\[b]", "[/]"])
def test_signs_of_the_markup_are_printed_as_they_are(text):
    assert f"│ {text} " in printed(40, [{"token": text}])
    assert f"{text}\\" not in printed(40, [{"token": text}])
    stream = StringIO()
    Console(file=stream, width=40).print(facts_table("Facts", {"token": text}))
    assert f"│ token │ {text} │" in stream.getvalue()


def test_a_long_computation_says_how_far_it_is_where_there_are_no_bars(monkeypatch, capsys):
    monkeypatch.setattr(_terminal, "_FIRST_LINE_SECONDS", 0.01)
    monkeypatch.delenv("MARGINLENS_QUIET")
    said = ""
    with _terminal.Bars() as bars:
        bar = bars.bar("Solving")
        bar(1, 3000)
        while "after" not in said:  # which a test that hangs would end
            said += capsys.readouterr().err
    assert said.startswith("marginlens: Solving, 1 of 3,000 after 0 s ...\n")
