"""What is particular to the claims on norms: margins, clocks and ranks of papers D, E and F, shares of margins, and Adam."""

import numpy as np
import pytest

from marginlens.data import sphere_queries
from marginlens.dynamics import descend
from marginlens.norms import L2, LInf
from marginlens.optimizers import NormalizedGD
from marginlens.risk import AttentionRisk
from marginlens_papers.claims.d import local_convergence as d_1
from marginlens_papers.claims.d import multi_token as d_3
from marginlens_papers.claims.e.cross_table import divergence
from marginlens_papers.claims.f import figure_2 as f_1
from marginlens_papers.claims.ours import adam_faces as x_n5
from marginlens_papers.claims.ours import norm_runs as runs_of
from marginlens_papers.claims.ours import norm_selections as x_n4
from quick_claims import quick_run
from tolerances import ROUNDING, SIX_DIGITS


def test_no_run_exceeds_the_best_margin_of_any_norm():
    _, finding, *_ = quick_run("F-1")
    shares = [s for runs in finding.arrays["runs"].values() for run in runs.values() for s in run.share.values()]
    assert np.max(shares) <= 1.0 + ROUNDING


def test_fitted_exponents_are_those_of_power_laws():
    steps = np.unique(np.geomspace(1, 10_000, 60).astype(int))
    assert abs(f_1._slope(steps, 3.0 * steps**-0.5) + 0.5) < ROUNDING


def test_a_cancelling_gradient_follows_the_exact_one_at_first():
    data, v, queries = sphere_queries(3, 4, 5, 6, 0)
    start = np.random.default_rng(1).uniform(-0.4, 0.4, (3, 6, 6))
    risk = AttentionRisk(data, v).as_matrix(queries)
    exact = descend(risk, optimizer=NormalizedGD(d_1.STEP), n_steps=20, start=start)
    cancelling = d_1._textbook(data, v, queries, start, np.array([20]))
    assert np.abs(cancelling[:, 0] - exact.final).max() < ROUNDING


def test_a_nuclear_solution_has_no_larger_rank_than_its_multipliers_allow():
    _, finding, *_ = quick_run("D-2")
    for row in finding.arrays["rows"]:
        assert (row["nuclear"] <= row["face"]).all()
        assert (row["frobenius"][row["solved"]] <= min(row["n"], row["d"])).all()


def test_the_divergence_follows_its_definition():
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((2, 4, 5))
    for p in (1.75, 2.0, 3.0):
        x, y = (w / np.sum(np.abs(w) ** p) ** (1 / p) for w in (a, b))
        slope = np.sign(y) * np.abs(y) ** (p - 1)
        defined = np.sum(np.abs(x) ** p) / p - np.sum(np.abs(y) ** p) / p - np.sum(slope * (x - y))
        assert abs(divergence(a, b, p) - defined) < ROUNDING
        assert abs(divergence(3.0 * a, a, p)) < ROUNDING


def test_runs_with_a_piecewise_linear_head_agree_until_saturation():
    problems = d_3._problems(5, 6)
    steps = np.array([1, 15])
    assert np.abs(d_3._cancelling(problems, steps) - d_3._exact(problems, steps)).max() < ROUNDING


# ---- shares of margins


@pytest.fixture(scope="module")
def few():
    """Two problems of p under all five descents, and what they were drawn from."""
    setting = runs_of.SETTINGS["p"]
    problems = setting.draw(2)
    return problems, runs_of.norm_runs(problems, setting.geometries, 400)


def test_no_run_exceeds_the_best_margin_and_solutions_attain_theirs(few):
    _, runs = few
    assert runs.share.shape == (5, 5, 2)
    assert runs.share.max() <= 1.0 + 1e-9
    own = np.arange(5)
    np.testing.assert_allclose(runs.limits[own, own], 1.0, rtol=1e-9, atol=0.0)
    np.testing.assert_allclose(runs.course[..., -1], runs.share[own, own], rtol=ROUNDING, atol=0.0)
    assert runs.off_diagonal.shape == (20,)


def test_the_margin_of_a_run_is_that_of_its_tightest_constraint(few):
    problems, runs = few
    selected = runs.selected[2]
    solution = problems.best(selected, L2())
    lead = runs_of.smallest_lead(problems.risk, solution.x, selected)
    np.testing.assert_allclose(lead, 1.0, rtol=1e-8, atol=0.0)
    np.testing.assert_allclose(1.0 / runs_of.norms_of(L2(), solution.x), solution.margin, rtol=ROUNDING, atol=0.0)


def test_steps_are_shorter_in_longer_runs():
    geometry = runs_of.Geometry("ℓ∞", LInf(), 0.1, 0.5)
    assert geometry.descent(runs_of.USUAL_STEPS).size == pytest.approx(0.1, rel=SIX_DIGITS, abs=ROUNDING)
    assert geometry.descent(16 * runs_of.USUAL_STEPS).size == pytest.approx(0.05, rel=SIX_DIGITS, abs=ROUNDING)
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
    assert x_n5._first_below(steps, np.array([2.0, 1.0, -1.0])) == pytest.approx(
        10.0**1.5, rel=SIX_DIGITS, abs=ROUNDING
    )
    assert x_n5._first_below(steps, np.array([2.0, 1.0, 0.5])) == np.inf
    assert x_n5._first_below(steps, np.array([-2.0, 1.0, 0.5])) == 1.0
    epsilons = np.array(x_n5.EPSILONS)
    assert x_n5._slope((-np.log(epsilons)) ** 2.5, epsilons) == pytest.approx(2.5, rel=SIX_DIGITS, abs=ROUNDING)
