"""What C's claims are measured with: runs, correlations, distances and paces of Figures 3 to 6, brute-force graphs, and held-out text."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import binom

import marginlens as ml
from marginlens.data.paper_examples import figure_2
from marginlens.data.sequence_generators import cyclic_sequences
from marginlens.graphs import priority_graphs
from marginlens.nexttoken import WindowNgram
from marginlens_papers.claim import Verdict
from marginlens_papers.claims.c import automaton as c_a
from marginlens_papers.claims.c import figures_3_to_6 as c_f5
from marginlens_papers.claims.c import held_out as c_h
from marginlens_papers.claims.c import text_graphs as c_g
from marginlens_papers.claims.c import training_curves
from marginlens_papers.claims.random_data import random_sequences
from quick_claims import quick_run
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
    assert aligned.corr[2, -1] == pytest.approx(cosine, abs=ROUNDING, rel=0.0)
    assert apart.distance[2, -1] == pytest.approx(
        np.linalg.norm(cyc.subspace.project(W) - cyc.x), abs=ROUNDING, rel=0.0
    )
    assert aligned.undefined == 0
    assert aligned.status == {ml.Status.OPTIMAL: 4}
    assert np.all(aligned.corr[:, -1] > 0.97)
    assert np.all(apart.distance[:, -1] < 0.01)


def test_a_run_without_a_direction_is_a_miss(cyclic_runs):
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
    np.testing.assert_allclose(
        found.final("global")[found.agrees], found.final("local")[found.agrees], rtol=0.0, atol=ROUNDING
    )
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
def test_only_the_labels_component_keeps_figure_5_distance_zero():
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


def test_the_squared_loss_pulls_at_two_rates():
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


def test_the_two_rate_solution_agrees_with_another_solver():
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
    assert slack(V.ravel()).min() == pytest.approx(0.0, abs=ROUNDING, rel=0.0)
    np.testing.assert_allclose(V.ravel(), best.x, rtol=0.0, atol=SLSQP_POINT)


# ---- C-G: brute force agrees with the library, and notices when that is wrong


def test_the_library_and_brute_force_agree_on_figure_2():
    assert not any(c_g.compare(figure_2()).values())
    assert c_g.figure_2_missed() == 0
    graph = c_g.brute_graphs(figure_2())[1]
    assert graph.nodes == {0, 1, 2, 3}
    assert graph.reach()[0].all()
    assert graph.reach()[3].tolist() == [False, False, False, True]


def without_an_edge(graph):
    return replace(graph, edges=graph.edges[1:], counts=graph.counts[1:])


def all_apart(graph):
    return replace(graph, component_of=np.arange(len(graph.nodes)))


def upside_down(graph):
    return replace(graph, component_of=graph.n_components - 1 - graph.component_of)


@pytest.mark.parametrize(
    ("fault", "noticed"),
    [
        (without_an_edge, {"wrong_edges"}),
        (
            all_apart,
            {"wrong_components", "wrong_strict_pairs", "wrong_equal_pairs", "wrong_token_sets", "wrong_subsets"},
        ),
        (upside_down, {"wrong_numberings"}),
    ],
)
def test_planted_faults_are_detected(monkeypatch, fault, noticed):
    monkeypatch.setattr(ml, "priority_graphs", lambda ds: {k: fault(graph) for k, graph in priority_graphs(ds).items()})
    wrong = {name for name, count in c_g.compare(figure_2()).items() if count}
    assert noticed <= wrong


def test_archived_graphs_are_checked():
    table = c_g.text_table(3)
    assert c_g._text_differs(table) == 0
    first = table.graphs[0]
    first["components"] = first["components"][::-1]
    assert c_g._text_differs(table) == 1


# ---- C-H: the documentation's table is the archived one, and a rule that reads order breaks the bound


PAGE = Path(__file__).parents[2] / "docs" / "nexttoken.md"


def share(value):
    return f"{value:.3f}".removeprefix("0")


def documented(run):
    """The lines of the table that a run of the command line makes."""
    settings, prediction = run["settings"], run["held_out"]
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
        scores = {row["rule"]: row for row in run["held_out"]["scores"]}
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
    assert claim.judge(run.finding) is Verdict.HOLDS_BY_OUR_OWN_BOUNDS
    monkeypatch.setattr(ml, "NextTokenAutomaton", ReadsOrder)
    monkeypatch.setattr(c_h, "SEED", 8)
    with_order = c_h.C_H().compute(c_h.Effort.QUICK, c_h.Progress(lambda *call: None))
    assert not claim.expected["errors_above_the_bound_without_order"].holds(
        with_order.numbers["errors_above_the_bound_without_order"]
    )
