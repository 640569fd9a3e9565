"""A's Figures 1, 4, 5 and 8 at quick effort: the bounds hold, each of them can fail, and the figures render."""

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from marginlens.data import figure_1b, figure_1c
from marginlens.dynamics import NormalizedStep, descend
from marginlens.experiments import drawing
from marginlens.experiments.a_f1b import textbook_descent
from marginlens.experiments.a_f5 import predicted_height
from marginlens.experiments.a_f8 import search
from marginlens.experiments.claim import Bound, Claim, Effort, Verdict
from marginlens.losses import Correlation, Logistic

MODULES = ("a_f1a", "a_f1b", "a_f1c", "a_f4", "a_f5", "a_f8")
SINGLE_PRECISION = 1e-4  # float32 steps against exact ones while no probability is below 1e-5
REPRODUCED = (Verdict.REPRODUCED, Verdict.REPRODUCED_WITH_NOTE)


class Counter:
    """Progress that remembers what it was told."""

    total, done = 0, 0

    def expect(self, total):
        self.total = total

    def advance(self, units=1):
        self.done += units


@pytest.fixture(scope="module", params=MODULES)
def outcome(request):
    """A claim, its finding at quick effort and the progress it reported."""
    claim = Claim.of(import_module(f"marginlens.experiments.{request.param}"))
    progress = Counter()
    return claim, claim.compute(Effort.QUICK, progress), progress


@pytest.mark.statement("A Fig 1(a)", "A Fig 1(b)", "A Fig 1(c)", "A Fig 4", "A Fig 5", "A Fig 8")
def test_quick_run_reaches_the_bounds(outcome):
    claim, finding, progress = outcome
    missed = {
        name: finding.numbers[name] for name, bound in claim.expected.items() if not bound.holds(finding.numbers[name])
    }
    assert not missed
    assert claim.judge(finding) in REPRODUCED
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
        assert all(ax.get_ylabel() for ax in figure.axes)


def test_words_name_the_measured_numbers(outcome):
    _, finding, _ = outcome
    assert len(finding.measured) > 80
    assert "nan" not in finding.measured + finding.note


@pytest.mark.statement("A Fig 1(b)")
def test_single_precision_follows_the_exact_path_until_the_softmax_saturates():
    data, v = figure_1b()
    start = np.array([0.0, -1.0])
    exact = descend(data, v, step=NormalizedStep(0.1), n_steps=60, start=start)
    rounded = textbook_descent(data, v, start, 2000, 0.1)
    assert np.abs(rounded[60] - exact.final).max() < SINGLE_PRECISION
    assert drawing.misalignment(rounded[2000], np.array([1.0, 0.0])) > 0.05  # and has left the limit long after


@pytest.mark.statement("A Fig 5")
def test_equal_scores_have_no_bias_and_large_ones_opposite_biases():
    assert predicted_height(Correlation(), 1.0) == predicted_height(Logistic(), 1.0) == 0.0
    assert predicted_height(Correlation(), 100.0) == pytest.approx(np.log(10.0))
    assert predicted_height(Logistic(), 100.0) < -40.0


@pytest.mark.statement("A Fig 8")
def test_search_finds_second_directions_for_two_inputs_and_none_for_one():
    alone, _, _ = search(1, 3, 50, np.random.default_rng(1))
    found, data, _ = search(2, 2, 50, np.random.default_rng(1))
    assert len(alone.problem) == 0
    assert len(found.problem) > 0
    assert not found.has_competitor.any()
    logits = np.einsum("bitd,bd->bit", data.K[found.problem], found.direction)
    assert np.all(np.argmax(logits, axis=-1).sum(axis=-1) == 1)  # one input on its lower token, one on its optimal


# ---- drawing


def test_kept_steps_begin_densely_and_end_at_the_last():
    steps = drawing.steps_to_keep(10_000, dense=100)
    assert steps[:101] == list(range(101))
    assert steps[-1] == 10_000
    assert len(steps) < 200
    assert drawing.steps_to_keep(7, dense=100) == list(range(8))


def test_paths_are_cut_where_they_leave_the_window():
    path = np.array([[0.0, 0.0], [0.5, 0.5], [2.0, 0.5], [0.5, 0.5]])
    assert len(drawing.until_it_leaves(path, ((-1.0, 1.0), (-1.0, 1.0)))) == 2
    assert len(drawing.until_it_leaves(path, ((-3.0, 3.0), (-3.0, 3.0)))) == 4


def test_misalignment_resolves_what_one_minus_cosine_loses():
    tilted = np.array([1.0, 1e-9])
    assert drawing.misalignment(tilted, np.array([1.0, 0.0])) == pytest.approx(0.5e-18, rel=1e-6)


@pytest.mark.parametrize(("selected", "lines"), [([0, 0, 0], 1), ([1, 0, 0], 0)])
def test_a_separating_line_is_drawn_only_where_one_separates(selected, lines):
    data, _ = figure_1c()
    _, (ax,) = drawing.figure()
    drawing.common_separating_line(ax, data.K, selected, np.array([0.8446, 0.1711]))
    assert len(ax.lines) == lines
