"""Linear algebra for small dense problems: compiled products, norms, Gram matrices and Cholesky factors; sums without rounding.

Sums may be added up in any order ("reassoc"), so that the compiler vectorises them; rows are taken four at a time so that each load of a
shared vector serves four sums.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from marginlens.runtime.compilation import njit

EPS = 2.0**-52  # spacing of doubles at one
_SINGLE_THREADED_PRODUCTS = 2**18  # of two numbers in a product of matrices, up to which OpenBLAS uses one thread
_FEWEST_ROWS = 32  # of a matrix that are worth a call of BLAS
COMPILED: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
SUMMING: dict[str, Any] = {**COMPILED, "fastmath": {"contract", "reassoc"}}


@njit(**SUMMING)
def dot(x: Any, y: Any) -> float:
    """x · y."""
    total = 0.0
    for k in range(x.shape[0]):
        total += x[k] * y[k]
    return total


@njit(**SUMMING)
def dot_and_size(x: Any, y: Any) -> tuple[float, float]:
    """Σ x y and Σ |x y|; their ratio shows how much cancelled."""
    total, size = 0.0, 0.0
    for k in range(x.shape[0]):
        total += x[k] * y[k]
        size += abs(x[k] * y[k])
    return total, size


@njit(**SUMMING)
def dot_4(A: Any, rows: tuple[int, int, int, int], x: Any, length: int) -> tuple[float, float, float, float]:
    """The inner products of four rows of A with x, over their first `length` entries."""
    r0, r1, r2, r3 = rows
    s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
    for k in range(length):
        y = x[k]
        s0 += A[r0, k] * y
        s1 += A[r1, k] * y
        s2 += A[r2, k] * y
        s3 += A[r3, k] * y
    return s0, s1, s2, s3


@njit(**SUMMING)
def matvec(A: Any, x: Any, out: Any) -> None:
    """out = A x."""
    n, d = A.shape
    whole = n - n % 4
    for i in range(0, whole, 4):
        out[i], out[i + 1], out[i + 2], out[i + 3] = dot_4(A, (i, i + 1, i + 2, i + 3), x, d)
    for i in range(whole, n):
        out[i] = dot(A[i], x)


@njit(**SUMMING)
def matvec_rows(A: Any, rows: Any, x: Any, out: Any) -> None:
    """out = A[rows] x, without forming A[rows]."""
    n, d = rows.shape[0], A.shape[1]
    whole = n - n % 4
    for i in range(0, whole, 4):
        out[i], out[i + 1], out[i + 2], out[i + 3] = dot_4(A, (rows[i], rows[i + 1], rows[i + 2], rows[i + 3]), x, d)
    for i in range(whole, n):
        out[i] = dot(A[rows[i]], x)


@njit(**SUMMING)
def vecmat(weights: Any, A: Any, out: Any) -> None:
    """out = Aᵀ weights."""
    out[:] = 0.0
    last = A.shape[0] - 1
    for i in range(0, last + 1, 4):
        i1, i2, i3 = min(i + 1, last), min(i + 2, last), min(i + 3, last)
        w0, w1, w2, w3 = _four_weights(weights, i, last)
        if w0 != 0.0 or w1 != 0.0 or w2 != 0.0 or w3 != 0.0:
            for k in range(A.shape[1]):
                out[k] += (w0 * A[i, k] + w1 * A[i1, k]) + (w2 * A[i2, k] + w3 * A[i3, k])


@njit(**SUMMING)
def vecmat_rows(weights: Any, A: Any, rows: Any, out: Any) -> None:
    """out = A[rows]ᵀ weights, without forming A[rows]."""
    out[:] = 0.0
    last = len(rows) - 1
    for i in range(0, last + 1, 4):
        r0, r1, r2, r3 = rows[i], rows[min(i + 1, last)], rows[min(i + 2, last)], rows[min(i + 3, last)]
        w0, w1, w2, w3 = _four_weights(weights, i, last)
        for k in range(A.shape[1]):
            out[k] += (w0 * A[r0, k] + w1 * A[r1, k]) + (w2 * A[r2, k] + w3 * A[r3, k])


@njit(**COMPILED)
def _four_weights(weights: Any, i: int, last: int) -> tuple[float, float, float, float]:
    """Four weights from i on; zero past the last row."""
    w1 = weights[i + 1] if i + 1 <= last else 0.0
    w2 = weights[i + 2] if i + 2 <= last else 0.0
    w3 = weights[i + 3] if i + 3 <= last else 0.0
    return weights[i], w1, w2, w3


@njit(**SUMMING)
def squared_row_norms(A: Any, out: Any) -> None:
    """out[r] = ‖A[r]‖²."""
    for i in range(A.shape[0]):
        out[i] = dot(A[i], A[i])


@njit(**SUMMING)
def gram(A: Any, rows: Any, known: int, G: Any) -> None:
    """Lower triangle of the Gram matrix of A[rows], from row `known` on, written into the leading block of G, in blocks of 4 × 4."""
    n, d = len(rows), A.shape[1]
    for i in range(known, n, 4):
        i1, i2, i3 = min(i + 1, n - 1), min(i + 2, n - 1), min(i + 3, n - 1)
        r0, r1, r2, r3 = rows[i], rows[i1], rows[i2], rows[i3]
        for j in range(0, i, 4):
            j1, j2, j3 = min(j + 1, i - 1), min(j + 2, i - 1), min(j + 3, i - 1)
            c0, c1, c2, c3 = rows[j], rows[j1], rows[j2], rows[j3]
            s00, s01, s02, s03, s10, s11, s12, s13 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
            s20, s21, s22, s23, s30, s31, s32, s33 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
            for k in range(d):
                a, b, c, e = A[c0, k], A[c1, k], A[c2, k], A[c3, k]
                x, y, z, w = A[r0, k], A[r1, k], A[r2, k], A[r3, k]
                s00 += x * a
                s01 += x * b
                s02 += x * c
                s03 += x * e
                s10 += y * a
                s11 += y * b
                s12 += y * c
                s13 += y * e
                s20 += z * a
                s21 += z * b
                s22 += z * c
                s23 += z * e
                s30 += w * a
                s31 += w * b
                s32 += w * c
                s33 += w * e
            G[i, j], G[i, j1], G[i, j2], G[i, j3] = s00, s01, s02, s03
            G[i1, j], G[i1, j1], G[i1, j2], G[i1, j3] = s10, s11, s12, s13
            G[i2, j], G[i2, j1], G[i2, j2], G[i2, j3] = s20, s21, s22, s23
            G[i3, j], G[i3, j1], G[i3, j2], G[i3, j3] = s30, s31, s32, s33
        s00, s10, s11, s20, s21, s22, s30, s31, s32, s33 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for k in range(d):
            x, y, z, w = A[r0, k], A[r1, k], A[r2, k], A[r3, k]
            s00 += x * x
            s10 += y * x
            s11 += y * y
            s20 += z * x
            s21 += z * y
            s22 += z * z
            s30 += w * x
            s31 += w * y
            s32 += w * z
            s33 += w * w
        G[i3, i], G[i3, i1], G[i3, i2], G[i3, i3] = s30, s31, s32, s33
        G[i2, i], G[i2, i1], G[i2, i2] = s20, s21, s22
        G[i1, i], G[i1, i1] = s10, s11
        G[i, i] = s00


@njit(**COMPILED)
def product(A: Any, B: Any, out: Any) -> None:
    """out = A B by BLAS, a few rows at a time: for so small products it starts no threads beside those that call it."""
    n_rows = max(_FEWEST_ROWS, _SINGLE_THREADED_PRODUCTS // (B.shape[0] * B.shape[1]))
    for i in range(0, A.shape[0], n_rows):
        np.dot(A[i : i + n_rows], B, out[i : i + n_rows])


@njit(**COMPILED)
def max_abs(x: Any) -> float:
    """The largest modulus among the entries of an array."""
    largest = 0.0
    for entry in x.flat:
        largest = max(largest, abs(entry))
    return largest


@njit(**COMPILED)
def norm(x: Any) -> float:
    """‖x‖ without overflow or underflow."""
    scale = max_abs(x)
    if scale == 0.0 or not math.isfinite(scale):
        return scale
    return scale * math.sqrt(dot(x / scale, x / scale))


@njit(**SUMMING)
def all_finite(x: Any) -> bool:
    """Whether no entry is nan or infinite."""
    total = 0.0
    for k in range(x.shape[0]):
        total += x[k] * 0.0  # nan as soon as one entry is not finite
    return total == 0.0


@njit(**COMPILED)
def centred(keys: Any, lengths: Any) -> Any:
    """Keys (m, d) less the mean key of their input, which changes no softmax and no gradient but keeps the Gram matrix accurate."""
    n, T, d = keys.shape
    rows = np.zeros((n * T, d))
    for i in range(n):
        mean = np.zeros(d)
        for t in range(lengths[i]):
            for k in range(d):
                mean[k] += keys[i, t, k] / lengths[i]
        for t in range(lengths[i]):
            for k in range(d):
                rows[i * T + t, k] = keys[i, t, k] - mean[k]
    return rows


@njit(cache=True, nogil=True)
def cholesky(L: Any, n: int, smallest: float) -> int:
    """Factor the leading n × n block, given by its lower triangle, in place as L Lᵀ.

    Returns -1, or the first index whose pivot is not above `smallest`, where the factorisation stopped.
    """
    for j in range(n):
        for i in range(j, n, 4):
            i1, i2, i3 = min(i + 1, n - 1), min(i + 2, n - 1), min(i + 3, n - 1)
            s0, s1, s2, s3 = dot_4(L, (i, i1, i2, i3), L[j], j)
            t0, t1, t2, t3 = L[i, j] - s0, L[i1, j] - s1, L[i2, j] - s2, L[i3, j] - s3
            if i == j:
                if not t0 > smallest:
                    return j
                pivot = np.sqrt(t0)
                inverse = 1.0 / pivot
            L[i, j], L[i1, j], L[i2, j], L[i3, j] = t0 * inverse, t1 * inverse, t2 * inverse, t3 * inverse
        L[j, j] = pivot
    return -1


@njit(cache=True, nogil=True)
def solve_lower(L: Any, n: int, right: Any) -> None:
    """right[:n] becomes L⁻¹ right[:n]."""
    for i in range(n):
        total = right[i]
        for j in range(i):
            total -= L[i, j] * right[j]
        right[i] = total / L[i, i]


@njit(cache=True, nogil=True)
def solve_upper(L: Any, n: int, right: Any) -> None:
    """right[:n] becomes L⁻ᵀ right[:n]."""
    for i in range(n - 1, -1, -1):
        right[i] /= L[i, i]
        for j in range(i):
            right[j] -= L[i, j] * right[i]


_SPLIT = 2.0**27 + 1.0  # Veltkamp's, which parts a double into two halves


def exact_products(matrix: Any, vector: Any, minus: Any = None) -> Any:
    """(n,) matrix (n, m) @ vector (m,) - minus (n,), each rounded once; as NumPy adds where a product is not finite."""
    rest = np.zeros(len(matrix)) if minus is None else minus
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        product = matrix * vector
        (a, b), (c, d) = _halves(matrix), _halves(vector)
        error = ((a * c - product) + a * d + b * c) + b * d
        terms = np.concatenate([product, error, -rest[:, None]], axis=1)
        if not np.isfinite(terms).all():
            return np.asarray(matrix @ vector - rest)
    return np.array([math.fsum(row) for row in terms.tolist()])


def _halves(values: Any) -> tuple[Any, Any]:
    high = _SPLIT * values - (_SPLIT * values - values)
    return high, values - high
