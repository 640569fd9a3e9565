"""Every claim at quick effort: its bounds hold, they can fail, and its figures can be drawn."""

from dataclasses import replace

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from marginlens.experiments.catalogue import claims
from marginlens.experiments.claim import Bound, Effort, Silence, Verdict

ELSEWHERE = {"A-F1a", "A-F1b", "A-F1c", "A-F4", "A-F5", "A-F8"}  # tested with their data in test_experiments_figures.py


class Counter:
    """Progress that remembers what it was told."""

    def __init__(self):
        self.total, self.done = 0, 0

    def expect(self, total):
        self.total = total

    def advance(self, units=1):
        self.done += units


@pytest.mark.statement(
    "A Thm 3", "A Lemma 6", "A Lemma 3", "A Lemma 4", "A Lemma 5", "A Lemma 7", "A Lemma 8", "A Lemma 11", "A Lemma 1"
)
@pytest.mark.parametrize("claim", [one for one in claims() if one.id not in ELSEWHERE], ids=lambda one: one.id)
def test_quick_run_reaches_the_bounds_and_draws(claim):
    progress = Counter()
    finding = claim.compute(Effort.QUICK, progress)
    assert claim.judge(finding) in (Verdict.REPRODUCED, Verdict.REPRODUCED_WITH_NOTE), dict(finding.numbers)
    assert progress.done == progress.total > 0
    assert set(claim.expected) <= set(finding.numbers)
    for (
        name,
        bound,
    ) in claim.expected.items():  # each bound decides: turned against the measured number, it fails the claim
        number = finding.numbers[name]
        against = Bound(low=number + 1) if bound.holds(number) else bound
        assert replace(claim, expected={name: against}).judge(finding) is Verdict.NOT_REPRODUCED
    figures = claim.draw(finding)
    assert figures
    for figure in figures.values():
        FigureCanvasAgg(figure).draw()
        assert all(ax.get_xlabel() for ax in figure.axes if ax.axison)


def test_catalogue_is_complete_and_in_order():
    ids = [claim.id for claim in claims()]
    assert len(set(ids)) == len(ids)
    needed = {
        "A-L1",
        "A-S",
        "A-K3",
        "A-F1a",
        "A-F1b",
        "A-F1c",
        "A-F2",
        "A-F4",
        "A-F5",
        "A-F8",
        "A-F9",
        "A-L2",
        "A-L4",
        "A-L8",
    }
    assert needed <= set(ids)


def test_a_missing_number_or_nan_is_not_a_success():
    claim = claims()[0]
    finding = claim.compute(Effort.QUICK, Silence())
    broken = replace(finding, numbers=dict.fromkeys(finding.numbers, float("nan")))
    assert claim.judge(broken) is Verdict.NOT_REPRODUCED
    assert claim.judge(replace(finding, assumption_met=False)) is Verdict.ASSUMPTION_NOT_MET
