"""Rank correlations with a permutation test: how often chance alone gives as strong an order."""

from __future__ import annotations

from functools import cache
from itertools import permutations
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from marginlens.data.tokens import FloatArray

MAX_EXACT_POINTS = 8  # up to here all orders are tried (40,320 of them), beyond it N_RANDOM_ORDERS random ones
N_RANDOM_ORDERS = 50_000


class RankTest(NamedTuple):
    """Spearman's rank correlation and the share of orders whose correlation is at least as large in modulus (two-sided)."""

    correlation: float
    p_value: float


def rank_test(first: FloatArray, second: FloatArray) -> RankTest:
    """Spearman's rank correlation of two samples of shape (n_points,), tested against all orders being equally likely.

    Both numbers are nan where a sample is constant or has a number that is not finite.
    """
    a, b = (np.asarray(values, dtype=float) for values in (first, second))
    if len(a) < 2 or not (np.isfinite(a).all() and np.isfinite(b).all()) or np.ptp(a) == 0.0 or np.ptp(b) == 0.0:
        return RankTest(float("nan"), float("nan"))
    ranks = [rankdata(values) - (len(values) + 1) / 2 for values in (a, b)]
    centred_a, centred_b = (values / np.linalg.norm(values) for values in ranks)
    correlation = float(centred_a @ centred_b)
    orders = _orders(len(a))
    chance = np.abs(centred_b[orders] @ centred_a)
    as_strong = int(np.sum(chance >= abs(correlation) - 1e-12))  # ties of ranks are equal up to rounding
    if len(a) > MAX_EXACT_POINTS:  # the observed order is one of those drawn
        return RankTest(correlation, (as_strong + 1) / (len(orders) + 1))
    return RankTest(correlation, as_strong / len(orders))


@cache
def _orders(n: int) -> np.ndarray:
    """(n_orders, n) every order of n points, or random ones where these are too many."""
    if n <= MAX_EXACT_POINTS:
        return np.array(list(permutations(range(n))))
    return np.random.default_rng(0).permuted(np.tile(np.arange(n), (N_RANDOM_ORDERS, 1)), axis=1)
