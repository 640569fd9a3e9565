"""Compiled linear algebra and Cholesky factors against NumPy, for every remainder of rows and columns."""

from __future__ import annotations

import numpy as np
import pytest

import tolerances
from marginlens.kernels.linalg import (
    all_finite,
    cholesky,
    dot,
    gram,
    matvec,
    max_abs,
    norm,
    solve_lower,
    solve_upper,
    squared_row_norms,
    vecmat,
    vecmat_rows,
)

SHAPES = [(n, d) for n in (1, 2, 3, 4, 5, 7, 8, 9, 13) for d in (1, 2, 3, 4, 5, 7, 8, 11)]


@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_products_of_rows(n: int, d: int) -> None:
    rng = np.random.default_rng(100 * n + d)
    A, x, weights = rng.normal(size=(n, d)), rng.normal(size=d), rng.normal(size=n)
    out, wide = np.full(n, np.nan), np.full(d, np.nan)
    matvec(A, x, out)
    np.testing.assert_allclose(out, A @ x, atol=tolerances.ROUNDING)
    squared_row_norms(A, out)
    np.testing.assert_allclose(out, np.sum(A * A, axis=1), atol=tolerances.ROUNDING)
    vecmat(weights, A, wide)
    np.testing.assert_allclose(wide, weights @ A, atol=tolerances.ROUNDING)
    chosen = rng.permutation(n)[: (n + 1) // 2]
    vecmat_rows(weights, A, chosen, wide)
    np.testing.assert_allclose(wide, weights[: len(chosen)] @ A[chosen], atol=tolerances.ROUNDING)
    assert dot(A[-1], x) == pytest.approx(A[-1] @ x, abs=tolerances.ROUNDING)


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


def test_norms_and_finiteness_at_any_size() -> None:
    x = np.random.default_rng(0).normal(size=23)
    for scale in (1e-200, 1.0, 1e200):
        assert norm(scale * x) == pytest.approx(scale * np.linalg.norm(x), rel=tolerances.ROUNDING)
        assert max_abs(scale * x) == np.abs(scale * x).max()
        assert all_finite(scale * x)
    for bad in (np.nan, np.inf, -np.inf):
        x[17] = bad
        assert not all_finite(x)


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
