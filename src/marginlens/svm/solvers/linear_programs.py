r"""Margin problems in ℓ1 and ℓ∞: linear programmes, solved by a simplex method on their duals.

.. math:: \min_x \{\|x\|_1 : A x \ge b\} = \max_{\lambda \ge 0} \{b^\top\lambda : |A^\top\lambda| \le 1\}, \qquad
    1/\min_x \{\|x\|_\infty : A x \ge b\} = \min_{\lambda \ge 0} \{\|A^\top\lambda\|_1 : b^\top\lambda = 1\}

Variables are the multipliers λ and the entries of g = Aᵀλ, for ℓ∞ also h = b·λ, each with a convex piecewise linear cost. Nonbasic ones are
at a breakpoint of their cost: λ at 0, g at ±1 (ℓ1) or 0 (ℓ∞), h at 1. The tableau expresses the others by these. A pivot
enters where the cost falls fastest per unit of length (steepest edge), and goes past breakpoints while the cost still falls. λ stays
feasible, so rows of A may join at any time: of many rows only a working set is in the tableau.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linprog

from marginlens.kernels.linalg import COMPILED, EPS, dot
from marginlens.runtime.compilation import njit
from marginlens.runtime.threads import over_problems
from marginlens.typing import BoolArray, FloatArray, IntArray

MAX_TABLEAU_ROWS = 128  # up to so many rows, all are in the tableau from the start
_MAX_BUILDS = 30  # of a tableau: after each, pivots go on until a new one has nothing left to do
_MAX_PIVOTS = 500  # before a tableau is built anew, since rounding builds up
_SLOPE_RTOL = 1e-13  # of the size of x: slopes above minus this do not count as falling
_BREAKPOINT_ATOL = 1e-12  # breakpoints as close as this count as one, which the largest pivot represents
_MIN_PIVOT = 1e-9
_MIN_STEP = 1e-14  # shorter steps are no progress
_MAX_STALLED = 40  # pivots without progress, after which the entering variable is drawn at random
_FIRST_WORKING_ROWS, _ROWS_ADDED = 300, 100  # of a working set at first, and at most in every round
_MAX_ROUNDS = 100
_COST_PER_ENTRY = 100.0  # operations for each entry of A, about


class Basis(NamedTuple):
    """Which variables are basic, and on which piece of its cost each entry of g is."""

    row: BoolArray  # (n_rows,) whether λ_r is basic
    entry: BoolArray  # (d,) whether g_j is basic; for ℓ∞ (d + 1,) with h, which never is
    sign: FloatArray  # like entry; ℓ1: the bound ±1 of a nonbasic g_j; ℓ∞: the slope ±1 of a basic g_j


class Tableau(NamedTuple):
    """Basic variables as combinations of nonbasic ones; variables are numbered by row of A, and n_rows + entry of g."""

    entries: FloatArray  # (n_basic, n_nonbasic)
    cost: FloatArray  # (n_nonbasic,) derivative of the cost; that of a nonbasic g_j itself is not in it
    edge: FloatArray  # (n_nonbasic,) squared length of each edge
    value: FloatArray  # (n_basic,)
    basic: IntArray  # (n_basic,)
    nonbasic: IntArray  # (n_nonbasic,)


# ---- the tableau


@njit(**COMPILED)
def _build(A: Any, b: Any, members: Any, basis: Basis, is_box: bool, tableau: Tableau) -> None:
    """Write the tableau of a basis over the rows `members` of A; rows that depend on others leave the basis."""
    T, cost, edge, _, basic, nonbasic = tableau
    n, d = A.shape
    for i in range(len(basic)):
        basic[i] = n + i
        for c in range(len(members)):
            T[i, c] = A[members[c], i] if i < d else b[members[c]]
    for c in range(len(members)):
        nonbasic[c], cost[c] = members[c], -b[members[c]] if is_box else 0.0
    for c in range(len(members)):
        r = members[c]
        if not basis.row[r]:
            continue
        leaving, largest = -1, _MIN_PIVOT
        for i in range(len(basic)):
            j = basic[i] - n
            if j >= 0 and not basis.entry[j] and abs(T[i, c]) > largest:
                leaving, largest = i, abs(T[i, c])
        if leaving < 0:
            basis.row[r] = False
            continue
        nonbasic[c], basic[leaving] = basic[leaving], r
        _exchange(T, cost, leaving, c)
    for i in range(len(basic)):
        if basic[i] >= n:
            basis.entry[basic[i] - n] = True
            if not is_box:
                for c in range(len(members)):
                    cost[c] += basis.sign[basic[i] - n] * T[i, c]
    _square_edges(T, edge)
    _evaluate(A, b, basis, is_box, tableau)


@njit(**COMPILED)
def _evaluate(A: Any, b: Any, basis: Basis, is_box: bool, tableau: Tableau) -> None:
    """The values of the basic variables, λ refined once by the rows themselves."""
    T, _, _, value, basic, nonbasic = tableau
    n, d = A.shape
    rest = np.zeros(len(nonbasic))
    for c in range(len(nonbasic)):
        if nonbasic[c] >= n:
            rest[c] = basis.sign[nonbasic[c] - n] if is_box else (1.0 if nonbasic[c] == n + d else 0.0)
    goal = rest.copy()
    for i in range(len(basic)):
        value[i] = 0.0
    for _ in range(2):
        for i in range(len(basic)):
            if basic[i] < n:
                value[i] += dot(T[i], rest)
        for c in range(len(nonbasic)):
            j = nonbasic[c] - n
            if j >= 0:
                total = goal[c]
                for i in range(len(basic)):
                    if basic[i] < n:
                        total -= value[i] * (A[basic[i], j] if j < d else b[basic[i]])
                rest[c] = total
    for i in range(len(basic)):
        j = basic[i] - n
        if j >= 0:
            for p in range(len(basic)):
                if basic[p] < n:
                    value[i] += value[p] * A[basic[p], j]


@njit(**COMPILED)
def _exchange(T: Any, cost: Any, leaving: int, entering: int) -> None:
    """Exchange the basic variable of a row with the nonbasic one of a column."""
    row = T[leaving] / -T[leaving, entering]
    row[entering] = 1.0 / T[leaving, entering]
    for i in range(len(T)):
        factor = T[i, entering]
        T[i, entering] = 0.0
        for c in range(len(row)):
            T[i, c] += factor * row[c]
    factor = cost[entering]
    cost[entering] = 0.0
    for c in range(len(row)):
        cost[c] += factor * row[c]
        T[leaving, c] = row[c]


@njit(**COMPILED)
def _square_edges(T: Any, edge: Any) -> None:
    edge[:] = 1.0
    for i in range(len(T)):
        for c in range(len(edge)):
            edge[c] += T[i, c] * T[i, c]


# ---- pivots


@njit(**COMPILED)
def _entering(n: int, basis: Basis, is_box: bool, tableau: Tableau, seed: int) -> tuple[int, float, float]:
    """The nonbasic variable to move, which way, and the slope of the cost; -1 where no cost falls.

    With a seed above zero it is drawn at random among those that lower the cost, which ends every cycle.
    """
    cost, edge, nonbasic = tableau.cost, tableau.edge, tableau.nonbasic
    fixed = -1 if is_box else n + len(basis.entry) - 1
    size = 1.0
    for c in range(len(cost)):
        if nonbasic[c] >= n:
            size = max(size, abs(cost[c]))
    best, entering, direction, slope = 0.0, -1, 1.0, 0.0
    for c in range(len(cost)):
        v = nonbasic[c]
        way, s = 1.0, cost[c]
        if v == fixed:
            continue
        if v >= n:
            way = -basis.sign[v - n] if is_box else (-1.0 if cost[c] > 0.0 else 1.0)
            s = way * cost[c] if is_box else 1.0 - abs(cost[c])
        if s < -_SLOPE_RTOL * size:
            score = s * s / edge[c]
            if seed > 0:
                seed = (1103515245 * seed + 12345) % 2147483648
                score = 1.0 + seed
            if score > best:
                best, entering, direction, slope = score, c, way, s
    return entering, direction, slope


@njit(**COMPILED)
def _leaving(
    n: int, basis: Basis, is_box: bool, tableau: Tableau, column: Any, slope: float, step: Any
) -> tuple[int, float]:
    """The basic variable whose breakpoint ends the edge along `column`, and the length; -1 where nothing does.

    Entries of g that change their sign before it have their slope, and all costs, changed.
    """
    T, cost, _, value, basic, _ = tableau
    for i in range(len(basic)):
        step[i] = np.inf
        if abs(column[i]) > _MIN_PIVOT:
            if basic[i] < n:
                if column[i] < 0.0:
                    step[i] = max(value[i], 0.0) / -column[i]
            elif is_box:
                bound = 1.0 if column[i] > 0.0 else -1.0
                step[i] = max((bound - value[i]) / column[i], 0.0)
            elif basis.sign[basic[i] - n] * column[i] < 0.0:
                step[i] = max(-value[i] / column[i], 0.0)
    while True:
        reach = np.inf
        for i in range(len(basic)):
            if step[i] < reach:
                reach = min(reach, step[i] + _BREAKPOINT_ATOL / abs(column[i]))
        leaving, largest = -1, 0.0
        for i in range(len(basic)):
            if step[i] <= reach and step[i] < np.inf and abs(column[i]) > largest:
                leaving, largest = i, abs(column[i])
        if leaving < 0:
            return -1, np.inf
        if is_box or basic[leaving] < n or slope + 2.0 * largest >= 0.0:
            return leaving, step[leaving]
        slope += 2.0 * largest
        step[leaving] = np.inf
        j = basic[leaving] - n
        basis.sign[j] *= -1.0
        for c in range(len(cost)):
            cost[c] += 2.0 * basis.sign[j] * T[leaving, c]


@njit(**COMPILED)
def _pivot(n: int, basis: Basis, is_box: bool, tableau: Tableau) -> int:
    """Pivot until no cost falls; returns the number of pivots, -1 where a cost falls for ever."""
    T, cost, edge, value, basic, nonbasic = tableau
    step, column = np.empty(len(basic)), np.empty(len(basic))
    stalled = 0
    for pivots in range(_MAX_PIVOTS):
        entering, direction, slope = _entering(n, basis, is_box, tableau, pivots if stalled > _MAX_STALLED else 0)
        if entering < 0:
            return pivots
        v = nonbasic[entering]
        for i in range(len(basic)):
            column[i] = direction * T[i, entering]
        leaving, length = _leaving(n, basis, is_box, tableau, column, slope, step)
        if is_box and v >= n and length >= 2.0:  # the entering g_j reaches its other bound first
            for i in range(len(basic)):
                value[i] += 2.0 * column[i]
            basis.sign[v - n] *= -1.0
            continue
        if leaving < 0:
            return -1
        stalled = stalled + 1 if length <= _MIN_STEP else 0
        for i in range(len(basic)):
            value[i] += length * column[i]
        u = basic[leaving]
        if u < n:
            basis.row[u] = False
        else:
            basis.entry[u - n] = False
            if is_box:
                basis.sign[u - n] = 1.0 if column[leaving] > 0.0 else -1.0
            else:
                for c in range(len(cost)):  # the cost of a nonbasic g_j is not in it
                    cost[c] -= basis.sign[u - n] * T[leaving, c]
        value[leaving] = direction * length
        if v < n:
            basis.row[v] = True
        else:
            basis.entry[v - n] = True
            if is_box:
                value[leaving] += basis.sign[v - n]
            else:
                basis.sign[v - n] = direction
                cost[entering] += direction
        basic[leaving], nonbasic[entering] = v, u
        _exchange(T, cost, leaving, entering)
        _square_edges(T, edge)
    return _MAX_PIVOTS


@njit(**COMPILED)
def _read_off(A: Any, b: Any, basis: Basis, is_box: bool, tableau: Tableau, x: Any, multipliers: Any) -> None:
    """x, refined once by the basic rows, and λ."""
    T, cost, _, value, basic, nonbasic = tableau
    n, d = A.shape
    points = np.zeros(len(basic))  # x, and for ℓ∞ minus its margin
    multipliers[:] = 0.0
    for i in range(len(basic)):
        if basic[i] < n:
            multipliers[basic[i]] = max(value[i], 0.0)
        elif not is_box:
            points[basic[i] - n] = basis.sign[basic[i] - n]
    for c in range(len(nonbasic)):
        if nonbasic[c] >= n:
            points[nonbasic[c] - n] = -cost[c]
    residual = np.zeros(len(basic))
    for i in range(len(basic)):
        r = basic[i]
        if r < n:
            residual[i] = (b[r] if is_box else -b[r] * points[d]) - dot(A[r], points[:d])
    for i in range(len(basic)):
        if residual[i] != 0.0:
            for c in range(len(nonbasic)):
                if nonbasic[c] >= n:
                    points[nonbasic[c] - n] += residual[i] * T[i, c]
    for j in range(d):
        x[j] = points[j]


@njit(**COMPILED)
def linear_program_slice(
    first: int,
    last: int,
    rows: Any,
    lower: Any,
    members: Any,
    indices: Any,
    is_box: bool,
    basis: Basis,
    x: Any,
    multipliers: Any,
) -> None:
    """Solve the problems `indices[first:last]` of a batch over their rows `members`: in ℓ1 where `is_box`, else in ℓ∞.

    Args:
        rows: (batch, n_rows, d) of Euclidean norm one; lower: (batch, n_rows).
        basis: with a batch axis, where to start; left at the optimal one.
        x: (batch, d) and multipliers: (batch, n_rows), written in free scale.
    """
    n_basic, m = basis.entry.shape[1], len(members)
    tableau = Tableau(
        np.empty((n_basic, m)),
        np.empty(m),
        np.empty(m),
        np.empty(n_basic),
        np.empty(n_basic, dtype=np.int64),
        np.empty(m, dtype=np.int64),
    )
    for place in range(first, last):
        j = indices[place]
        A, b, start = rows[j], lower[j], Basis(basis.row[j], basis.entry[j], basis.sign[j])
        for _ in range(_MAX_BUILDS):
            _build(A, b, members, start, is_box, tableau)
            if _pivot(len(b), start, is_box, tableau) <= 0:
                break
        _read_off(A, b, start, is_box, tableau, x[j], multipliers[j])


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
        fields = (rows, lower, np.arange(n_rows), indices, is_box, basis, x, multipliers)
        over_problems(linear_program_slice, len(indices), *fields, step_cost=_COST_PER_ENTRY * rows[0].size)
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
        linear_program_slice(0, 1, rows, lower, members, only, is_box, basis, x, multipliers)
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
        answer = linprog(np.ones(2 * d), A_ub=np.hstack([-A, A]), b_ub=-b, bounds=(0.0, None), method="highs")
    else:
        ones = np.ones((d, 1))
        sides = np.block([[np.eye(d), -ones], [-np.eye(d), -ones], [-A, np.zeros((n, 1))]])
        goal = np.concatenate([np.zeros(2 * d), -b])
        answer = linprog(np.append(np.zeros(d), 1.0), A_ub=sides, b_ub=goal, bounds=(None, None), method="highs")
    if answer.x is None:
        return None
    x = answer.x[:d] - answer.x[d:] if is_box else answer.x[:d]
    return x, np.maximum(-answer.ineqlin.marginals[-n:], 0.0)
