"""What is particular to the claims of papers D, E and F: margins in norms, clocks and ranks."""

import numpy as np

from marginlens.data import sphere_queries
from marginlens.dynamics import descend
from marginlens.optimizers import NormalizedGD
from marginlens.risk import AttentionRisk
from marginlens_papers.claims.d import local_convergence as d_1
from marginlens_papers.claims.d import multi_token as d_3
from marginlens_papers.claims.e.cross_table import divergence
from marginlens_papers.claims.f import figure_2 as f_1
from quick_claims import quick_run
from tolerances import ROUNDING


def test_no_run_has_more_than_the_best_margin_of_any_norm():
    _, finding, *_ = quick_run("F-1")
    shares = [s for runs in finding.arrays["runs"].values() for run in runs.values() for s in run.share.values()]
    assert np.max(shares) <= 1.0 + ROUNDING


def test_exponents_are_those_of_power_laws():
    steps = np.unique(np.geomspace(1, 10_000, 60).astype(int))
    assert abs(f_1._slope(steps, 3.0 * steps**-0.5) + 0.5) < ROUNDING


def test_the_gradient_that_cancels_follows_the_exact_one_at_first():
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


def test_the_divergence_of_unit_vectors_is_that_of_its_definition():
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((2, 4, 5))
    for p in (1.75, 2.0, 3.0):
        x, y = (w / np.sum(np.abs(w) ** p) ** (1 / p) for w in (a, b))
        slope = np.sign(y) * np.abs(y) ** (p - 1)
        defined = np.sum(np.abs(x) ** p) / p - np.sum(np.abs(y) ** p) / p - np.sum(slope * (x - y))
        assert abs(divergence(a, b, p) - defined) < ROUNDING
        assert abs(divergence(3.0 * a, a, p)) < ROUNDING


def test_runs_with_a_head_of_kinks_agree_until_attention_saturates():
    problems = d_3._problems(5, 6)
    steps = np.array([1, 15])
    assert np.abs(d_3._cancelling(problems, steps) - d_3._exact(problems, steps)).max() < ROUNDING
