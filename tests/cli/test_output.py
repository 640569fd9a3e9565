"""What commands print: text or JSON on stdout, progress on stderr."""

import json
import time
import warnings

import numpy as np

from marginlens.cli import output
from marginlens.cli.output import Bars, Output
from tolerances import HANGING


def test_json_has_numbers_only_and_null_for_nonfinite_ones(capsys):
    Output(as_json=True).show({"margin": np.inf, "x": np.array([1.0, np.nan])}, ["a line"], ["a.png"])
    assert json.loads(capsys.readouterr().out) == {"margin": None, "x": [1.0, None]}


def test_text_is_printed_before_the_written_files(capsys):
    Output().show({}, iter(["one", "two"]), ["a.png", None])
    assert capsys.readouterr().out == "one\ntwo\nWritten to a.png\n"


def test_lazy_lines_are_computed_before_printing(capsys):
    numbers = {}

    def lines():
        numbers["late"] = 1
        yield "late"

    Output(as_json=True).show(numbers, lines())
    assert json.loads(capsys.readouterr().out) == {"late": 1}


def test_quiet_prints_neither_text_nor_warnings(capsys):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        quiet = Output(quiet=True)
        quiet.show({}, ["a line"], ["a.png"])
        quiet.say("a sentence")
        warnings.warn("a remark", UserWarning, stacklevel=1)
    assert (capsys.readouterr(), caught) == (("", ""), [])


def test_a_long_computation_without_a_terminal_prints_progress(monkeypatch, capsys):
    monkeypatch.setattr(output, "FIRST_LINE_SECONDS", 0.01)
    monkeypatch.delenv("MARGINLENS_QUIET", raising=False)
    printed = ""
    with Bars() as bars:
        bar = bars.bar("Solving")
        bar(1, 3000)
        until = time.monotonic() + HANGING
        while "after" not in printed and time.monotonic() < until:
            printed += capsys.readouterr().err
    assert printed.startswith("marginlens: Solving, 1 of 3,000 after 0 s ...\n")


def test_quiet_hides_progress(monkeypatch, capsys):
    monkeypatch.setattr(output, "FIRST_LINE_SECONDS", 0.0)
    monkeypatch.delenv("MARGINLENS_QUIET", raising=False)
    with Output(quiet=True).stage("Solving") as bar:
        bar(1, 3000)
    assert capsys.readouterr() == ("", "")
