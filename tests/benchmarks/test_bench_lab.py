"""The benchmark of the lab: every measure has a number from a real browser, and without a browser a sentence says so."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks import browser, lab
from marginlens.cli.app import app
from marginlens_papers.claims.ours.basins import Basins
from progress_counter import ProgressCounter


@pytest.mark.skipif(browser.missing_browser() is not None, reason="pages were not opened: no Chromium was found")
def test_every_measure_has_a_number(monkeypatch):
    monkeypatch.setattr(lab, "DRAG_SECONDS", 0.4)
    side = (lab.BASIN_SIDE, lab.BASIN_SIDE)
    monkeypatch.setattr(lab, "basins_of", lambda *_: Basins(np.zeros((*side, 2)), np.zeros(side, dtype=np.int64)))
    progress = ProgressCounter()
    *rows, summary = json.loads(json.dumps(lab.bench_lab(progress, repeats=1)))
    assert progress.done == progress.total
    numbers = {row["measure"]: row["value"] for row in rows}
    assert [row["measure"] for row in rows if row["bound"] is not None] == list(numbers)[: len(lab._BOUNDS)]
    assert min(value for name, value in numbers.items() if not name.startswith("basins")) > 0.0
    assert 0.0 < numbers["basins, coarse picture, s"] <= numbers["basins, full picture, s"]
    assert (
        0.1 < numbers["basins, pixels as in Python"] < 0.9
    )  # Figure 1(b) has two limits, and every start got the first
    assert summary["repeats"] == 1


def test_agreement_counts_pixels_and_those_off_the_borders():
    theirs = np.zeros((6, 6), dtype=np.int64)
    theirs[:, 3:] = 1
    mine = theirs.copy()
    mine[0, 2] = 1  # beside the border
    assert lab._agreement(mine, theirs) == {
        "basins, pixels as in Python": 35 / 36,
        "basins, other pixels off the borders": 0.0,
    }
    mine[4, 0] = 1
    assert lab._agreement(mine, theirs)["basins, other pixels off the borders"] == 1.0


def test_a_missing_browser_is_one_sentence(monkeypatch):
    monkeypatch.setenv("PATH", "")
    done = CliRunner().invoke(app, ["bench", "lab"])
    assert done.exit_code != 0
    assert done.output.count("\n") <= 2
    assert "no Chromium with its driver was found" in " ".join(done.output.split())
