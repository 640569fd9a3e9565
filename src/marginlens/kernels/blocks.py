r"""Tokens in the order in which compiled loops take four inputs at a time, and products of matrices in it.

Token t of input i has the place :math:`4 (T \lfloor i/4 \rfloor + t) + i \bmod 4`, so that four inputs are next to each other.
Missing inputs and tokens past an input's length have the key zero and the logit `CLOSED`, which no weight survives. A matrix is flat and
has one row of `n_places` entries for each coordinate (keys) or each place (a Gram matrix). Vectors and matrices are given by pointers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.kernels.lanes import (
    N_LANES,
    lane_max,
    lane_sum,
    larger,
    load,
    modulus,
    pointer,
    spread,
    store,
    transpose,
    where_greater,
)
from marginlens.kernels.linalg import COMPILED
from marginlens.runtime.compilation import njit

CLOSED = -1.7976931348623157e308  # the logit of places without a token


@njit(**COMPILED)
def n_places(n_inputs: int, n_tokens: int) -> int:
    """How many places the tokens of a problem take."""
    return -(-n_inputs // N_LANES) * N_LANES * n_tokens


@njit(**COMPILED)
def place(i: int, t: int, n_tokens: int) -> int:
    """The place of token t of input i."""
    return (i // N_LANES * n_tokens + t) * N_LANES + i % N_LANES


@njit(**COMPILED)
def arrange(values: Any, lengths: Any, out: Any) -> None:
    """Write values (n_inputs, n_tokens) in the order of places, zero where no token is."""
    n, T = values.shape
    for k in range(n_places(n, T)):
        out[k] = 0.0
    for i in range(n):
        for t in range(lengths[i]):
            out[place(i, t, T)] = values[i, t]


@njit(**COMPILED)
def close(lengths: Any, n_tokens: int, m: int, logits: Any) -> None:
    """Give `CLOSED` to the logits of places without a token, but the first of a missing input."""
    for i in range(m // n_tokens):
        for t in range(lengths[i] if i < lengths.shape[0] else 1, n_tokens):
            logits[place(i, t, n_tokens)] = CLOSED


@njit(**COMPILED)
def centred_columns(keys: Any, lengths: Any, out: Any) -> None:
    """Keys (n_inputs, n_tokens, d) less the mean key of their input, as d rows of places.

    The mean changes no softmax and no gradient; without it the Gram matrix is more accurate.
    """
    n, T, d = keys.shape
    m, whole = n_places(n, T), d - d % N_LANES
    means, counts = np.zeros((N_LANES, d)), np.zeros(N_LANES)
    x, y, mean = pointer(keys), pointer(out), pointer(means)
    for slot in range(0, m // T, N_LANES):
        for lane in range(N_LANES):
            i = slot + lane
            counts[lane] = lengths[i] if i < n else 0
            if i < n:
                _mean_of(keys[i], lengths[i], means[lane])
        count = load(pointer(counts), 0)
        for t in range(T):
            r0, r1 = (slot * T + t) * d, (min(slot + 1, n - 1) * T + t) * d
            r2, r3 = (min(slot + 2, n - 1) * T + t) * d, (min(slot + 3, n - 1) * T + t) * d
            at = slot * T + N_LANES * t
            for k in range(0, whole, N_LANES):
                columns = transpose(
                    load(x, r0 + k) - load(mean, k),
                    load(x, r1 + k) - load(mean, d + k),
                    load(x, r2 + k) - load(mean, 2 * d + k),
                    load(x, r3 + k) - load(mean, 3 * d + k),
                )
                store(y, at + k * m, where_greater(count, float(t), columns[0], 0.0))
                store(y, at + (k + 1) * m, where_greater(count, float(t), columns[1], 0.0))
                store(y, at + (k + 2) * m, where_greater(count, float(t), columns[2], 0.0))
                store(y, at + (k + 3) * m, where_greater(count, float(t), columns[3], 0.0))
            for k in range(whole, d):
                for lane in range(N_LANES):
                    i = min(slot + lane, n - 1)
                    out[at + k * m + lane] = keys[i, t, k] - means[lane, k] if t < counts[lane] else 0.0


@njit(**COMPILED)
def _mean_of(rows: Any, count: int, out: Any) -> None:
    """out = the mean of the first `count` rows, none of whose sums overflows."""
    share = 1.0 / count
    for k in range(rows.shape[1]):
        out[k] = rows[0, k] * share
    for t in range(1, count):
        for k in range(rows.shape[1]):
            out[k] += rows[t, k] * share


@njit(**COMPILED)
def combine(A: Any, n: int, m: int, x: Any, out: Any) -> None:
    """out = Aᵀ x: the n rows of A, m places each, added up with the weights x, 24 places of the sum at a time."""
    i = 0
    while i + 24 <= m:
        zero = spread(0.0)
        sums = (zero, zero, zero, zero, zero, zero)
        whole = n - n % 4
        for k in range(0, whole, 4):
            for step in range(4):
                sums = _add_row(A, i + (k + step) * m, x[k + step], sums)
        for k in range(whole, n):
            sums = _add_row(A, i + k * m, x[k], sums)
        store(out, i, sums[0])
        store(out, i + 4, sums[1])
        store(out, i + 8, sums[2])
        store(out, i + 12, sums[3])
        store(out, i + 16, sums[4])
        store(out, i + 20, sums[5])
        i += 24
    while i + 12 <= m:
        s0, s1, s2 = spread(0.0), spread(0.0), spread(0.0)
        for k in range(n):
            y, at = x[k], i + k * m
            s0 += load(A, at) * y
            s1 += load(A, at + 4) * y
            s2 += load(A, at + 8) * y
        store(out, i, s0)
        store(out, i + 4, s1)
        store(out, i + 8, s2)
        i += 12
    while i < m:
        s0 = spread(0.0)
        for k in range(n):
            s0 += load(A, i + k * m) * x[k]
        store(out, i, s0)
        i += 4


@njit(**COMPILED)
def _add_row(A: Any, at: int, y: float, sums: Any) -> Any:
    s0, s1, s2, s3, s4, s5 = sums
    s0 += load(A, at) * y
    s1 += load(A, at + 4) * y
    s2 += load(A, at + 8) * y
    s3 += load(A, at + 12) * y
    s4 += load(A, at + 16) * y
    s5 += load(A, at + 20) * y
    return s0, s1, s2, s3, s4, s5


@njit(**COMPILED)
def inner_products(A: Any, n: int, m: int, x: Any, out: Any) -> None:
    """out = A x: the inner products of the n rows of A, m places each, with x."""
    whole = n - n % 4
    for k in range(0, whole, 4):
        s0, s1, s2, s3 = spread(0.0), spread(0.0), spread(0.0), spread(0.0)
        at = k * m
        for i in range(0, m, N_LANES):
            y = load(x, i)
            s0 += load(A, at + i) * y
            s1 += load(A, at + m + i) * y
            s2 += load(A, at + 2 * m + i) * y
            s3 += load(A, at + 3 * m + i) * y
        out[k], out[k + 1], out[k + 2], out[k + 3] = lane_sum(s0), lane_sum(s1), lane_sum(s2), lane_sum(s3)
    for k in range(whole, n):
        s0 = spread(0.0)
        for i in range(0, m, N_LANES):
            s0 += load(A, k * m + i) * load(x, i)
        out[k] = lane_sum(s0)


@njit(**COMPILED)
def gram_matrix(A: Any, n: int, m: int, out: Any) -> None:
    """out = Aᵀ A, (m, m), of n rows of m places: tiles of 4 × 4 on and above the diagonal, and their mirror images."""
    for i in range(0, m, N_LANES):
        for j in range(0, i + 1, 4):
            s0, s1, s2, s3 = spread(0.0), spread(0.0), spread(0.0), spread(0.0)
            for k in range(n):
                at = k * m
                y = load(A, at + i)
                s0 += y * A[at + j]
                s1 += y * A[at + j + 1]
                s2 += y * A[at + j + 2]
                s3 += y * A[at + j + 3]
            store(out, j * m + i, s0)
            store(out, (j + 1) * m + i, s1)
            store(out, (j + 2) * m + i, s2)
            store(out, (j + 3) * m + i, s3)
    for i in range(m):
        for j in range(i):
            out[i * m + j] = out[j * m + i]


@njit(**COMPILED)
def dot_and_size(x: Any, y: Any, m: int) -> tuple[float, float]:
    """Σ x y and Σ |x y| over m places; their ratio shows how much cancelled."""
    total, size = spread(0.0), spread(0.0)
    for k in range(0, m, N_LANES):
        product = load(x, k) * load(y, k)
        total += product
        size += modulus(product)
    return lane_sum(total), lane_sum(size)


@njit(**COMPILED)
def square_of(x: Any, n: int) -> float:
    """Σ x² over n entries."""
    whole = n - n % N_LANES
    sums, total = spread(0.0), 0.0
    for k in range(0, whole, N_LANES):
        sums += load(x, k) * load(x, k)
    for k in range(whole, n):
        total += x[k] * x[k]
    return lane_sum(sums) + total


@njit(**COMPILED)
def subtract(x: Any, factor: float, y: Any, n: int, out: Any) -> bool:
    """out = x - factor y, n entries; whether all are finite."""
    whole = n - n % N_LANES
    checks, check = spread(0.0), 0.0
    for k in range(0, whole, N_LANES):
        z = load(x, k) - factor * load(y, k)
        store(out, k, z)
        checks += z * 0.0  # nan where an entry is not finite
    for k in range(whole, n):
        out[k] = x[k] - factor * y[k]
        check += out[k] * 0.0
    return lane_sum(checks) + check == 0.0


@njit(**COMPILED)
def largest_modulus(x: Any, n: int) -> float:
    """The largest modulus among n entries, a multiple of the number of lanes."""
    largest = spread(0.0)
    for k in range(0, n, N_LANES):
        largest = larger(largest, modulus(load(x, k)))
    return lane_max(largest)
