"""An augmented Lagrangian method for many structured rows, with Newton steps solved by conjugate gradients.

The multipliers λ move by proximal steps of length σ. Each step minimises a piecewise quadratic in W by Newton's method; the
step solves (1/σ + Gram matrix of the rows J with a positive estimate) u = b + λ/σ, through products only and preconditioned by
the blocks of each query. For polyhedral constraints a few outer steps find the active rows; each further one then multiplies
the error by about 1/σ. If no W exists, the steps do not settle: their increments converge to a Farkas vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy

from marginlens.arithmetic.rounding import EPS
from marginlens.svm.solution import MAX_DIRECT_OPERATIONS
from marginlens.svm.solvers.batch import FARKAS_RTOL
from marginlens.svm.solvers.rows import BilinearRows, BlockInverse
from marginlens.typing import BoolArray, FloatArray, IntArray

# At this optimality residual there is nothing left to gain.
RESIDUAL_GOAL = 1e-13
_FIRST_SIGMA, _SIGMA_GROWTH = 10.0, 5.0
# From this residual on the active rows are probably known.
_ACTIVE_SET_RESIDUAL = 2e-2
# What may be left, of weights of sum one, if the rows do not cancel.
_MIN_FARKAS_WEIGHT = 1e-6
# Corrections of the multipliers of one active set, and the factor that each must gain for another one to
# follow.
_MAX_CORRECTIONS, _CORRECTION_GAIN = 3, 0.5
# Active sets tried in one attempt.
_MAX_ACTIVE_SETS = 8
# Rounding of σ (b - A W) that is allowed next to the largest multiplier.
_SIGMA_ROUNDOFF_RTOL = 1e-9
# From this relative gradient on, a Newton step that does not halve it has met rounding.
_FLAT_RTOL = 1e-9
# The shortest part of a Newton step that the line search tries.
_MIN_STEP = 1e-8
# Relative accuracy of a Newton step in W.
_NEWTON_RTOL = 0.02
_MAX_OUTER, _MAX_NEWTON, _MAX_PRODUCTS, _MAX_CG = 80, 40, 60_000, 1000
# A combination this short, for unit rows and weights of sum one, may be on its way to zero.
_FARKAS_TRIGGER = 1e-3
_MAX_LEAST_SQUARES = 800
# Squared distances that differ by less than this share differ by rounding.
_SAME_DISTANCE_RTOL = 1e-12
# Rounding of a sum of unit rows, relative to the sum of its weights.
_GRADIENT_ROUNDOFF = 2 * EPS


class LagrangianOutcome(NamedTuple):
    """Multipliers of the rows of norm one, or a Farkas vector if the problem is infeasible."""

    multipliers: FloatArray
    infeasible: bool


@dataclass
class _State:
    """The iterate: W, the inner products of all rows with it, the multipliers of the last outer step and the step length."""

    W: FloatArray
    products: FloatArray
    multipliers: FloatArray
    sigma: float


def augmented_lagrangian(rows: BilinearRows, lower: FloatArray, is_equality: BoolArray) -> LagrangianOutcome:
    """Find the multipliers of the shortest W with A W >= lower, and A W = lower for equalities, for rows A of norm one.

    Args:
        lower: (n_rows,) at least 0.

        is_equality: (n_rows,) rows whose multiplier has either sign.
    """
    scale = float(lower.max())
    problem = _Problem(rows, lower / scale, is_equality)
    n, shape = len(lower), (rows.X.shape[1], rows.Q.shape[1])
    state = _State(np.zeros(shape), np.zeros(n), np.zeros(n), _FIRST_SIGMA)
    best, best_multipliers, error, idle = np.inf, state.multipliers, 1.0, 0
    trigger = _FARKAS_TRIGGER
    for _ in range(_MAX_OUTER):
        before = state.multipliers
        problem.proximal_step(state, max(1e-14, min(1e-3, 1e-2 * error)))
        error = problem.residual(state.multipliers)
        idle = idle + 1 if error > 0.5 * best else 0
        if error < best:
            best, best_multipliers = error, state.multipliers
        largest = float(np.abs(state.multipliers).max())
        noisy = state.sigma * EPS * float(np.linalg.norm(state.W)) > _SIGMA_ROUNDOFF_RTOL * largest
        last = (noisy and idle >= 2) or idle >= 12 or rows.n_products > _MAX_PRODUCTS
        if error < _ACTIVE_SET_RESIDUAL or last:
            refined = problem.refine_active_set(state.multipliers)
            exact = problem.residual(refined)
            if exact < best:
                best, best_multipliers = exact, refined
        added = state.multipliers - before
        remainder = problem.cancellation(added)
        if error > _FARKAS_TRIGGER and remainder < trigger:
            trigger = 0.1 * remainder
            certificate = problem.farkas_vector(added)
            if certificate is not None:
                return LagrangianOutcome(certificate, True)
        if best <= RESIDUAL_GOAL or last:
            break
        state.sigma *= 1.0 if noisy else _SIGMA_GROWTH
    return LagrangianOutcome(scale * best_multipliers, False)


class _Problem:
    """Rows, lower bounds and equalities, and the steps of the method."""

    def __init__(self, rows: BilinearRows, lower: FloatArray, is_equality: BoolArray) -> None:
        self._rows, self._lower, self._is_equality = rows, lower, is_equality

    def proximal_step(self, state: _State, accuracy: float) -> None:
        """Minimise ‖W‖²/2 + ‖(λ + σ (b - A W))_+‖²/(2σ) to a relative gradient of `accuracy`; the estimates are the new λ."""
        rows, sigma = self._rows, state.sigma
        old, flattest, best = state.multipliers, np.inf, (state.W, state.products)
        for _ in range(_MAX_NEWTON):
            indices, estimate = self._multiplier_estimate(old, state)
            gradient = state.W - rows.combine(estimate, indices)
            size = float(np.linalg.norm(gradient)) / max(float(np.linalg.norm(state.W)), 1e-300)
            stalled = size < _FLAT_RTOL and size > 0.5 * flattest
            if size < flattest:
                flattest, best = size, (state.W, state.products)
            # Rounding stalls the method, and the last step may have added to it.
            if stalled:
                state.W, state.products = best
            if size <= accuracy or stalled:
                break
            image = rows.apply(gradient, indices)
            coefficients = shifted_solution(rows, indices, image, 1.0 / sigma, _NEWTON_RTOL / sigma)
            if not self._line_search(old, state, gradient, rows.combine(coefficients, indices) - gradient):
                break
        indices, estimate = self._multiplier_estimate(old, state)
        state.multipliers = np.zeros_like(old)
        state.multipliers[indices] = estimate

    def residual(self, multipliers: FloatArray) -> float:
        """Compute the largest of the distances to the halfspaces and planes, the complementarity and the gap, for W = Aᵀ multipliers."""
        support = np.flatnonzero(multipliers)
        W = self._rows.combine(multipliers[support], support)
        square = float(np.vdot(W, W))
        if square == 0.0:
            return np.inf
        slack = self._rows.apply(W) - self._lower
        distance = np.where(self._is_equality, np.abs(slack), -slack).max() / square**0.5
        return max(
            float(distance),
            float(np.abs(multipliers * slack).max()) / square,
            abs(1.0 - float(multipliers @ self._lower) / square),
        )

    def refine_active_set(self, multipliers: FloatArray) -> FloatArray:
        """Find multipliers for which exactly the rows that have one are active, by dropping negative ones and adding violated rows.

        The multipliers of each round are judged by `residual`, and the best are returned.
        """
        rows, candidate = self._rows, np.zeros_like(multipliers)
        active, fewest = self._is_equality | (multipliers > 0.0), len(multipliers)
        best, lowest = multipliers, np.inf
        for _ in range(_MAX_ACTIVE_SETS):
            indices = np.flatnonzero(active)
            solved = self._solve_equalities(multipliers[indices], indices)
            candidate[:] = 0.0
            candidate[indices] = solved
            admissible = self._admissible(candidate)
            error = self.residual(admissible)
            if error < lowest:
                best, lowest = admissible, error
            W = rows.combine(solved, indices)
            violated = ~active & (rows.apply(W) - self._lower < -RESIDUAL_GOAL * float(np.linalg.norm(W)))
            negative = ~self._is_equality & (candidate < 0.0)
            n_wrong = int(np.count_nonzero(violated | negative))
            if n_wrong == 0 or n_wrong > fewest:
                break
            fewest = n_wrong
            active = (active & ~negative) | violated
            multipliers = np.where(negative, 0.0, candidate)
        return best

    def cancellation(self, weights: FloatArray) -> float:
        """Compute ‖Aᵀ y‖ divided by the weight on positive lower bounds, for the weights as a Farkas vector without negative entries."""
        y = self._admissible(weights)
        total = float(y[~self._is_equality].sum())
        support = np.flatnonzero(y)
        return float(np.linalg.norm(self._rows.combine(y[support], support))) / total if total > 0.0 else np.inf

    def farkas_vector(self, weights: FloatArray) -> FloatArray | None:
        """Find the Farkas vector near `weights`: the part of it that the rows send to zero, if that is positive, else None."""
        strict = ~self._is_equality
        y = self._admissible(weights)
        y /= y[strict].sum()
        y[strict & (y < 1e-9)] = 0.0
        for _ in range(6):
            support = np.flatnonzero(self._is_equality | (y > 0.0))
            for _ in range(2):
                y[support] = least_squares(self._rows, support, y[support], None, 0.0)[1]
            admissible = self._admissible(y)
            total = float(admissible[strict].sum())
            if not total > _MIN_FARKAS_WEIGHT:
                return None
            if (y == admissible).all() and self.cancellation(y) <= FARKAS_RTOL:
                return y
            y = admissible / total
        return None

    def _admissible(self, multipliers: FloatArray) -> FloatArray:
        """Set negative multipliers of inequalities to zero."""
        return np.where(self._is_equality, multipliers, np.maximum(multipliers, 0.0))

    def _solve_equalities(self, u: FloatArray, indices: IntArray) -> FloatArray:
        """Correct u until the rows `indices` hold with equality at W = Aᵀ u, or as nearly as possible."""
        rows, n, width = self._rows, len(indices), self._rows.shape[1]
        formed = rows.formed(indices) if n * width * min(n, width) <= MAX_DIRECT_OPERATIONS else None
        preconditioner = rows.preconditioner(indices, 0.0)
        best, smallest = u, np.inf
        for _ in range(_MAX_CORRECTIONS + 1):
            W = rows.combine(u, indices)
            gap = self._lower[indices] - rows.apply(W, indices)
            size = float(np.linalg.norm(gap))
            gained = size < _CORRECTION_GAIN * smallest
            if size < smallest:
                best, smallest = u, size
            if not gained:
                break
            if formed is not None:
                u = u + np.linalg.lstsq(formed.T, np.linalg.lstsq(formed, gap)[0])[0]
            else:
                goal = 2 * EPS * float(np.linalg.norm(W)) * n**0.5
                u = u + least_squares(rows, indices, gap, preconditioner, goal)[0]
        return best

    def _multiplier_estimate(self, multipliers: FloatArray, state: _State) -> tuple[IntArray, FloatArray]:
        """Find the rows that have a positive estimate λ + σ (b - A W) or are equalities, and these estimates."""
        estimate = multipliers + state.sigma * (self._lower - state.products)
        indices = np.flatnonzero(self._is_equality | (estimate > 0.0))
        return indices, estimate[indices]

    def _line_search(self, old: FloatArray, state: _State, gradient: FloatArray, step: FloatArray) -> bool:
        """Go along `step` as far as the value decreases enough, up to rounding; return whether the iterate moved."""
        products = self._rows.apply(step)
        descent, across, square = (float(np.vdot(a, step)) for a in (gradient, state.W, step))
        estimate = old + state.sigma * (self._lower - state.products)
        current = self._admissible(estimate)

        def decreases(t: float) -> bool:
            moved = self._admissible(estimate - t * state.sigma * products)
            terms = (moved - current) * (moved + current) / (2.0 * state.sigma)
            change = t * across + 0.5 * t * t * square + float(terms.sum())
            rounding = EPS * (abs(t * across) + 0.5 * t * t * square + float(np.abs(terms).sum()))
            return change <= 1e-4 * t * descent + rounding

        t = 1.0
        while not decreases(t):
            t *= 0.5
            if t < _MIN_STEP:
                return False
        state.W = state.W + t * step
        state.products = self._rows.apply(state.W)
        return True


def shifted_solution(
    rows: BilinearRows, indices: IntArray, right: FloatArray, shift: float, accuracy: float
) -> FloatArray:
    """Solve (shift + Gram matrix of the rows `indices`) u = right, up to a residual of `accuracy` times that of u = 0."""
    n = len(right)
    system = scipy.sparse.linalg.LinearOperator(
        (n, n), matvec=lambda u: rows.gram_product(u, indices) + shift * u, dtype=np.float64
    )
    inverse = scipy.sparse.linalg.LinearOperator(
        (n, n), matvec=rows.preconditioner(indices, shift).times, dtype=np.float64
    )
    return np.asarray(scipy.sparse.linalg.cg(system, right, rtol=accuracy, atol=0.0, maxiter=_MAX_CG, M=inverse)[0])


def least_squares(
    rows: BilinearRows, indices: IntArray, right: FloatArray, preconditioner: BlockInverse | None, goal: float
) -> tuple[FloatArray, FloatArray]:
    """Find the v for which the Gram matrix of the rows `indices` times v is closest to `right`, and the residual `right` minus
    that product.

    The distance is measured in the norm of `preconditioner`, or of the identity. Rows may be dependent and `right` out of
    reach. Every step goes as far as the distance decreases, and the best iterate is returned: the one with the smallest
    distance, and the smallest gradient among those whose distances differ by rounding. The method stops when the residual is no
    longer than `goal`, or when its products with the rows are rounding errors. SciPy's iterative solvers return their last
    iterate, which rounding makes worse.
    """

    def weighed(vector: FloatArray) -> FloatArray:
        return vector.copy() if preconditioner is None else preconditioner.times(vector)

    v, residual = np.zeros_like(right), right.copy()
    weighted = weighed(residual)
    gradient = rows.combine(weighted, indices)
    square, distance = float(np.vdot(gradient, gradient)), float(residual @ weighted)
    # `combined` always is the sum of the rows times `direction`, and is updated with it to save a product.
    direction, combined = weighted.copy(), gradient.copy()
    best, lowest, flattest = (v.copy(), residual.copy()), distance, square
    for _ in range(_MAX_LEAST_SQUARES):
        if not float(np.linalg.norm(residual)) > goal:
            break
        if not square**0.5 > _GRADIENT_ROUNDOFF * float(np.abs(weighted).sum()):
            break
        image = rows.apply(combined, indices)
        curvature, descent = float(image @ weighed(image)), float(np.vdot(combined, gradient))
        if not curvature > 0.0 or not descent > 0.0:
            break
        rows.n_products += 1
        v += descent / curvature * direction
        residual -= descent / curvature * image
        weighted = weighed(residual)
        distance = float(residual @ weighted)
        gradient = rows.combine(weighted, indices)
        square, last = float(np.vdot(gradient, gradient)), square
        closer = distance < lowest * (1.0 - _SAME_DISTANCE_RTOL)
        if closer or (distance <= lowest * (1.0 + _SAME_DISTANCE_RTOL) and square < flattest):
            best, lowest, flattest = (v.copy(), residual.copy()), min(lowest, distance), square
        combined = gradient + square / last * combined
        direction = weighted + square / last * direction
    return best
