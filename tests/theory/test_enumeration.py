"""P^mm: all locally optimal selections, against brute force over every combination of tokens."""

from itertools import product
from math import prod

import numpy as np
import pytest

from marginlens import InputError, TokenDataset
from marginlens.data import figure_1b, scored_tokens, sphere_tokens
from marginlens.theory import locally_optimal_directions, token_optimality
from random_problems import problem, ragged_problem
from tolerances import ROUNDING


def brute_force(data, v):
    every = np.array(list(product(*(range(length) for length in data.lengths))))
    found = token_optimality(data.repeat(len(every)), v, every)
    return every[found.is_locally_optimal], found


@pytest.mark.statement("A P^mm")
@pytest.mark.parametrize("seed", range(40))
def test_enumeration_finds_what_brute_force_finds(seed):
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
    np.testing.assert_allclose(found.margins, [margins[tuple(one)] for one in found.selections], rtol=ROUNDING)
    optimal = data.optimal(v)
    np.testing.assert_array_equal(found.is_global, [(one == optimal).all() for one in found.selections])
    lengths = np.linalg.norm(found.directions, axis=-1)
    np.testing.assert_allclose(lengths, 1.0 if data.n_tokens > 1 else 0.0, atol=ROUNDING)
    assert (found.score_gaps > 0).all()


@pytest.mark.statement("A P^mm")
def test_brute_force_above_does_not_only_see_trivial_lists():
    rng = np.random.default_rng(0)
    counts = [len(locally_optimal_directions(*problem(rng, 3, 4, 3))) for _ in range(20)]
    assert min(counts) < 3 < max(counts)


@pytest.mark.statement("A P^mm")
def test_figure_1b_has_its_two_directions():
    data, v = figure_1b()
    found = locally_optimal_directions(data, v)
    assert found.selections.tolist() == [[0], [1]]
    assert found.is_global.tolist() == [True, False]
    np.testing.assert_allclose(
        found.directions, [[-0.1 / np.hypot(0.1, 1), 1 / np.hypot(0.1, 1)], [1, 0]], atol=ROUNDING
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
    with pytest.raises(
        InputError, match=r"n = 8 inputs of up to T = 6 tokens with up to (\d+) problems.*Raise max_problems to \1"
    ) as refused:
        locally_optimal_directions(data[0], v[0])
    assert "\n" not in str(refused.value)
    small, head = sphere_tokens(1, 2, 3, 4, 0)
    worst = 2 * 3 + 3 * 3  # own tokens, then every pair
    assert len(locally_optimal_directions(small[0], head[0], max_problems=worst)) > 0
    with pytest.raises(InputError, match=f"up to {worst} problems"):
        locally_optimal_directions(small[0], head[0], max_problems=worst - 1)


@pytest.mark.statement("A P^mm")
@pytest.mark.parametrize("seed", range(10))
def test_the_stated_worst_case_is_never_exceeded(seed):
    rng = np.random.default_rng(seed)
    data, v = ragged_problem(rng, 5, 5, int(rng.integers(1, 4)))
    n_solved = locally_optimal_directions(data, v, max_problems=10**9).n_solved
    with pytest.raises(InputError) as refused:
        locally_optimal_directions(data, v, max_problems=1)
    assert n_solved <= int(str(refused.value).split("Raise max_problems to ")[1].split(",")[0])


@pytest.mark.statement("A P^mm")
def test_a_token_that_is_there_twice_can_never_be_selected():
    X = np.array([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
    found = locally_optimal_directions(TokenDataset(X, [1]), np.array([1.0, 0.0]))
    assert len(found) == 0
    assert found.directions.shape == (0, 2)


def test_a_batch_is_refused():
    data, v = sphere_tokens(3, 2, 2, 2, 0)
    with pytest.raises(InputError, match=r"must be one problem; got a batch of 3 instead. Take one with data\[j\]."):
        locally_optimal_directions(data, v)


def test_directions_of_equal_margins_are_listed_in_the_order_of_their_tokens():
    line = np.array([[-1.0], [0.0], [1.0]])  # either end beats the middle
    keys = [np.pad(line, ((0, 0), (0, 1))), np.pad(line, ((0, 0), (1, 0)))]
    found = locally_optimal_directions(*scored_tokens(keys, [[1.0, 0.0, 1.0]] * 2))
    assert np.ptp(found.margins) == 0.0
    assert found.selections.tolist() == [[0, 0], [0, 2], [2, 0], [2, 2]]
