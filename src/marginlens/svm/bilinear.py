"""The W-form of ATT-SVM: the shortest matrix W whose logits rank one token above others, query by query."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from marginlens.data.tokens import FloatArray, IntArray
from marginlens.directions import length
from marginlens.errors import array_of_any, real_array, reject, whole_number
from marginlens.graphs.subspace import near_one
from marginlens.svm.graph import FAR
from marginlens.svm.solution import CONTRADICTION, MarginSolution, Status, refined
from marginlens.svm.solvers.batch import NOTHING, TIGHT
from marginlens.svm.solvers.independent_parts import FORMED
from marginlens.svm.solvers.least_distance import held_to_proof, least_distance
from marginlens.svm.solvers.rows import BilinearRows
from marginlens.svm.solvers.working_set import solve_pivot

FORMED_IN_DOUBT = (
    4_000_000  # up to so many entries, rows that could not be made tight together are formed for the exact solver
)


@dataclass(frozen=True, repr=False, eq=False)
class BilinearSolution(MarginSolution):
    """A `MarginSolution` whose `x` is a matrix W (d_tokens, d_queries); `pairs` (n_rows, 3) holds (k, i, j) of every row."""

    rows: BilinearRows  # type: ignore[assignment]

    def __repr__(self) -> str:
        shape = f"{len(self.floor)} rows, {self.x.shape[0]} by {self.x.shape[1]}"
        return f"BilinearSolution({self.status.name}, margin={self.margin:.6g}, {shape})"

    def margin_bounds(self) -> tuple[float, float]:
        """What the stored W and multipliers prove of the best margin, whatever the status: it lies between these two.

        The lower one is W's own margin, zero where W misses a row; the upper one comes from the multipliers, by weak duality.
        """
        if not np.isfinite(self.x).all():
            return 0.0, 0.0 if self.status is Status.INFEASIBLE else np.inf
        W, size = self.x.reshape(-1), float(length(self.x.reshape(-1)))
        lower = max(0.0, float(self.rows.apply(W).min(initial=np.inf))) / size if size > 0.0 else 0.0
        pushes = np.maximum(self.multipliers, 0.0)
        total = float(pushes @ self.floor)
        return lower, float(length(self.rows.combine(pushes))) / total if total > 0.0 else np.inf


@np.errstate(over="ignore", invalid="ignore")  # multipliers that leave double precision end as INACCURATE
def bilinear_svm(X: Any, Q: Any, triples: Any, *, formed: int = FORMED) -> BilinearSolution:
    r"""Shortest W that ranks token i above token j by at least one for query k, for all triples (k, i, j).

    .. math:: \min_W \|W\|_F \ \text{s.t.}\ (x_i - x_j)^\top W q_k \ge 1

    Args:
        X: tokens (n_tokens, d_tokens).
        Q: queries (n_queries, d_queries).
        triples: (n_rows, 3) whole numbers: query k, token i, token j.
        formed: the most entries that all rows may have together to be formed for the exact solver; with 0 they never are.
    Returns:
        A `BilinearSolution` with W = sum_r multipliers[r] (x_i - x_j) q_kᵀ and multipliers >= 0, rows ordered by k as in `pairs`;
        `kkt_residual()`, `certificate_residual()` and `margin_bounds()` check it. Impossible problems with many unknowns end
        as INACCURATE, and `margin_bounds()` says how small any margin must be.
    """
    tokens, queries = real_array(X, "X", ("n_tokens", "d_tokens")), real_array(Q, "Q", ("n_queries", "d_queries"))
    named = _triples(triples, len(queries), len(tokens))
    whole_number(formed, "formed", at_least=0)
    blank = _blank(BilinearRows(tokens, queries, named))
    if not len(named):
        return blank
    (near_tokens, of_tokens), (near_queries, of_queries) = near_one(tokens), near_one(queries)
    if max(abs(of_tokens), abs(of_queries)) > FAR:
        return _rescaled(blank, bilinear_svm(near_tokens, near_queries, named, formed=formed), of_tokens + of_queries)
    sizes = blank.rows.sizes
    if not sizes.all():
        alike = np.flatnonzero(blank.rows.vanish)
        if len(alike):  # no W tells tokens apart that look the same
            return _infeasible(blank, (np.arange(len(named)) == alike[0]).astype(np.float64))
        return replace(blank, status=Status.INACCURATE)  # by underflow
    if blank.rows.shape[0] * blank.rows.shape[1] <= formed:
        found = least_distance(np.asarray(blank.rows), blank.floor)
        if found.status is Status.INFEASIBLE:
            return _infeasible(blank, found.certificate)
        if found.status is Status.OPTIMAL:
            return _judged(blank, found.multipliers, found.x)
    guess = solve_pivot(blank.rows.scaled(), 1.0 / sizes)
    solved = _judged(blank, guess.weights / sizes)
    if solved.status is Status.OPTIMAL:
        return solved
    return _exactly(blank, guess.open if len(guess.open) else np.flatnonzero(guess.weights)) or solved


def _exactly(blank: BilinearSolution, some: IntArray) -> BilinearSolution | None:
    """What the exact solver says of the rows `some` where that settles all: they contradict each other, or their W satisfies the others."""
    if not 0 < len(some) * blank.rows.shape[1] <= FORMED_IN_DOUBT:
        return None
    part = BilinearRows(blank.rows.X, blank.rows.Q, blank.rows.triples[some])
    found = least_distance(np.asarray(part), blank.floor[some])
    weights = np.zeros(len(blank.floor))
    if found.status is Status.INFEASIBLE:
        weights[some] = found.certificate
        claimed = _infeasible(blank, weights)
        return claimed if claimed.status is Status.INFEASIBLE else None
    weights[some] = found.multipliers
    solved = _judged(blank, weights, found.x)
    return solved if solved.status is Status.OPTIMAL else None


def _blank(rows: BilinearRows) -> BilinearSolution:
    """W = 0, which is the solution where there is no row."""
    n, W = len(rows), np.zeros((rows.X.shape[1], rows.Q.shape[1]))
    idle = np.zeros(n, dtype=bool)
    return BilinearSolution(rows, np.ones(n), None, W, Status.TRIVIAL, np.zeros(n), None, idle, None, rows.triples)


def _infeasible(blank: BilinearSolution, y: FloatArray | None) -> BilinearSolution:
    nothing = np.full_like(blank.x, np.nan), np.full_like(blank.floor, np.nan)
    claimed = replace(blank, x=nothing[0], status=Status.INFEASIBLE, multipliers=nothing[1], certificate=y)
    proved = claimed.certificate_residual() <= CONTRADICTION
    return claimed if proved else replace(claimed, status=Status.INACCURATE)


def _judged(blank: BilinearSolution, weights: FloatArray, W: FloatArray | None = None) -> BilinearSolution:
    """W, or that of these multipliers, refined, with its tight rows; optimal when its own residual says so."""
    W = blank.rows.combine(weights) if W is None else W
    found = refined(replace(blank, x=W.reshape(blank.x.shape), multipliers=weights, status=Status.INACCURATE))
    slack = found.rows.apply(found.x) - 1.0
    norm = float(length(found.x.reshape(-1)))
    tight = (slack <= TIGHT + NOTHING * norm * found.rows.sizes) | (weights > 0.0)
    solved = replace(found, active=tight)
    return replace(solved, status=Status.OPTIMAL) if solved.keeps_promise() else solved


def _rescaled(blank: BilinearSolution, found: BilinearSolution, power: int) -> BilinearSolution:
    """What was found for the rows of `blank` divided by two to a power, for these rows themselves."""
    W, weights = np.ldexp(found.x, -power), np.ldexp(found.multipliers, -2 * power)
    return held_to_proof(replace(found, rows=blank.rows, x=W, multipliers=weights))


def _triples(triples: Any, n_queries: int, n_tokens: int) -> IntArray:
    """Checked, and ordered by query."""
    expected = "whole numbers of shape (n_rows, 3): query, higher token, lower token"
    array = array_of_any(triples, "triples", expected)
    if array.size == 0:
        return np.empty((0, 3), dtype=np.int64)
    if array.ndim != 2 or array.shape[1] != 3 or array.dtype.kind not in "iu":
        raise reject("triples", expected, f"shape {array.shape} with dtype {array.dtype}")
    limits = np.array([n_queries, n_tokens, n_tokens])
    outside = (array < 0) | (array >= limits)
    if outside.any():
        row = int(np.argmax(outside.any(axis=1)))
        expected = f"not negative and below {n_queries}, {n_tokens} and {n_tokens}"
        raise reject("triples", expected, f"{array[row]} in row {row}")
    return array[np.argsort(array[:, 0], kind="stable")].astype(np.int64)
