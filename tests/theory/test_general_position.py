"""Lemmas 2 and 11, and general position of keys: when optimal tokens can be selected, and what breaks the counts."""

from itertools import combinations, product

import numpy as np
import pytest

from marginlens.data import TokenDataset
from marginlens.theory import globally_optimal_direction
from marginlens_papers.claims.a.general_position import check_general_position, constructive_separator
from random_problems import problem, ragged_problem
from tolerances import CONDITIONED, ROUNDING, SIX_DIGITS


def brute_force(data):
    """Both minima over every selection and every set of rows, and how many different matrices there are."""
    K, d, singular, distance, seen = data.K, data.d_key, [], [], set()
    for alpha in product(*(range(int(length)) for length in data.lengths)):
        rows = [(i, alpha[i], t) for i in range(data.n_inputs) for t in range(int(data.lengths[i])) if t != alpha[i]]
        for chosen in combinations(rows, min(d, len(rows))):
            A = np.array([K[i, t] - K[i, a] for i, a, t in chosen])
            A /= np.linalg.norm(A, axis=1, keepdims=True)
            singular.append(np.linalg.svd(A, compute_uv=False)[-1])
        for chosen in combinations(rows, d + 1):
            A = np.array([K[i, t] - K[i, a] for i, a, t in chosen])
            seen.add(chosen)
            x, *_ = np.linalg.lstsq(A, np.ones(d + 1), rcond=None)
            distance.append(np.linalg.norm(A @ x - 1.0) / np.sqrt(d + 1))
    return min(singular), min(distance, default=np.inf), len(seen)


@pytest.mark.statement("A Thm 7")
@pytest.mark.parametrize("seed", range(4))
def test_check_agrees_with_every_selection_one_by_one(seed):
    rng = np.random.default_rng(seed)
    data, _ = ragged_problem(rng, 3, 3, 2)
    singular, distance, tall = brute_force(data)
    check = check_general_position(data)
    assert check.holds
    assert check.numbers["distance"] == pytest.approx(distance, rel=1e-9, abs=ROUNDING)
    assert check.numbers["looked_at"] == check.numbers["matrices"] > tall
    # the smallest singular value depends on which token of a set is the selected one, its vanishing does not
    assert check.numbers["singular_value"] >= singular - 1e-12


@pytest.mark.statement("A Thm 7")
def test_degenerate_keys_are_found():
    rng = np.random.default_rng(0)
    parallel = rng.standard_normal((2, 3, 2))
    parallel[1, 1] = parallel[1, 0] + 2.0 * (parallel[0, 1] - parallel[0, 0])  # two parallel differences
    check = check_general_position(TokenDataset(parallel, [1.0, 1.0]))
    assert not check.holds
    assert check.numbers["singular_value"] < 1e-12
    level = rng.standard_normal((3, 2, 2))
    level[:, 1] = level[:, 0]
    level[:, 1, 0] += 1.0  # three differences with the same first coordinate: p = (1, 0) separates all by exactly 1
    level[:, 1, 1] += [0.5, -1.0, 2.0]
    check = check_general_position(TokenDataset(level, [1.0, 1.0, 1.0]))
    assert not check.holds
    assert check.numbers["distance"] < 1e-12 < check.numbers["singular_value"]
    # on a line: the range is that of (±1, ±2, ±3) alone
    flat = np.array([[(0.0, 0.0), (k, 0.0)] for k in (1.0, 2.0, 3.0)])
    check = check_general_position(TokenDataset(flat, [1.0, 1.0, 1.0]))
    assert not check.holds
    assert check.numbers["distance"] == pytest.approx(
        np.sqrt(1.0 - 6.0**2 / (3.0 * 14.0)), rel=SIX_DIGITS, abs=ROUNDING
    )
    level[0, 1, 0] += 0.1
    assert check_general_position(TokenDataset(level, [1.0, 1.0, 1.0])).holds


@pytest.mark.statement("A Thm 7")
def test_a_large_problem_is_sampled_and_reported():
    rng = np.random.default_rng(0)
    data, _ = problem(rng, 6, 6, 5)
    check = check_general_position(data, max_problems=500)
    assert check.holds
    assert check.numbers["looked_at"] == 1000.0 < check.numbers["matrices"]
    assert "a sample of 1000 of the" in check.sentence


@pytest.mark.statement("A Thm 7")
def test_fewer_rows_than_dimensions_must_be_independent():
    rng = np.random.default_rng(0)
    data, _ = problem(rng, 2, 2, 5)
    check = check_general_position(data)
    assert check.holds
    assert check.numbers["distance"] == np.inf
    same = np.repeat(data.K[:1], 2, axis=0)
    assert not check_general_position(TokenDataset(same, data.y)).holds


# ---- Lemmas 2 and 11: a separator made from the head


def random_problem(rng, W, labels=1.0):
    n, T = int(rng.integers(1, 6)), int(rng.integers(2, 6))
    X = rng.standard_normal((n, T, W.shape[1]))
    return TokenDataset(X, np.full(n, labels), W=W)


@pytest.mark.statement("A Lemma 2")
@pytest.mark.parametrize("seed", range(20))
def test_full_rank_makes_the_optimal_tokens_separable(seed):
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 5))
    data = random_problem(rng, rng.standard_normal((d, d)))
    v = rng.standard_normal(d)
    found = constructive_separator(data, v)
    assert found.applies
    assert found.margin == pytest.approx(1.0, abs=CONDITIONED, rel=0.0)  # the pair with the smallest gap attains it
    optimum = globally_optimal_direction(data, v)
    assert optimum.is_feasible
    assert np.linalg.norm(optimum.solution.x) <= np.linalg.norm(found.p) * (1 + CONDITIONED)


@pytest.mark.statement("A Lemma 11")
@pytest.mark.parametrize("shape", [(4, 4), (2, 5), (6, 3)])
def test_the_range_of_the_matrix_is_all_that_matters(shape):
    rng = np.random.default_rng(7)
    W = rng.standard_normal((shape[0], 2)) @ rng.standard_normal((2, shape[1]))  # rank two
    data = random_problem(rng, W)
    inside = constructive_separator(data, W.T @ rng.standard_normal(shape[0]))
    assert inside.applies
    assert inside.margin == pytest.approx(1.0, abs=CONDITIONED, rel=0.0)
    assert globally_optimal_direction(data, W.T @ rng.standard_normal(shape[0])).is_feasible


@pytest.mark.statement("A Lemma 11")
def test_outside_the_range_or_with_mixed_labels_the_optimum_may_be_out_of_reach():
    rng = np.random.default_rng(1)
    W = np.diag([1.0, 1.0, 0.0])
    outside, mixed = [], []
    for _ in range(30):
        data, v = random_problem(rng, W), rng.standard_normal(3)
        found = constructive_separator(data, v)
        assert not found.applies
        assert [one.holds for one in found.conditions] == [True, True, False]
        outside.append(bool(globally_optimal_direction(data, v).is_feasible))
        X = rng.standard_normal((4, 4, 2))
        both = TokenDataset(X, [1, -1, 1, -1])
        head = rng.standard_normal(2)
        assert [one.holds for one in constructive_separator(both, head).conditions] == [False, True, True]
        mixed.append(bool(globally_optimal_direction(both, head).is_feasible))
    assert not all(outside)
    assert not all(mixed)
