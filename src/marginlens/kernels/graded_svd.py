r"""Singular vectors of :math:`G = \sum_m e^{s_m} l_m r_m^\top` to high relative accuracy, however far apart the scales s_m are.

The gradient of an attention risk in its key-query matrix is such a sum: l_m a query, r_m a combination of keys and e^{s_m} a residual
attention, which falls like e^{-margin · norm}. Added up in one array of doubles, all terms below 1e-16 of the largest are lost, and with
them the singular vectors of the small singular values, which count as much as the others in the polar factor :math:`\sum_k u_k v_k^\top`.
So G is never formed. With unit vectors l_m and r_m, whose lengths go into s_m:

1. *Left basis.* Gram–Schmidt on the l_m, the largest remaining e^{s_m}·residual first: :math:`G = \sum_k q_k w_k^\top` with q_k
   orthonormal and :math:`w_k = e^{\delta_k} z_k`, z_k of moderate size.
2. *Right basis.* The same on the z_k: :math:`G = Q M V^\top`, where column j of M is e^{d_j} b_j and, through pivoting, b_j has a one
   in the place of its pivot and entries of at most one elsewhere, zero where rows were taken before.
3. *One-sided Jacobi rotations* make the columns of M orthogonal. A rotation of columns i and j with ratio ρ = e^{d_j - d_i} ≤ 1 changes
   b_i by terms of size ρ² and b_j by terms of size one; it needs ρ alone, so that no scale is ever exponentiated by itself, and where ρ
   underflows the rotation is the projection of b_j away from b_i, its limit.

Demmel, Gu, Eisenstat, Slapničar, Veselić and Drmač (1999) prove that this computes every singular value to a relative error of about
eps · max(condition of the l_m, condition of the z_k).

*Rank.* A term whose left vector (or a z_k) lies within `DEPENDENT_RTOL` of its own length in the span of those taken before brings no
direction of its own: what is left of it is rounding, which a polar factor would blow up to length one. So terms with equal queries give
one direction, not two, and G may have fewer singular values than terms.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from marginlens.kernels.linalg import COMPILED, dot
from marginlens.runtime.compilation import njit

DEPENDENT_RTOL = 1e-12  # of a vector's length: what Gram–Schmidt leaves of a vector that depends on others
ORTHOGONAL_COSINE = 1e-15  # between columns that need no rotation
CONVERGED_FILL = 1e-16  # largest rotation times largest cosine of a sweep, after which another sweep changes nothing
MAX_SWEEPS = 40


@njit(**COMPILED)
def polar_factor(left: Any, right: Any, log_scale: Any, out: Any) -> int:
    r"""out (q, d) = :math:`\sum_k u_k v_k^\top` over the numerical rank of G, which is returned; zero where G is.

    Args:
        left: (m, q) the l_m. right: (m, d) the r_m. log_scale: (m,) the s_m, -inf for a term that is not there.
    """
    Q, V, B, J, _, rank = graded_svd(left, right, log_scale)
    n_left = B.shape[1]
    out[:] = 0.0
    core = np.zeros((n_left, rank))
    for j in range(rank):
        size = math.sqrt(dot(B[j], B[j]))
        for i in range(n_left):
            weight = B[j, i] / size
            for k in range(rank):
                core[i, k] += weight * J[j, k]
    row = np.empty(right.shape[1])
    for i in range(n_left):
        row[:] = 0.0
        for k in range(rank):
            row += core[i, k] * V[k]
        for a in range(left.shape[1]):
            out[a] += Q[i, a] * row
    return rank


@njit(**COMPILED)
def leading_pair(left: Any, right: Any, log_scale: Any, u: Any, v: Any) -> float:
    """u (q,) and v (d,) of the largest singular value of G, whose logarithm is returned; zero and -inf where G is zero.

    Where several singular values agree to rounding it is the pair of one of them, the first.
    """
    Q, V, B, J, log_d, rank = graded_svd(left, right, log_scale)
    u[:] = 0.0
    v[:] = 0.0
    largest, best = -math.inf, 0
    for j in range(rank):
        value = log_d[j] + 0.5 * math.log(dot(B[j], B[j]))
        if value > largest + ORTHOGONAL_COSINE:
            largest, best = value, j
    if rank == 0:
        return largest
    size = math.sqrt(dot(B[best], B[best]))
    for i in range(B.shape[1]):
        u += (B[best, i] / size) * Q[i]
    for k in range(rank):
        v += J[best, k] * V[k]
    return largest


@njit(**COMPILED)
def log_singular_values(left: Any, right: Any, log_scale: Any) -> Any:
    """(rank,) logarithms of the singular values of G that are not zero, largest first."""
    _, _, B, _, log_d, rank = graded_svd(left, right, log_scale)
    values = np.empty(rank)
    for j in range(rank):
        values[j] = log_d[j] + 0.5 * math.log(dot(B[j], B[j]))
    return np.sort(values)[::-1]


@njit(**COMPILED)
def graded_svd(left: Any, right: Any, log_scale: Any) -> tuple[Any, Any, Any, Any, Any, int]:
    """Q (k, q), V (rank, d), B (rank, k), J (rank, rank), log_d (rank,) and the rank of G.

    Its singular triplets are, for each j, the value e^{log_d[j]} ‖B[j]‖, the left vector Qᵀ B[j] / ‖B[j]‖ and the right vector Vᵀ J[j].
    """
    m = left.shape[0]
    logs = np.empty(m)
    lefts, rights = np.empty_like(left), np.empty_like(right)
    largest = -math.inf
    for j in range(m):
        largest = max(largest, log_scale[j])
    largest = largest if largest > -math.inf else 0.0
    for j in range(m):
        logs[j] = (log_scale[j] - largest) + (_normalized(left[j], lefts[j]) + _normalized(right[j], rights[j]))
    n_left = min(m, left.shape[1])
    Q, R = np.empty((n_left, left.shape[1])), np.zeros((n_left, m))
    left_pivots = np.empty(n_left, np.int64)
    n_left = pivoted_basis(lefts, logs, Q, R, left_pivots)
    Z, log_rows = np.empty((n_left, right.shape[1])), np.empty(n_left)
    for i in range(n_left):
        pivot = left_pivots[i]
        log_rows[i] = logs[pivot] + math.log(R[i, pivot])
        Z[i] = rights[pivot]
        for j in range(m):
            if j != pivot and R[i, j] != 0.0:
                Z[i] += (R[i, j] / R[i, pivot] * math.exp(logs[j] - logs[pivot])) * rights[j]
        log_rows[i] += _normalized(Z[i], Z[i])
    rank = min(n_left, right.shape[1])
    V, T = np.empty((rank, right.shape[1])), np.zeros((rank, n_left))
    right_pivots = np.empty(rank, np.int64)
    rank = pivoted_basis(Z, log_rows, V, T, right_pivots)
    B, J, log_d = np.zeros((rank, n_left)), np.zeros((rank, rank)), np.empty(rank)
    for j in range(rank):
        pivot = right_pivots[j]
        log_d[j] = log_rows[pivot] + math.log(T[j, pivot])
        for i in range(n_left):
            if T[j, i] != 0.0:
                B[j, i] = T[j, i] / T[j, pivot] * math.exp(log_rows[i] - log_rows[pivot])
        J[j, j] = 1.0
    rotate_columns(B, J, log_d)
    log_d += largest
    return Q[:n_left], V[:rank], B, J, log_d, rank


@njit(**COMPILED)
def _normalized(x: Any, out: Any) -> float:
    """out = x/‖x‖, and log ‖x‖; zero and -inf for zero."""
    size = math.sqrt(dot(x, x))
    if size > 1e-100 and size < 1e100:
        for k in range(x.shape[0]):
            out[k] = x[k] / size
        return math.log(size)
    largest = 0.0
    for k in range(x.shape[0]):
        largest = max(largest, abs(x[k]))
    if largest == 0.0:
        out[:] = 0.0
        return -math.inf
    for k in range(x.shape[0]):
        out[k] = x[k] / largest
    size = math.sqrt(dot(out, out))
    for k in range(x.shape[0]):
        out[k] /= size
    return math.log(largest) + math.log(size)


@njit(**COMPILED)
def pivoted_basis(vectors: Any, logs: Any, basis: Any, coefficients: Any, pivots: Any) -> int:
    """Gram–Schmidt on unit vectors (m, d) with weights e^{logs}, the largest weighted residual first; the number of basis vectors.

    vectors[j] = Σ_k coefficients[k, j] basis[k], and pivots[k] is the vector that basis[k] was taken from. `vectors` is overwritten.
    """
    m, d = vectors.shape
    residual_logs = logs.copy()  # of the weighted residuals; -inf when a vector is used up
    n = 0
    while n < basis.shape[0]:
        pivot = 0
        for j in range(1, m):
            if residual_logs[j] > residual_logs[pivot]:
                pivot = j
        if not residual_logs[pivot] > -math.inf:
            break
        x = vectors[pivot]
        for k in range(n):  # a second time: what rounding has left of the basis vectors
            rest = dot(x, basis[k])
            coefficients[k, pivot] += rest
            for a in range(d):
                x[a] -= rest * basis[k, a]
        residual_logs[pivot] = -math.inf
        size = math.sqrt(dot(x, x))
        if size <= DEPENDENT_RTOL:
            continue
        coefficients[n, pivot] = size
        pivots[n] = pivot
        for a in range(d):
            basis[n, a] = x[a] / size
        for j in range(m):
            if residual_logs[j] > -math.inf:
                y = vectors[j]
                along = dot(y, basis[n])
                coefficients[n, j] = along
                for a in range(d):
                    y[a] -= along * basis[n, a]
                size = math.sqrt(dot(y, y))
                residual_logs[j] = logs[j] + math.log(size) if size > DEPENDENT_RTOL else -math.inf
        n += 1
    return n


@njit(**COMPILED)
def rotate_columns(B: Any, J: Any, log_d: Any) -> None:
    """One-sided Jacobi: rotate the vectors e^{log_d[j]} B[j], and J alike, until they are orthogonal; log_d stays."""
    n = B.shape[0]
    for _ in range(MAX_SWEEPS):
        largest_cosine, largest_change = 0.0, 0.0
        for i in range(n - 1):
            for j in range(i + 1, n):
                p, q = (i, j) if log_d[i] >= log_d[j] else (j, i)
                alpha, beta, gamma = dot(B[p], B[p]), dot(B[q], B[q]), dot(B[p], B[q])
                cosine = abs(gamma) / math.sqrt(alpha * beta)
                if not cosine > ORTHOGONAL_COSINE:
                    continue
                ratio = math.exp(log_d[q] - log_d[p])
                if alpha < ratio * ratio * beta:
                    p, q, ratio = q, p, 1.0 / ratio
                    alpha, beta = beta, alpha
                z = (alpha - ratio * ratio * beta) / (2.0 * abs(gamma))
                change = 1.0 / (z + math.sqrt(ratio * ratio + z * z))  # tangent of the rotation over ratio
                change = -change if gamma > 0.0 else change
                tangent = ratio * change
                c = 1.0 / math.sqrt(1.0 + tangent * tangent)
                x, y, g, h = B[p], B[q], J[p], J[q]
                for k in range(x.shape[0]):
                    x[k], y[k] = c * (x[k] - ratio * tangent * y[k]), c * (y[k] + change * x[k])
                for k in range(n):
                    g[k], h[k] = c * (g[k] - tangent * h[k]), c * (h[k] + tangent * g[k])
                largest_cosine = max(largest_cosine, cosine)
                largest_change = max(largest_change, abs(change))
        if largest_cosine * largest_change <= CONVERGED_FILL:
            break
