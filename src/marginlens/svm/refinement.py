"""Refinement of a solution: x moves by the shortest vector that makes the rows with a multiplier exactly tight.

Where rows nearly cancel, x = Aᵀλ in double precision misses the tight rows by rounding that the multipliers amplify once more in
complementarity. The rows themselves determine x far better than the multipliers do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from scipy.sparse.linalg import LinearOperator, lsmr

from marginlens.data.tokens import FloatArray
from marginlens.directions import length
from marginlens.svm.graph_conjugate import DIRECT
from marginlens.svm.solution import MarginSolution

ACCURATE = 1e-12  # `kkt_residual` up to which a solution needs no refinement
_STEPS = 3
_GAIN = 1e-4  # of what the tight rows miss, what one step by products may leave
_PRODUCTS = 1000  # of one such step
_Solution = TypeVar("_Solution", bound=MarginSolution)


def refined(solution: _Solution) -> _Solution:
    r"""The solution of one problem, with x corrected by the rows that it should satisfy with equality.

    .. math:: x \leftarrow x + \arg\min_z \{\|z\| : a_r^\top (x + z) = b_r\ (\lambda_r > 0),\ C (x + z) = 0\}

    The multipliers stay. Of the first x and up to three corrected ones, that of the smallest `kkt_residual` comes back: refinement never
    makes a solution worse.
    """
    best, residual = solution, solution.kkt_residual()
    for _ in range(_STEPS):
        if not ACCURATE < residual < np.inf:
            break
        moved = replace(best, x=best.x + _correction(best).reshape(best.x.shape))
        now = moved.kkt_residual()
        if not now < residual:
            break
        best, residual = moved, now
    return best


def _correction(solution: MarginSolution) -> FloatArray:
    """(d,) the shortest z that closes the gaps of the rows with a multiplier and of the equalities, or comes closest to it."""
    tight = np.flatnonzero(solution.multipliers > 0.0)
    blocks = [_Block(solution.rows, tight, solution.floor[tight])]
    if solution.equalities is not None:
        n = len(solution.equalities)
        blocks.append(_Block(solution.equalities, np.arange(n), np.zeros(n)))
    x = solution.x.reshape(-1)
    gaps = np.concatenate([block.gaps(x) for block in blocks])
    n, width = len(gaps), len(x)
    if n * width * min(n, width) <= DIRECT:
        return np.linalg.lstsq(np.concatenate([block.formed() for block in blocks]), gaps)[0]
    edges = np.cumsum([len(block.size) for block in blocks])[:-1]
    operator = LinearOperator(
        (n, width),
        matvec=lambda z: np.concatenate([block.apply(z.reshape(-1)) for block in blocks]),
        rmatvec=lambda w: sum(block.combine(part) for block, part in zip(blocks, np.split(w, edges), strict=True)),
        dtype=np.float64,
    )
    return np.asarray(lsmr(operator, gaps, atol=0.0, btol=_GAIN, conlim=0.0, maxiter=_PRODUCTS)[0])


class _Block:
    """Some rows of a problem, scaled to norm one, with the values that their products with x should have."""

    def __init__(self, rows: Any, some: Any, goal: FloatArray) -> None:
        self._rows = rows[some] if isinstance(rows, np.ndarray) else rows.some(some)
        size = length(self._rows) if isinstance(rows, np.ndarray) else self._rows.sizes
        self.size, self._goal = np.where(size == 0.0, 1.0, size), goal

    def gaps(self, x: FloatArray) -> FloatArray:
        return self._goal / self.size - self.apply(x)

    def apply(self, x: FloatArray) -> FloatArray:
        products = self._rows @ x if isinstance(self._rows, np.ndarray) else self._rows.apply(x)
        return np.asarray(products / self.size)

    def combine(self, weights: FloatArray) -> FloatArray:
        scaled = weights / self.size
        return np.asarray(
            scaled @ self._rows if isinstance(self._rows, np.ndarray) else self._rows.combine(scaled).reshape(-1)
        )

    def formed(self) -> FloatArray:
        return np.asarray(np.asarray(self._rows) / self.size[:, None])
