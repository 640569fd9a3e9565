"""The one-layer model under AdamW on the CPU, compiled: embeddings whose gradient has rank two, which is never formed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from marginlens.embeddings.models import (
    ADAMW_BETAS,
    ADAMW_EPSILON,
    DistinctTokens,
    Parameters,
    TrainingSettings,
    columns,
    scalar_gradients,
)
from marginlens.kernels.linalg import SUMMING
from marginlens.runtime.compilation import njit
from marginlens.runtime.threads import in_parts
from marginlens.typing import IntArray

_ROW_SHARES = (
    8  # of the rows that occur, each summed up on its own; however many threads take them, the result is the same
)


def adamw_constants(step: int, rate: float, decay: float, dtype: Any) -> tuple[Any, ...]:
    r"""The numbers that one AdamW step multiplies with, rounded to the parameters' type.

    .. math:: \theta \leftarrow (1 - \eta\lambda)\theta - \frac{\eta}{1 - \beta_1^t} \frac{m}{\sqrt{s / (1 - \beta_2^t)} + \epsilon}

    Args:
        step: t, from 1. rate: η. decay: λ.
    Returns:
        1 - ηλ, 1 - β₁, β₂, 1 - β₂, 1/√(1 - β₂ᵗ), ε, η/(1 - β₁ᵗ).
    """
    first, second = ADAMW_BETAS
    numbers = (
        1.0 - rate * decay,
        1.0 - first,
        second,
        1.0 - second,
        1.0 / math.sqrt(1.0 - second**step),
        ADAMW_EPSILON,
        rate / (1.0 - first**step),
    )
    return tuple(np.dtype(dtype).type(number) for number in numbers)


@njit(**SUMMING)
def adamw_vector(theta: Any, m: Any, s: Any, gradient: Any, constants: Any) -> None:
    """One AdamW step on a vector, in place."""
    shrink, new, old_square, new_square, unbias, eps, rate = constants
    for j in range(theta.shape[0]):
        g = gradient[j]
        m[j] += (g - m[j]) * new
        s[j] = s[j] * old_square + g * g * new_square
        theta[j] = theta[j] * shrink - rate * m[j] / (math.sqrt(s[j]) * unbias + eps)


@njit(**SUMMING)
def adamw_rank_two(
    first: int, last: int, table: Any, weights: Any, directions: Any, constants: Any, products: Any
) -> None:
    """One AdamW step on rows of E with the gradient x pᵀ + y vᵀ, and the new rows' products with the new p and v.

    Each row is read and written once.

    Args:
        first, last: the rows. table: E and its two moments, (n_vocabulary, d_model), changed in place.
        weights: x and y, (n_vocabulary,). directions: p, v, new p and new v, (d_model,).
        products: receives E p and E v at the new values, (n_vocabulary,).
    """
    shrink, new, old_square, new_square, unbias, eps, rate = constants
    E, M, S = table
    x, y = weights
    p, v, p_next, v_next = directions
    a, b = products
    zero = shrink - shrink
    for k in range(first, last):
        e, m, s, xk, yk = E[k], M[k], S[k], x[k], y[k]
        ak, bk = zero, zero
        for j in range(e.shape[0]):
            g = xk * p[j] + yk * v[j]
            mj = m[j] + (g - m[j]) * new
            sj = s[j] * old_square + g * g * new_square
            ej = e[j] * shrink - rate * mj / (math.sqrt(sj) * unbias + eps)
            m[j], s[j], e[j] = mj, sj, ej
            ak += ej * p_next[j]
            bk += ej * v_next[j]
        a[k], b[k] = ak, bk


@njit(**SUMMING)
def weighted_rows(first: int, last: int, E: Any, rows: Any, weights: Any, sums: Any) -> None:
    """Eᵀx and Eᵀy where x and y are zero outside `rows`, each share of the rows into its own sums; four rows share each load of a sum.

    Args:
        first, last: the shares. sums: (n_shares, 2, d_model).
    """
    x, y = weights
    n, n_shares = rows.shape[0], sums.shape[0]
    for share in range(first, last):
        p, v = sums[share, 0], sums[share, 1]
        for j in range(p.shape[0]):
            p[j], v[j] = 0.0, 0.0
        k, end = n * share // n_shares, n * (share + 1) // n_shares
        while k + 4 <= end:
            r0, r1, r2, r3 = rows[k], rows[k + 1], rows[k + 2], rows[k + 3]
            e0, e1, e2, e3 = E[r0], E[r1], E[r2], E[r3]
            x0, x1, x2, x3 = x[r0], x[r1], x[r2], x[r3]
            y0, y1, y2, y3 = y[r0], y[r1], y[r2], y[r3]
            for j in range(p.shape[0]):
                p[j] += (x0 * e0[j] + x1 * e1[j]) + (x2 * e2[j] + x3 * e3[j])
                v[j] += (y0 * e0[j] + y1 * e1[j]) + (y2 * e2[j] + y3 * e3[j])
            k += 4
        while k < end:
            e, xk, yk = E[rows[k]], x[rows[k]], y[rows[k]]
            for j in range(p.shape[0]):
                p[j] += xk * e[j]
                v[j] += yk * e[j]
            k += 1


@njit(**SUMMING)
def row_products(first: int, last: int, E: Any, directions: Any, products: Any) -> None:
    """E p and E v for rows `first` to `last`."""
    p, v = directions
    a, b = products
    for k in range(first, last):
        ak, bk = p[0] - p[0], v[0] - v[0]
        for j in range(E.shape[1]):
            ak += E[k, j] * p[j]
            bk += E[k, j] * v[j]
        a[k], b[k] = ak, bk


class CompiledOneLayer:
    """The one-layer model under AdamW on the CPU: a step reads and writes E and its moments once.

    `a` and `b` are always E p and E v at the present parameters.
    """

    def __init__(self, pairs: DistinctTokens, start: Parameters, settings: TrainingSettings) -> None:
        self.pairs, self.settings = pairs, settings
        self.E, self.p, self.v = start.E, start.p, start.v
        shapes = {"E": self.E, "p": self.p, "v": self.v}
        self.moments = {name: (np.zeros_like(array), np.zeros_like(array)) for name, array in shapes.items()}
        self.a, self.b = np.empty((2, len(self.E)), dtype=self.E.dtype)
        in_parts(row_products, len(self.E), self.E, (self.p, self.v), (self.a, self.b))
        self.taken, self.loss = 0, 0.0
        self.order: IntArray = np.arange(len(pairs))

    def begin(self, order: IntArray) -> None:
        """Start an epoch in which the sequences come in this order."""
        self.order, self.loss = order, 0.0

    def step(self, first: int, last: int, rate: float) -> None:
        """One AdamW step on the sequences at places `first` to `last` of the order; their losses are added to `loss`."""
        samples = self.order[first:last]
        slopes, f = np.zeros((2, len(self.E))), np.empty(len(samples))
        scalar_gradients(columns(self.pairs), samples, (self.a, self.b), (slopes[0], slopes[1]), f)
        self.loss += float(np.sum(np.logaddexp(0.0, -self.pairs.y[samples] * f)))
        rows = np.flatnonzero(slopes.any(axis=0))
        x, y = (slopes / len(samples)).astype(self.E.dtype)
        sums = np.empty((_ROW_SHARES, 2, len(self.p)), dtype=self.E.dtype)
        in_parts(weighted_rows, _ROW_SHARES, self.E, rows, (x, y), sums)
        by_p, by_v = sums.sum(axis=0)
        self.taken += 1
        constants = adamw_constants(self.taken, rate, self.settings.weight_decay, self.E.dtype)
        p, v = self.p.copy(), self.v.copy()
        adamw_vector(self.p, *self.moments["p"], by_p, constants)
        if self.settings.train_v:
            adamw_vector(self.v, *self.moments["v"], by_v, constants)
        table, directions = (self.E, *self.moments["E"]), (p, v, self.p, self.v)
        in_parts(adamw_rank_two, len(self.E), table, (x, y), directions, constants, (self.a, self.b))

    def products(self) -> tuple[Any, Any]:
        """(n_vocabulary,) E p and E v."""
        return self.a, self.b

    def outputs(self, pairs: DistinctTokens | None = None) -> Any:
        """(n_samples,) f for every sequence at the present parameters, or for every other one in `pairs`."""
        others = self.pairs if pairs is None else pairs
        f, all_sequences = np.empty(len(others)), np.arange(len(others))
        scalar_gradients(columns(others), all_sequences, (self.a, self.b), tuple(np.zeros((2, len(self.E)))), f)
        return f

    def parameters(self) -> Parameters:
        """The present parameters, as NumPy arrays that later steps change."""
        return Parameters(self.E, self.p, self.v)

    def state(self) -> dict[str, Any]:
        """All arrays that the next step depends on, by name."""
        moments = {
            f"{kind}_{name}": array
            for name, both in self.moments.items()
            for kind, array in zip("ms", both, strict=True)
        }
        return {"E": self.E, "p": self.p, "v": self.v, **moments, "a": self.a, "b": self.b}

    def restore(self, arrays: dict[str, Any], taken: int) -> None:
        """Go back to a state, after `taken` steps."""
        for name, mine in self.state().items():
            if name in arrays:
                mine[...] = arrays[name]
        if "a" not in arrays:  # a state that another device left
            in_parts(row_products, len(self.E), self.E, (self.p, self.v), (self.a, self.b))
        self.taken = taken
