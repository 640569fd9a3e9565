"""P^mm: all locally optimal selections, against brute force over every combination of tokens."""

from itertools import product
from math import prod

import numpy as np
import pytest

from marginlens import InputError
from marginlens.data import figure_1b, sphere_tokens
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
