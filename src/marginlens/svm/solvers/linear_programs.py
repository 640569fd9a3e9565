r"""Margin problems in ℓ1 and ℓ∞: linear programmes, solved by a simplex method on their duals.

.. math:: \min_x \{\|x\|_1 : A x \ge b\} = \max_{\lambda \ge 0} \{b^\top\lambda : |A^\top\lambda| \le 1\}, \qquad
    1/\min_x \{\|x\|_\infty : A x \ge b\} = \min_{\lambda \ge 0} \{\|A^\top\lambda\|_1 : b^\top\lambda = 1\}

Variables are the multipliers λ and the entries of g = Aᵀλ, for ℓ∞ also h = b·λ, each with a convex piecewise linear cost. Nonbasic ones are
at a breakpoint of their cost: λ at 0, g at ±1 (ℓ1) or 0 (ℓ∞), h at 1. The tableau expresses the others by these. A pivot
enters where the cost falls fastest per unit of length (steepest edge), and goes past breakpoints while the cost still falls. λ stays
feasible, so rows of A may join at any time: of many rows only a working set is in the tableau.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from marginlens import core
from marginlens.rounding import EPS
from marginlens.runtime.threads import over_problems
from marginlens.typing import BoolArray, FloatArray, IntArray

MAX_TABLEAU_ROWS = 128  # up to so many rows, all are in the tableau from the start
_FIRST_WORKING_ROWS, _ROWS_ADDED = 300, 100  # of a working set at first, and at most in every round
_MAX_ROUNDS = 100
_COST_PER_ENTRY = 100.0  # operations for each entry of A, about


class Basis(NamedTuple):
    """Which variables are basic, and on which piece of its cost each entry of g is."""

    row: BoolArray  # (n_rows,) whether λ_r is basic
    entry: BoolArray  # (d,) whether g_j is basic; for ℓ∞ (d + 1,) with h, which never is
    sign: FloatArray  # like entry; ℓ1: the bound ±1 of a nonbasic g_j; ℓ∞: the slope ±1 of a basic g_j


def first_basis(rows: FloatArray, lower: FloatArray, multipliers: FloatArray, is_box: bool) -> Basis:
    """The bases, with a batch axis, of λ = 0 (ℓ1), or of the row of the largest b_r λ_r as the only one that counts (ℓ∞)."""
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


def solve_batch(
    rows: FloatArray, lower: FloatArray, indices: IntArray, is_box: bool, x: FloatArray, multipliers: FloatArray
) -> None:
    """Solve the problems `indices` of a batch, from x (batch, d) and multipliers (batch, n_rows), which are overwritten."""
    basis, n_rows = first_basis(rows, lower, multipliers, is_box), lower.shape[1]
    if n_rows <= MAX_TABLEAU_ROWS:
        fields = (rows, lower, np.arange(n_rows), indices, is_box, *basis, x, multipliers)
        over_problems(core.solve_linear_programs, len(indices), *fields, step_cost=_COST_PER_ENTRY * rows[0].size)
        return
    for j in indices:
        part = slice(j, j + 1)
        single = Basis(basis.row[part], basis.entry[part], basis.sign[part])
        _solve_with_working_set(rows[part], lower[part], is_box, single, x[part], multipliers[part])


# ---- many rows


def _solve_with_working_set(
    rows: FloatArray, lower: FloatArray, is_box: bool, basis: Basis, x: FloatArray, multipliers: FloatArray
) -> None:
    """Solve a batch of one problem of many rows: rows that the solution of a working set violates join it until there are none."""
    A, b, only = rows[0], lower[0], np.zeros(1, dtype=np.int64)
    slack = A @ x[0] - b
    members = np.union1d(np.argsort(slack, kind="stable")[:_FIRST_WORKING_ROWS], np.flatnonzero(basis.row[0]))
    for _ in range(_MAX_ROUNDS):
        core.solve_linear_programs(0, 1, rows, lower, members, only, is_box, *basis, x, multipliers)
        margin = 1.0 if is_box else float(np.abs(multipliers[0] @ A).sum())
        slack = A @ x[0] - margin * b
        slack_atol = 16.0 * EPS * float(np.linalg.norm(x))
        violated = np.setdiff1d(np.flatnonzero(slack < -slack_atol), members)
        if not len(violated):
            break
        worst = violated[np.argsort(slack[violated], kind="stable")[:_ROWS_ADDED]]
        members = np.union1d(members, worst)


# ---- an independent way


def solve_by_highs(A: FloatArray, b: FloatArray, is_box: bool) -> tuple[FloatArray, FloatArray] | None:
    """x and the multipliers by HiGHS, for problems that the pivots leave open; None where it finds none."""
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
