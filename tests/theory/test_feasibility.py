"""Lemmas 2 and 11: with positive labels and a head in the range of Wᵀ the optimal tokens can always be selected."""

import numpy as np
import pytest

from marginlens import TokenDataset
from marginlens.theory import globally_optimal_direction
from marginlens_papers.lemmas.separator import constructive_separator
from tolerances import CONDITIONED


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
    assert found.margin == pytest.approx(1.0, abs=CONDITIONED)  # the pair with the smallest gap attains it
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
    assert inside.margin == pytest.approx(1.0, abs=CONDITIONED)
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
