"""A working-set method for many structured rows, few of which are active.

The Gram matrix of rows (x_i - x_j) q_kᵀ is the elementwise product of two small Gram matrices, so a set of m rows costs m² d
operations to set up, whatever the number of unknowns, and m³/3 to solve by one Cholesky factor. A round drops rows with
negative multipliers and adds violated ones; it counts only if the dual value does not fall.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from marginlens.arithmetic.rounding import EPS
from marginlens.svm.solvers.augmented_lagrangian import RESIDUAL_GOAL
from marginlens.svm.solvers.rows import BilinearRows
from marginlens.typing import BoolArray, FloatArray, IntArray

# How often a set is factored before the method gives up.
MAX_FACTORS = 1000
# Rows of one query that enter at a time.
_ROWS_PER_QUERY = 3
# A row enters if it is violated by at least this share of the largest violation.
_MIN_VIOLATION_SHARE = 0.1
# A squared pivot of unit rows below this says that a row depends on others.
_PIVOT_RTOL = 1e-11
# The share of the members that may be dropped without a new factor.
_MAX_DROPPED_SHARE = 0.1
# Differences of dual values that are rounding.
_VALUE_RTOL = 64 * EPS


class Guess(NamedTuple):
    """Multipliers of rows of norm one, and the rows left open: none if every row was satisfied at the end."""

    multipliers: FloatArray  # (n_rows,)
    # The members and the row that could not be satisfied together with them; such rows may contradict each other.
    unsatisfied: IntArray


class _Set(NamedTuple):
    """The working set: its rows, their differences of norm one, their Gram matrix, multipliers and Cholesky factor."""

    rows: IntArray  # (m,)
    differences: FloatArray  # (m, d_tokens)
    gram: FloatArray  # (m, m)
    multipliers: FloatArray  # (m,)
    factor: FloatArray | None

    def take(self, members: IntArray) -> _Set:
        """Take some members, whose factor is still to be computed."""
        gram = self.gram[np.ix_(members, members)]
        return _Set(self.rows[members], self.differences[members], gram, self.multipliers[members], None)


def working_set(rows: BilinearRows, lower: FloatArray) -> Guess:
    """Find the multipliers of the shortest W with A W >= lower for rows A of norm one.

    Args:
        lower: (n_rows,) positive.
    """
    scale = float(lower.max())
    return _WorkingSets(rows, lower / scale).solve(scale)


class _WorkingSets:
    """The rows, with methods that extend and solve sets of them."""

    def __init__(self, rows: BilinearRows, lower: FloatArray) -> None:
        self._rows, self._lower = rows, lower
        norms = np.linalg.norm(rows.Q, axis=1)
        units = rows.Q / np.where(norms == 0.0, 1.0, norms)[:, None]
        # Norms of the queries and the cosines between them.
        self._norms, self._cosines = norms, units @ units.T
        # More rows than unknowns depend on each other.
        self._n_unknowns = rows.shape[1]
        self._n_factors = 0

    def solve(self, scale: float) -> Guess:
        """Repeat rounds until no row is violated, or until nothing more is gained."""
        d = self._rows.X.shape[1]
        current = _Set(np.empty(0, dtype=np.int64), np.empty((0, d)), np.empty((0, 0)), np.empty(0), None)
        slack, value, n_entering = -self._lower, 0.0, max(2, len(self._norms))
        unsolved = np.arange(len(self._lower))
        while self._n_factors <= MAX_FACTORS:
            violated = self._violated(slack, current)
            if not len(violated) or (len(current.rows) and float(slack.min()) >= -self._slack_atol(current)):
                unsolved = unsolved[:0]
                break
            new = violated[: min(n_entering, max(1, self._n_unknowns - len(current.rows)))]
            following: _Set | None = self._drop_negative(self._extended(current, new)) if n_entering > 1 else None
            if following is not None and self._value(following) > value * (1.0 + _VALUE_RTOL):
                n_entering *= 2
            elif n_entering > 1:
                n_entering = max(1, len(new) // 4)
                continue
            else:
                following = self._add_row(current, new[:1], float(slack[new[0]]))
                n_entering = 2
            if following is None or not self._value(following) > value * (1.0 - _VALUE_RTOL):
                # A last row may gain less than shows.
                unsolved = np.sort(np.append(current.rows, new[0]))
                break
            current, slack = self._refined(following)
            value = self._value(current)
        multipliers = np.zeros(len(self._lower))
        multipliers[current.rows] = scale * current.multipliers
        return Guess(multipliers, unsolved)

    def _slack_atol(self, current: _Set) -> float:
        """Return the largest violation that counts as none."""
        norm = (2.0 * max(self._value(current), 0.0)) ** 0.5
        return max(RESIDUAL_GOAL * norm, 16 * EPS * float(current.multipliers.sum()))

    def _value(self, current: _Set) -> float:
        """Compute the dual value of a set whose rows hold with equality, ‖W‖²/2."""
        return 0.5 * float(self._lower[current.rows] @ current.multipliers)

    def _violated(self, slack: FloatArray, current: _Set) -> IntArray:
        """Find the most violated rows, a few of each query, worst first."""
        outside = np.ones(len(slack), dtype=bool)
        outside[current.rows] = False
        worst = -float(slack[outside].min(initial=0.0))
        candidates = np.flatnonzero(outside & (slack < -_MIN_VIOLATION_SHARE * worst))
        k = self._rows.terms.k[candidates]
        order = np.lexsort((slack[candidates], k))
        place = np.arange(len(candidates)) - np.searchsorted(k[order], k[order])
        new = candidates[order[place < _ROWS_PER_QUERY]]
        return new[np.argsort(slack[new], kind="stable")]

    def _extended(self, current: _Set, new: IntArray) -> _Set:
        k, m, n = self._rows.terms.k, len(current.rows), len(current.rows) + len(new)
        rows = np.concatenate([current.rows, new])
        added = self._rows.differences(new) * self._norms[k[new]][:, None]
        differences = np.concatenate([current.differences, added])
        gram = np.empty((n, n))
        gram[:m, :m] = current.gram
        gram[m:] = (added @ differences.T) * self._cosines[np.ix_(k[new], k[rows])]
        gram[:m, m:] = gram[m:, :m].T
        return _Set(rows, differences, gram, np.concatenate([current.multipliers, np.zeros(len(new))]), None)

    def _drop_negative(self, current: _Set) -> _Set:
        """Solve the set without its members of negative multipliers, dropped all at once, again and again until there are none."""
        while True:
            current = self._solve_equalities(current)
            multipliers, dropped = _drop_few(current)
            negative = ~dropped & (multipliers <= 0.0)
            current = current._replace(multipliers=multipliers)
            if dropped.any() or negative.any():
                current = current.take(np.flatnonzero(~dropped & ~negative))
            if not negative.any():
                return current

    def _add_row(self, current: _Set, new: IntArray, slack: float) -> _Set | None:
        """Add one row of this slack, and remove others one by one when their multiplier reaches zero, so that the value only grows.

        None if no multiplier reaches zero although the row depends on the members: these rows contradict each other.
        """
        entering = 0.0
        while True:
            extended = self._extended(current, new)
            factor = self._factor(current.gram)
            if factor is None:
                return None
            # Products of the new row with the members.
            products = extended.gram[-1, :-1]
            change = (
                scipy.linalg.cho_solve((factor.T, False), products, check_finite=False) if len(products) else products
            )
            square = 1.0 - float(products @ change)
            step = -slack / square if square > _PIVOT_RTOL else np.inf
            with np.errstate(divide="ignore"):
                limits = np.where(change > 0.0, current.multipliers / np.abs(change), np.inf)
            leaving = int(np.argmin(limits)) if len(limits) else -1
            if leaving < 0 or limits[leaving] >= step:
                if step == np.inf:
                    return None
                return extended._replace(multipliers=np.append(current.multipliers - step * change, entering + step))
            step = float(limits[leaving])
            slack += step * max(square, 0.0)
            entering += step
            moved = np.maximum(current.multipliers - step * change, 0.0)
            current = current._replace(multipliers=moved).take(np.delete(np.arange(len(moved)), leaving))

    def _solve_equalities(self, current: _Set) -> _Set:
        """Find the multipliers with which all members hold with equality; members that depend on others are left out."""
        while True:
            factor = self._factor(current.gram)
            if factor is None:
                current = current.take(_independent(current.gram))
                continue
            multipliers = scipy.linalg.cho_solve((factor.T, False), self._lower[current.rows], check_finite=False)
            return current._replace(multipliers=multipliers, factor=factor)

    def _refined(self, current: _Set) -> tuple[_Set, FloatArray]:
        """Correct the multipliers by the members' slack on the rows themselves, if that helps; also return the slack of all rows."""
        slack = self._slack(current)
        largest = float(np.abs(slack[current.rows]).max(initial=0.0))
        if largest > 0.1 * self._slack_atol(current):
            factor = self._factor(current.gram) if current.factor is None else current.factor
            if factor is not None:
                change = scipy.linalg.cho_solve((factor.T, False), slack[current.rows], check_finite=False)
                corrected = current._replace(multipliers=current.multipliers - change, factor=factor)
                after = self._slack(corrected)
                if (corrected.multipliers > 0.0).all() and float(np.abs(after[current.rows]).max()) < largest:
                    return corrected, after
        return current, slack

    def _slack(self, current: _Set) -> FloatArray:
        return self._rows.apply(self._rows.combine(current.multipliers, current.rows)) - self._lower

    def _factor(self, gram: FloatArray) -> FloatArray | None:
        """Compute the lower Cholesky factor; None if a row depends on others."""
        self._n_factors += 1
        try:
            # Releases the interpreter lock.
            factor = np.asarray(np.linalg.cholesky(gram), dtype=np.float64)
        except np.linalg.LinAlgError:
            return None
        return factor if float(np.diagonal(factor).min(initial=1.0)) ** 2 > _PIVOT_RTOL else None


def _drop_few(current: _Set) -> tuple[FloatArray, BoolArray]:
    """Drop members with negative multipliers as long as they are few; return the new multipliers and the dropped members.

    A few columns of the inverse of the Gram matrix give the change of the others, for less than the cost of a new factor.
    """
    m, multipliers, dropped = len(current.rows), current.multipliers, np.zeros(len(current.rows), dtype=bool)
    columns, members = np.empty((m, 0)), np.empty(0, dtype=np.int64)
    while current.factor is not None:
        negative = np.flatnonzero(~dropped & (multipliers <= 0.0))
        if not 0 < len(negative) <= _MAX_DROPPED_SHARE * m - len(members):
            break
        members = np.concatenate([members, negative])
        units = np.zeros((m, len(negative)))
        units[negative, np.arange(len(negative))] = 1.0
        columns = np.hstack([columns, scipy.linalg.cho_solve((current.factor.T, False), units, check_finite=False)])
        multipliers = current.multipliers - columns @ np.linalg.solve(columns[members], current.multipliers[members])
        dropped[members] = True
    return multipliers, dropped


def _independent(gram: FloatArray) -> IntArray:
    """Find independent rows, in increasing order: those with the largest pivots, at least one fewer than all."""
    _, order, rank, _ = scipy.linalg.lapack.dpstrf(gram, tol=_PIVOT_RTOL, lower=1)
    return np.sort(order[: min(int(rank), len(gram) - 1)].astype(np.int64) - 1)
