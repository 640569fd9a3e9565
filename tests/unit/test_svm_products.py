"""The compiled inner products and Cholesky factors against NumPy, for every remainder of rows and lanes."""

from __future__ import annotations

import numpy as np
import pytest

import tolerances
from marginlens.svm.cholesky import cholesky, solve_lower, solve_upper
from marginlens.svm.products import apply_rows, combine_chosen, combine_rows, gram, row_dot, row_squares, square_sum

SHAPES = [(n, d) for n in (1, 2, 3, 4, 5, 7, 8, 9, 13) for d in (1, 2, 3, 4, 5, 7, 8, 11)]


@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_products_of_rows(n: int, d: int) -> None:
    rng = np.random.default_rng(100 * n + d)
    A, x, weights = rng.normal(size=(n, d)), rng.normal(size=d), rng.normal(size=n)
    out, wide = np.full(n, np.nan), np.full(d, np.nan)
    apply_rows(A, n, x, out)
    np.testing.assert_allclose(out, A @ x, atol=tolerances.ROUNDING)
    row_squares(A, out)
    np.testing.assert_allclose(out, np.sum(A * A, axis=1), atol=tolerances.ROUNDING)
    combine_rows(A, n, weights, wide)
    np.testing.assert_allclose(wide, weights @ A, atol=tolerances.ROUNDING)
    chosen = rng.permutation(n)[: (n + 1) // 2]
    combine_chosen(A, chosen, weights, wide)
    np.testing.assert_allclose(wide, weights[: len(chosen)] @ A[chosen], atol=tolerances.ROUNDING)
    assert row_dot(A, n - 1, x) == pytest.approx(A[-1] @ x, abs=tolerances.ROUNDING)
    assert square_sum(x) == pytest.approx(x @ x, abs=tolerances.ROUNDING)


@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_gram_matrices_grow_from_any_row(n: int, d: int) -> None:
    rng = np.random.default_rng(100 * n + d)
    A, chosen = rng.normal(size=(n + 3, d)), rng.permutation(n + 3)[:n]
    expected = np.tril(A[chosen] @ A[chosen].T)
    for known in range(n):
        G = np.full((n + 2, n + 2), np.nan)
        G[:known, :known] = expected[:known, :known]
        gram(A, chosen, known, G)
        np.testing.assert_allclose(np.tril(G[:n, :n]), expected, atol=tolerances.ROUNDING)
        assert np.isnan(G[n:]).all()
        assert np.isnan(G[:, n:]).all()


def test_inner_products_do_not_depend_on_their_neighbours() -> None:
    rng = np.random.default_rng(0)
    A, x = rng.normal(size=(9, 23)), rng.normal(size=23)
    out = np.empty(9)
    apply_rows(A, 9, x, out)
    assert [row_dot(A, r, x) for r in range(9)] == out.tolist()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 9, 21])
def test_cholesky_and_its_solves(n: int) -> None:
    rng = np.random.default_rng(n)
    B = rng.normal(size=(n, n + 3))
    G = B @ B.T
    L = np.full((n + 1, n + 1), np.nan)
    L[:n, :n] = np.where(np.tril(np.ones((n, n))) > 0, G, np.nan)
    assert cholesky(L, n, 0.0) == -1
    lower = np.tril(L[:n, :n])
    np.testing.assert_allclose(lower @ lower.T, G, atol=tolerances.ROUNDING * 10)
    right = rng.normal(size=n + 1)
    solved = right.copy()
    solve_lower(L, n, solved)
    np.testing.assert_allclose(lower @ solved[:n], right[:n], atol=tolerances.CONDITIONED)
    solve_upper(L, n, solved)
    np.testing.assert_allclose(G @ solved[:n], right[:n], atol=tolerances.CONDITIONED)
    assert solved[n] == right[n]


def test_cholesky_stops_at_the_first_dependent_row() -> None:
    A = np.random.default_rng(1).normal(size=(6, 4))
    A[2] = A[0] + A[1]
    G = A @ A.T
    assert cholesky(G.copy(), 2, 1e-9) == -1
    assert cholesky(G, 6, 1e-9) == 2
