"""Compiled linear algebra and Cholesky factors against NumPy, at every remainder of rows and columns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tolerances
from marginlens.kernels import linalg


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 13), d=st.integers(1, 11), seed=st.integers(0, 100))
def test_products_and_gram_matrices(n: int, d: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    A, x, weights = rng.normal(size=(n, d)), rng.normal(size=d), rng.normal(size=n)
    out, wide = np.full(n, np.nan), np.full(d, np.nan)
    linalg.matvec(A, x, out)
    np.testing.assert_allclose(out, A @ x, atol=tolerances.ROUNDING)
    linalg.squared_row_norms(A, out)
    np.testing.assert_allclose(out, np.sum(A * A, axis=1), atol=tolerances.ROUNDING)
    linalg.vecmat(weights, A, wide)
    np.testing.assert_allclose(wide, weights @ A, atol=tolerances.ROUNDING)
    rows = rng.permutation(n)[: (n + 1) // 2]
    linalg.vecmat_rows(weights, A, rows, wide)
    np.testing.assert_allclose(wide, weights[: len(rows)] @ A[rows], atol=tolerances.ROUNDING)
    assert linalg.dot(A[-1], x) == pytest.approx(A[-1] @ x, abs=tolerances.ROUNDING)
    expected = np.tril(A[rows] @ A[rows].T)
    for known in range(len(rows)):  # grown from any row on
        G = np.full((n + 2, n + 2), np.nan)
        G[:known, :known] = expected[:known, :known]
        linalg.gram(A, rows, known, G)
        np.testing.assert_allclose(np.tril(G[: len(rows), : len(rows)]), expected, atol=tolerances.ROUNDING)
        assert np.isnan(G[len(rows) :]).all()
    for scale in (1e-200, 1e200):
        assert linalg.norm(scale * x) == pytest.approx(scale * np.linalg.norm(x), rel=tolerances.ROUNDING)
        assert linalg.max_abs(scale * x) == np.abs(scale * x).max()
    assert linalg.all_finite(x)
    assert not linalg.all_finite(np.append(x, np.inf))


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 21))
def test_cholesky_and_its_solves(n: int) -> None:
    rng = np.random.default_rng(n)
    B = rng.normal(size=(n, n + 3))
    G, L = B @ B.T, np.full((n + 1, n + 1), np.nan)
    L[:n, :n] = np.where(np.tril(np.ones((n, n))) > 0, G, np.nan)
    assert linalg.cholesky(L, n, 0.0) == -1
    lower, right = np.tril(L[:n, :n]), rng.normal(size=n + 1)
    np.testing.assert_allclose(lower @ lower.T, G, atol=tolerances.ROUNDING * 10)
    solved = right.copy()
    linalg.solve_lower(L, n, solved)
    np.testing.assert_allclose(lower @ solved[:n], right[:n], atol=tolerances.CONDITIONED)
    linalg.solve_upper(L, n, solved)
    np.testing.assert_allclose(G @ solved[:n], right[:n], atol=tolerances.CONDITIONED)
    assert solved[n] == right[n]


def test_cholesky_stops_at_the_first_dependent_row() -> None:
    A = np.random.default_rng(1).normal(size=(6, 4))
    A[2] = A[0] + A[1]
    assert linalg.cholesky((A @ A.T)[:2, :2].copy(), 2, 1e-9) == -1
    assert linalg.cholesky(A @ A.T, 6, 1e-9) == 2
