r"""Regularisation paths of the factors of W = Q Kᵀ: the ball ‖Q‖² + ‖K‖² ≤ r², which is the nuclear-norm ball ‖W‖_* ≤ r²/2.

.. math:: \min_{\|Q\|_F^2 + \|K\|_F^2 \le 2R} L(Q K^\top) = \min_{\|W\|_* \le R,\ \operatorname{rank} W \le \text{width}} L(W)

The logarithm of the risk less that of the selected tokens is minimised over directions of (Q, K), from the point before, from the factors
of nuclear-norm max-margin solutions, and in the first ball from random points; radii in between keep each at most twice the one before.
Far out the direction tends to the nuclear-norm solution of the selected tokens, and the rank of W to its rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from marginlens.arithmetic.directions import unit
from marginlens.dynamics.paths.general import GeneralSearch
from marginlens.dynamics.paths.path import SearchState, ladder, no_region, path_search
from marginlens.norms import Nuclear
from marginlens.papers import implements
from marginlens.risk.matrix import FactorRisk
from marginlens.svm import Status, att_svm
from marginlens.typing import FloatArray, IntArray

MAX_FACTOR_STEPS, FACTOR_MEMORY = 3000, 40  # of L-BFGS at each radius, and the steps it remembers
FACTOR_GTOL = 1e-10  # largest entry of the gradient of the log excess per unit of radius at which a search ends
DISTURBANCE = 1e-2  # of a start, relative to its norm
MAX_FACTOR_RATIO = 2.0  # between one radius and the next


@implements("D", "regularisation path of (K, Q)")
@dataclass(frozen=True)
class FactorSearch(GeneralSearch):
    """The best of several local minima over the factors in each ball."""

    risk: FactorRisk

    @property
    def _has_excess(self) -> bool:
        return True

    def follow(self, state: SearchState, radius: float) -> SearchState:
        """Return the best point at the next radius."""
        last = state.points[-1] if state.points else None
        for rung in ladder(float(state.radii[-1]), radius, MAX_FACTOR_RATIO) if len(state.radii) else [radius]:
            starts = self._starts(rung, last, state.generator)
            minima = [self._minimum(rung, start, last is not None) for start in starts]
            last = self._lowest(minima if last is None else [*minima, last])
        return state.reached(radius, last)

    def _starts(self, radius: float, last: FloatArray | None, generator: np.random.Generator) -> list[FloatArray]:
        """Return directions (size,): random ones in the first ball; then the point before, as it is and disturbed, since columns
        that are zero would stay so, and the nuclear-norm solutions of what it, a linear head and random directions select.
        """
        directions = unit(generator.standard_normal((self.restarts, int(np.prod(self.risk.shape)))))
        if last is None:
            return list(directions)
        selected = [np.asarray(self.risk.select(x.reshape(self.risk.shape) * radius)) for x in directions]
        if self.risk.of_p.is_linear:
            selected.append(self.risk.of_p.data.optimal(self.risk.of_p.head))
        selected.append(np.asarray(self.risk.select(last)))
        solutions = [self._nuclear_factors(tokens) for tokens in np.unique(np.stack(selected), axis=0)]
        before = unit(last.ravel())
        disturbed = unit(before + DISTURBANCE * directions[0]) if len(directions) else before
        return [before, disturbed, *(solution for solution in solutions if solution is not None)]

    def _nuclear_factors(self, selected: IntArray) -> FloatArray | None:
        """Return the balanced factors of the nuclear-norm solution of a selection, of norm one, (size,); None if there is none."""
        solution = att_svm(self.risk.of_p.data, selected, norm=Nuclear(), query=self.risk.query)
        if solution.status not in (Status.OPTIMAL, Status.INACCURATE):
            return None
        left, values, right = np.linalg.svd(solution.x, full_matrices=False)
        width = self.risk.width
        factors = np.zeros(self.risk.shape)
        roots = np.sqrt(values[:width])
        factors[: len(left), : len(roots)] = left[:, :width] * roots
        factors[len(left) :, : len(roots)] = right[:width].T * roots
        return unit(factors.ravel())

    def _lowest(self, points: list[FloatArray]) -> FloatArray:
        """Return the point of smallest risk, compared relative to the tokens that the best one so far selects."""
        best = points[0]
        for _ in points:
            selected = self.risk.select(best)
            heights = [self._height_above(x, selected) for x in points]
            winner = points[int(np.argmin(heights))]
            if winner is best:
                break
            best = winner
        return best

    def _height_above(self, x: FloatArray, selected: IntArray) -> float:
        """Return a number that orders points by their risk: the logarithm of the excess if it is positive, otherwise far below that."""
        excess = self.risk.excess(x, selected)
        log = float(excess.log)
        return log if float(excess.sign) > 0.0 else -np.inf if float(excess.sign) == 0.0 else -1e300 - log

    def _minimum(self, radius: float, start: FloatArray, above_tokens: bool = False) -> FloatArray:
        """Find a local minimum on the sphere, from the direction `start` (size,): of the log risk, or of its excess over that
        of the tokens which the start selects.
        """
        selected = self.risk.select((radius * start).reshape(self.risk.shape)) if above_tokens else None
        shape, scale = self.risk.shape, 1.0 / (1.0 + radius**2)  # logits grow with the square of the factors

        def height(u: FloatArray) -> tuple[float, FloatArray]:
            norm = float(np.linalg.norm(u))
            direction = u / norm
            x = (radius * direction).reshape(shape)
            log, gradient = float(self.risk.log_value(x)), self.risk.gradient(x)
            if selected is not None:
                excess = self.risk.excess(x, selected)
                if float(excess.sign) <= 0.0:  # below all that the tokens can give: nothing further to look for
                    return -1.0, np.zeros_like(u)
                log = float(excess.log)
            slope = radius * np.exp(float(gradient.log_norm) - log) * gradient.direction().ravel()
            return scale * log, scale * (slope - (slope @ direction) * direction) / norm

        options = {"maxiter": MAX_FACTOR_STEPS, "maxcor": FACTOR_MEMORY, "gtol": FACTOR_GTOL, "ftol": 0.0}
        with np.errstate(all="ignore"):
            u = scipy.optimize.minimize(height, start, jac=True, method="L-BFGS-B", options=options).x
        u = start if not np.isfinite(u).all() else u
        return np.asarray(radius * unit(u)).reshape(shape)


@path_search.register(FactorRisk)
def _factor_search(risk: FactorRisk, region: object, restarts: int | None) -> FactorSearch:
    no_region(region, "FactorRisk")
    return FactorSearch(risk, 8 if restarts is None else restarts)
