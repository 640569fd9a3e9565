"""What C's Figures 3 to 6 are measured with: runs, correlations, distances, and the two paces of the squared loss."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import binom

import marginlens as ml
from marginlens.data.sequence_generators import cyclic_sequences
from marginlens_papers.claims.c import automaton as c_a
from marginlens_papers.claims.c import figures_3_to_6 as c_f5
from marginlens_papers.claims.c import training_curves
from marginlens_papers.lemmas.random_data import random_sequences
from tolerances import ROUNDING, SLSQP_POINT


@pytest.fixture(scope="module")
def cyclic_runs():
    recipe = training_curves.Recipe(cyclic_sequences, (6, 8, 6, 4))
    rng = np.random.default_rng(0)
    return training_curves.train(recipe, training_curves.draws(recipe, 4, rng), training_curves.kept_steps(3_000), rng)


@pytest.mark.statement("C Thm 3")
def test_runs_follow_both_parts_of_the_theorem(cyclic_runs):
    aligned, apart = training_curves.alignment(cyclic_runs, cyclic_runs.graphs), training_curves.offset(cyclic_runs)
    ds, W = cyclic_runs.datasets[2], cyclic_runs.final[2]
    target, cyc = ml.graph_svm(ds.E, ml.priority_graphs(ds)).x, ml.cyclic_correction(ds)
    cosine = np.sum(W * target) / np.linalg.norm(W) / np.linalg.norm(target)
    assert aligned.corr[2, -1] == pytest.approx(cosine, abs=ROUNDING)
    assert apart.distance[2, -1] == pytest.approx(np.linalg.norm(cyc.subspace.project(W) - cyc.x), abs=ROUNDING)
    assert aligned.undefined == 0
    assert aligned.status == {ml.Status.OPTIMAL: 4}
    assert np.all(aligned.corr[:, -1] > 0.97)
    assert np.all(apart.distance[:, -1] < 0.01)


def test_a_run_without_a_direction_is_a_miss_and_not_left_out(cyclic_runs):
    points = cyclic_runs.points.copy()
    points[1], points[2] = 0.0, np.nan
    found = training_curves.alignment(replace(cyclic_runs, points=points), cyclic_runs.graphs)
    assert found.undefined == 0
    assert np.all(found.corr[1:3] == 0.0)
    assert training_curves.mean(found.corr[:, -1]) < 0.5


def test_corrections_trained_for_as_many_steps_approach_the_converged_ones(cyclic_runs):
    same_step, empty = training_curves.offset_of_trained(cyclic_runs, cyclic_runs.graphs)
    assert not empty.any()
    converged = training_curves.offset(cyclic_runs).distance
    assert same_step.shape == converged.shape
    assert np.all(np.abs(same_step - converged)[:, -1] < 0.02)  # both circle within two steps of .01
    assert np.any(np.abs(same_step - converged)[:, 0] > 0.02)


def test_global_and_local_theory_are_one_where_the_graphs_agree():
    recipe = training_curves.Recipe(random_sequences, (8, 8, 4, 6), ml.CrossEntropy(), own_head=True, step=0.1)
    rng = np.random.default_rng(5)
    found = training_curves.contrast(
        training_curves.train(recipe, training_curves.draws(recipe, 12, rng), np.array([1_000]), rng)
    )
    assert 0 < found.agrees.sum() < 12
    np.testing.assert_allclose(found.final("global")[found.agrees], found.final("local")[found.agrees], atol=ROUNDING)
    assert np.all(found.final("global")[~found.agrees] < found.final("local")[~found.agrees])
    singletons = [all(g.n_components == len(g.nodes) for g in one.values()) for one in found.runs.local_graphs]
    np.testing.assert_array_equal(found.single, singletons)
    coded = training_curves.contrast(found.runs, trained=True)
    assert coded.status == {}
    for rule in training_curves.RULES:
        assert np.all(found.empty[rule][found.single])  # what is empty by the selected component is so by the label's
        for one in (found, coded):
            np.testing.assert_array_equal(one.always_zero(rule), found.empty[rule])


@pytest.mark.statement("C §6")
def test_the_distance_of_figure_5_remains_zero_by_the_labels_component_only():
    """In the code's series no label ties with anything, while other tokens do."""
    recipe = c_f5.SQUARED_SERIES["code's form"]
    rng = np.random.default_rng(21)
    found = training_curves.contrast(
        training_curves.train(recipe, training_curves.draws(recipe, 20, rng), training_curves.kept_steps(1_500), rng),
        trained=True,
    )
    assert found.always_zero("label's component").mean() >= 0.9  # a label ties in about one trial of a hundred
    assert not found.always_zero("selected component").all()
    assert np.nanmax(found.distance["selected component"]) > 0.1


@pytest.mark.parametrize(("trials", "passes", "fails"), [(12, 10, 9), (40, 37, 36), (100, 94, 93), (500, 482, 481)])
def test_the_bar_on_trials_without_a_distance_depends_on_their_number(trials, passes, fails):
    """It is the largest count that .98 a trial would miss in at most one series of a hundred."""
    bound = c_f5.C_F5.expected["code_zero_tail"]
    assert [bound.holds(binom.cdf(count, trials, c_f5.ZERO_SHARE)) for count in (passes, fails)] == [True, False]


def test_a_slow_term_separates_one_hot_tokens_by_the_logarithm_of_the_norm():
    found = [row for j in range(3) for row in c_a._slow_ties(np.random.default_rng([907, j]))]
    pace, loser = np.array([row[0] for row in found]), np.array([row[1] for row in found])
    assert 0.99 < pace.min() < pace.max() < 1.01
    assert np.all(loser[:, 1] < loser[:, 0])
    assert np.all(loser[:, 1] > 1e-9)  # a gap that grew like the norm itself would leave nothing at 1e6


def test_the_squared_loss_pulls_by_two_paces():
    """One sequence can select its label, one with the same query is stuck with another token: their margins differ by two."""
    recipe = training_curves.Recipe(cyclic_sequences, (8, 8, 4, 6), ml.SquaredLoss(), own_head=True, step=0.1)
    rng = np.random.default_rng(3)
    found = training_curves.contrast(
        training_curves.train(recipe, training_curves.draws(recipe, 12, rng), np.array([4_000]), rng), trained=True
    )
    paced, plain = c_f5._paced_corr(found), found.final("local")[found.single]
    assert len(paced) == len(plain) >= 3
    assert np.all(paced > 0.999)
    assert plain.min() < 0.99


def test_paced_solution_is_the_shortest_by_another_solver():
    ds = random_sequences(6, 4, 3, 4, np.random.default_rng(4))
    W = np.random.default_rng(7).normal(size=(4, 4)) * 200.0  # saturated: one token for each sequence
    V = c_f5.paced_solution(ds, W)
    logits, other = ds.logits(W).reshape(3, 4), np.random.default_rng(8).normal(size=16)

    def slack(flat):
        gaps = []
        for i in range(3):
            ids, label = ds[i]
            chosen = ids[np.argmax(logits[i])]
            row = ds.E @ (flat.reshape(4, 4) @ ds.E[ds.last[i]])
            gaps += [row[chosen] - row[x] - (0.5 if chosen == label else 1.0) for x in set(ids.tolist()) - {chosen}]
        return np.array(gaps)

    best = minimize(
        lambda x: x @ x, other, jac=lambda x: 2 * x, constraints={"type": "ineq", "fun": slack},
        method="SLSQP", options={"maxiter": 500, "ftol": 1e-14},
    )  # fmt: skip
    assert slack(V.ravel()).min() == pytest.approx(0.0, abs=ROUNDING)
    np.testing.assert_allclose(V.ravel(), best.x, atol=SLSQP_POINT)
