"""Batches of margin problems as the compiled solvers get them, their outcomes, and the tolerances by which outcomes are verified.

The solvers are in `core/margin/`: the dual active-set method on the Gram matrix of all rows, block pivoting, and the dual active-set method
on orthogonal factors, which alone proves that a problem is infeasible.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marginlens.typing import BoolArray, FloatArray, IntArray

OPTIMAL, INFEASIBLE, TRIVIAL, UNVERIFIED, OUT_OF_RANGE, NEEDS_RECHECK = 0, 1, 2, 3, 4, 5  # outcomes of compiled solvers
FARKAS_RTOL = 1e-14  # unit rows, with weights that sum to one, that cancel to this contradict each other


class Batch(NamedTuple):
    """Problems of one shape."""

    rows: FloatArray  # (batch, n_rows, d)
    lower: FloatArray  # (batch, n_rows)


class Solved(NamedTuple):
    """What the compiled code writes: x, multipliers or Farkas vectors, active rows, and an outcome."""

    x: FloatArray  # (batch, d)
    multipliers: FloatArray  # (batch, n_rows)
    active: BoolArray  # (batch, n_rows)
    outcome: IntArray  # (batch,)

    @classmethod
    def empty(cls, n_problems: int, n_rows: int, d: int) -> Solved:
        """Arrays for the results of a batch."""
        multipliers, active = np.zeros((n_problems, n_rows)), np.zeros((n_problems, n_rows), dtype=bool)
        return cls(np.zeros((n_problems, d)), multipliers, active, np.zeros(n_problems, dtype=np.int64))


class NormBatch(NamedTuple):
    """Problems min ‖x‖ s.t. A x >= b of one size as solvers get them: rows of Euclidean norm one, max b = 1.

    Solvers overwrite the Euclidean x and multipliers; the scale of either is free, since the bracket does not depend on it.
    """

    rows: FloatArray  # (batch, n_rows, d), zero where a row constrains nothing
    lower: FloatArray  # (batch, n_rows)
    x: FloatArray  # (batch, d)
    multipliers: FloatArray  # (batch, n_rows)
    indices: IntArray  # the problems to solve; the others are infeasible or trivial
    shape: tuple[int, ...]  # of x: (d,), or (d_query, d_model) with d = d_query d_model
    n_equalities: int  # the last 2 n_equalities rows are these, and after them their negatives, with lower bound 0
