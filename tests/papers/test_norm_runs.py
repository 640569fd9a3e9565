"""What is particular to the claims on norms: shares of margins and their archive, selections, and Adam's crossings."""

import numpy as np
import pytest

from marginlens.norms import L2, LInf
from marginlens_papers import norm_runs as runs_of
from marginlens_papers.claims.ours import adam_faces as x_n5
from marginlens_papers.claims.ours import norm_selections as x_n4
from tolerances import ROUNDING


@pytest.fixture(scope="module")
def few():
    """Two problems of p under all five descents, and what they were drawn from."""
    setting = runs_of.SETTINGS["p"]
    problems = setting.draw(2)
    return problems, runs_of.norm_runs(problems, setting.geometries, 400)


def test_no_run_has_more_than_the_best_margin_and_solutions_have_all_of_their_own(few):
    _, runs = few
    assert runs.share.shape == (5, 5, 2)
    assert runs.share.max() <= 1.0 + 1e-9
    own = np.arange(5)
    np.testing.assert_allclose(runs.limits[own, own], 1.0, rtol=1e-9)
    np.testing.assert_allclose(runs.course[..., -1], runs.share[own, own], rtol=ROUNDING)
    assert runs.off_diagonal.shape == (20,)


def test_the_margin_of_a_run_is_that_of_its_tightest_constraint(few):
    problems, runs = few
    selected = runs.selected[2]
    solution = problems.best(selected, L2())
    lead = runs_of.smallest_lead(problems.risk, solution.x, selected)
    np.testing.assert_allclose(lead, 1.0, rtol=1e-8)
    np.testing.assert_allclose(1.0 / runs_of.norms_of(L2(), solution.x), solution.margin, rtol=ROUNDING)


def test_archived_runs_are_read_as_they_were_written(few, tmp_path):
    _, runs = few
    place = tmp_path / "runs.json"
    runs_of.archive_norm_runs(runs, "p", "python -m marginlens_papers.norm_runs p --out /there/runs.json", place)
    read = runs_of.read_norm_runs(place)
    np.testing.assert_allclose(read.share, runs.share, rtol=1e-5)
    np.testing.assert_array_equal(read.selected, runs.selected)
    assert read.names == runs.names
    assert "/there" not in place.read_text(encoding="utf-8")


def test_the_command_takes_runs_and_says_where_they_are(tmp_path, capsys):
    place = tmp_path / "runs.json"
    assert runs_of.main(["p", "--steps", "200", "--problems", "1", "--out", str(place)]) == 0
    assert runs_of.read_norm_runs(place).steps[-1] == 200
    assert "mean share of the own margin" in capsys.readouterr().out


def test_steps_are_shorter_in_longer_runs():
    geometry = runs_of.Geometry("ℓ∞", LInf(), 0.1, 0.5)
    assert geometry.descent(runs_of.USUAL_STEPS).size == pytest.approx(0.1)
    assert geometry.descent(16 * runs_of.USUAL_STEPS).size == pytest.approx(0.05)
    assert geometry.words == "ℓ∞ 0.1 with momentum 0.5"


# ---- selections


def test_larger_margins_are_counted_where_selections_differ():
    unlike = np.array([[[False, False], [True, False]], [[True, False], [False, False]]])
    margin = np.array([[[2.0, 9.0], [1.0, 1.0]], [[1.0, 1.0], [3.0, 1.0]]])  # (descent, norm, problem)
    wins, cases = x_n4._larger_margins(unlike, margin)
    np.testing.assert_array_equal(cases, [[0.0, 1.0], [1.0, 0.0]])
    np.testing.assert_array_equal(wins[0, 1], [1.0, 0.0])
    np.testing.assert_array_equal(wins[1, 0], [0.0, 1.0])
    assert np.isnan(wins[0, 0]).all()


# ---- Adam


def test_a_crossing_is_interpolated_and_the_slope_of_a_power_is_its_exponent():
    steps = np.array([1.0, 10.0, 100.0])
    assert x_n5._first_below(steps, np.array([2.0, 1.0, -1.0])) == pytest.approx(10.0**1.5)
    assert x_n5._first_below(steps, np.array([2.0, 1.0, 0.5])) == np.inf
    assert x_n5._first_below(steps, np.array([-2.0, 1.0, 0.5])) == 1.0
    epsilons = np.array(x_n5.EPSILONS)
    assert x_n5._slope((-np.log(epsilons)) ** 2.5, epsilons) == pytest.approx(2.5)
