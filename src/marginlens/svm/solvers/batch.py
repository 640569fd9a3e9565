"""Batches of margin problems as the compiled solvers get them, their outcomes, and the tolerances by which outcomes are verified.

The solvers are in `core/margin/`: the dual active-set method on the Gram matrix of all rows, block pivoting, and the dual active-set method
on orthogonal factors, which alone proves that a problem is infeasible.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marginlens.rounding import EPS
from marginlens.typing import BoolArray, FloatArray, IntArray

OPTIMAL, INFEASIBLE, TRIVIAL, UNVERIFIED, OUT_OF_RANGE, NEEDS_RECHECK = 0, 1, 2, 3, 4, 5  # outcomes of compiled solvers
FARKAS_RTOL = 1e-14  # unit rows, with weights that sum to one, that cancel to this contradict each other
COEFFICIENT_RTOL = 64 * EPS  # a coefficient this small, relative to the largest, is rounding
VIOLATION_RTOL = (
    16 * EPS
)  # a distance that counts as none, relative to the sum of the multipliers, which is at least ‖x‖
FAST_PATH_RTOL = 1e-13  # residual up to which the quick methods are believed; beyond, rows enter one by one
MIN_SQUARED_NORM, MAX_SQUARED_NORM = 1e-200, 1e200  # of rows that are not zero
VERIFIED_RTOL = 1e-11  # residual below which a solution counts as proved, a decade inside the promised 1e-10
AMPLIFIED_EPS = 16 * EPS  # times the amplification: what double precision leaves at best


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
