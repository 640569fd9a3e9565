"""Definitions 1 and 2 and P^mm: optimal tokens, neighbours, the score gaps that decide, and all locally optimal selections."""

import re
from fractions import Fraction
from itertools import combinations, product
from math import prod

import numpy as np
import pytest
import quadprog

from fractions_solve import solved_over_fractions
from marginlens import Status, TokenDataset
from marginlens.data import figure_1a, figure_1b, scored_tokens, sphere_tokens
from marginlens.theory import globally_optimal_direction, locally_optimal_directions, predict_limit, token_optimality
from random_problems import problem, ragged_problem
from refusals import refused
from tolerances import QUADPROG, ROUNDING, SIX_DIGITS


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
def test_neighbours_and_gap_agree_with_another_optimizer(seed):
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
    assert found.score_gap == pytest.approx(min(gaps), abs=ROUNDING, rel=0.0)
    assert found.is_locally_optimal == (min(gaps) > 0)
    assert found.is_globally_optimal == bool((scores.max(axis=1) == scores[np.arange(3), alpha]).all())


@pytest.mark.statement("A Def 2")
def test_figure_1b_lowers_one_score_and_makes_a_token_locally_optimal():
    data, v = figure_1b()
    local = token_optimality(data, v, [1])
    assert local.is_locally_optimal
    assert not local.is_globally_optimal
    assert local.neighbours.tolist() == [[False, False, True]]
    assert local.score_gap == pytest.approx(0.9, rel=SIX_DIGITS, abs=ROUNDING)
    before, head = figure_1a()
    assert token_optimality(before, head, [1]).score_gap == 0.0  # the neighbour ties, and a tie is not enough
    assert not token_optimality(before, head, [1]).is_locally_optimal


@pytest.mark.statement("A Def 2")
def test_a_tight_constraint_without_a_multiplier_is_a_neighbour():
    # p = e1; (0,0) alone carries it, the others are tight too
    keys = [[(1.0, 0.0), (0.0, 0.0), (0.0, 1.0), (0.0, -1.0)]]
    data, v = scored_tokens(keys, [[1.0, 0.0, 0.5, 2.0]])
    found = token_optimality(data, v, [0])
    assert found.neighbours.tolist() == [[False, True, True, True]]
    assert np.count_nonzero(found.solution.multipliers > ROUNDING) < 3
    assert found.score_gap == pytest.approx(-1.0, rel=SIX_DIGITS, abs=ROUNDING)
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
def test_the_globally_optimal_direction_exists_iff_feasible(seed):
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
def test_ties_within_rounding_keep_the_optimum_feasible():
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


def shortest_exactly(rows):
    """p^mm over the fractions, by trying every set of tight rows; None where no p satisfies all."""

    def dot(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True))

    for k in range(1, min(len(rows[0]), len(rows)) + 1):
        for tight in combinations(rows, k):
            weights = solved_over_fractions([[dot(a, b) for b in tight] for a in tight])
            if weights is None or min(weights) < 0:
                continue
            p = [dot(weights, column) for column in zip(*tight, strict=True)]
            if all(dot(row, p) >= 1 for row in rows):
                return p
    return None


@pytest.mark.statement("A Def 2")
def test_neighbours_agree_with_exact_arithmetic_at_any_scale():
    """Tokens at distances up to 2^29, keys at scales from 2^-300 to 2^300, slacks down to 1e-11 of the terms that make them."""
    rng = np.random.default_rng(0)
    narrow, ties = 0, 0
    for _ in range(300):
        n, T, d = int(rng.integers(1, 3)), int(rng.integers(2, 5)), int(rng.integers(1, 4))
        K = rng.integers(-3, 4, size=(n, T, d)) + rng.integers(-3, 4, size=(n, T, d)) * 2.0 ** rng.integers(-12, -4)
        away = rng.integers(-1, 2, size=(n, T, d)) * (rng.random((n, T, 1)) < 0.4)
        K = (K + away * 2.0 ** rng.integers(16, 30)) * 2.0 ** rng.integers(-300, 301)
        alpha = rng.integers(0, T, size=n)
        pairs = [(i, t) for i in range(n) for t in range(T) if t != alpha[i]]
        rows = [[Fraction(a) - Fraction(b) for a, b in zip(K[i, alpha[i]], K[i, t], strict=True)] for i, t in pairs]
        p = shortest_exactly(rows)
        data, v = scored_tokens(K, rng.integers(-2, 3, size=(n, T)))
        found = token_optimality(data, v, alpha)
        assert found.is_feasible == (p is not None)
        if p is None:
            continue
        slack = [sum(a * b for a, b in zip(row, p, strict=True)) - 1 for row in rows]
        entries = [
            [abs(Fraction(x)) + abs(Fraction(y)) for x, y in zip(K[i, alpha[i]], K[i, t], strict=True)]
            for i, t in pairs
        ]
        terms = [sum(a * abs(b) for a, b in zip(row, p, strict=True)) for row in entries]
        tight = sum(size for size, one in zip(terms, slack, strict=True) if one == 0)
        if any(0 < one < Fraction(1, 10**11) * (size + tight) for size, one in zip(terms, slack, strict=True)):
            continue  # rounding decides
        narrow += any(0 < one < Fraction(1, 10**6) for one in slack)
        ties += sum(one == 0 for one in slack) > 1
        assert [bool(found.neighbours[pair]) for pair in pairs] == [one == 0 for one in slack]
    assert narrow > 12
    assert ties > 25


@pytest.mark.statement("A Def 2", "A P^mm")
@pytest.mark.parametrize("angle", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("scale", [1e-90, 1.0, 1e90])
def test_a_distant_token_is_not_a_neighbour(angle, scale):
    """Its margin is 1.0005, of a row a million long."""
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    keys = scale * np.array([[[0.0, 1.0], [0.0, 0.0], [-1e6, -5e-4]]]) @ turn.T
    data, v = scored_tokens(keys, [[0.5, 0.0, 1.0]])
    found = token_optimality(data, v, [0])
    assert found.neighbours.tolist() == [[False, True, False]]
    assert found.is_locally_optimal
    assert sorted(locally_optimal_directions(data, v).selections.tolist()) == [[0], [2]]


# ---- P^mm against brute force


def brute_force(data, v):
    every = np.array(list(product(*(range(length) for length in data.lengths))))
    found = token_optimality(data.repeat(len(every)), v, every)
    return every[found.is_locally_optimal], found


@pytest.mark.statement("A P^mm")
@pytest.mark.parametrize("seed", range(40))
def test_enumeration_agrees_with_brute_force(seed):
    rng = np.random.default_rng(seed)
    make = ragged_problem if seed % 2 else problem
    data, v = make(rng, int(rng.integers(1, 5)), int(rng.integers(1, 5)), int(rng.integers(1, 6)))
    expected, every = brute_force(data, v)
    found = locally_optimal_directions(data, v)
    assert {tuple(one) for one in found.selections} == {tuple(one) for one in expected}
    assert len(found) == len(expected)
    assert found.n_brute_force == prod(data.lengths.tolist())
    assert (np.diff(found.margins) <= ROUNDING * found.margins[:-1]).all()
    margins = {tuple(one): every.margin[k] for k, one in enumerate(product(*(range(n) for n in data.lengths)))}
    np.testing.assert_allclose(
        found.margins, [margins[tuple(one)] for one in found.selections], rtol=ROUNDING, atol=0.0
    )
    optimal = data.optimal(v)
    np.testing.assert_array_equal(found.is_global, [(one == optimal).all() for one in found.selections])
    lengths = np.linalg.norm(found.directions, axis=-1)
    np.testing.assert_allclose(lengths, 1.0 if data.n_tokens > 1 else 0.0, rtol=0.0, atol=ROUNDING)
    assert (found.score_gaps > 0).all()


@pytest.mark.statement("A P^mm")
def test_figure_1b_has_its_two_directions():
    data, v = figure_1b()
    found = locally_optimal_directions(data, v)
    assert found.selections.tolist() == [[0], [1]]
    assert found.is_global.tolist() == [True, False]
    np.testing.assert_allclose(
        found.directions, [[-0.1 / np.hypot(0.1, 1), 1 / np.hypot(0.1, 1)], [1, 0]], rtol=0.0, atol=ROUNDING
    )


@pytest.mark.statement("A P^mm")
def test_pruning_makes_many_inputs_affordable_in_few_dimensions():
    data, v = sphere_tokens(1, 12, 6, 2, 0)
    found = locally_optimal_directions(data[0], v[0])
    assert found.n_brute_force == 6**12
    assert found.n_solved < 5_000
    assert len(found) > 0
    for selection in found.selections:
        assert token_optimality(data[0], v[0], selection).is_locally_optimal


@pytest.mark.statement("A P^mm")
def test_a_problem_that_is_too_large_is_refused_before_it_starts():
    data, v = sphere_tokens(1, 8, 6, 60, 0)
    with refused("data") as caught:
        locally_optimal_directions(data[0], v[0])
    (needed,) = re.findall(r"up to (\d+) problems", caught.value.got)
    assert f"max_problems to {needed}" in caught.value.remedy
    small, head = sphere_tokens(1, 2, 3, 4, 0)
    worst = 2 * 3 + 3 * 3  # own tokens, then every pair
    assert len(locally_optimal_directions(small[0], head[0], max_problems=worst)) > 0
    with refused("data"):
        locally_optimal_directions(small[0], head[0], max_problems=worst - 1)


def test_too_many_tokens_are_refused_before_solving(monkeypatch):
    """Every token takes a problem of all others: of 3,000 tokens it would be nine million rows."""
    data, v = sphere_tokens(1, 1, 3000, 2, 6)

    def never(*arguments, **options):
        raise AssertionError("a problem was solved")

    monkeypatch.setattr("marginlens.theory.optimality.att_svm", never)
    for max_problems in (1, 2999):
        with refused("data"):
            locally_optimal_directions(data[0], v[0], max_problems=max_problems)


@pytest.mark.parametrize(("n_inputs", "n_tokens"), [(1, 30_000), (7_000, 2)])
def test_a_prediction_for_many_tokens_shows_the_best_direction_alone(n_inputs, n_tokens):
    data, v = sphere_tokens(1, n_inputs, n_tokens, 2, 9)
    found = predict_limit(data[0], v[0], prove=False)
    assert not found.candidates.complete
