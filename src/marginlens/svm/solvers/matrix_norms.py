r"""Margin problems in the spectral, nuclear and max-row norm: a primal-dual interior-point method over pairs of positive definite blocks.

Each problem is a semidefinite programme in two matrices :math:`S, Y \succeq 0` with :math:`S Y = 0` at the optimum:

.. math:: \text{spectral:}\ \min \tau,\ Y = \begin{pmatrix} \tau I & W \\ W^\top & \tau I \end{pmatrix}, \qquad
    \text{nuclear:}\ \min \tfrac12 \operatorname{tr} S,\ S = \begin{pmatrix} P & W \\ W^\top & Q \end{pmatrix},\
    Y = \tfrac12 \begin{pmatrix} I & -M \\ -M^\top & I \end{pmatrix},\ M = \sum_r \lambda_r A_r

with :math:`\langle A_r, W\rangle \ge b_r` and :math:`\langle C_s, W\rangle = 0`. In the spectral problem S is free but for its trace of one
and its corner -M/2. The max-row norm is the spectral one with a block for every row of W. Each step takes the direction of Helmberg, Kojima
and Monteiro with Mehrotra's correction; the equations have as many unknowns as W, for the nuclear norm as rows.
Nothing is believed of what comes out: the bracket of the norm is computed from W and the multipliers alone.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from marginlens.kernels.lanes import N_LANES, four_in_row, lane_sum, spread
from marginlens.kernels.linalg import (
    COMPILED,
    cholesky,
    dot,
    gram,
    matvec,
    products_of_two,
    solve_lower,
    solve_upper,
    vecmat,
)
from marginlens.norms import MaxRow, Nuclear
from marginlens.runtime.compilation import njit
from marginlens.runtime.threads import n_threads
from marginlens.svm.solvers.norms import NormBatch
from marginlens.typing import FloatArray

BARRIER_GAP_RTOL = 1e-9  # bracket, relative to its lower end, at which a solution is good enough
MAX_BARRIER_STEPS = 60
SPECTRAL, NUCLEAR = 0, 1  # the norm, for compiled code; max-row is spectral with a block for every row
_MAX_STALLED_STEPS = 4  # steps without a better bracket after which the best one so far is taken
_BRACKET_BELOW = 1e-5  # share of the norm that complementarity may still leave when brackets begin to be computed
_RIDGE, _RIDGE_FACTOR, _MAX_RIDGE = (
    1e-15,
    100.0,
    1e-3,
)  # of the largest diagonal entry, on all of them: many W may be optimal
_EQUALITY_RIDGE = 1e-9  # proximal weight of the multipliers of equalities
_STEP_RTOL, _MIN_STEP = 0.03, 1e-8  # accuracy of the longest step to the edge of the cone, and where it counts as none
_MIN_CENTRING = 1e-6
_RESIDUAL_ATOL = 1e-13  # of a row, up to which it is rounding
_ORTHOGONAL_COSINE, _MAX_ROTATION_SWEEPS = 1e-15, 30  # of Jacobi's rotations
_SPAN_RTOL, _SPAN_ATOL = (
    1e-13,
    1e-13,
)  # eigenvalues of Σ A_rᵀ A_r that count as zero, and what of rows of norm one may then be lost
_IDLE_SHARES, _IDLE_LOSS_RTOL = (
    (1.0, 1e-2, 1e-4, 1e-6),
    3e-9,
)  # multiplier/slack of rows left out, and what that may cost
_MIN_ADDED_ROWS = 60  # rows added at a time where there are many
_ROUND_GAPS, _MAX_ROUNDS = (
    (1e-4, BARRIER_GAP_RTOL),
    12,
)  # to which working rows are solved in turn, and how often at most
_S, _Y, _S_STEP, _Y_STEP, _INVERSE, _FACTOR, _TARGET, _CORRECTION = range(8)  # the blocks of a point
_SLACK, _MULTIPLIER, _SLACK_STEP, _MULTIPLIER_STEP, _SLACK_CORRECTION, _WEIGHT, _PRODUCT, _RESIDUAL = range(
    8
)  # its vectors


class Cone(NamedTuple):
    """One margin problem: rows of unit norm, the inequalities first, over W cut into blocks of `height` rows and `width` columns."""

    rows: FloatArray  # (n_rows + n_equalities, n_unknowns)
    left: FloatArray  # (n_rows + n_equalities, height) where every row is an outer product of left and right; else (0, height)
    right: FloatArray  # (n_rows + n_equalities, width)
    lower: FloatArray  # (n_rows,)
    height: int
    width: int


class Point(NamedTuple):
    """A point of the method, its step, and work arrays."""

    blocks: FloatArray  # (8, n_blocks size, size): S, Y, their steps, the inverse and a factor of Y, target, correction
    vectors: FloatArray  # (8, n_rows + n_equalities): slacks, multipliers, their steps, correction, weights, A W, A W - b - slacks
    kronecker: FloatArray  # (n_unknowns, n_unknowns)
    system: FloatArray  # the factored equations
    corner: FloatArray  # (n_unknowns,)


# ---- blocks, one above the other: (n_blocks size, size)


@njit(**COMPILED)
def _factor(blocks: FloatArray, step: FloatArray, share: float, L: FloatArray) -> bool:
    """Cholesky factors of blocks + share · step; False where one is not positive definite."""
    n_all, size = blocks.shape
    for first in range(0, n_all, size):
        for i in range(first, first + size):
            for j in range(i - first + 1):
                L[i, j] = blocks[i, j] + share * step[i, j]
        if cholesky(L[first : first + size], size, 0.0) >= 0:
            return False
    return True


@njit(**COMPILED)
def _invert(factors: FloatArray, inverse: FloatArray) -> None:
    """(L Lᵀ)⁻¹ of every block; L⁻¹ is written over L as the columns of its upper triangle."""
    n_all, n = factors.shape
    for start in range(0, n_all, n):
        L, out = factors[start : start + n], inverse[start : start + n]
        for j in range(n):
            first = 1.0 / L[j, j]
            for i in range(j + 1, n):
                L[j, i] = -(L[i, j] * first + dot(L[i, j + 1 : i], L[j, j + 1 : i])) / L[i, i]
        for i in range(n):
            L[i, i] = 1.0 / L[i, i]
        for i in range(n):
            for j in range(i + 1):
                total = dot(L[i, i:], L[j, i:])
                out[i, j] = total
                out[j, i] = total


@njit(**COMPILED)
def _longest_step(blocks: FloatArray, step: FloatArray, L: FloatArray) -> float:
    """The largest share up to one, to 3 %, with blocks + share · step positive definite."""
    if _factor(blocks, step, 1.0, L):
        return 1.0
    low, high = 0.0, 1.0
    while high - low > _STEP_RTOL * low and high > _MIN_STEP:
        middle = 0.5 * (low + high)
        if _factor(blocks, step, middle, L):
            low = middle
        else:
            high = middle
    return low


@njit(**COMPILED)
def _longest_positive_step(x: FloatArray, step: FloatArray, n: int) -> float:
    """The largest share up to one with x + share · step >= 0 in the first n entries."""
    share = 1.0
    for r in range(n):
        if step[r] < 0.0:
            share = min(share, -x[r] / step[r])
    return share


@njit(**COMPILED)
def _symmetric_product(S: FloatArray, Y: FloatArray, T: FloatArray, out: FloatArray) -> None:
    """out = (S Y T + T Y S)/2 of symmetric blocks."""
    n_all, n = S.shape
    product = np.empty((n, n))
    for first in range(0, n_all, n):
        for i in range(n):
            matvec(Y[first : first + n], S[first + i], product[i])
        for i in range(n):
            matvec(T[first : first + n], product[i], out[first + i])
        for i in range(n):
            for j in range(i + 1):
                mean = 0.5 * (out[first + i, j] + out[first + j, i])
                out[first + i, j] = mean
                out[first + j, i] = mean


@njit(**COMPILED)
def _get_corner(blocks: FloatArray, height: int, out: FloatArray) -> None:
    """out (n_unknowns,) = the upper right corners of all blocks."""
    n_all, size = blocks.shape
    place = 0
    for first in range(0, n_all, size):
        for i in range(first, first + height):
            for j in range(height, size):
                out[place] = blocks[i, j]
                place += 1


@njit(**COMPILED)
def _set_arrow(blocks: FloatArray, height: int, diagonal: float, corner: FloatArray, scale: float) -> None:
    """Blocks (a I, s C; s Cᵀ, a I) with C the corners (n_unknowns,)."""
    n_all, size = blocks.shape
    blocks[:] = 0.0
    place = 0
    for first in range(0, n_all, size):
        for i in range(size):
            blocks[first + i, i] = diagonal
        for i in range(height):
            for j in range(height, size):
                blocks[first + i, j] = scale * corner[place]
                blocks[first + j, i] = scale * corner[place]
                place += 1


@njit(**COMPILED)
def _inner(S: FloatArray, S_step: FloatArray, a: float, Y: FloatArray, Y_step: FloatArray, b: float) -> float:
    """⟨S + a S_step, Y + b Y_step⟩ of blocks."""
    whole = S.shape[1] - S.shape[1] % N_LANES
    sums, total = spread(0.0), 0.0
    for i in range(S.shape[0]):
        for j in range(0, whole, N_LANES):
            s = four_in_row(S, i, j) + a * four_in_row(S_step, i, j)
            sums += s * (four_in_row(Y, i, j) + b * four_in_row(Y_step, i, j))
        for j in range(whole, S.shape[1]):
            total += (S[i, j] + a * S_step[i, j]) * (Y[i, j] + b * Y_step[i, j])
    return lane_sum(sums) + total


@njit(**COMPILED)
def _fill_kronecker(S: FloatArray, T: FloatArray, height: int, K: FloatArray) -> None:
    r"""The matrix of C ↦ corner of (S E T + T E S)/2 with E = (0, C; Cᵀ, 0), block diagonal.

    With :math:`S = (P, V; V^\top, Q)`: :math:`\tfrac12 (P C T_{22} + T_{11} C Q + V C^\top T_{12} + T_{12} C^\top V)`.
    """
    K[:] = 0.0
    n_all, size = S.shape
    width, start = size - height, 0
    for first in range(0, n_all, size):
        for i in range(first, first + height):
            for j in range(width):
                row, right = start + (i - first) * width + j, first + height + j
                for c in range(i - first + 1):
                    column = start + c * width
                    P, T_11, T_12, V = S[i, c], T[i, c], T[first + c, height + j], S[first + c, height + j]
                    for l in range(width):
                        entry = P * T[right, height + l] + T_11 * S[right, height + l]
                        K[row, column + l] = 0.5 * (entry + S[i, height + l] * T_12 + T[i, height + l] * V)
        start += height * width
    for i in range(len(K)):
        for j in range(i):
            K[j, i] = K[i, j]


@njit(**COMPILED)
def _norms_of_blocks(C: FloatArray, height: int, width: int) -> tuple[float, float]:
    """The largest spectral norm and the sum of the nuclear norms of the blocks of C (n_unknowns,), by Jacobi's rotations of rows."""
    largest, total = 0.0, 0.0
    rows = np.empty((len(C) // width, width))
    for i in range(len(rows)):
        rows[i] = C[i * width : (i + 1) * width]
    for first in range(0, len(rows), height):
        for _ in range(_MAX_ROTATION_SWEEPS):
            rotated = False
            for i in range(first, first + height):
                for j in range(first, i):
                    a, b, c = products_of_two(rows, i, j, width)
                    if abs(c) > _ORTHOGONAL_COSINE * np.sqrt(a * b):
                        rotated = True
                        ratio = (b - a) / (2.0 * c)
                        tangent = (1.0 if ratio >= 0.0 else -1.0) / (abs(ratio) + np.sqrt(1.0 + ratio * ratio))
                        cosine = 1.0 / np.sqrt(1.0 + tangent * tangent)
                        for k in range(width):
                            p, q = rows[i, k], rows[j, k]
                            rows[i, k] = cosine * (p - tangent * q)
                            rows[j, k] = cosine * (q + tangent * p)
            if not rotated:
                break
        for i in range(first, first + height):
            value = np.sqrt(dot(rows[i], rows[i]))
            largest, total = max(largest, value), total + value
    return largest, total


# ---- Newton's equations


@njit(**COMPILED)
def _factor_with_ridge(H: FloatArray, n: int) -> bool:
    """Cholesky factor of H (its lower triangle) in place, with as small a ridge on the first n diagonal entries as it takes."""
    copy, largest = H.copy(), 0.0
    for i in range(n):
        largest = max(largest, H[i, i])
    ridge = _RIDGE
    while ridge <= _MAX_RIDGE:
        for i in range(n):
            H[i, i] += ridge * largest
        if cholesky(H, len(H), 0.0) < 0:
            return True
        H[:] = copy
        ridge *= _RIDGE_FACTOR
    return False


@njit(**COMPILED)
def _weighted_gram(A: FloatArray, weights: FloatArray, G: FloatArray) -> None:
    """The lower triangle of Aᵀ diag(weights) A into the leading block of G."""
    columns = np.empty((A.shape[1], A.shape[0]))
    for r in range(A.shape[0]):
        root = np.sqrt(weights[r])
        for i in range(A.shape[1]):
            columns[i, r] = root * A[r, i]
    gram(columns, np.arange(A.shape[1]), np.int64(0), G)


@njit(**COMPILED)
def _factor_spectral(cone: Cone, at: Point) -> bool:
    """The factored equations of the spectral norm in (W, τ): 2 K + Aᵀ D A, bordered by the corner and trace of (S Y⁻¹ + Y⁻¹ S)/2."""
    n, H, centre = len(at.corner), at.system, at.blocks[_CORRECTION]
    _weighted_gram(cone.rows, at.vectors[_WEIGHT], H)
    _fill_kronecker(at.blocks[_S], at.blocks[_INVERSE], cone.height, at.kronecker)
    _set_arrow(at.blocks[_TARGET], cone.height, 1.0, at.corner, 0.0)
    _symmetric_product(at.blocks[_S], at.blocks[_TARGET], at.blocks[_INVERSE], centre)
    _get_corner(centre, cone.height, at.corner)
    trace = 0.0
    for i in range(centre.shape[0]):
        trace += centre[i, i % centre.shape[1]]
    for i in range(n):
        for j in range(i + 1):
            H[i, j] += 2.0 * at.kronecker[i, j]
        H[n, i] = 2.0 * at.corner[i]
    H[n, n] = trace
    return _factor_with_ridge(H, n)


@njit(**COMPILED)
def _products(X: FloatArray, M: FloatArray, Y: FloatArray, out: FloatArray) -> None:
    """out[r, s] = X[r] M Y[s]ᵀ."""
    image = np.empty(M.shape[1])
    for r in range(len(X)):
        vecmat(X[r], M, image)
        matvec(Y, image, out[r])


@njit(**COMPILED)
def _factor_nuclear(cone: Cone, at: Point) -> bool:
    r"""The factored equations of the nuclear norm in the multipliers, A K Aᵀ/2 + D⁻¹.

    For rows :math:`A_r = u_r v_r^\top` and the parts of S and T as in `_fill_kronecker`, A K Aᵀ has the entries
    :math:`\tfrac12 (u_r^\top P u_s\, v_r^\top T_{22} v_s + u_r^\top T_{11} u_s\, v_r^\top Q v_s
    + u_r^\top V v_s\, u_s^\top T_{12} v_r + u_r^\top T_{12} v_s\, u_s^\top V v_r)`.
    """
    H, A, h = at.system, cone.rows, cone.height
    S, T = at.blocks[_S], at.blocks[_INVERSE]
    if len(cone.left) == len(A):
        first, second = np.empty_like(H), np.empty_like(H)
        H[:] = 0.0
        for upper, lower in ((S, T), (T, S)):
            _products(cone.left, np.ascontiguousarray(upper[:h, :h]), cone.left, first)
            _products(cone.right, np.ascontiguousarray(lower[h:, h:]), cone.right, second)
            for r in range(len(H)):
                for q in range(r + 1):
                    H[r, q] += 0.25 * first[r, q] * second[r, q]
        _products(cone.left, np.ascontiguousarray(S[:h, h:]), cone.right, first)
        _products(cone.left, np.ascontiguousarray(T[:h, h:]), cone.right, second)
        for r in range(len(H)):
            for q in range(r + 1):
                H[r, q] += 0.25 * (first[r, q] * second[q, r] + second[r, q] * first[q, r])
    else:
        _fill_kronecker(S, T, h, at.kronecker)
        images = np.empty_like(A)
        for r in range(len(A)):
            matvec(at.kronecker, A[r], images[r])
            matvec(images[: r + 1], A[r], H[r, : r + 1])
            for q in range(r + 1):
                H[r, q] *= 0.5
    for r in range(len(A)):
        H[r, r] += 1.0 / at.vectors[_WEIGHT, r]
    return _factor_with_ridge(H, len(H))


@njit(**COMPILED)
def _finish_S_step(blocks: FloatArray) -> None:
    """S_step = target - S - (S Y_step Y⁻¹ + Y⁻¹ Y_step S)/2."""
    S_step = blocks[_S_STEP]
    _symmetric_product(blocks[_S], blocks[_Y_STEP], blocks[_INVERSE], S_step)
    for i in range(S_step.shape[0]):
        for j in range(S_step.shape[1]):
            S_step[i, j] = blocks[_TARGET, i, j] - blocks[_S, i, j] - S_step[i, j]


@njit(**COMPILED)
def _refine_spectral_step(cone: Cone, at: Point, right: FloatArray) -> None:
    """Solve once more for what a step leaves of M = -2 corner of S and of the trace: large weights amplify its rounding."""
    n, n_all, blocks, v = len(at.corner), len(cone.rows), at.blocks, at.vectors
    total, image = np.empty(n_all), np.empty(n_all)
    for r in range(n_all):
        total[r] = v[_MULTIPLIER, r] + v[_MULTIPLIER_STEP, r]
    vecmat(total, cone.rows, right[:n])
    for part in (_S, _S_STEP):
        _get_corner(blocks[part], cone.height, at.corner)
        for i in range(n):
            right[i] += 2.0 * at.corner[i]
    right[n] = -1.0
    for i in range(blocks.shape[1]):
        j = i % blocks.shape[2]
        right[n] += blocks[_S, i, j] + blocks[_S_STEP, i, j]
    solve_lower(at.system, n + 1, right)
    solve_upper(at.system, n + 1, right)
    at.corner[:] = right[:n]
    matvec(cone.rows, at.corner, image)
    for r in range(n_all):
        v[_SLACK_STEP, r] += image[r]
        v[_MULTIPLIER_STEP, r] -= v[_WEIGHT, r] * image[r]
    _set_arrow(blocks[_FACTOR], cone.height, right[n], at.corner, 1.0)
    for i in range(blocks.shape[1]):
        for j in range(blocks.shape[2]):
            blocks[_Y_STEP, i, j] += blocks[_FACTOR, i, j]
    _finish_S_step(blocks)


@njit(**COMPILED)
def _step(cone: Cone, norm: int, at: Point, target: float) -> None:
    """The step towards complementarity `target`, less the correction."""
    m, n_all, n = len(cone.lower), len(cone.rows), len(at.corner)
    v, blocks, right = at.vectors, at.blocks, np.empty(n + 1)
    trace, wanted = 0.0, blocks[_TARGET]
    for i in range(wanted.shape[0]):
        for j in range(wanted.shape[1]):
            wanted[i, j] = target * blocks[_INVERSE, i, j] - blocks[_CORRECTION, i, j]
        trace += wanted[i, i % wanted.shape[1]]
    _get_corner(wanted, cone.height, at.corner)
    if norm == NUCLEAR:
        matvec(cone.rows, at.corner, v[_MULTIPLIER_STEP])
        for r in range(n_all):
            v[_MULTIPLIER_STEP, r] *= -1.0
            if r < m:
                v[_MULTIPLIER_STEP, r] += (target - v[_SLACK_CORRECTION, r]) / v[_MULTIPLIER, r] + cone.lower[r]
        solve_lower(at.system, n_all, v[_MULTIPLIER_STEP])
        solve_upper(at.system, n_all, v[_MULTIPLIER_STEP])
        vecmat(v[_MULTIPLIER_STEP], cone.rows, at.corner)
        _set_arrow(blocks[_Y_STEP], cone.height, 0.0, at.corner, -0.5)
    else:
        for r in range(n_all):
            pull = (target - v[_SLACK_CORRECTION, r]) / v[_SLACK, r] if r < m else v[_MULTIPLIER, r]
            v[_MULTIPLIER_STEP, r] = pull - v[_WEIGHT, r] * v[_RESIDUAL, r]
        vecmat(v[_MULTIPLIER_STEP], cone.rows, right[:n])
        for i in range(n):
            right[i] += 2.0 * at.corner[i]
        right[n] = trace - 1.0
        solve_lower(at.system, n + 1, right)
        solve_upper(at.system, n + 1, right)
        at.corner[:] = right[:n]
        _set_arrow(blocks[_Y_STEP], cone.height, right[n], at.corner, 1.0)
    _finish_S_step(blocks)
    if norm == NUCLEAR:
        _get_corner(blocks[_S_STEP], cone.height, at.corner)
    matvec(cone.rows, at.corner, v[_SLACK_STEP])
    for r in range(m):
        v[_SLACK_STEP, r] += v[_RESIDUAL, r]
        if norm == SPECTRAL:
            pull = (target - v[_SLACK_CORRECTION, r]) / v[_SLACK, r] - v[_MULTIPLIER, r]
            v[_MULTIPLIER_STEP, r] = pull - v[_WEIGHT, r] * v[_SLACK_STEP, r]
    if norm == SPECTRAL:
        for r in range(m, n_all):
            v[_MULTIPLIER_STEP, r] = -v[_WEIGHT, r] * (v[_SLACK_STEP, r] + v[_RESIDUAL, r])
        _refine_spectral_step(cone, at, right)


# ---- the method


@njit(**COMPILED)
def _start(cone: Cone, norm: int, x: FloatArray, multipliers: FloatArray, at: Point) -> None:
    """A point in the interior, from the Euclidean solution: W half as long again, and its multipliers with a floor."""
    m, v, height, width = len(cone.lower), at.vectors, cone.height, cone.width
    W, M, mean = 1.5 * x, np.empty_like(x), 0.0
    matvec(cone.rows, W, v[_PRODUCT])
    for r in range(m):
        v[_SLACK, r] = max(v[_PRODUCT, r] - cone.lower[r], 0.1 * max(cone.lower[r], 0.1))
        mean += multipliers[r] / m
    for r in range(len(multipliers)):
        v[_MULTIPLIER, r] = max(multipliers[r], 0.3 * mean) if r < m else multipliers[r]
    vecmat(v[_MULTIPLIER], cone.rows, M)
    size, _ = _norms_of_blocks(W, height, width)
    spectral, nuclear = _norms_of_blocks(M, height, width)
    if norm == NUCLEAR:
        v[_MULTIPLIER] *= 0.7 / spectral
        _set_arrow(at.blocks[_Y], height, 0.5, M, -0.35 / spectral)
        _set_arrow(at.blocks[_S], height, 1.5 * size, W, 1.0)
    else:
        v[_MULTIPLIER] /= nuclear
        diagonal = 1.0 / at.blocks.shape[1]
        _set_arrow(at.blocks[_Y], height, 1.5 * size, W, 1.0)
        _set_arrow(at.blocks[_S], height, diagonal, M, -min(0.5 / nuclear, 0.8 * diagonal / spectral))


@njit(**COMPILED)
def _improve_bracket(
    cone: Cone, norm: int, at: Point, best: FloatArray, best_multipliers: FloatArray, bracket: FloatArray
) -> bool:
    """Store W, scaled to satisfy every row, or the multipliers, where they give a better end of the bracket; whether it shrank."""
    m, ratio, W, products = len(cone.lower), np.inf, at.corner, at.vectors[_PRODUCT]
    M, multipliers, width = np.empty_like(W), at.vectors[_MULTIPLIER], bracket[1] - bracket[0]
    for r in range(m):
        if cone.lower[r] > 0.0:
            ratio = min(ratio, products[r] / cone.lower[r])
        elif products[r] < 0.0:
            ratio = 0.0
    vecmat(multipliers, cone.rows, M)
    size, nuclear_size = _norms_of_blocks(W, cone.height, cone.width)
    nuclear_dual, dual = _norms_of_blocks(M, cone.height, cone.width)
    if norm == NUCLEAR:
        size, dual = nuclear_size, nuclear_dual
    if ratio > 0.0 and size / ratio < bracket[1]:
        bracket[1] = size / ratio
        best[:] = W / ratio
    lower = dot(cone.lower, multipliers[:m]) / dual
    if lower > bracket[0]:
        bracket[0] = lower
        best_multipliers[:] = multipliers / dual
    return bracket[1] - bracket[0] < 0.9 * width


@njit(**COMPILED)
def _predict_and_correct(cone: Cone, norm: int, at: Point, complementarity: float) -> tuple[float, float]:
    """The step with Mehrotra's correction; returns how far S, with what belongs to it, and Y may follow it, up to one."""
    m, v, blocks = len(cone.lower), at.vectors, at.blocks
    blocks[_CORRECTION] = 0.0
    v[_SLACK_CORRECTION] = 0.0
    with_S, with_Y = (_SLACK, _MULTIPLIER) if norm == NUCLEAR else (_MULTIPLIER, _SLACK)
    S_step, Y_step = (_SLACK_STEP, _MULTIPLIER_STEP) if norm == NUCLEAR else (_MULTIPLIER_STEP, _SLACK_STEP)
    target, of_S, of_Y = 0.0, 0.0, 0.0
    for corrected in range(2):
        _step(cone, norm, at, target)
        of_S = _longest_step(blocks[_S], blocks[_S_STEP], blocks[_FACTOR])
        of_Y = _longest_step(blocks[_Y], blocks[_Y_STEP], blocks[_FACTOR])
        of_S = min(of_S, _longest_positive_step(v[with_S], v[S_step], m))
        of_Y = min(of_Y, _longest_positive_step(v[with_Y], v[Y_step], m))
        if corrected == 0:
            left = _inner(blocks[_S], blocks[_S_STEP], of_S, blocks[_Y], blocks[_Y_STEP], of_Y)
            for r in range(m):
                left += (v[with_S, r] + of_S * v[S_step, r]) * (v[with_Y, r] + of_Y * v[Y_step, r])
                v[_SLACK_CORRECTION, r] = v[S_step, r] * v[Y_step, r]
            share = max(left / complementarity, 0.0)
            centring = share**3 if min(of_S, of_Y) > 0.5 else share**2
            target = min(max(centring, _MIN_CENTRING), 1.0) * complementarity / (blocks.shape[1] + m)
            _symmetric_product(blocks[_S_STEP], blocks[_Y_STEP], blocks[_INVERSE], blocks[_CORRECTION])
    return of_S, of_Y


@njit(**COMPILED)
def _advance(norm: int, at: Point, of_S: float, of_Y: float) -> None:
    """Take the step, most of the way to the edge of the cone."""
    share = 0.9 + 0.09 * min(of_S, of_Y)
    of_S, of_Y = of_S if of_S == 1.0 else share * of_S, of_Y if of_Y == 1.0 else share * of_Y
    v, blocks = at.vectors, at.blocks
    for i in range(blocks.shape[1]):
        for j in range(blocks.shape[2]):
            blocks[_S, i, j] += of_S * blocks[_S_STEP, i, j]
            blocks[_Y, i, j] += of_Y * blocks[_Y_STEP, i, j]
    of_slack, of_multipliers = (of_S, of_Y) if norm == NUCLEAR else (of_Y, of_S)
    for r in range(v.shape[1]):
        v[_SLACK, r] += of_slack * v[_SLACK_STEP, r]
        v[_MULTIPLIER, r] += of_multipliers * v[_MULTIPLIER_STEP, r]


@njit(**COMPILED)
def interior_point(
    cone: Cone,
    norm: int,
    x: FloatArray,
    multipliers: FloatArray,
    gap: float,
    best: FloatArray,
    best_multipliers: FloatArray,
) -> int:
    """Solve one problem from a feasible point to a bracket gap; writes the best W and multipliers met, and returns the number of steps.

    Multipliers are scaled to a dual norm of one: their products with the lower bounds add up to the lower end of the bracket.
    """
    (n_all, n), m, size = cone.rows.shape, len(cone.lower), cone.height + cone.width
    n_system = n + 1 if norm == SPECTRAL else n_all
    at = Point(
        np.zeros((8, n // (cone.height * cone.width) * size, size)),
        np.zeros((8, n_all)),
        np.empty((n, n)),
        np.empty((n_system, n_system)),
        np.empty(n),
    )
    blocks, v, bracket, stalled = at.blocks, at.vectors, np.array([0.0, np.inf]), 0
    _start(cone, norm, x, multipliers, at)
    for steps in range(MAX_BARRIER_STEPS):
        _get_corner(blocks[_S if norm == NUCLEAR else _Y], cone.height, at.corner)
        matvec(cone.rows, at.corner, v[_PRODUCT])
        complementarity = _inner(blocks[_S], blocks[_S], 0.0, blocks[_Y], blocks[_Y], 0.0)
        complementarity += dot(v[_SLACK, :m], v[_MULTIPLIER, :m])
        is_close = complementarity < max(_BRACKET_BELOW, gap) * dot(cone.lower, v[_MULTIPLIER, :m])
        if is_close or steps > MAX_BARRIER_STEPS // 2:
            better = _improve_bracket(cone, norm, at, best, best_multipliers, bracket)
            stalled = 0 if better else stalled + 1
            if bracket[1] - bracket[0] <= gap * bracket[0] or stalled > _MAX_STALLED_STEPS:
                return steps
        if not _factor(blocks[_Y], blocks[_Y], 0.0, blocks[_FACTOR]):
            return steps
        _invert(blocks[_FACTOR], blocks[_INVERSE])
        for r in range(n_all):
            v[_WEIGHT, r] = v[_MULTIPLIER, r] / v[_SLACK, r] if r < m else 1.0 / _EQUALITY_RIDGE
            residual = v[_PRODUCT, r] - (cone.lower[r] + v[_SLACK, r] if r < m else 0.0)
            v[_RESIDUAL, r] = residual if abs(residual) > _RESIDUAL_ATOL else 0.0  # weights would amplify rounding
        if not (_factor_nuclear(cone, at) if norm == NUCLEAR else _factor_spectral(cone, at)):
            return steps
        of_S, of_Y = _predict_and_correct(cone, norm, at, complementarity)
        _advance(norm, at, of_S, of_Y)
    return MAX_BARRIER_STEPS


# ---- how problems get there and back


class MatrixProblem(NamedTuple):
    """One problem of a `NormBatch`, with rows that are not zero."""

    rows: FloatArray  # (n_rows, d)
    lower: FloatArray  # (n_rows,)
    shape: tuple[int, ...]
    x: FloatArray  # (d,)
    multipliers: FloatArray  # (n_rows,)
    n_equalities: int


def solve_matrix_norms(batch: NormBatch, norm: Any) -> None:
    """A batch of problems whose x is a matrix, in the spectral, nuclear or max-row norm; compiled code runs side by side."""

    def solve(j: int) -> None:
        used = np.flatnonzero(batch.rows[j].any(axis=1))
        n_ties = int(np.count_nonzero(used >= batch.lower.shape[1] - 2 * batch.n_equalities)) // 2
        fields = (batch.rows[j][used], batch.lower[j, used], batch.shape, batch.x[j], batch.multipliers[j, used])
        batch.x[j], batch.multipliers[j, used] = _solve_single(MatrixProblem(*fields, n_ties), norm)

    workers = min(n_threads(), len(batch.indices))
    if workers <= 1:
        for j in batch.indices:
            solve(j)
        return
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(solve, batch.indices))


def _solve_single(problem: MatrixProblem, norm: Any) -> tuple[FloatArray, FloatArray]:
    """x (d,) and the multipliers (n_rows,) of a problem.

    W is looked for where rows have entries: in the span of their left vectors (not for the max-row norm, which depends on the basis) and of
    their right ones, outside of which it only gets longer. Equalities hold exactly at the end, by a projection.
    """
    n, n_ties = len(problem.rows), problem.n_equalities
    m = n - 2 * n_ties
    rows = problem.rows[: n - n_ties].reshape(-1, *problem.shape)
    right = _span(rows.reshape(-1, problem.shape[1]))
    by_row = isinstance(norm, MaxRow)
    left = np.eye(problem.shape[0]) if by_row else _span(rows.transpose(0, 2, 1).reshape(-1, problem.shape[0]))
    if not by_row and min(left.shape[1], right.shape[1]) == 1:  # of rank one: all norms of singular values are equal
        return problem.x, problem.multipliers
    reduced = np.ascontiguousarray((rows if by_row else left.T @ rows) @ right)
    size = float(np.linalg.norm(problem.x))
    start = left.T @ (problem.x.reshape(problem.shape) / size) @ right
    multipliers = np.concatenate([problem.multipliers[:m], _difference(problem.multipliers[m:])])
    factors = _rank_one_factors(reduced)
    cone = Cone(
        reduced.reshape(len(rows), -1),
        *factors,
        problem.lower[:m] / size,
        1 if by_row else left.shape[1],
        right.shape[1],
    )
    code = NUCLEAR if isinstance(norm, Nuclear) else SPECTRAL
    x, solved = _over_working_rows(cone, code, start.reshape(-1), multipliers)
    if n_ties:
        x = x - np.linalg.lstsq(cone.rows[m:], cone.rows[m:] @ x)[0]
    solved = _without_idle_rows(cone, code, x, solved)
    W = left @ x.reshape(start.shape) @ right.T
    ties = (np.maximum(solved[m:], 0.0), np.maximum(-solved[m:], 0.0))
    return (W * size).reshape(-1), np.concatenate([solved[:m], *ties])


def _over_working_rows(
    cone: Cone, norm: int, start: FloatArray, multipliers: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """W and the multipliers; where inequalities are many, of those that matter, to which the rows that W violates are added."""
    m, n_all = len(cone.lower), len(cone.rows)
    n_added = max(_MIN_ADDED_ROWS, cone.rows.shape[1] // 2)
    x, solved = start.copy(), multipliers.copy()
    if m <= 4 * n_added:
        interior_point(cone, norm, start, multipliers, BARRIER_GAP_RTOL, x, solved)
        return x, solved
    ties = np.arange(m, n_all)
    slack = cone.rows[:m] @ start - cone.lower
    working = np.sort(np.argsort(np.where(multipliers[:m] > 0.0, -1.0, slack), kind="stable")[: 2 * n_added])
    for gap in _ROUND_GAPS:
        for _ in range(_MAX_ROUNDS):
            indices = np.concatenate([working, ties])
            part = Cone(
                cone.rows[indices],
                cone.left[indices] if len(cone.left) else cone.left,
                cone.right[indices] if len(cone.right) else cone.right,
                cone.lower[working],
                cone.height,
                cone.width,
            )
            weights = multipliers[indices]
            interior_point(part, norm, start, multipliers[indices], gap, x, weights)
            solved = np.zeros(n_all)
            solved[indices] = weights
            shortfall = cone.lower * (1.0 - 0.5 * gap) - cone.rows[:m] @ x
            violated = np.flatnonzero(shortfall > 0.0)
            if not len(violated):
                break
            worst = violated[np.argsort(-shortfall[violated], kind="stable")[:n_added]]
            working = np.union1d(working, worst)
    return x, solved


def _rank_one_factors(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
    """left (n, height) and right (n, width) with rows[r] = left[r] right[r]ᵀ; without rows where one is of higher rank."""
    n, height, width = rows.shape
    at = np.argmax(np.abs(rows.reshape(n, -1)), axis=1)
    right = np.ascontiguousarray(rows[np.arange(n), at // width])
    left = rows[np.arange(n), :, at % width] / rows[np.arange(n), at // width, at % width][:, None]
    if np.abs(rows - left[:, :, None] * right[:, None, :]).max(initial=0.0) > _SPAN_ATOL:
        return np.empty((0, height)), np.empty((0, width))
    return np.ascontiguousarray(left), right


def _without_idle_rows(cone: Cone, norm: int, x: FloatArray, multipliers: FloatArray) -> FloatArray:
    """The multipliers with zeros for rows that x satisfies with slack to spare, as many as hardly change the bracket."""
    m, which = len(cone.lower), 0 if norm == NUCLEAR else 1
    slack = cone.rows[:m] @ x - cone.lower
    value = cone.lower @ multipliers[:m] / _norms_of_blocks(multipliers @ cone.rows, cone.height, cone.width)[which]
    for share in _IDLE_SHARES:
        active = multipliers.copy()
        active[:m][multipliers[:m] < share * slack] = 0.0
        dual = _norms_of_blocks(active @ cone.rows, cone.height, cone.width)[which]
        if cone.lower @ active[:m] >= (1.0 - _IDLE_LOSS_RTOL) * value * dual:
            return active
    return multipliers


def _span(rows: FloatArray) -> FloatArray:
    """(d, rank) an orthonormal basis of what rows (n, d) span; of everything where that would lose part of a row."""
    values, vectors = np.linalg.eigh(rows.T @ rows)
    basis: FloatArray = vectors[:, values > _SPAN_RTOL * values[-1]]
    if basis.shape[1] < len(values) and np.abs(rows - (rows @ basis) @ basis.T).max() <= _SPAN_ATOL:
        return basis
    return np.eye(len(values))


def _difference(pairs: FloatArray) -> FloatArray:
    """The multipliers of equalities, from those of each as two inequalities."""
    positive, negative = np.split(pairs, 2)
    return np.asarray(positive - negative)
