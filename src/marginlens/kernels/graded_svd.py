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
from typing import Any, NamedTuple

import numpy as np

from marginlens.kernels.linalg import COMPILED, dot, products_of_two
from marginlens.runtime.compilation import njit

DEPENDENT_RTOL = 1e-12  # of a vector's length: what Gram–Schmidt leaves of a vector that depends on others
ORTHOGONAL_COSINE = 1e-15  # between columns that need no rotation
CONVERGED_FILL = 1e-16  # largest rotation times largest cosine of a sweep, after which another sweep changes nothing
MAX_SWEEPS = 40
NEGLIGIBLE_LOG = -60.0  # a share of e^-60 of a column changes none of its digits
EQUAL_VALUES_RTOL = 1e-14  # between singular values that are the same but for rounding
RESIDUAL_SQUARE = 0.01  # of the length: where less is left of a vector, Gram–Schmidt is repeated
SQUARES_RANGE = 1e-200, 1e200  # sums of squares between them have lost nothing to underflow or overflow


class Workspace(NamedTuple):
    """Memory for the SVD of sums of up to m terms of one shape (q, d), which `workspace` makes; every call overwrites it."""

    lefts: Any  # (m, q) the unit vectors l_m, then their residuals
    rights: Any  # (m, d) the unit vectors r_m
    Q: Any  # (k, q) the left basis, k = min(m, q)
    Z: Any  # (k, d) the rows z_k, then their residuals
    V: Any  # (k, d) the right basis
    R: Any  # (k, m) the l_m in the left basis
    T: Any  # (k, k) the z_k in the right basis
    B: Any  # (k, k) columns of M without their scales
    J: Any  # (k, k) products of rotations
    lefts_in_basis: Any  # (m, k) the weights of the r_m in the rows z_k
    residuals: Any  # (k + 1, m) logarithms of what is left of each l_m after so many basis vectors
    row_residuals: Any  # (k + 1, k) the same of the z_k
    sizes: Any  # (m,) logarithms of the lengths of the l_m
    logs: Any  # (4, m) logarithms of the sizes of terms, of their residuals, of rows z_k and of columns d_j
    pivots: Any  # (2, k) from which vector each basis vector was taken
    n_left: Any  # (1,) how many vectors the left basis has; 0 before the first call


def workspace(n_terms: int, d_left: int, d_right: int) -> Workspace:
    """Memory for sums of this many terms."""
    return _workspace(n_terms, d_left, d_right)


@njit(**COMPILED)
def _workspace(m: int, q: int, d: int) -> Any:
    k = min(m, q)
    return Workspace(
        np.empty((m, q)),
        np.empty((m, d)),
        np.empty((k, q)),
        np.empty((k, d)),
        np.empty((k, d)),
        np.empty((k, m)),
        np.empty((k, k)),
        np.empty((k, k)),
        np.empty((k, k)),
        np.empty((m, k)),
        np.empty((k + 1, m)),
        np.empty((k + 1, k)),
        np.empty(m),
        np.empty((4, m)),
        np.empty((2, k), np.int64),
        np.zeros(1, np.int64),
    )


@njit(**COMPILED)
def polar_factor(left: Any, right: Any, log_scale: Any, out: Any) -> int:
    r"""out (q, d) = :math:`\sum_k u_k v_k^\top` over the numerical rank of G, which is returned; zero where G is.

    Args:
        left: (m, q) the l_m. right: (m, d) the r_m. log_scale: (m,) the s_m, -inf for a term that is not there.
    """
    work = _workspace(left.shape[0], left.shape[1], right.shape[1])
    return polar_factor_in(work, left, right, log_scale, False, out)


@njit(**COMPILED)
def polar_factor_in(work: Any, left: Any, right: Any, log_scale: Any, same_left: bool, out: Any) -> int:
    """`polar_factor` in memory that a loop makes once, and faster where `left` is what it was in the call before."""
    n_left, rank = graded_svd(work, left, right, log_scale, same_left)
    Q, V, B, J = work.Q, work.V, work.B, work.J
    core, rows = work.T, work.Z
    for j in range(rank):
        size = 1.0 / math.sqrt(dot(B[j, :n_left], B[j, :n_left]))
        for i in range(n_left):
            B[j, i] *= size
    _products(J, B, rank, core, rank, n_left)
    _products(core, V, rank, rows, n_left, out.shape[1])
    _products(Q, rows, n_left, out, out.shape[0], out.shape[1])
    return rank


@njit(**COMPILED)
def _products(X: Any, Y: Any, n: int, out: Any, height: int, width: int) -> None:
    """out[:height, :width] = Σ_{k<n} X[k] Y[k]ᵀ, three terms at a time."""
    for a in range(height):
        for b in range(width):
            out[a, b] = 0.0
    whole = n - n % 3
    for k in range(0, whole, 3):
        for a in range(height):
            x, y, z = X[k, a], X[k + 1, a], X[k + 2, a]
            for b in range(width):
                out[a, b] = ((out[a, b] + x * Y[k, b]) + y * Y[k + 1, b]) + z * Y[k + 2, b]
    for k in range(whole, n):
        for a in range(height):
            x = X[k, a]
            for b in range(width):
                out[a, b] += x * Y[k, b]


@njit(**COMPILED)
def leading_pair(left: Any, right: Any, log_scale: Any, u: Any, v: Any) -> float:
    """u (q,) and v (d,) of the largest singular value of G, whose logarithm is returned; zero and -inf where G is zero.

    Where several singular values agree to rounding it is the pair of one of them.
    """
    work = _workspace(left.shape[0], left.shape[1], right.shape[1])
    return leading_pair_in(work, left, right, log_scale, False, u, v)


@njit(**COMPILED)
def leading_pair_in(work: Any, left: Any, right: Any, log_scale: Any, same_left: bool, u: Any, v: Any) -> float:
    """`leading_pair` in memory that a loop makes once, and faster where `left` is what it was in the call before."""
    n_left, rank = graded_svd(work, left, right, log_scale, same_left)
    B, J, log_values = work.B, work.J, work.logs[3]
    u[:] = 0.0
    v[:] = 0.0
    if rank == 0:
        return -math.inf
    best = 0
    for j in range(1, rank):
        if log_values[j] > log_values[best] + EQUAL_VALUES_RTOL:
            best = j
    size = math.sqrt(dot(B[best, :n_left], B[best, :n_left]))
    for i in range(n_left):
        for a in range(u.shape[0]):
            u[a] += B[best, i] / size * work.Q[i, a]
    for k in range(rank):
        for b in range(v.shape[0]):
            v[b] += J[best, k] * work.V[k, b]
    return log_values[best]


@njit(**COMPILED)
def singular_triplets(left: Any, right: Any, log_scale: Any) -> tuple[Any, Any, Any]:
    """U (rank, q), V (rank, d) and the logarithms (rank,) of the singular values: G = Σ_k e^{logs[k]} U[k] V[k]ᵀ; in no order."""
    work = _workspace(left.shape[0], left.shape[1], right.shape[1])
    n_left, rank = graded_svd(work, left, right, log_scale, False)
    U, V = np.empty((rank, left.shape[1])), np.empty((rank, right.shape[1]))
    weights = np.empty((max(n_left, rank), rank))
    for j in range(rank):
        size = math.sqrt(dot(work.B[j, :n_left], work.B[j, :n_left]))
        for i in range(n_left):
            weights[i, j] = work.B[j, i] / size
    _products(weights, work.Q, n_left, U, rank, U.shape[1])
    for j in range(rank):
        for k in range(rank):
            weights[k, j] = work.J[j, k]
    _products(weights, work.V, rank, V, rank, V.shape[1])
    return U, V, work.logs[3, :rank].copy()


@njit(**COMPILED)
def graded_svd(work: Any, left: Any, right: Any, log_scale: Any, same_left: bool) -> tuple[int, int]:
    """The SVD of G in `work`, as the number k of left basis vectors and the rank.

    Singular triplet j is the value exp(logs[3, j]), the left vector Σ_i B[j, i] Q[i] divided by ‖B[j]‖, and the right one Σ_k J[j, k] V[k].

    Args:
        same_left: whether `left` is what it was in the call before, whose left basis then serves again if its vectors come in the same
            order; the result is the same to the last bit.
    """
    m, d = right.shape
    R, Z, T, B, J = work.R, work.Z, work.T, work.B, work.J
    logs, log_rows, log_d, pivots = work.logs[0], work.logs[2], work.logs[3], work.pivots
    largest = -math.inf
    for j in range(m):
        largest = max(largest, log_scale[j])
    largest = largest if largest > -math.inf else 0.0
    same_left = same_left and work.n_left[0] > 0
    for j in range(m):
        if not same_left:
            work.sizes[j] = _normalized(left, work.lefts, j)
        logs[j] = (log_scale[j] - largest) + (work.sizes[j] + _normalized(right, work.rights, j))
    if not (same_left and _same_order(work, m)):
        for j in range(m if same_left else 0):
            _normalized(left, work.lefts, j)
        work.n_left[0] = pivoted_basis(work.lefts, m, logs, work.logs[1], work.Q, R, work.residuals, pivots[0])
    n_left = work.n_left[0]
    weights = work.lefts_in_basis
    for i in range(n_left):
        pivot = pivots[0, i]
        for j in range(m):
            difference = logs[j] - logs[pivot]
            is_seen = R[i, j] != 0.0 and difference > NEGLIGIBLE_LOG
            weights[j, i] = R[i, j] / R[i, pivot] * math.exp(difference) if is_seen else 0.0
        weights[pivot, i] = 1.0
    _products(weights, work.rights, m, Z, n_left, d)
    for i in range(n_left):
        total = 0.0
        for j in range(m):
            total += abs(weights[j, i])
        size = _normalized(Z, Z, i)
        size = size if size > math.log(DEPENDENT_RTOL * total) else -math.inf  # terms that cancel leave rounding
        log_rows[i] = logs[pivots[0, i]] + (math.log(R[i, pivots[0, i]]) + size)
    rank = pivoted_basis(Z, n_left, log_rows, work.logs[1], work.V, T, work.row_residuals, pivots[1])
    for j in range(rank):
        pivot = pivots[1, j]
        log_d[j] = log_rows[pivot] + math.log(T[j, pivot])
        for i in range(n_left):
            difference = log_rows[i] - log_rows[pivot]
            is_seen = T[j, i] != 0.0 and difference > NEGLIGIBLE_LOG
            B[j, i] = T[j, i] / T[j, pivot] * math.exp(difference) if is_seen else 0.0
        for k in range(rank):
            J[j, k] = 0.0
        J[j, j] = 1.0
    rotate_columns(B, J, log_d, rank, n_left)
    for j in range(rank):
        total = 0.0
        for i in range(n_left):
            total += B[j, i] * B[j, i]
        log_d[j] += 0.5 * math.log(total) + largest
    return n_left, rank


@njit(**COMPILED)
def _same_order(work: Any, m: int) -> bool:
    """Whether Gram–Schmidt would take the left vectors in the order of the call before."""
    logs, residuals, pivots, n = work.logs[0], work.residuals, work.pivots, work.n_left[0]
    for k in range(n + 1):
        best = 0
        for j in range(1, m):
            if logs[j] + residuals[k, j] > logs[best] + residuals[k, best]:
                best = j
        is_over = not logs[best] + residuals[k, best] > -math.inf
        if is_over != (k == n) or (k < n and best != pivots[0, k]):
            return False
    return True


@njit(**COMPILED)
def _normalized(vectors: Any, out: Any, j: int) -> float:
    """out[j] = x/‖x‖ of x = vectors[j], and log ‖x‖; zero and -inf for zero."""
    d = vectors.shape[1]
    total = dot(vectors[j], vectors[j])
    if total > SQUARES_RANGE[0] and total < SQUARES_RANGE[1]:
        inverse = 1.0 / math.sqrt(total)
        for a in range(d):
            out[j, a] = vectors[j, a] * inverse
        return 0.5 * math.log(total)
    largest = 0.0
    for a in range(d):
        largest = max(largest, abs(vectors[j, a]))
    if largest == 0.0:
        for a in range(d):
            out[j, a] = 0.0
        return -math.inf
    for a in range(d):
        out[j, a] = vectors[j, a] / largest
    size = math.sqrt(dot(out[j, :d], out[j, :d]))
    for a in range(d):
        out[j, a] /= size
    return math.log(largest) + math.log(size)


@njit(**COMPILED)
def pivoted_basis(
    vectors: Any, m: int, logs: Any, weighted: Any, basis: Any, coefficients: Any, residuals: Any, pivots: Any
) -> int:
    """Gram–Schmidt on m unit vectors with weights e^{logs}, the largest weighted residual first; the number of basis vectors.

    vectors[j] = Σ_k coefficients[k, j] basis[k], and pivots[k] is the vector that basis[k] was taken from. `vectors` is overwritten by
    the residuals; residuals[k, j] is the logarithm of what is left of vector j after k basis vectors, -inf when it is used up.
    """
    d = vectors.shape[1]
    n, limit = 0, min(m, d)
    for j in range(m):
        residuals[0, j] = 0.0
    while n < limit:
        pivot = 0
        for j in range(m):
            weighted[j] = logs[j] + residuals[n, j]
            if weighted[j] > weighted[pivot]:
                pivot = j
        if not weighted[pivot] > -math.inf:
            break
        total = dot(vectors[pivot], vectors[pivot])
        if total < RESIDUAL_SQUARE:
            for k in range(n):  # once more: rounding has left something of the basis vectors
                rest = dot(vectors[pivot], basis[k])
                coefficients[k, pivot] += rest
                for a in range(d):
                    vectors[pivot, a] -= rest * basis[k, a]
            total = dot(vectors[pivot], vectors[pivot])
            if total <= DEPENDENT_RTOL * DEPENDENT_RTOL:
                residuals[n, pivot] = -math.inf
                continue
        size = math.sqrt(total)
        inverse = 1.0 / size
        pivots[n] = pivot
        for a in range(d):
            basis[n, a] = vectors[pivot, a] * inverse
        for j in range(m):
            coefficients[n, j] = 0.0
            residuals[n + 1, j] = -math.inf
            if j != pivot and residuals[n, j] > -math.inf:
                along = dot(vectors[j], basis[n])
                for a in range(d):
                    vectors[j, a] -= along * basis[n, a]
                rest = dot(vectors[j], vectors[j])
                coefficients[n, j] = along
                if rest > DEPENDENT_RTOL * DEPENDENT_RTOL:
                    residuals[n + 1, j] = 0.5 * math.log(rest)
        coefficients[n, pivot] = size
        n += 1
    for j in range(m if n == limit else 0):
        residuals[n, j] = -math.inf  # no direction is left
    return n


@njit(**COMPILED)
def rotate_columns(B: Any, J: Any, log_d: Any, n: int, n_rows: int) -> None:
    """One-sided Jacobi: rotate the n vectors e^{log_d[j]} B[j, :n_rows], and J[j, :n] alike, until they are orthogonal; log_d stays."""
    for _ in range(MAX_SWEEPS):
        largest_cosine, largest_change = 0.0, 0.0
        for i in range(n - 1):
            for j in range(i + 1, n):
                p, q = (i, j) if log_d[i] >= log_d[j] else (j, i)
                alpha, beta, gamma = products_of_two(B, p, q, n_rows)
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
                first, second = ratio * tangent, change
                for k in range(n_rows):
                    x, y = B[p, k], B[q, k]
                    B[p, k] = c * (x - first * y)
                    B[q, k] = c * (y + second * x)
                for k in range(n):
                    x, y = J[p, k], J[q, k]
                    J[p, k] = c * (x - tangent * y)
                    J[q, k] = c * (y + tangent * x)
                largest_cosine = max(largest_cosine, cosine)
                largest_change = max(largest_change, abs(change))
        if largest_cosine * largest_change <= CONVERGED_FILL:
            break
