"""The W-form of ATT-SVM: the shortest matrix W whose logits rank one token above others, query by query."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marginlens.errors import index_array, real_array
from marginlens.kinds import defining_class
from marginlens.norms import L2, Frobenius, Norm
from marginlens.norms.choice import as_norm
from marginlens.svm.solution import MarginSolution, Status
from marginlens.svm.solvers import independent_parts
from marginlens.svm.solvers.least_distance import least_distance
from marginlens.svm.solvers.norms import solve_in_norm
from marginlens.svm.solvers.rows import BilinearRows
from marginlens.svm.solvers.working_set import working_set
from marginlens.typing import ArrayLike, IntArray

# Rows that could not be satisfied together are formed for the exact solver if they have no more entries than
# this.
MAX_OPEN_ENTRIES = 4_000_000


@dataclass(frozen=True, repr=False, eq=False)
class BilinearSolution(MarginSolution):
    """A `MarginSolution` whose `x` is a matrix W (d_tokens, d_queries); `pairs` (n_rows, 3) holds (k, i, j) of every row."""

    rows: BilinearRows  # type: ignore[assignment]
    quantities = "{status.name}, margin={margin:.6g}, {lower:#} rows, {x.shape[0]} by {x.shape[1]}{_norm_words}"

    def _pair_columns(self) -> tuple[str, str, str]:
        return ("query", "above", "below")


def bilinear_svm(X: ArrayLike, Q: ArrayLike, triples: ArrayLike, *, norm: Norm = Frobenius()) -> BilinearSolution:
    r"""Find the shortest W that ranks token i above token j by at least one for query k, for all triples (k, i, j).

    .. math:: \min_W \|W\|_F \ \text{s.t.}\ (x_i - x_j)^\top W q_k \ge 1

    Args:
        X: tokens (n_tokens, d_tokens).

        Q: queries (n_queries, d_queries).

        triples: (n_rows, 3) whole numbers: query k, token i, token j.

        norm: the norm of W: `Frobenius`, `Spectral`, `Nuclear`, `MaxRow`, or a norm of its entries; the same problems are
            infeasible in all.

    Returns:
        A `BilinearSolution` with W = sum_r multipliers[r] (x_i - x_j) q_kᵀ and multipliers >= 0, rows ordered by k as in `pairs`;
        `kkt_residual()`, `certificate_residual()` and `bracket()` check it. Infeasible problems with many unknowns end
        as INACCURATE, and `bracket()` bounds the norm of any W.

    Examples:
        >>> import numpy as np
        >>> from marginlens.svm import bilinear_svm
        >>> solution = bilinear_svm(np.eye(3), np.eye(2), [[0, 0, 1], [1, 2, 1]])
        >>> print(solution.x.round(3))
        [[ 0.5  0. ]
         [-0.5 -0.5]
         [ 0.   0.5]]
    """
    if defining_class(as_norm(norm, (0, 0))) is not L2:
        return solve_in_norm(bilinear_svm(X, Q, triples), norm)
    tokens, queries = real_array(X, "X", ("n_tokens", "d_tokens")), real_array(Q, "Q", ("n_queries", "d_queries"))
    rows = BilinearRows(tokens, queries, _triples(triples, len(queries), len(tokens)))
    rows.check_range("X")
    problem = BilinearSolution.empty(rows)
    if not len(rows):
        return problem
    norms = rows.row_norms
    # No W ranks tokens that are equal.
    if not norms.all():
        return problem.from_certificate((np.arange(len(rows)) == np.argmin(norms)).astype(np.float64))
    if rows.shape[0] * rows.shape[1] <= independent_parts.MAX_FORMED_PART_ENTRIES:
        exact = _solve_formed(problem, rows.all_rows)
        if exact.status is not Status.INACCURATE:
            return exact
    guess = working_set(rows.unit_rows(), 1.0 / norms)
    solution = problem.from_multipliers(guess.multipliers / norms)
    open_rows = guess.unsatisfied if len(guess.unsatisfied) else np.flatnonzero(guess.multipliers)
    if solution.status is Status.OPTIMAL or not 0 < len(open_rows) * rows.shape[1] <= MAX_OPEN_ENTRIES:
        return solution
    exact = _solve_formed(problem, open_rows)
    return solution if exact.status is Status.INACCURATE else exact


def _solve_formed(problem: BilinearSolution, indices: IntArray) -> BilinearSolution:
    """Solve some rows exactly: either they contradict each other, or their W may satisfy the other rows too."""
    formed = least_distance(problem.rows.formed(indices), problem.lower[indices])
    weights = np.zeros(len(problem.lower))
    if formed.certificate is not None:
        weights[indices] = formed.certificate
        return problem.from_certificate(weights)
    weights[indices] = formed.multipliers
    return problem.from_multipliers(weights, x=formed.x)


def _triples(triples: ArrayLike, n_queries: int, n_tokens: int) -> IntArray:
    """Check triples and order them by query."""
    sizes = [n_queries, n_tokens, n_tokens]
    expected = f"whole numbers of shape (n_rows, 3), below {sizes}: query, higher token, lower token"
    array = index_array(triples, "triples", expected, (-1, 3), below=sizes)
    return array[np.argsort(array[:, 0], kind="stable")]
