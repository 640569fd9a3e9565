"""What is particular to the claims of our own: the clock of the residual law, and the fences around finite minima."""

from dataclasses import replace

import numpy as np
import pytest

from marginlens.data import basin_example, figure_1b
from marginlens.data.counter_based import sphere_problems
from marginlens.dynamics import descend
from marginlens.optimizers import NormalizedGD
from marginlens.risk import AttentionRisk
from marginlens.theory import locally_optimal_directions
from marginlens_papers.claim import Progress
from marginlens_papers.claims.ours import basins as x_b
from marginlens_papers.claims.ours import norm_proof_shares as x_p4
from marginlens_papers.claims.ours import residual_law as x_o
from tolerances import ROUNDING


@pytest.fixture(scope="module")
def trapped():
    """The claim's random problem, its head, and where a run from the middle of its finite basin ends."""
    data, v = basin_example()
    return data, v, descend(data, v, optimizer=NormalizedGD(x_b.STEP), n_steps=2000, start=[-3.0, -1.0]).final


def test_the_search_finds_a_problem_with_all_kinds_of_limits():
    data, v = x_b.random_problem(x_b.SEED)
    assert data == basin_example()[0]
    rng = np.random.default_rng([x_b.SEED, 2, 4])
    np.testing.assert_array_equal(data.K, rng.standard_normal((2, 4, 2)).round(2))  # the seed is the problem's own
    optima = locally_optimal_directions(data, v)
    assert len(optima) >= 3
    assert optima.is_global.sum() == 1


def test_a_barrier_around_a_minimum_has_a_proved_height(trapped):
    data, v, end = trapped
    radius, height = x_b._fence(data, v, end)
    turn = np.random.default_rng(0).uniform(0.0, 2.0 * np.pi, 20_000)  # between the points at which it was evaluated
    circle = end + radius * np.stack([np.cos(turn), np.sin(turn)], axis=-1)
    assert np.min(AttentionRisk(data.repeat(len(circle)), v).value(circle)) > height > AttentionRisk(data, v).value(end)
    assert np.linalg.norm(descend(data, v, optimizer=NormalizedGD(0.01), n_steps=5000, start=end).final - end) < radius


def test_the_slope_bound_holds_and_is_nontrivial(trapped):
    data, v, _ = trapped
    points = np.random.default_rng(1).uniform(-6.0, 6.0, (4000, 2))
    steepest = np.exp(AttentionRisk(data.repeat(4000), v).gradient(points).log_norm).max()
    assert 0.05 * x_b._steepest(data, v) < steepest <= x_b._steepest(data, v)


def test_starts_without_a_limit_are_not_counted():
    data, v = figure_1b()
    starts = x_b.square_of_starts(6, 4.0).reshape(-1, 2)
    optima = locally_optimal_directions(data, v)
    step = NormalizedGD(x_b.STEP)
    ends = [
        x_b._ends(data, v, optima, descend(data.repeat(36), v, optimizer=step, n_steps=n_steps, start=starts))
        for n_steps in (0, 2000)
    ]
    assert np.mean(ends[0] < 0) > 0.8
    assert set(ends[1]) == {0, 1}


# ---- residual attention


def test_shares_sum_to_one_and_time_increases():
    shape = {"n_inputs": 3, "n_tokens": 4, "d": 10}
    (run,) = x_o._swept(Progress(), saved_steps=(100, 300, 1000), n_problems=8, step=0.5, **shape)
    shown = x_o._multipliers(sphere_problems(0, 8, *shape.values(), x_o.SEED))
    shares = np.where(shown["carrying"][:, None], shown["read_off"], 0.0).sum(axis=-1)
    np.testing.assert_allclose(shares[run["holds"]], 1.0, rtol=ROUNDING, atol=0.0)
    assert np.all(np.diff(run["clock"][run["stable"]], axis=-1) > 0.0)
    assert not run["settled"][~run["stable"]].any()


# ---- proofs in any norm


@pytest.mark.parametrize("name", ["sign", "Muon"])
def test_a_false_proof_in_a_norm_is_contradicted(name):
    rule, length = x_p4.RULES[name], x_p4.LENGTHS["quarter"]
    followed = ((each, x_p4.followed(each, rule, length)) for each in x_p4.drawn(rule, 20, (2, 4, 3), 0))
    trained, outcome = next((each, end) for each, end in followed if end is not None and end.proved)
    proof = outcome.certificate
    wrong = [
        replace(proof, rate=3.0 * proof.high),
        replace(proof, high=0.5 * proof.low),
        replace(proof, selected=(proof.selected + 1) % trained.problem.data.lengths),
    ]
    found = [x_p4.is_contradicted(trained, rule, each, outcome.n_steps) for each in (proof, *wrong)]
    assert found == [False, True, True, True]
