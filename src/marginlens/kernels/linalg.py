"""Linear algebra for small dense problems: compiled products, norms, Gram matrices and Cholesky factors; sums without rounding.

Sums are added up in the order that is written, four partial sums at a time in vector registers, and rows are taken four at a time so that
each load of a shared vector serves four sums. No product has a choice of the sum that it is fused with. So every copy of these functions
that the compiler makes, in whichever function, gives the same bits. `SUMMING` leaves the order to the compiler, for functions that are
called from Python alone, of which there is one copy.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from marginlens.kernels.lanes import N_LANES, four_entries, four_in_row, lane_sum, spread
from marginlens.runtime.compilation import njit

EPS = 2.0**-52  # spacing of doubles at one
_SINGLE_THREADED_PRODUCTS = 2**18  # of two numbers in a product of matrices, up to which OpenBLAS uses one thread
_FEWEST_ROWS = 32  # of a matrix that are worth a call of BLAS
COMPILED: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
SUMMING: dict[str, Any] = {**COMPILED, "fastmath": {"contract", "reassoc"}}


@njit(**COMPILED)
def dot(x: Any, y: Any) -> float:
    """x · y."""
    n = x.shape[0]
    whole = n - n % 8
    even, odd = spread(0.0), spread(0.0)
    for k in range(0, whole, 8):
        even += four_entries(x, k) * four_entries(y, k)
        odd += four_entries(x, k + 4) * four_entries(y, k + 4)
    if whole + 4 <= n:
        even += four_entries(x, whole) * four_entries(y, whole)
        whole += 4
    total = lane_sum(even + odd)
    for k in range(whole, n):
        total += x[k] * y[k]
    return total


@njit(**COMPILED)
def products_of_two(B: Any, p: int, q: int, n: int) -> tuple[float, float, float]:
    """‖x‖², ‖y‖² and x · y of x = B[p, :n] and y = B[q, :n]."""
    whole = n - n % N_LANES
    xx, yy, xy = spread(0.0), spread(0.0), spread(0.0)
    for k in range(0, whole, N_LANES):
        x, y = four_in_row(B, p, k), four_in_row(B, q, k)
        xx += x * x
        yy += y * y
        xy += x * y
    alpha, beta, gamma = lane_sum(xx), lane_sum(yy), lane_sum(xy)
    for k in range(whole, n):
        alpha += B[p, k] * B[p, k]
        beta += B[q, k] * B[q, k]
        gamma += B[p, k] * B[q, k]
    return alpha, beta, gamma


@njit(**COMPILED)
def dot_4(A: Any, rows: tuple[int, int, int, int], x: Any, length: int) -> tuple[float, float, float, float]:
    """The inner products of four rows of A with x, over their first `length` entries."""
    r0, r1, r2, r3 = rows
    whole = length - length % N_LANES
    a, b, c, e = spread(0.0), spread(0.0), spread(0.0), spread(0.0)
    for k in range(0, whole, N_LANES):
        y = four_entries(x, k)
        a += four_in_row(A, r0, k) * y
        b += four_in_row(A, r1, k) * y
        c += four_in_row(A, r2, k) * y
        e += four_in_row(A, r3, k) * y
    s0, s1, s2, s3 = lane_sum(a), lane_sum(b), lane_sum(c), lane_sum(e)
    for k in range(whole, length):
        s0 += A[r0, k] * x[k]
        s1 += A[r1, k] * x[k]
        s2 += A[r2, k] * x[k]
        s3 += A[r3, k] * x[k]
    return s0, s1, s2, s3


@njit(**COMPILED)
def matvec(A: Any, x: Any, out: Any) -> None:
    """out = A x."""
    n, d = A.shape
    whole = n - n % 4
    for i in range(0, whole, 4):
        out[i], out[i + 1], out[i + 2], out[i + 3] = dot_4(A, (i, i + 1, i + 2, i + 3), x, d)
    for i in range(whole, n):
        out[i] = dot(A[i], x)


@njit(**COMPILED)
def matvec_rows(A: Any, rows: Any, x: Any, out: Any) -> None:
    """out = A[rows] x, without forming A[rows]."""
    n, d = rows.shape[0], A.shape[1]
    whole = n - n % 4
    for i in range(0, whole, 4):
        out[i], out[i + 1], out[i + 2], out[i + 3] = dot_4(A, (rows[i], rows[i + 1], rows[i + 2], rows[i + 3]), x, d)
    for i in range(whole, n):
        out[i] = dot(A[rows[i]], x)


@njit(**COMPILED)
def vecmat(weights: Any, A: Any, out: Any) -> None:
    """out = Aᵀ weights."""
    out[:] = 0.0
    last = A.shape[0] - 1
    for i in range(0, last + 1, 4):
        i1, i2, i3 = min(i + 1, last), min(i + 2, last), min(i + 3, last)
        w0, w1, w2, w3 = _four_weights(weights, i, last)
        if w0 != 0.0 or w1 != 0.0 or w2 != 0.0 or w3 != 0.0:
            for k in range(A.shape[1]):
                out[k] = (((out[k] + w0 * A[i, k]) + w1 * A[i1, k]) + w2 * A[i2, k]) + w3 * A[i3, k]


@njit(**COMPILED)
def vecmat_rows(weights: Any, A: Any, rows: Any, out: Any) -> None:
    """out = A[rows]ᵀ weights, without forming A[rows]."""
    out[:] = 0.0
    last = len(rows) - 1
    for i in range(0, last + 1, 4):
        r0, r1, r2, r3 = rows[i], rows[min(i + 1, last)], rows[min(i + 2, last)], rows[min(i + 3, last)]
        w0, w1, w2, w3 = _four_weights(weights, i, last)
        for k in range(A.shape[1]):
            out[k] = (((out[k] + w0 * A[r0, k]) + w1 * A[r1, k]) + w2 * A[r2, k]) + w3 * A[r3, k]


@njit(**COMPILED)
def _four_weights(weights: Any, i: int, last: int) -> tuple[float, float, float, float]:
    """Four weights from i on; zero past the last row."""
    w1 = weights[i + 1] if i + 1 <= last else 0.0
    w2 = weights[i + 2] if i + 2 <= last else 0.0
    w3 = weights[i + 3] if i + 3 <= last else 0.0
    return weights[i], w1, w2, w3


@njit(**COMPILED)
def squared_row_norms(A: Any, out: Any) -> None:
    """out[r] = ‖A[r]‖²."""
    for i in range(A.shape[0]):
        out[i] = dot(A[i], A[i])


@njit(**COMPILED)
def gram(A: Any, rows: Any, known: int, G: Any) -> None:
    """Lower triangle of the Gram matrix of A[rows], from row `known` on, written into the leading block of G, in blocks of 4 × 2."""
    n, d = len(rows), A.shape[1]
    whole = d - d % N_LANES
    for i in range(known, n, 4):
        i1, i2, i3 = min(i + 1, n - 1), min(i + 2, n - 1), min(i + 3, n - 1)
        r0, r1, r2, r3 = rows[i], rows[i1], rows[i2], rows[i3]
        for j in range(0, min(i + 4, n), 2):  # up to the diagonal, and a little above it, where nothing is read
            j1 = min(j + 1, n - 1)
            c0, c1 = rows[j], rows[j1]
            a, b, c, e = spread(0.0), spread(0.0), spread(0.0), spread(0.0)
            p, q, u, v = spread(0.0), spread(0.0), spread(0.0), spread(0.0)
            for k in range(0, whole, N_LANES):
                x, y = four_in_row(A, c0, k), four_in_row(A, c1, k)
                z = four_in_row(A, r0, k)
                a += z * x
                p += z * y
                z = four_in_row(A, r1, k)
                b += z * x
                q += z * y
                z = four_in_row(A, r2, k)
                c += z * x
                u += z * y
                z = four_in_row(A, r3, k)
                e += z * x
                v += z * y
            s00, s10, s20, s30 = lane_sum(a), lane_sum(b), lane_sum(c), lane_sum(e)
            s01, s11, s21, s31 = lane_sum(p), lane_sum(q), lane_sum(u), lane_sum(v)
            for k in range(whole, d):
                left, right = A[c0, k], A[c1, k]
                s00 += A[r0, k] * left
                s01 += A[r0, k] * right
                s10 += A[r1, k] * left
                s11 += A[r1, k] * right
                s20 += A[r2, k] * left
                s21 += A[r2, k] * right
                s30 += A[r3, k] * left
                s31 += A[r3, k] * right
            G[i, j], G[i, j1], G[i1, j], G[i1, j1] = s00, s01, s10, s11
            G[i2, j], G[i2, j1], G[i3, j], G[i3, j1] = s20, s21, s30, s31


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


@njit(**COMPILED)
def all_finite(x: Any) -> bool:
    """Whether no entry is nan or infinite."""
    n = x.shape[0]
    whole = n - n % N_LANES
    sums, total = spread(0.0), 0.0
    for k in range(0, whole, N_LANES):
        sums += four_entries(x, k) * 0.0  # nan as soon as one entry is not finite
    for k in range(whole, n):
        total += x[k] * 0.0
    return lane_sum(sums) + total == 0.0


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
