"""Graph-SVM with many rows: an augmented Lagrangian, minimised by Newton steps whose systems are solved by conjugate gradients.

The multipliers λ move by proximal steps of length σ. Each step minimises a piecewise quadratic in W by Newton's method; the step solves
(1/σ + Gram matrix of the rows J that push) u = b + λ/σ, through products only and preconditioned by the blocks of each last
token. For polyhedral constraints the outer steps settle on the tight rows after a few, and then every one multiplies the error by about
1/σ. Where no W exists they do not settle: what they add converges to a Farkas vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from marginlens.data.tokens import BoolArray, FloatArray, IntArray
from marginlens.kernels.linalg import EPS
from marginlens.svm.solvers.rows import BlockInverse, GraphProducts

FARKAS = 1e-14  # unit rows, with weights that sum to one, that cancel to this contradict each other
_ENOUGH = 1e-13  # residual at which there is nothing left to gain
_FIRST_STEP, _GROWTH = 10.0, 5.0
_NEAR = 2e-2  # residual from which on the tight rows are probably known
_VANISHED = 1e-6  # of weights of sum one, what may be left where the rows do not cancel
_CORRECTIONS = 3  # of the multipliers of one set of tight rows
_WORTHWHILE = 0.5  # of what the tight rows missed, what a correction may leave to be followed by another
_ROUNDS = 8  # corrections of the tight rows in one attempt
_NOISE = 1e-9  # rounding of σ (b - A W) that is allowed beside the largest multiplier
_NEARLY_FLAT = 1e-9  # relative gradient from which on a Newton step that does not halve it meets rounding
_SHORTEST_MOVE = 1e-8  # of a Newton step
_INEXACT = 0.02  # relative accuracy of a Newton step in W
_OUTER, _INNER, _PRODUCTS = 80, 40, 60_000
_SUSPICION = 1e-3  # a combination this short, for unit rows and weights of sum one, may be on its way to zero


class Outcome(NamedTuple):
    """Multipliers of the rows of norm one, or a Farkas vector where the problem is impossible."""

    weights: FloatArray
    impossible: bool


@dataclass
class _State:
    """Where the iteration stands: W, the inner products of all rows with it, and the multipliers of the last outer step."""

    W: FloatArray
    gaps: FloatArray
    weights: FloatArray
    sigma: float


def solve_large(products: GraphProducts, floor: FloatArray, free: BoolArray) -> Outcome:
    """Multipliers of the shortest W with A W >= floor, and A W = floor where `free`, for rows A of norm one.

    Args:
        floor: (n_rows,) at least 0. free: (n_rows,) whether a row is an equality, whose multiplier has either sign.
    """
    scale = float(floor.max())
    problem = _Problem(products, floor / scale, free)
    shape = (products.terms.E.shape[1], products.Q.shape[1])
    state = _State(np.zeros(shape), np.zeros(len(floor)), np.zeros(len(floor)), _FIRST_STEP)
    best, best_weights, error, idle = np.inf, state.weights, 1.0, 0
    suspicion = _SUSPICION
    for _ in range(_OUTER):
        before = state.weights
        problem.proximal_step(state, max(1e-14, min(1e-3, 1e-2 * error)))
        error = problem.residual(state.weights)
        idle = idle + 1 if error > 0.5 * best else 0
        if error < best:
            best, best_weights = error, state.weights
        noisy = state.sigma * EPS * float(np.linalg.norm(state.W)) > _NOISE * float(np.abs(state.weights).max())
        last = (noisy and idle >= 2) or idle >= 12 or products.n_products > _PRODUCTS
        if error < _NEAR or last:
            weights = problem.polished(state.weights)
            exact = problem.residual(weights)
            if exact < best:
                best, best_weights = exact, weights
        added = state.weights - before
        left = problem.cancellation(added)
        if error > _SUSPICION and left < suspicion:
            suspicion = 0.1 * left
            proof = problem.farkas(added)
            if proof is not None:
                return Outcome(proof, True)
        if best <= _ENOUGH or last:
            break
        state.sigma *= 1.0 if noisy else _GROWTH
    return Outcome(scale * best_weights, False)


class _Problem:
    """Rows, floors and equalities, and the steps that are taken on them."""

    def __init__(self, products: GraphProducts, floor: FloatArray, free: BoolArray) -> None:
        self._products, self._floor, self._free = products, floor, free
        self._width = products.terms.E.shape[1] * products.Q.shape[1]

    def proximal_step(self, state: _State, accuracy: float) -> None:
        """Minimise ‖W‖²/2 + ‖(λ + σ (b - A W))_+‖²/(2σ) to a relative gradient of `accuracy`, and let the pushes be the new λ."""
        products, sigma = self._products, state.sigma
        old, flattest, best = state.weights, np.inf, (state.W, state.gaps)
        for _ in range(_INNER):
            pushing, force = self._pushes(old, state)
            slope = state.W - products.combine(force, pushing)
            size = float(np.linalg.norm(slope)) / max(float(np.linalg.norm(state.W)), 1e-300)
            stalled = size < _NEARLY_FLAT and size > 0.5 * flattest
            if size < flattest:
                flattest, best = size, (state.W, state.gaps)
            if stalled:  # by rounding, to which the last step may have added
                state.W, state.gaps = best
            if size <= accuracy or stalled:
                break
            image = products.apply(slope, pushing)
            turn = shifted_solution(products, pushing, image, 1.0 / sigma, _INEXACT / sigma)
            step = products.combine(turn, pushing) - slope
            if not self._move(old, state, slope, step):
                break
        pushing, force = self._pushes(old, state)
        state.weights = np.zeros_like(old)
        state.weights[pushing] = force

    def residual(self, weights: FloatArray) -> float:
        """The largest of the distances to the halfspaces and planes, the complementarity and the gap, for W = Aᵀ weights."""
        some = np.flatnonzero(weights)
        W = self._products.combine(weights[some], some)
        square = float(np.vdot(W, W))
        if square == 0.0:
            return np.inf
        slack = self._products.apply(W) - self._floor
        distance = np.where(self._free, np.abs(slack), -slack).max() / square**0.5
        return max(
            float(distance),
            float(np.abs(weights * slack).max()) / square,
            abs(1.0 - float(weights @ self._floor) / square),
        )

    def polished(self, weights: FloatArray) -> FloatArray:
        """The multipliers that make exactly the rows with one tight, after letting go what pulls and taking in what is missed.

        Each round's multipliers are judged by `residual`, and the best come back.
        """
        products, all_weights = self._products, np.zeros_like(weights)
        chosen, fewest = self._free | (weights > 0.0), len(weights)
        best, lowest = weights, np.inf
        for _ in range(_ROUNDS):
            some = np.flatnonzero(chosen)
            u = self._tightened(weights[some], some)
            all_weights[:] = 0.0
            all_weights[some] = u
            admitted = np.where(self._free, all_weights, np.maximum(all_weights, 0.0))
            error = self.residual(admitted)
            if error < lowest:
                best, lowest = admitted, error
            W = products.combine(u, some)
            missed = ~chosen & (products.apply(W) - self._floor < -_ENOUGH * float(np.linalg.norm(W)))
            pulling = ~self._free & (all_weights < 0.0)
            wrong = int(np.count_nonzero(missed | pulling))
            if wrong == 0 or wrong > fewest:
                break
            fewest = wrong
            chosen = (chosen & ~pulling) | missed
            weights = np.where(pulling, 0.0, all_weights)
        return best

    def cancellation(self, weights: FloatArray) -> float:
        """‖Aᵀ y‖ over the weight on positive floors, for the weights as a Farkas vector once negative ones are left out."""
        y = np.where(self._free, weights, np.maximum(weights, 0.0))
        counted = float(y[~self._free].sum())
        some = np.flatnonzero(y)
        return float(np.linalg.norm(self._products.combine(y[some], some))) / counted if counted > 0.0 else np.inf

    def farkas(self, weights: FloatArray) -> FloatArray | None:
        """The Farkas vector near `weights`, or None: the part of it that the rows send to zero, where that is positive."""
        y = np.where(self._free, weights, np.maximum(weights, 0.0))
        y /= y[~self._free].sum()
        y[~self._free & (y < 1e-9)] = 0.0
        for _ in range(6):
            some = np.flatnonzero(self._free | (y > 0.0))
            for _ in range(2):
                y[some] = least_squares(self._products, some, y[some], None, 0.0)[1]
            positive = np.where(self._free, y, np.maximum(y, 0.0))
            counted = float(positive[~self._free].sum())
            if not counted > _VANISHED:
                return None
            if (y == positive).all() and self.cancellation(y) <= FARKAS:
                return y
            y = positive / counted
        return None

    def _tightened(self, u: FloatArray, some: IntArray) -> FloatArray:
        """u corrected until the rows `some` are tight at W = Aᵀ u, or as nearly so as they can be."""
        products = self._products
        few = len(some) * self._width * min(len(some), self._width) <= DIRECT
        formed = products.formed(some) if few else None
        weigh = products.preconditioner(some, 0.0)
        best, smallest = u, np.inf
        for _ in range(_CORRECTIONS + 1):
            W = products.combine(u, some)
            missing = self._floor[some] - products.apply(W, some)
            left = float(np.linalg.norm(missing))
            gained = left < _WORTHWHILE * smallest
            if left < smallest:
                best, smallest = u, left
            if not gained:
                break
            if formed is not None:
                step = np.linalg.lstsq(formed, missing)[0]
                u = u + np.linalg.lstsq(formed.T, step)[0]
            else:
                goal = 2 * EPS * float(np.linalg.norm(W)) * len(some) ** 0.5
                u = u + least_squares(products, some, missing, weigh, goal)[0]
        return best

    def _pushes(self, weights: FloatArray, state: _State) -> tuple[IntArray, FloatArray]:
        """The rows that push at W, and with what force."""
        force = weights + state.sigma * (self._floor - state.gaps)
        pushing = np.flatnonzero(self._free | (force > 0.0))
        return pushing, force[pushing]

    def _move(self, old: FloatArray, state: _State, slope: FloatArray, step: FloatArray) -> bool:
        """Go along `step` as far as the value decreases enough, up to its rounding; returns whether it went anywhere."""
        gaps = self._products.apply(step)
        descent, across, square = float(np.vdot(slope, step)), float(np.vdot(state.W, step)), float(np.vdot(step, step))
        force = old + state.sigma * (self._floor - state.gaps)
        now = np.where(self._free, force, np.maximum(force, 0.0))

        def decreases(t: float) -> bool:
            then = force - t * state.sigma * gaps
            pushes = np.where(self._free, then, np.maximum(then, 0.0))
            terms = (pushes - now) * (pushes + now) / (2.0 * state.sigma)
            change = t * across + 0.5 * t * t * square + float(terms.sum())
            rounding = EPS * (abs(t * across) + 0.5 * t * t * square + float(np.abs(terms).sum()))
            return change <= 1e-4 * t * descent + rounding

        t = 1.0
        while not decreases(t):
            t *= 0.5
            if t < _SHORTEST_MOVE:
                return False
        state.W = state.W + t * step
        state.gaps = self._products.apply(state.W)
        return True


DIRECT = 30_000_000  # up to so many operations, rows are formed and their equations solved directly
_LEAST_SQUARES_STEPS = 800
_SAME_DISTANCE = 1e-12  # squared distances that differ by less, relatively, differ by rounding
_GRADIENT_ROUNDING = 2  # roundoffs of a sum of unit rows, relative to the sum of its weights


def shifted_solution(
    products: GraphProducts, some: IntArray, right: FloatArray, shift: float, accuracy: float
) -> FloatArray:
    """u with (shift + Gram matrix of the rows `some`) u = right, up to a residual of `accuracy` times that of zero."""
    inverse = products.preconditioner(some, shift)
    u, rest = np.zeros_like(right), right.copy()
    change = inverse.times(rest)
    step, square = change.copy(), float(rest @ change)
    goal = accuracy * float(np.linalg.norm(right))
    for _ in range(1000):
        if not float(np.linalg.norm(rest)) > goal or not square > 0.0:
            break
        image = products.gram(step, some) + shift * step
        length = square / float(step @ image)
        u += length * step
        rest -= length * image
        change = inverse.times(rest)
        square, last = float(rest @ change), square
        step = change + square / last * step
    return u


def least_squares(
    products: GraphProducts, some: IntArray, right: FloatArray, weigh: BlockInverse | None, goal: float
) -> tuple[FloatArray, FloatArray]:
    """v that brings the Gram matrix of the rows `some` times v closest to `right`, and the residual `right` minus that product.

    The distance is measured in the norm of `weigh`, or of the identity. Rows may be dependent and `right` out of reach. Every step goes
    as far as the distance decreases, and what comes back is the best iterate: the one of the smallest distance, and of the smallest
    gradient among those whose distances differ by rounding. It stops when the residual is no longer than `goal`, or when its products
    with the rows are rounding.
    """

    def weighed(vector: FloatArray) -> FloatArray:
        return vector.copy() if weigh is None else weigh.times(vector)

    v, residual = np.zeros_like(right), right.copy()
    weighted = weighed(residual)
    gradient = products.combine(weighted, some)
    square, distance = float(np.vdot(gradient, gradient)), float(residual @ weighted)
    direction, combined = weighted.copy(), gradient.copy()  # combined is always the sum of the rows times direction
    best, lowest, flattest = (v.copy(), residual.copy()), distance, square
    for _ in range(_LEAST_SQUARES_STEPS):
        if not float(np.linalg.norm(residual)) > goal:
            break
        if not square**0.5 > _GRADIENT_ROUNDING * EPS * float(np.abs(weighted).sum()):
            break
        image = products.apply(combined, some)
        curvature, descent = float(image @ weighed(image)), float(np.vdot(combined, gradient))
        if not curvature > 0.0 or not descent > 0.0:
            break
        products.n_products += 1
        v += descent / curvature * direction
        residual -= descent / curvature * image
        weighted = weighed(residual)
        distance = float(residual @ weighted)
        gradient = products.combine(weighted, some)
        square, last = float(np.vdot(gradient, gradient)), square
        closer = distance < lowest * (1.0 - _SAME_DISTANCE)
        if closer or (distance <= lowest * (1.0 + _SAME_DISTANCE) and square < flattest):
            best, lowest, flattest = (v.copy(), residual.copy()), min(lowest, distance), square
        combined = gradient + square / last * combined
        direction = weighted + square / last * direction
    return best
