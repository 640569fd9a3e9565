"""Other solvers of hard-margin problems, each in the forms in which it is fastest.

PIQP, Clarabel and cvxopt are called through qpsolvers, which costs some 20 µs a problem. quadprog is called directly: it is the fastest of
them on small problems, where those 20 µs would flatter the comparison by half.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import nnls

from marginlens.typing import FloatArray

Solve = Callable[[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]
INTERIOR_POINT_TOL = 1e-10  # what the interior-point solvers are asked for
SKLEARN_TOL = 1e-8  # what scikit-learn's solvers are asked for: below it they stop improving
HARD_MARGIN_C = 1e6  # scikit-learn's C, far above every multiplier: no row is ever soft
_TOLERANCES = {
    "piqp": ("eps_abs", "eps_rel"),
    "clarabel": ("tol_gap_abs", "tol_gap_rel", "tol_feas"),
    "cvxopt": ("abstol", "reltol", "feastol"),
}


@dataclass(frozen=True)
class Competitor:
    """A solver in one form; `prepare(n_rows, d)` does what can be done once for all problems of a size.

    What it returns takes A (n_rows, d) and b (n_rows,) and gives x and the multipliers of min ‖x‖ s.t. A x >= b.
    """

    solver: str
    form: str
    package: str
    prepare: Callable[[int, int], Solve]

    @property
    def installed(self) -> bool:
        """Whether the package can be imported."""
        return find_spec(self.package) is not None


def competitors(n_rows: int, d: int) -> list[Competitor]:
    """Every solver and form that suits problems of a size; quadprog's dual needs a Gram matrix of full rank."""
    interior_point = [
        Competitor(name, form, name.lower(), partial(prepare, name.lower()))
        for name in ("PIQP", "Clarabel", "cvxopt")
        for form, prepare in (("primal", _primal), ("dual, Gram matrix", _dual))
    ]
    listed = [
        Competitor("quadprog", "primal, H = I factorised", "quadprog", _quadprog_primal),
        Competitor("quadprog", "dual, Gram matrix", "quadprog", _quadprog_dual),
        *interior_point,
        Competitor("scikit-learn SVC", "linear kernel, rows and their negatives", "sklearn", _svc_linear),
        Competitor("scikit-learn SVC", "precomputed kernel, rows and their negatives", "sklearn", _svc_precomputed),
        Competitor("scikit-learn LinearSVC", "hinge, no intercept", "sklearn", _linear_svc),
    ]
    return [competitor for competitor in listed if n_rows <= d or competitor.prepare is not _quadprog_dual]


def _quadprog_primal(n_rows: int, d: int) -> Solve:
    import quadprog

    identity, zero = np.eye(d), np.zeros(d)

    def solve(A: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
        answer = quadprog.solve_qp(identity, zero, A.T, b, factorized=True)
        return answer[0], answer[4]

    return solve


def _quadprog_dual(n_rows: int, d: int) -> Solve:
    import quadprog

    identity, zero = np.eye(n_rows), np.zeros(n_rows)

    def solve(A: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
        weights = quadprog.solve_qp(A @ A.T, b, identity, zero)[0]
        return weights @ A, weights

    return solve


def _primal(solver: str, n_rows: int, d: int) -> Solve:
    """min ½‖x‖² s.t. -A x <= -b, with qpsolvers."""
    is_dense = solver == "piqp"
    P, q = np.eye(d) if is_dense else sparse.identity(d, format="csc"), np.zeros(d)

    def solve(A: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
        solution = _qpsolvers(solver, P=P, q=q, G=sparse.csc_matrix(-A) if solver == "clarabel" else -A, h=-b)
        return solution.x, solution.z

    return solve


def _dual(solver: str, n_rows: int, d: int) -> Solve:
    """min ½ λᵀ(A Aᵀ)λ - bᵀλ s.t. λ >= 0, with qpsolvers; x = Aᵀλ."""
    zero = np.zeros(n_rows)
    sign: Mapping[str, Any] = (
        {"lb": zero} if solver == "piqp" else {"G": -sparse.identity(n_rows, format="csc"), "h": zero}
    )

    def solve(A: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
        gram = A @ A.T
        weights = _qpsolvers(solver, P=sparse.csc_matrix(gram) if solver == "clarabel" else gram, q=-b, **sign).x
        return weights @ A, weights

    return solve


def _qpsolvers(solver: str, **problem: Any) -> Any:
    from qpsolvers import Problem, solve_problem

    return solve_problem(Problem(**problem), solver, **dict.fromkeys(_TOLERANCES[solver], INTERIOR_POINT_TOL))


def _svc_linear(n_rows: int, d: int) -> Solve:
    return _svc("linear", n_rows, lambda A: np.vstack((A, -A)))


def _svc_precomputed(n_rows: int, d: int) -> Solve:
    def kernel(A: FloatArray) -> FloatArray:
        gram = A @ A.T
        return np.block([[gram, -gram], [-gram, gram]])

    return _svc("precomputed", n_rows, kernel)


def _svc(kernel: str, n_rows: int, features: Callable[[FloatArray], FloatArray]) -> Solve:
    """A row and its negative share one multiplier; the symmetry makes the bias vanish."""
    from sklearn.svm import SVC

    signs = np.repeat((1.0, -1.0), n_rows)

    def solve(A: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
        model = SVC(C=HARD_MARGIN_C, kernel=kernel, tol=SKLEARN_TOL, cache_size=500).fit(features(A), signs)
        weights = np.zeros(n_rows)
        np.add.at(weights, model.support_ % n_rows, np.abs(model.dual_coef_[0]))
        return weights @ A, weights

    return solve


def _linear_svc(n_rows: int, d: int) -> Solve:
    from sklearn.svm import LinearSVC

    signs = np.where(np.arange(n_rows) % 2 == 0, 1.0, -1.0)

    def solve(A: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
        model = LinearSVC(
            C=HARD_MARGIN_C, loss="hinge", dual=True, fit_intercept=False, tol=SKLEARN_TOL, max_iter=100_000
        )
        model.fit(A * signs[:, None], signs)
        return model.coef_[0], np.empty(0)

    return solve


def recovered_multipliers(A: FloatArray, b: FloatArray, x: FloatArray) -> FloatArray:
    """The multipliers that explain x best, for a solver that does not give them: least squares over the tight rows."""
    tight = np.flatnonzero(A @ x - b <= 1e-6 * b)
    weights = np.zeros(len(b))
    if len(tight):
        weights[tight] = nnls(A[tight].T, x, maxiter=100 * len(b))[0]
    return weights
