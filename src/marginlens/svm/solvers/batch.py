"""Batches of margin problems for the compiled solvers, their outcomes, and working sets for problems of many rows.

The solvers are in `core/margin/`: the dual active-set method on the Gram matrix of all rows, block pivoting, and the dual
active-set method on orthogonal factors, the only one that proves that a problem is infeasible.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from marginlens.arithmetic.rounding import EPS
from marginlens.typing import BoolArray, FloatArray, IntArray

# Outcomes of the compiled solvers, as in core/margin/tolerances.h.
OPTIMAL, INFEASIBLE, TRIVIAL, UNVERIFIED, OUT_OF_RANGE, NEEDS_RECHECK = 0, 1, 2, 3, 4, 5
# Unit rows, with weights of sum one, that cancel up to this contradict each other.
FARKAS_RTOL = 1e-14
# All rows of a problem in a norm are solved together if there are no more than this.
MAX_ROWS_TOGETHER = 128
# Operations, roughly, that solving a problem in a norm takes for each entry of its rows.
COST_PER_ENTRY = 100.0
# Rows of a working set at first, and how many are added at most in every round.
_FIRST_WORKING_ROWS, _ROWS_ADDED = 300, 100
_MAX_WORKING_ROUNDS = 100


class Solved(NamedTuple):
    """The results of the compiled code: x, multipliers or Farkas vectors, active rows, and an outcome."""

    x: FloatArray  # (batch, d)
    multipliers: FloatArray  # (batch, n_rows)
    active: BoolArray  # (batch, n_rows)
    outcome: IntArray  # (batch,)

    @classmethod
    def empty(cls, n_problems: int, n_rows: int, d: int) -> Solved:
        """Allocate arrays for the results of a batch."""
        multipliers, active = np.zeros((n_problems, n_rows)), np.zeros((n_problems, n_rows), dtype=bool)
        return cls(np.zeros((n_problems, d)), multipliers, active, np.zeros(n_problems, dtype=np.int64))


class NormBatch(NamedTuple):
    """Problems min ‖x‖ s.t. A x >= b of one size, scaled for solvers: rows of Euclidean norm one, max b = 1.

    Solvers overwrite the Euclidean x and multipliers, at any scale, because the bracket does not depend on it.
    """

    rows: FloatArray  # (batch, n_rows, d), zero where a row constrains nothing
    lower: FloatArray  # (batch, n_rows)
    x: FloatArray  # (batch, d)
    multipliers: FloatArray  # (batch, n_rows)
    # The problems to solve; the others are infeasible or trivial.
    indices: IntArray
    # The shape of x: (d,), or (d_query, d_model) with d = d_query d_model.
    shape: tuple[int, ...]
    # The last 2 n_equalities rows are the equalities and then their negatives, with lower bound 0.
    n_equalities: int


def over_working_rows(
    A: FloatArray, b: FloatArray, x: FloatArray, first: IntArray, solve: Callable[[IntArray], float]
) -> None:
    """Solve one problem of many rows: rows that the solution of a working set violates are added to it until there are none.

    Args:
        A: (n_rows, d).

        b: (n_rows,).

        x: (d,) the point to start from, which `solve` overwrites.

        first: rows that are in the working set from the start, in addition to those that x satisfies least.

        solve: solves the problem of the rows with these indices, and returns the smallest a_r·x/b_r of its x, whose scale is free.
    """
    members = np.union1d(np.argsort(A @ x - b, kind="stable")[:_FIRST_WORKING_ROWS], first)
    for _ in range(_MAX_WORKING_ROUNDS):
        margin = solve(members)
        slack = A @ x - margin * b
        violated = np.setdiff1d(np.flatnonzero(slack < -16.0 * EPS * float(np.linalg.norm(x))), members)
        if not len(violated):
            break
        members = np.union1d(members, violated[np.argsort(slack[violated], kind="stable")[:_ROWS_ADDED]])
