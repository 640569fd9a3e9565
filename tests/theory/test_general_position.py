"""General position of keys: the counts, the two conditions against determinants and linear algebra, and what breaks them."""

from itertools import combinations, product

import numpy as np
import pytest

from marginlens.data import TokenDataset
from marginlens_papers.lemmas.general_position import check_general_position
from random_problems import problem, ragged_problem


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
    assert check.numbers["distance"] == pytest.approx(distance, rel=1e-9)
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
    assert check.numbers["distance"] == pytest.approx(np.sqrt(1.0 - 6.0**2 / (3.0 * 14.0)))
    level[0, 1, 0] += 0.1
    assert check_general_position(TokenDataset(level, [1.0, 1.0, 1.0])).holds


@pytest.mark.statement("A Thm 7")
def test_a_large_problem_is_sampled_and_says_so():
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
