"""Few tight rows among many: solve for a working set by one Cholesky factor, let go what pulls, take in what is missed.

The Gram matrix of rows (x_i - x_j) q_kᵀ is the elementwise product of two small Gram matrices, so a set of m rows costs m² d operations to
set up whatever the number of unknowns is, and m³/3 to solve. A round counts only when the dual value does not fall.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_solve
from scipy.linalg.lapack import dpstrf

from marginlens.data.tokens import BoolArray, FloatArray, IntArray
from marginlens.kernels.linalg import EPS
from marginlens.svm.solvers.rows import GraphProducts

_ENOUGH = 1e-13  # distance to a halfspace, relative to ‖W‖, that counts as none
_PER_QUERY = 3  # rows of one query that enter at a time
_WORTHWHILE = 0.1  # of the largest violation, what a row must be missed by to enter
_DEPENDENT = 1e-11  # a squared pivot of unit rows below this says that a row depends on others
_FEW = 0.1  # of the members, as many as are let go without a new factor
_ROUNDING = 64 * EPS
_FACTORS = 1000  # how often a set is factored before giving up


class Guess(NamedTuple):
    """Multipliers of rows of norm one, and what was left to do: nothing, where every row was satisfied at the end."""

    weights: FloatArray  # (n_rows,)
    open: IntArray  # the tight rows and the row that could not be made tight beside them; such rows may contradict each other

    @property
    def finished(self) -> bool:
        """Whether no row is missed."""
        return len(self.open) == 0


class _Set(NamedTuple):
    """Rows that are made tight: which, their differences of norm one, their Gram matrix and their multipliers."""

    rows: IntArray  # (m,)
    differences: FloatArray  # (m, d_tokens)
    gram: FloatArray  # (m, m)
    held: FloatArray  # (m,)
    factor: FloatArray | None

    def some(self, kept: IntArray) -> _Set:
        """The members `kept`, whose multipliers are still to be found."""
        return _Set(self.rows[kept], self.differences[kept], self.gram[np.ix_(kept, kept)], self.held[kept], None)


def solve_pivot(products: GraphProducts, floor: FloatArray) -> Guess:
    """Multipliers of the shortest W with A W >= floor for rows A of norm one.

    Args:
        floor: (n_rows,) positive.
    """
    return _Pivots(products, floor / float(floor.max())).run(float(floor.max()))


class _Pivots:
    """The rows, and how sets of them are extended and solved."""

    def __init__(self, products: GraphProducts, floor: FloatArray) -> None:
        self._products, self._floor = products, floor
        norms = np.linalg.norm(products.Q, axis=1)
        units = products.Q / np.where(norms == 0.0, 1.0, norms)[:, None]
        self._norms, self._cosines = norms, units @ units.T  # of the queries
        self._n_unknowns = products.terms.E.shape[1] * products.Q.shape[1]  # more rows than that depend on each other
        self._n_factors = 0

    def run(self, scale: float) -> Guess:
        """Rounds until no row is missed, or until nothing is gained any more."""
        d, nothing = self._products.terms.E.shape[1], np.empty(0)
        now = _Set(np.empty(0, dtype=np.int64), np.empty((0, d)), np.empty((0, 0)), nothing, None)
        slack, value, many = -self._floor, 0.0, max(2, len(self._norms))
        left = np.arange(len(self._floor))
        while self._n_factors <= _FACTORS:
            missed = self._missed(slack, now)
            if self._satisfied(slack, now) or not len(missed):
                left = left[:0]
                break
            new = missed[: min(many, max(1, self._n_unknowns - len(now.rows)))]
            then: _Set | None = self._settled(self._extended(now, new)) if many > 1 else None
            if then is not None and self._value(then) > value * (1.0 + _ROUNDING):
                many *= 2
            elif many > 1:
                many = max(1, len(new) // 4)
                continue
            else:
                then = self._careful(now, new[:1], float(slack[new[0]]))
                many = 2
            if then is None or not self._value(then) > value * (1.0 - _ROUNDING):  # a last row may gain less than shows
                left = np.sort(np.append(now.rows, new[0]))
                break
            now, slack = self._refined(then)
            value = self._value(now)
        weights = np.zeros(len(self._floor))
        weights[now.rows] = scale * now.held
        return Guess(weights, left)

    def _satisfied(self, slack: FloatArray, now: _Set) -> bool:
        return len(now.rows) > 0 and float(slack.min()) >= -self._nothing(now)

    def _nothing(self, now: _Set) -> float:
        """The slack that counts as none."""
        return max(_ENOUGH * (2.0 * max(self._value(now), 0.0)) ** 0.5, 16 * EPS * float(now.held.sum()))

    def _value(self, now: _Set) -> float:
        """The dual value of a set whose rows are tight, ‖W‖²/2."""
        return 0.5 * float(self._floor[now.rows] @ now.held)

    def _missed(self, slack: FloatArray, now: _Set) -> IntArray:
        """The rows missed by most, a few of each query, worst first."""
        outside = np.ones(len(slack), dtype=bool)
        outside[now.rows] = False
        worst = -float(slack[outside].min(initial=0.0))
        some = np.flatnonzero(outside & (slack < -_WORTHWHILE * worst))
        k = self._products.terms.k[some]
        order = np.lexsort((slack[some], k))
        place = np.arange(len(some)) - np.searchsorted(k[order], k[order])
        new = some[order[place < _PER_QUERY]]
        return new[np.argsort(slack[new], kind="stable")]

    def _extended(self, now: _Set, new: IntArray) -> _Set:
        E, k, i, j, scale = self._products.terms
        m, n = len(now.rows), len(now.rows) + len(new)
        rows = np.concatenate([now.rows, new])
        added = (E[i[new]] - E[j[new]]) * (scale[new] * self._norms[k[new]])[:, None]
        differences = np.concatenate([now.differences, added])
        gram = np.empty((n, n))
        gram[:m, :m] = now.gram
        gram[m:] = (added @ differences.T) * self._cosines[np.ix_(k[new], k[rows])]
        gram[:m, m:] = gram[m:, :m].T
        return _Set(rows, differences, gram, np.concatenate([now.held, np.zeros(len(new))]), None)

    def _settled(self, now: _Set) -> _Set:
        """Without what pulls, all at once, again and again until nothing does."""
        while True:
            now = self._tight(now)
            held, gone = _few_let_go(now)
            pulling = ~gone & (held <= 0.0)
            now = now._replace(held=held)
            if gone.any() or pulling.any():
                now = now.some(np.flatnonzero(~gone & ~pulling))
            if not pulling.any():
                return now

    def _careful(self, now: _Set, new: IntArray, slack: float) -> _Set | None:
        """One row of this slack enters and others leave one by one when their multiplier meets zero, so the value only grows.

        None where nothing meets zero though the row depends on the members: these rows contradict each other.
        """
        entering = 0.0
        while True:
            whole = self._extended(now, new)
            factor = self._factor(now.gram)
            if factor is None:
                return None
            beside = whole.gram[-1, :-1]  # the new row with the members
            turn = cho_solve((factor.T, False), beside, check_finite=False) if len(beside) else beside
            square = 1.0 - float(beside @ turn)
            step = -slack / square if square > _DEPENDENT else np.inf
            with np.errstate(divide="ignore"):
                limits = np.where(turn > 0.0, now.held / np.abs(turn), np.inf)
            leaving = int(np.argmin(limits)) if len(limits) else -1
            if leaving < 0 or limits[leaving] >= step:
                if step == np.inf:
                    return None
                return whole._replace(held=np.append(now.held - step * turn, entering + step))
            step = float(limits[leaving])
            slack += step * max(square, 0.0)
            entering += step
            moved = np.maximum(now.held - step * turn, 0.0)
            now = now._replace(held=moved).some(np.delete(np.arange(len(moved)), leaving))

    def _tight(self, now: _Set) -> _Set:
        """The multipliers that make all members tight; members that depend on others are left out."""
        while True:
            factor = self._factor(now.gram)
            if factor is None:
                now = now.some(_independent(now.gram))
                continue
            held = cho_solve((factor.T, False), self._floor[now.rows], check_finite=False)
            return now._replace(held=held, factor=factor)

    def _refined(self, now: _Set) -> tuple[_Set, FloatArray]:
        """The multipliers corrected on the rows themselves where these are not tight, and the slack of all rows."""
        slack = self._slack(now)
        missed = float(np.abs(slack[now.rows]).max(initial=0.0))
        if missed > 0.1 * self._nothing(now):
            factor = self._factor(now.gram) if now.factor is None else now.factor
            if factor is not None:
                held = now.held - cho_solve((factor.T, False), slack[now.rows], check_finite=False)
                corrected = now._replace(held=held, factor=factor)
                after = self._slack(corrected)
                if (held > 0.0).all() and float(np.abs(after[now.rows]).max()) < missed:
                    return corrected, after
        return now, slack

    def _slack(self, now: _Set) -> FloatArray:
        return self._products.apply(self._products.combine(now.held, now.rows)) - self._floor

    def _factor(self, gram: FloatArray) -> FloatArray | None:
        """The lower Cholesky factor, or None where a row depends on others."""
        self._n_factors += 1
        try:
            factor = np.asarray(np.linalg.cholesky(gram), dtype=np.float64)  # releases the interpreter lock
        except np.linalg.LinAlgError:
            return None
        return factor if float(np.diagonal(factor).min(initial=1.0)) ** 2 > _DEPENDENT else None


def _few_let_go(now: _Set) -> tuple[FloatArray, BoolArray]:
    """The multipliers after members that pull were let go, as long as they are few, and which ones were.

    A few columns of the inverse of the Gram matrix say what becomes of the others, for less than a new factor costs.
    """
    m, held, gone = len(now.rows), now.held, np.zeros(len(now.rows), dtype=bool)
    columns, places = np.empty((m, 0)), np.empty(0, dtype=np.int64)
    while now.factor is not None:
        pulling = np.flatnonzero(~gone & (held <= 0.0))
        if not 0 < len(pulling) <= _FEW * m - len(places):
            break
        places = np.concatenate([places, pulling])
        units = np.zeros((m, len(pulling)))
        units[pulling, np.arange(len(pulling))] = 1.0
        columns = np.hstack([columns, cho_solve((now.factor.T, False), units, check_finite=False)])
        held = now.held - columns @ np.linalg.solve(columns[places], now.held[places])
        gone[places] = True
    return held, gone


def _independent(gram: FloatArray) -> IntArray:
    """Places of rows that do not depend on each other, increasing: those of the largest pivots, and at least one less than all."""
    _, order, rank, _ = dpstrf(gram, tol=_DEPENDENT, lower=1)
    return np.sort(order[: min(int(rank), len(gram) - 1)].astype(np.int64) - 1)
