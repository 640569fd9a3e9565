"""Claims on paper C notice planted faults: a wrong limit, a wrong subspace, a head against its assumption, a bound that is none."""

from dataclasses import replace

import numpy as np
import pytest

import marginlens as ml
from marginlens.data.sequence_generators import acyclic_sequences, cyclic_sequences
from marginlens.graphs import graphs_of_edges, priority_graphs
from marginlens.nexttoken.correction import cyclic_correction
from marginlens.risk.next_token_heads import as_head
from marginlens_papers.claim import Effort, Progress, Verdict
from marginlens_papers.claims.c import lemmas as c_l1
from marginlens_papers.claims.c import lemmas as c_l2
from marginlens_papers.claims.c import paths as c_t1
from marginlens_papers.claims.c import theorem_3 as c_t3
from tolerances import ROUNDING

# ---- C Thm 3


@pytest.fixture(scope="module")
def short_run():
    """A dataset, its automaton and a run of 100,000 constant steps from zero."""
    ds, automaton = c_t3._problem(np.random.default_rng(1))
    return ds, automaton, c_t3.follow(ds, automaton, c_t3.SERIES[0], np.zeros((8, 8)), 100_000)


@pytest.mark.statement("C Thm 3", "C Eq. (2)", "C Eq. (3)")
def test_constant_steps_reach_the_correction_like_one_over_the_steps(short_run):
    _, _, run = short_run
    assert c_t3._slope(run.steps, run.distance) == pytest.approx(-1.0, abs=0.1, rel=0.0)
    assert c_t3._slope(run.steps, run.attention) == pytest.approx(-1.0, abs=0.1, rel=0.0)
    assert run.growth[-1] > 0.99
    assert run.corr[-1] > run.corr[-1 - c_t3.DECADE_POINTS]


@pytest.mark.statement("C Thm 3")
def test_a_wrong_correction_or_direction_is_detected(short_run):
    ds, automaton, right = short_run
    shorter = replace(automaton.mix, x=0.99 * automaton.mix.x)
    turned = replace(automaton.priority, x=np.outer(ds.E[0] - ds.E[1], ds.E[2]))
    stalled = c_t3.follow(ds, replace(automaton, mix=shorter), c_t3.SERIES[0], np.zeros((8, 8)), 100_000)
    assert c_t3._slope(stalled.steps, stalled.distance) > -0.85
    assert stalled.distance[-1] > 5 * right.distance[-1]
    turned_run = c_t3.follow(ds, replace(automaton, priority=turned), c_t3.SERIES[0], np.zeros((8, 8)), 1_000)
    assert turned_run.growth[-1] < 0.97


def test_steps_needed_are_those_of_growth_by_log_steps():
    direction = np.diag([3.0, 0.0])
    W = np.array([[1.0, 0.0], [0.0, 2.0]])
    needed = c_t3._steps_needed(W, direction, 100, target=0.8)
    later = W + direction * np.log(10.0**needed / 100)
    assert later[0, 0] / np.linalg.norm(later) == pytest.approx(0.8, abs=ROUNDING, rel=0.0)


# ---- C Lemma 1


@pytest.mark.statement("C Lemma 1")
def test_a_head_against_assumption_3_is_detected():
    """The number that decides the claim counts what the lemma forbids: it is not zero where an assumption fails."""
    rng = np.random.default_rng(0)
    ds = acyclic_sequences(8, 8, 4, 6, rng)
    points = 3.0 * rng.standard_normal((20, 8, 8))
    right, wrong = as_head(ds, None), as_head(ds, np.linalg.pinv(ds.E).T[::-1])  # rows of C in another order
    for head, kept in ((right, True), (wrong, False)):
        excess = [c_l1.subtracted_excess(ds, head, c_l1.LinearLabelLoss(), W) for W in points]
        assert all(one > 0.0 for one in excess) is kept


# ---- C Lemma 2


@pytest.mark.statement("C Lemma 2")
@pytest.mark.parametrize("fault", ["none", "scaled", "outside"])
def test_a_correction_that_is_not_shortest_is_detected(fault, monkeypatch):
    ds = cyclic_sequences(6, 8, 6, 4, 4)
    true = cyclic_correction(ds)
    aside = true.subspace.complement(np.random.default_rng(1).normal(size=(8, 8)))
    point = {"none": true.x, "scaled": 1.01 * true.x, "outside": true.x + 0.01 * aside}[fault]
    monkeypatch.setattr(ml, "cyclic_correction", lambda ds, graphs: replace(true, x=point))
    row = dict(zip(c_l2.NAMES, c_l2._measure(ds, np.random.default_rng(2)), strict=True))
    row["smallest_curvature"] = row.pop("curvature")
    missed = {name for name, bound in c_l2.C_L2.expected.items() if not bound.holds(row[name])}
    assert not missed if fault == "none" else "free_distance" in missed


@pytest.mark.statement("C Lemma 2", "C Def 3")
def test_a_subspace_without_a_component_misses_the_minimizer():
    ds = cyclic_sequences(6, 8, 6, 4, 4)
    graphs = priority_graphs(ds)
    free = c_l2.minimise_over_all(cyclic_correction(ds).subset, np.zeros((8, 8)))
    size, bar = np.linalg.norm(free), c_l2.C_L2.expected["free_outside"]
    assert bar.holds(np.linalg.norm(c_l2._outside(ds.E, graphs, free)) / size)
    cyclic = [k for k, graph in graphs.items() if len(graph.tied)]
    for left_out in cyclic:
        merged = {k: graph for k, graph in graphs.items() if k != left_out}
        merged |= graphs_of_edges([left_out] * 2, [0, 1], [1, 0], 6)  # in its place, a component of two other tokens
        assert not bar.holds(np.linalg.norm(c_l2._outside(ds.E, merged, free)) / size)
    assert cyclic


# ---- C Thm 1


@pytest.mark.statement("C Thm 1")
@pytest.mark.parametrize("setting", [c_t1.CONVEX, *c_t1.GENERAL], ids=lambda one: one.name)
def test_no_matrix_in_the_ball_has_a_risk_below_the_bound_of_the_certificate(setting):
    rng = np.random.default_rng(8)
    ds, limit, _ = c_l1.feasible_data(acyclic_sequences, (6, 12, 5, 5), rng)
    head = as_head(ds, setting.head(ds, rng))
    bound = c_t1.log_risk_bound(ds, head, setting.loss)
    margin, direction = float(limit.margin), limit.x / np.linalg.norm(limit.x)
    for radius in (1.0, 10.0, 40.0):
        random = rng.standard_normal((60, 12, 12))
        points = direction + random * (10.0 ** rng.uniform(-3, 1, 60))[:, None, None] / 12.0
        points *= radius / np.linalg.norm(points, axis=(1, 2))[:, None, None]
        lowest = min(c_l1.subtracted_excess(ds, head, setting.loss, W) for W in points)
        assert radius * margin < 20.0  # beyond, subtraction leaves rounding
        assert np.log(lowest) >= bound - radius * margin
        assert np.log(lowest) < bound - radius * margin + 12.0  # and the bound is of use


@pytest.mark.statement("C Thm 1")
def test_a_path_to_another_direction_breaks_its_certificate(monkeypatch):
    def elsewhere(make, shape, rng):
        ds, limit, missed = c_l1.feasible_data(make, shape, rng)
        return ds, replace(limit, x=np.roll(limit.x, 1, axis=0)), missed

    monkeypatch.setattr(c_t1, "feasible_data", elsewhere)
    claim = c_t1.C_T1()
    finding = claim.compute(Effort.QUICK, Progress())
    assert finding.numbers["outside_their_certificate"] > 0
    assert claim.judge(finding) is Verdict.DOES_NOT_HOLD
