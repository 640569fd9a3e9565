"""The solvers that hard-margin problems are given to elsewhere, each in the forms in which it is at its best."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from scipy.optimize import nnls

from marginlens.data.tokens import FloatArray

Solve = Callable[[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]
TOLERANCE = 1e-10  # what the interior-point solvers are asked for
LOOSE = 1e-8  # what scikit-learn's solvers are asked for: below it they stop improving
HARD = 1e6  # scikit-learn's C, far above every multiplier: no row is ever soft
UNBOUNDED = 1e30


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
    listed = [
        Competitor("quadprog", "primal, H = I factorised", "quadprog", _quadprog_primal),
        Competitor("quadprog", "dual, Gram matrix", "quadprog", _quadprog_dual),
        Competitor("PIQP", "primal", "piqp", _piqp_primal),
        Competitor("PIQP", "dual, Gram matrix", "piqp", _piqp_dual),
        Competitor("Clarabel", "primal", "clarabel", _clarabel_primal),
        Competitor("Clarabel", "dual, Gram matrix", "clarabel", _clarabel_dual),
        Competitor("cvxopt", "primal", "cvxopt", _cvxopt_primal),
        Competitor("cvxopt", "dual, Gram matrix", "cvxopt", _cvxopt_dual),
        Competitor("scikit-learn SVC", "linear kernel, rows and their negatives", "sklearn", _svc_linear),
        Competitor("scikit-learn SVC", "precomputed kernel, rows and their negatives", "sklearn", _svc_precomputed),
        Competitor("scikit-learn LinearSVC", "hinge, no intercept", "sklearn", _linear_svc),
    ]
    return [one for one in listed if n_rows <= d or one.prepare is not _quadprog_dual]


def _quadprog_primal(n_rows: int, d: int) -> Solve:
    import quadprog

    identity, nothing = np.eye(d), np.zeros(d)

    def solve(A: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
        answer = quadprog.solve_qp(identity, nothing, A.T, b, factorized=True)
        return answer[0], answer[4]

    return solve


def _quadprog_dual(n_rows: int, d: int) -> Solve:
    import quadprog

    identity, nothing = np.eye(n_rows), np.zeros(n_rows)

    def solve(A: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
        weights = quadprog.solve_qp(A @ A.T, b, identity, nothing)[0]
        return weights @ A, weights

    return solve


def _piqp_primal(n_rows: int, d: int) -> Solve:
    identity, nothing, high = np.eye(d), np.zeros(d), np.full(n_rows, UNBOUNDED)

    def solve(A: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
        result = _piqp(identity, nothing, None, None, A, b, high)
        return np.array(result.x), np.array(result.z_l)

    return solve


def _piqp_dual(n_rows: int, d: int) -> Solve:
    low, high = np.zeros(n_rows), np.full(n_rows, UNBOUNDED)

    def solve(A: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
        weights = np.array(_piqp(A @ A.T, -b, None, None, None, None, None, low, high).x)
        return weights @ A, weights

    return solve


def _piqp(*problem: Any) -> Any:
    import piqp

    solver = piqp.DenseSolver()
    solver.settings.eps_abs = solver.settings.eps_rel = TOLERANCE
    solver.setup(*problem)
    solver.solve()
    return solver.result


def _clarabel_primal(n_rows: int, d: int) -> Solve:
    from scipy import sparse

    identity, nothing = sparse.eye_array(d, format="csc"), np.zeros(d)

    def solve(A: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
        result = _clarabel(identity, nothing, sparse.csc_array(-A), -b)
        return np.array(result.x), np.array(result.z)

    return solve


def _clarabel_dual(n_rows: int, d: int) -> Solve:
    from scipy import sparse

    minus, nothing = -sparse.eye_array(n_rows, format="csc"), np.zeros(n_rows)

    def solve(A: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
        weights = np.array(_clarabel(sparse.csc_array(np.triu(A @ A.T)), -b, minus, nothing).x)
        return weights @ A, weights

    return solve


def _clarabel(P: Any, q: FloatArray, A: Any, b: FloatArray) -> Any:
    import clarabel

    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = TOLERANCE
    return clarabel.DefaultSolver(P, q, A, b, [clarabel.NonnegativeConeT(len(b))], settings).solve()


def _cvxopt_primal(n_rows: int, d: int) -> Solve:
    import cvxopt

    identity, nothing = cvxopt.spmatrix(1.0, range(d), range(d)), cvxopt.matrix(np.zeros(d))

    def solve(A: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
        result = _cvxopt(identity, nothing, cvxopt.matrix(-A), cvxopt.matrix(-b))
        return np.array(result["x"]).ravel(), np.array(result["z"]).ravel()

    return solve


def _cvxopt_dual(n_rows: int, d: int) -> Solve:
    import cvxopt

    minus, nothing = cvxopt.spmatrix(-1.0, range(n_rows), range(n_rows)), cvxopt.matrix(np.zeros(n_rows))

    def solve(A: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
        weights = np.array(_cvxopt(cvxopt.matrix(A @ A.T), cvxopt.matrix(-b), minus, nothing)["x"]).ravel()
        return weights @ A, weights

    return solve


def _cvxopt(*problem: Any) -> Any:
    import cvxopt

    options = {"show_progress": False, "abstol": TOLERANCE, "reltol": TOLERANCE, "feastol": TOLERANCE}
    return cvxopt.solvers.qp(*problem, options=options)


def _svc_linear(n_rows: int, d: int) -> Solve:
    from sklearn.svm import SVC

    signs = np.repeat((1.0, -1.0), n_rows)

    def solve(A: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
        model = SVC(C=HARD, kernel="linear", tol=LOOSE, cache_size=500).fit(np.vstack((A, -A)), signs)
        weights = _folded(model, n_rows)
        return weights @ A, weights

    return solve


def _svc_precomputed(n_rows: int, d: int) -> Solve:
    from sklearn.svm import SVC

    signs = np.repeat((1.0, -1.0), n_rows)

    def solve(A: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
        G = A @ A.T
        kernel = np.block([[G, -G], [-G, G]])
        weights = _folded(SVC(C=HARD, kernel="precomputed", tol=LOOSE, cache_size=500).fit(kernel, signs), n_rows)
        return weights @ A, weights

    return solve


def _folded(model: Any, n_rows: int) -> FloatArray:
    """A row and its negative share one multiplier; the symmetry makes the bias vanish."""
    weights = np.zeros(n_rows)
    np.add.at(weights, model.support_ % n_rows, np.abs(model.dual_coef_[0]))
    return weights


def _linear_svc(n_rows: int, d: int) -> Solve:
    from sklearn.svm import LinearSVC

    signs = np.where(np.arange(n_rows) % 2 == 0, 1.0, -1.0)

    def solve(A: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
        model = LinearSVC(C=HARD, loss="hinge", dual=True, fit_intercept=False, tol=LOOSE, max_iter=100_000)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
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
