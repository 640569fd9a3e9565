"""Every claim at quick effort: its bounds hold, they can fail, and its figures can be drawn."""

from dataclasses import replace

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from marginlens.experiments.catalogue import claims
from marginlens.experiments.claim import Bound, Effort, Silence, Verdict


class Counter:
    """Progress that remembers what it was told."""

    def __init__(self):
        self.total, self.done = 0, 0

    def expect(self, total):
        self.total = total

    def advance(self, units=1):
        self.done += units


@pytest.fixture(scope="module", params=claims(), ids=lambda one: one.id)
def outcome(request):
    """A claim, its finding at quick effort and the progress it reported."""
    progress = Counter()
    return request.param, request.param.compute(Effort.QUICK, progress), progress


@pytest.mark.statement(
    "A Fig 1(a)", "A Fig 1(b)", "A Fig 1(c)", "A Fig 4", "A Fig 5", "A Fig 8", "A Thm 2", "A Thm 3", "A Lemma 1"
)
def test_quick_run_reaches_the_bounds(outcome):
    claim, finding, progress = outcome
    numbers = finding.numbers
    missed = {name: numbers[name] for name, bound in claim.expected.items() if not bound.holds(numbers[name])}
    assert not missed
    assert claim.judge(finding) in (Verdict.REPRODUCED, Verdict.REPRODUCED_WITH_NOTE)
    assert progress.done == progress.total > 0


def test_every_bound_decides(outcome):
    claim, finding, _ = outcome
    for name in claim.expected:
        beyond = Bound(low=finding.numbers[name] + 1.0)
        assert replace(claim, expected={**claim.expected, name: beyond}).judge(finding) is Verdict.NOT_REPRODUCED


def test_figures_render_with_named_axes(outcome):
    claim, finding, _ = outcome
    figures = claim.draw(finding)
    assert figures
    for figure in figures.values():
        FigureCanvasAgg(figure).draw()
        assert all(ax.get_xlabel() or ax.get_ylabel() for ax in figure.axes)


def test_words_name_the_measured_numbers(outcome):
    _, finding, _ = outcome
    assert any(letter.isdigit() for letter in finding.measured)
    assert "nan" not in finding.measured + finding.note


def test_catalogue_is_complete_and_in_order():
    ids = [claim.id for claim in claims()]
    assert len(set(ids)) == len(ids)
    needed = "A-L1 A-S A-K3 A-F1a A-F1b A-F1c A-F2 A-F3 A-F4 A-F5 A-F67 A-F8 A-F9 A-L2 A-L4 A-L8 A-T1 A-T4 A-T8 X-O X-B"
    needed += " B-L2 B-I B-L7 B-L3 B-T5 B-L6 B-F2 B-F3 B-F14"
    needed += " C-G C-L1 C-L2 C-L3 C-T1 C-T2 C-F3 C-F4 C-F5 C-F6 C-A C-L"
    assert set(needed.split()) <= set(ids)


def test_a_missing_number_or_nan_is_not_a_success():
    claim = claims()[0]
    finding = claim.compute(Effort.QUICK, Silence())
    broken = replace(finding, numbers=dict.fromkeys(finding.numbers, float("nan")))
    assert claim.judge(broken) is Verdict.NOT_REPRODUCED
    assert claim.judge(replace(finding, assumption_met=False)) is Verdict.ASSUMPTION_NOT_MET
