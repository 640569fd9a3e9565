r"""Margin problems in ℓ1 and ℓ∞: linear programmes, solved by a simplex method on their duals.

.. math:: \min_x \{\|x\|_1 : A x \ge b\} = \max_{\lambda \ge 0} \{b^\top\lambda : |A^\top\lambda| \le 1\}, \qquad
    1/\min_x \{\|x\|_\infty : A x \ge b\} = \min_{\lambda \ge 0} \{\|A^\top\lambda\|_1 : b^\top\lambda = 1\}

Variables are the multipliers λ and the entries of g = Aᵀλ, for ℓ∞ also h = b·λ, each with a convex piecewise linear cost.
Nonbasic variables are at a breakpoint of their cost: λ at 0, g at ±1 (ℓ1) or 0 (ℓ∞), h at 1. The tableau expresses the others
by these. A pivot takes the variable along which the cost falls fastest per unit of length (steepest edge), and goes past
breakpoints while the cost still falls. λ stays feasible, so rows of A may be added at any time: if there are many rows, the
tableau has only a working set.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from marginlens import core
from marginlens.kinds import defining_class
from marginlens.norms import L1, Norm
from marginlens.runtime.threads import parallel_over
from marginlens.svm.solvers.batch import COST_PER_ENTRY, MAX_ROWS_TOGETHER, NormBatch, over_working_rows
from marginlens.typing import BoolArray, FloatArray, IntArray


class Basis(NamedTuple):
    """The basic variables, and the piece of its cost on which each entry of g lies."""

    # (n_rows,) whether λ_r is basic.
    row: BoolArray
    # Whether g_j is basic; for ℓ∞ there are d + 1 entries with that of h, which never is.
    entry: BoolArray
    # Like `entry`. For ℓ1 it is the bound ±1 of a nonbasic g_j, for ℓ∞ the slope ±1 of a basic g_j.
    sign: FloatArray


def first_basis(rows: FloatArray, lower: FloatArray, multipliers: FloatArray, is_box: bool) -> Basis:
    """Return the bases, with a batch axis, of λ = 0 (ℓ1), or of only the row with the largest b_r λ_r (ℓ∞)."""
    n_problems, n, d = rows.shape
    row, entry = (
        np.zeros((n_problems, n), dtype=np.bool_),
        np.ones((n_problems, d if is_box else d + 1), dtype=np.bool_),
    )
    sign = np.ones(entry.shape)
    if not is_box:
        heaviest = np.argmax(np.nan_to_num(lower * multipliers), axis=1)
        every = np.arange(n_problems)
        row[every, heaviest], entry[:, d] = True, False
        sign[:, :d] = np.where(rows[every, heaviest] >= 0.0, 1.0, -1.0)
    return Basis(row, entry, sign)


def solve_linear_programs(batch: NormBatch, norm: Norm) -> None:
    """Solve a batch of problems in ℓ1 or ℓ∞."""
    is_box = defining_class(norm) is L1
    basis = first_basis(batch.rows, batch.lower, batch.multipliers, is_box)
    state = (is_box, *basis, batch.x, batch.multipliers)
    n_rows = batch.lower.shape[1]
    if n_rows <= MAX_ROWS_TOGETHER:
        fields = (batch.rows, batch.lower, np.arange(n_rows), batch.indices, *state)
        cost = COST_PER_ENTRY * batch.rows[0].size
        parallel_over(core.solve_linear_programs, len(batch.indices), *fields, step_cost=cost)
        return
    for j in batch.indices:
        A, place = batch.rows[j], np.array([j])

        def solve(members: IntArray, A: FloatArray = A, place: IntArray = place) -> float:
            core.solve_linear_programs(0, 1, batch.rows, batch.lower, members, place, *state)
            return 1.0 if is_box else float(np.abs(batch.multipliers[place[0]] @ A).sum())

        over_working_rows(A, batch.lower[j], batch.x[j], np.flatnonzero(basis.row[j]), solve)


# ---- an independent way


def solve_by_highs(A: FloatArray, b: FloatArray, is_box: bool) -> tuple[FloatArray, FloatArray] | None:
    """Find x and the multipliers by HiGHS, for problems that the pivots leave open; None if it finds none."""
    n, d = A.shape
    if is_box:
        answer = scipy.optimize.linprog(
            np.ones(2 * d), A_ub=np.hstack([-A, A]), b_ub=-b, bounds=(0.0, None), method="highs"
        )
    else:
        ones = np.ones((d, 1))
        sides = np.block([[np.eye(d), -ones], [-np.eye(d), -ones], [-A, np.zeros((n, 1))]])
        goal = np.concatenate([np.zeros(2 * d), -b])
        answer = scipy.optimize.linprog(
            np.append(np.zeros(d), 1.0), A_ub=sides, b_ub=goal, bounds=(None, None), method="highs"
        )
    if answer.x is None:
        return None
    x = answer.x[:d] - answer.x[d:] if is_box else answer.x[:d]
    return x, np.maximum(-answer.ineqlin.marginals[-n:], 0.0)
