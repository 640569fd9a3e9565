"""The permutation test of rank correlations, against scipy's exact and asymptotic ones."""

import numpy as np
import pytest
from scipy import stats

from marginlens.probe.rank_test import rank_test


@pytest.mark.parametrize("n", [4, 6, 8])
def test_every_order_is_counted_up_to_eight_points(n):
    rng = np.random.default_rng(n)
    a, b = rng.normal(size=(2, n))
    exact = stats.permutation_test(
        (a,), lambda x: stats.spearmanr(x, b).statistic, permutation_type="pairings", n_resamples=np.inf
    )
    found = rank_test(a, b)
    assert found.correlation == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)
    assert found.p_value == pytest.approx(exact.pvalue, abs=1e-3)


def test_many_points_agree_with_the_asymptotic_test():
    rng = np.random.default_rng(0)
    a = np.arange(40.0)
    b = a / 40 + rng.normal(size=40)
    assert rank_test(a, b).p_value == pytest.approx(stats.spearmanr(a, b).pvalue, rel=0.3, abs=2e-3)


def test_perfect_orders_of_few_points_are_common_by_chance():
    assert rank_test(np.arange(2.0), np.arange(2.0)) == (pytest.approx(1.0), 1.0)
    assert rank_test(np.arange(4.0), np.arange(4.0)).p_value == pytest.approx(2 / 24)


@pytest.mark.parametrize("values", [[1.0, 1.0, 1.0], [1.0, np.nan, 2.0]])
def test_constant_or_unknown_samples_have_no_correlation(values):
    assert np.isnan(rank_test(np.array(values), np.arange(3.0)).p_value)
