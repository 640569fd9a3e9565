r"""Regularisation paths in balls of any norm, by projected gradients or by steps of Frank and Wolfe.

Both minimise the logarithm of the excess risk where the risk has one, and stop where the gap of Frank and Wolfe is closed,

.. math:: \langle\nabla L(x), x\rangle + R\, \|\nabla L(x)\|_* \ge 0,

which is zero at stationary points of the ball :math:`\|x\| \le R` and nowhere else, whatever the norm. Norms whose balls have a Euclidean
projection in closed form take projected gradient steps of Barzilai and Borwein's lengths; in ℓp and a norm of your own steps go towards the
steepest point of the ball, and for norms with one steepest point everywhere the equation x = -R s(∇L(x)) is solved from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy

from marginlens.directions import length
from marginlens.dynamics.paths.general import GENERAL_BOUNDARY_RTOL, GeneralSearch
from marginlens.dynamics.paths.path import PathPoints, PathSearch, SearchState, ball_bindings, norm_search
from marginlens.errors import InputError
from marginlens.kinds import kind_of
from marginlens.norms import L1, L2, LInf, Lp, MaxRow, Norm, Nuclear, Spectral, direction_of
from marginlens.risk.attention import AttentionRisk
from marginlens.risk.matrix import MatrixRisk
from marginlens.runtime.progress import ProgressCallback
from marginlens.svm import att_svm
from marginlens.typing import FloatArray

GAP_RTOL = 1e-14  # of R ‖∇L‖_*, at which a point is stationary
SOLVED_GAP = 1e-10  # the same, at which a solved equation counts as solved
MAX_STEPS = 3_000  # of projected gradients
FEW_STEPS, MANY_STEPS = 12, 300  # of Frank and Wolfe
HEIGHT_RTOL = 1e-14  # of a height, within which rounding decides
ARMIJO = 1e-4  # share of the predicted fall that a step must bring
LOOK_BACK = 8  # heights among which the largest must be undercut
BACKTRACKS = 30

Projection = Callable[[FloatArray, float], FloatArray]


def _onto_l1(x: FloatArray, radius: float) -> FloatArray:
    """The nearest point of the ball of ℓ1, by the threshold that all moduli lose (Duchi et al., 2008)."""
    moduli = np.abs(x)
    if moduli.sum() <= radius:
        return x
    ordered = np.sort(moduli, axis=None)[::-1]
    excess = (np.cumsum(ordered) - radius) / np.arange(1, ordered.size + 1)
    threshold = excess[np.flatnonzero(ordered > excess)[-1]]
    return np.sign(x) * np.maximum(moduli - threshold, 0.0)


def _onto_rows(x: FloatArray, radius: float, axis: int | None) -> FloatArray:
    """The nearest point whose rows, or the whole, are no longer than the radius."""
    lengths = np.sqrt(np.sum(x * x, axis=axis, keepdims=True))
    return x * np.minimum(1.0, radius / np.where(lengths > 0.0, lengths, 1.0))


def _onto_values(x: FloatArray, radius: float, onto: Projection) -> FloatArray:
    """The nearest point in a norm of singular values."""
    left, values, right = np.linalg.svd(x, full_matrices=False)
    kept: FloatArray = (left * onto(values, radius)) @ right
    return kept


def _clipped(x: FloatArray, radius: float) -> FloatArray:
    return np.clip(x, -radius, radius)


PROJECTIONS: dict[type, Projection] = {
    L1: _onto_l1,
    L2: partial(_onto_rows, axis=None),
    LInf: _clipped,
    MaxRow: partial(_onto_rows, axis=-1),
    Spectral: partial(_onto_values, onto=_clipped),
    Nuclear: partial(_onto_values, onto=_onto_l1),
}


@norm_search.register(object)
def search_norm_balls(norm: Any, risk: Any, restarts: int) -> PathSearch:
    """The search that serves every norm."""
    return NormSearch(risk, restarts, norm)


@dataclass(frozen=True)
class NormSearch(GeneralSearch):
    """The best of several local minima in each ball of a norm."""

    norm: Norm

    def extend(self, state: SearchState, radii: FloatArray, progress: ProgressCallback | None) -> SearchState:
        """The best point found at each further radius, from the one before, steepest points and max-margin directions."""
        points, shape = list(state.points), tuple(self.risk.shape)
        for k, radius in enumerate(radii.tolist()):
            drawn = [self.norm.steepest(g) for g in state.generator.standard_normal((self.restarts, *shape))]
            downhill = -direction_of(self.norm, self.risk.gradient(np.zeros(shape)))
            last = points[-1:]
            starts = [downhill, *drawn, *self._margin_starts(), *(x / (self.norm.value(x) or 1.0) for x in last)]
            minima = [self._minimum(radius, radius * start) for start in starts]
            points.append(min([*last, *minima], key=self._height))
            if progress is not None:
                progress(k + 1, len(radii))
        return state._replace(radii=np.append(state.radii, radii), points=tuple(points))

    def _margin_starts(self) -> list[FloatArray]:
        """The max-margin direction of the best tokens in the norm, of norm one, where there is one."""
        if type(self.risk) is not AttentionRisk:
            return []
        try:
            x = att_svm(self.risk.data, self.risk.best_tokens(), norm=self.norm).x
        except InputError:  # a norm without a solver
            return []
        return [x / self.norm.value(x)] if np.isfinite(x).all() and x.any() else []

    def _height(self, x: FloatArray) -> tuple[bool, float]:
        """The logarithm of the excess over the best tokens where that is known, else as for any risk."""
        if not isinstance(self.risk, AttentionRisk | MatrixRisk):
            return super()._height(x)
        excess = self.risk.excess(x, self.risk.best_tokens())
        return True, float(excess.log) if float(excess.sign) > 0.0 else -np.inf

    def _slope(self, x: FloatArray) -> tuple[float, FloatArray]:
        """The height and its gradient."""
        gradient, (is_log, height) = self.risk.gradient(x), self._height(x)
        if not is_log or not np.isfinite(height):
            return height, gradient.value()
        return height, np.exp(float(gradient.log_norm) - height) * gradient.direction()

    def _gap(self, x: FloatArray, g: FloatArray, radius: float) -> float:
        """(⟨g, x⟩ + R ‖g‖_*)/(R ‖g‖_*), zero at stationary points."""
        dual = self.norm.dual(g)
        return 0.0 if dual == 0.0 else float(np.sum(g * x)) / (radius * dual) + 1.0

    def _minimum(self, radius: float, start: FloatArray) -> FloatArray:
        """A local minimum over the ball, from a point of it."""
        kind = kind_of(self.norm)
        project = PROJECTIONS.get(kind)
        if project is not None:
            x = self._projected(start, radius, project)
            return self._solved(x, radius) if kind is L2 else x
        if kind is Lp:  # a few steps bring the equation near enough, mostly
            x = self._solved(self._by_frank_wolfe(start, radius, FEW_STEPS), radius)
            if self._gap(x, self._slope(x)[1], radius) <= SOLVED_GAP:
                return x
        return self._by_frank_wolfe(start, radius, MANY_STEPS)

    def _projected(self, x: FloatArray, radius: float, project: Projection) -> FloatArray:
        """Projected gradient steps; those that rounding no longer judges are judged by the gap, of which the least is kept."""
        height, g = self._slope(x)
        size, heights = radius / max(float(np.max(np.abs(g))), 1e-300), [height]
        best, least = x, self._gap(x, g, radius)
        for _ in range(MAX_STEPS):
            if least <= GAP_RTOL:
                break
            target = project(x - size * g, radius) - x
            slope, rounding = float(np.sum(g * target)), HEIGHT_RTOL * max(1.0, abs(height))
            for share in 0.5 ** np.arange(BACKTRACKS):
                following = x + share * target
                height, after = self._slope(following)
                if height <= max(heights[-LOOK_BACK:]) + ARMIJO * share * slope + rounding:
                    break
            moved = following - x
            curvature = float(np.sum(moved * (after - g)))
            size = float(np.sum(moved * moved)) / curvature if curvature > 0.0 else 10.0 * size
            x, g = following, after
            heights.append(height)
            gap = self._gap(x, g, radius)
            best, least = (x, gap) if gap < least else (best, least)
            if not moved.any():
                break
        return best

    def _by_frank_wolfe(self, x: FloatArray, radius: float, n_steps: int) -> FloatArray:
        """Steps towards the steepest point of the ball, each as long as lowers the height most."""
        for _ in range(n_steps):
            _, g = self._slope(x)
            if self._gap(x, g, radius) <= GAP_RTOL:
                break
            move = -radius * self.norm.steepest(g) - x

            def along(share: float, x: FloatArray = x, move: FloatArray = move) -> float:
                """The height after a share of the move."""
                return float(self._height(x + share * move)[1])

            share = scipy.optimize.minimize_scalar(along, bounds=(0.0, 1.0), method="bounded").x
            if not along(share) < along(0.0):
                break
            x = x + share * move
        return x

    def _solved(self, x: FloatArray, radius: float) -> FloatArray:
        """The solution of x = -R s(∇L(x)) near x, where it has the smaller gap; a minimum inside the ball has none."""

        def missing(z: FloatArray) -> FloatArray:
            point = z.reshape(x.shape)
            return (z + radius * direction_of(self.norm, self.risk.gradient(point)).ravel()) / radius

        with np.errstate(all="ignore"):
            found = scipy.optimize.root(missing, x.ravel(), tol=1e-15).x.reshape(x.shape)
        inside = np.isfinite(found).all() and self.norm.value(found) <= radius * (1.0 + 1e-12)
        return found if inside and length(missing(found.ravel())) < length(missing(x.ravel())) else x

    def finish(self, state: SearchState) -> PathPoints:
        """Points, tokens, the excess risk or the risk itself, and whether the ball binds."""
        found = super().finish(state)
        norms = np.array([self.norm.value(x) for x in state.points])
        binding = ball_bindings(norms >= state.radii * (1.0 - GENERAL_BOUNDARY_RTOL))
        if not isinstance(self.risk, AttentionRisk | MatrixRisk):
            return found._replace(binding=binding)
        excess = [self.risk.excess(x, self.risk.select(state.points[-1])) for x in state.points]
        logs, signs = (np.array([float(getattr(one, part)) for one in excess]) for part in ("log", "sign"))
        return found._replace(log_excess=logs, excess_sign=signs, binding=binding, trusted=True)

    def kkt_residual(self, state: SearchState) -> FloatArray:
        """(n_radii,) the gap of Frank and Wolfe over R ‖∇L‖_*, or the gradient over that at zero where that is less."""
        at_zero = float(self.risk.gradient(np.zeros(self.risk.shape)).log_norm)
        residuals = []
        for x, radius in zip(state.points, state.radii.tolist(), strict=True):
            gradient = self.risk.gradient(x)
            gap = abs(self._gap(x, gradient.direction(), radius))
            residuals.append(min(gap, float(np.exp(min(0.0, float(gradient.log_norm) - at_zero)))))
        return np.array(residuals)
