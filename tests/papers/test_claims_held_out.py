"""Claim C-H: the table of the documentation is the archived one, and a rule that reads order breaks its bound."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from marginlens.nexttoken import WindowNgram
from marginlens_papers.claim import Verdict
from marginlens_papers.claims.c import held_out as c_h
from quick_claims import quick_run

PAGE = Path(__file__).parents[2] / "docs" / "nexttoken.md"


def share(value):
    return f"{value:.3f}".removeprefix("0")


def documented(run):
    """The lines of the table that a run of the command line makes."""
    settings, prediction = run["settings"], run["prediction"]
    words = " words" if settings["tokens"].startswith("words") else ""
    for row in prediction["scores"]:
        loss = "∞" if row["log_loss"] is None else share(row["log_loss"])
        assert (row["impossible"] > 0) == math.isinf(math.inf if row["log_loss"] is None else 0.0)
        impossible = f"{row['impossible']:.2%}".removeprefix("0")
        cells = [f"window {settings['window']}{words}: {row['rule']}", f"{row['samples']:,}", share(row["accuracy"])]
        yield f"| {' | '.join([*cells, loss, share(row['mixed_log_loss']), share(row['accuracy_of_all']), impossible])} |"


def test_the_table_of_the_page_is_the_archived_one():
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| window ")]
    assert rows == [line for run in c_h.shakespeare() for line in documented(run)]


def test_in_real_text_the_trigram_leads_the_automaton():
    for run in c_h.shakespeare():
        scores = {row["rule"]: row for row in run["prediction"]["scores"]}
        trigram = scores[c_h.TRIGRAM]
        assert trigram["accuracy"] > scores["automaton"]["accuracy"]
        assert trigram["mixed_log_loss"] < scores["automaton"]["mixed_log_loss"]


class ReadsOrder:
    """In the automaton's place, a rule that knows where in the window tokens stand."""

    @staticmethod
    def fit(data):
        return WindowNgram.fit(data, 3)


@pytest.mark.statement("C Abstract")
def test_a_rule_that_reads_order_breaks_the_bound_of_those_that_do_not(monkeypatch):
    run = quick_run("C-H")
    claim = run.claim
    assert claim.judge(run.finding) is Verdict.HOLDS_AS_STATED
    monkeypatch.setattr(c_h, "NextTokenAutomaton", ReadsOrder)
    monkeypatch.setattr(c_h, "SEED", 8)
    with_order = c_h.C_H().compute(c_h.Effort.QUICK, c_h.Progress(lambda *call: None))
    assert not claim.expected["errors_above_the_bound_without_order"].holds(
        with_order.numbers["errors_above_the_bound_without_order"]
    )
