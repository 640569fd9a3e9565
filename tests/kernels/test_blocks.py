"""Products over tokens in the order of four inputs at a time, against NumPy at every remainder of inputs and coordinates."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

import tolerances
from marginlens.kernels import blocks
from marginlens.kernels.lanes import pointer


@njit(nogil=True)
def products(keys, lengths, x, w, vectors, gram):
    """Centred keys in the order of places, with A x, Aᵀ w, Σ w A x, Σ |w A x|, Aᵀ A and the largest entry."""
    n, T, d = keys.shape
    m = blocks.n_places(n, T)
    columns = np.zeros(d * m)
    blocks.centred_columns(keys, lengths, columns)
    blocks.combine(pointer(columns), d, m, pointer(x), pointer(vectors[0]))
    blocks.inner_products(pointer(columns), d, m, pointer(w), pointer(vectors[1]))
    blocks.gram_matrix(pointer(columns), d, m, pointer(gram))
    total, size = blocks.dot_and_size(pointer(w), pointer(vectors[0]), m)
    largest = blocks.largest_modulus(pointer(columns), d * m)
    finite = blocks.subtract(pointer(x), 2.0, pointer(vectors[1]), d, pointer(vectors[2]))
    square = blocks.square_of(pointer(x), d)
    places = np.array([[blocks.place(i, t, T) for t in range(T)] for i in range(n)])
    return columns, (total, size, largest, square), finite, places, (keys[0, 0, 0], x[0], w[0], vectors[0, 0], gram[0])


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 9), T=st.integers(1, 7), d=st.integers(1, 11), seed=st.integers(0, 100))
def test_products_in_the_order_of_places(n, T, d, seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, T + 1, n)
    mask = np.arange(T) < lengths[:, None]
    keys, x = np.where(mask[..., None], rng.normal(size=(n, T, d)), 0.0), rng.normal(size=d)
    m = int(blocks.n_places(n, T))
    w, vectors, gram = rng.normal(size=m), np.full((3, max(m, d)), np.nan), np.full(m * m, np.nan)
    flat, numbers, finite, places, _ = products(keys, lengths, x, w, vectors, gram)
    A = flat.reshape(d, m)
    centred = np.where(mask[..., None], keys - keys.sum(axis=1, keepdims=True) / lengths[:, None, None], 0.0)
    np.testing.assert_allclose(A[:, places.ravel()].T, centred.reshape(n * T, d), atol=tolerances.ROUNDING)
    assert np.count_nonzero(A) == np.count_nonzero(A[:, places.ravel()])
    np.testing.assert_allclose(vectors[0, :m], x @ A, atol=tolerances.ROUNDING)
    np.testing.assert_allclose(vectors[1, :d], A @ w, atol=tolerances.ROUNDING)
    np.testing.assert_allclose(vectors[2, :d], x - 2.0 * (A @ w), atol=tolerances.ROUNDING)
    np.testing.assert_allclose(gram.reshape(m, m), A.T @ A, atol=tolerances.ROUNDING)
    expected = (w @ (x @ A), np.abs(w * (x @ A)).sum(), np.abs(A).max(), x @ x)
    np.testing.assert_allclose(numbers, expected, atol=tolerances.ROUNDING)
    assert finite
