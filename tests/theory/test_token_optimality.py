"""Definitions 1 and 2: optimal tokens, neighbours, and the score gaps that decide."""

import numpy as np
import pytest
import quadprog

from marginlens import InputError, Status, TokenDataset
from marginlens.data import figure_1a, figure_1b, scored_tokens, sphere_tokens
from marginlens.theory import globally_optimal_direction, in_cone, token_optimality
from random_problems import problem, ragged_problem
from tolerances import QUADPROG, ROUNDING


def by_quadprog(data, alpha):
    """p^mm(α) by a solver of another kind, or None where it finds the constraints inconsistent."""
    rows = np.array(
        [data.K[i, a] - data.K[i, t] for i, a in enumerate(alpha) for t in range(data.lengths[i]) if t != a]
    )
    try:
        return quadprog.solve_qp(np.eye(data.d_key), np.zeros(data.d_key), rows.T, np.ones(len(rows)))[0]
    except ValueError as refusal:
        if "inconsistent" in str(refusal):
            return None
        raise


@pytest.mark.statement("A Def 2")
@pytest.mark.parametrize("seed", range(20))
def test_neighbours_and_gap_agree_with_another_optimiser(seed):
    rng = np.random.default_rng(seed)
    data, v = ragged_problem(rng, 3, 4, 4)
    scores = data.scores(v)
    alpha = np.array([rng.integers(length) for length in data.lengths])
    found = token_optimality(data, v, alpha)
    p = by_quadprog(data, alpha)
    assert found.is_feasible == (p is not None)
    if p is None:
        assert np.isnan(found.score_gap)
        assert not found.neighbours.any()
        assert not found.is_locally_optimal
        assert not found.is_globally_optimal
        return
    np.testing.assert_allclose(found.solution.x, p, rtol=QUADPROG, atol=QUADPROG)
    tight = np.zeros_like(data.mask)
    for i, a in enumerate(alpha):
        for t in range(data.lengths[i]):
            tight[i, t] = t != a and abs((data.K[i, a] - data.K[i, t]) @ p - 1.0) < QUADPROG
    np.testing.assert_array_equal(found.neighbours, tight)
    gaps = [scores[i, a] - scores[i, t] for i, a in enumerate(alpha) for t in np.flatnonzero(tight[i])]
    assert found.score_gap == pytest.approx(min(gaps), abs=ROUNDING)
    assert found.is_locally_optimal == (min(gaps) > 0)
    assert found.is_globally_optimal == bool((scores.max(axis=1) == scores[np.arange(3), alpha]).all())


@pytest.mark.statement("A Def 2")
def test_figure_1b_lowers_one_score_and_makes_a_token_locally_optimal():
    data, v = figure_1b()
    local = token_optimality(data, v, [1])
    assert local.is_locally_optimal
    assert not local.is_globally_optimal
    assert local.neighbours.tolist() == [[False, False, True]]
    assert local.score_gap == pytest.approx(0.9)
    before, head = figure_1a()
    assert token_optimality(before, head, [1]).score_gap == 0.0  # the neighbour ties, and a tie is not enough
    assert not token_optimality(before, head, [1]).is_locally_optimal


@pytest.mark.statement("A Def 2")
def test_a_tight_constraint_without_a_multiplier_is_a_neighbour():
    keys = [
        [(1.0, 0.0), (0.0, 0.0), (0.0, 1.0), (0.0, -1.0)]
    ]  # p = e1; (0,0) alone carries it, the others are tight too
    data, v = scored_tokens(keys, [[1.0, 0.0, 0.5, 2.0]])
    found = token_optimality(data, v, [0])
    assert found.neighbours.tolist() == [[False, True, True, True]]
    assert np.count_nonzero(found.solution.multipliers > ROUNDING) < 3
    assert found.score_gap == pytest.approx(-1.0)
    assert not found.is_locally_optimal


@pytest.mark.statement("A Def 2")
@pytest.mark.parametrize("bump", [1e-6, -1e-6])
def test_neighbours_follow_a_token_across_the_margin(bump):
    data, v = scored_tokens([[(1.0, 0.0), (0.0, 0.0), (-bump, 1.0)]], [[1.0, 0.0, 0.0]])
    found = globally_optimal_direction(data, v)
    assert found.neighbours[0, 2] == (bump < 0)  # pushed in it binds, pulled back it is free
    assert found.is_globally_optimal
    assert found.optimum_is_unique


@pytest.mark.statement("A Def 1")
@pytest.mark.parametrize("seed", range(6))
def test_the_globally_optimal_direction_exists_exactly_where_its_problem_is_feasible(seed):
    data, v = sphere_tokens(40, 3, 4, 3, seed)
    found = globally_optimal_direction(data, v)
    np.testing.assert_array_equal(found.selected, np.argmax(data.scores(v), axis=-1))
    feasible = np.array([one is Status.OPTIMAL for one in found.solution.status])
    np.testing.assert_array_equal(found.is_globally_optimal, feasible)
    np.testing.assert_array_equal(found.is_locally_optimal, feasible)  # every neighbour scores below the optimum
    assert 0 < feasible.sum() < 40
    assert found.optimum_is_unique.all()
    assert np.isnan(found.direction[~feasible]).all()


@pytest.mark.statement("A Def 1")
def test_ties_are_seen_through_rounding_and_leave_the_optimum_feasible():
    rng = np.random.default_rng(0)
    data, v = problem(rng, 1, 3, 3)
    X = np.array(data.X)
    aside = np.cross(v, X[0, 0])
    top = int(data.optimal(v)[0])
    X = np.concatenate([X, (X[:, top] + 0.7 * aside)[:, None]], axis=1)  # the same score, up to rounding
    tied = TokenDataset(X, data.y)
    assert not globally_optimal_direction(tied, v).optimum_is_unique
    for choice in (top, 3):
        found = token_optimality(tied, v, [choice])
        assert found.is_globally_optimal == found.is_feasible


@pytest.mark.statement("A Def 2")
def test_a_batch_is_a_loop_of_singles_padding_included():
    rng = np.random.default_rng(3)
    problems = [ragged_problem(rng, 3, 4, 3) for _ in range(8)]
    batch = TokenDataset(
        [[one.X[i, :n] for i, n in enumerate(one.lengths)] for one, _ in problems], [one.y for one, _ in problems]
    )
    heads = np.stack([v for _, v in problems])
    together = globally_optimal_direction(batch, heads)
    for j, (one, v) in enumerate(problems):
        alone = globally_optimal_direction(one, v)
        assert together.is_feasible[j] == alone.is_feasible
        assert together.is_locally_optimal[j] == alone.is_locally_optimal
        np.testing.assert_array_equal(together.neighbours[j, :, : one.n_tokens], alone.neighbours)
        assert not together.neighbours[j, :, one.n_tokens :].any()
        np.testing.assert_allclose(together.score_gap[j], alone.score_gap, atol=ROUNDING, equal_nan=True)
        np.testing.assert_allclose(together.direction[j], alone.direction, atol=ROUNDING, equal_nan=True)


@pytest.mark.statement("A Def 2")
def test_inputs_with_one_token_leave_nothing_to_separate():
    data = TokenDataset(np.ones((2, 1, 3)), [1, -1])
    found = token_optimality(data, np.ones(3), [0, 0])
    assert found.solution.status is Status.TRIVIAL
    assert found.is_locally_optimal
    assert found.is_globally_optimal
    assert found.score_gap == np.inf
    np.testing.assert_array_equal(found.direction, np.zeros(3))
    many = token_optimality(TokenDataset(np.ones((5, 2, 1, 3)), np.ones((5, 2))), np.ones(3), [0, 0])
    assert many.is_globally_optimal.all()


@pytest.mark.statement("A Def 2")
def test_in_one_dimension_only_the_ends_can_be_selected():
    data, v = scored_tokens([[[-1.0], [0.0], [2.0]]], [[0.5, 1.0, 0.0]])
    assert [token_optimality(data, v, [t]).is_feasible for t in range(3)] == [True, False, True]
    assert [token_optimality(data, v, [t]).is_locally_optimal for t in range(3)] == [False, False, False]


def test_arguments_are_refused_with_a_sentence():
    data, v = figure_1a()
    with pytest.raises(InputError, match=r"'data' argument must be a TokenDataset; got ndarray"):
        token_optimality(data.X, v, [0])
    with pytest.raises(
        InputError, match=r"'selected' argument must be token indices from 0 to 2 for input 0; got index 3"
    ):
        token_optimality(data, v, [3])


def test_scores_of_extreme_tokens_and_heads_are_told_apart():
    data, v = sphere_tokens(20, 2, 3, 6, 4)
    plain = token_optimality(data, v, data.optimal(v))
    far = TokenDataset(data.X * 2.0**700, data.y, K=data.K)
    found = token_optimality(far, v * 2.0**-700, data.optimal(v))
    assert np.array_equal(found.is_locally_optimal, plain.is_locally_optimal)
    assert np.array_equal(found.score_gap, plain.score_gap)
    assert found.optimum_is_unique.all()
    assert in_cone([1e-200, 0.0], [1.0, 0.0], 0.1, 1e-201)
