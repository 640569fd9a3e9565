"""Theorem 3 beyond Figure 9: other sizes, seeds, losses and steps still end at the max-margin direction of what they select."""

import numpy as np
import pytest

import marginlens as ml
from tolerances import DIRECTION_ON_RANDOM_DATA


@pytest.mark.statement("A Thm 3", "A ATT-SVM")
@pytest.mark.parametrize(
    ("n", "T", "d", "seed"),
    [(1, 3, 2, 0), (2, 10, 8, 1), (8, 4, 60, 2), (10, 3, 30, 3), (3, 20, 100, 4), (4, 6, 50, 5)],
)
@pytest.mark.parametrize(
    "loss", [ml.Logistic(), ml.Exponential(), ml.CorrelationLoss()], ids=lambda one: type(one).__name__
)
def test_mean_correlation_on_random_data(n, T, d, seed, loss):
    data, v = ml.data.sphere_tokens(40, n, T, d, seed)
    run = ml.descend(data, v, loss=loss, n_steps=3000)
    found = ml.token_optimality(data, v, run.selected)
    chosen = np.take_along_axis(run.attention, run.selected[..., None], axis=-1)[..., 0]
    counted = (chosen.mean(axis=-1) >= 1 - 1e-5) & found.is_locally_optimal
    assert counted.sum() >= 10
    corr = ml.correlation(run.final, found.solution.x)[counted]
    assert corr.mean() >= DIRECTION_ON_RANDOM_DATA
    swapped = np.roll(found.solution.x[counted], 1, axis=0)
    assert ml.correlation(run.final[counted], swapped).mean() < 0.9  # another problem's direction does not pass
