r"""Regularisation paths of any risk in balls of any norm, by its value and gradient only.

The logarithm of the risk, or of its excess if that is known, is minimised over each ball from the previous point, from a step
down the slope at the origin and from random points, until the gap of Frank and Wolfe is closed,

.. math:: \langle\nabla L(x), x\rangle + R\, \|\nabla L(x)\|_* \ge 0,

which is zero at stationary points of the sphere :math:`\|x\| = R` and nowhere else on it, whatever the norm. Norms whose balls
have a Euclidean projection in closed form take projected gradient steps of Barzilai and Borwein's lengths. In ℓp and in your
own norm, steps go towards the steepest point of the ball; if a norm has a unique steepest point everywhere, the equation x = -R
s(∇L(x)) is then solved from there.

If the loss has its minimum between two scores, a mixture of tokens can be better than the best tokens. Once this happens, the
risk itself is minimised instead, and such points are trusted if their gap is closed.

Points are correct as long as the risk changes by more than its rounding error in the ball; if the risk tends to a positive
number, this soon fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import scipy

from marginlens.arithmetic.directions import length, unit
from marginlens.dynamics.paths.path import PathPoints, PathSearch, SearchState, ball_bindings, no_region, path_search
from marginlens.errors import InputError
from marginlens.kinds import defining_class
from marginlens.norms import L1, L2, LInf, Lp, MaxRow, Norm, Nuclear, Spectral
from marginlens.norms.choice import direction_of
from marginlens.risk.attention import AttentionRisk, SoftmaxRisk
from marginlens.risk.matrix import MatrixRisk
from marginlens.risk.protocol import Risk
from marginlens.svm import att_svm
from marginlens.typing import FloatArray

GENERAL_BOUNDARY_RTOL = 1e-6  # distance to the ball, relative to its radius, that counts as on it
INSIDE_STEP = 1e-2  # distance, relative to the radius, at which the slope around a minimum inside the ball is looked at
LOG_VISIBLE_CHANGE = np.log(1e-10)  # of the risk around a point, relative to it: of less, rounding leaves few digits
GAP_RTOL = 1e-14  # of R ‖∇L‖_*, at which a point is stationary
SOLVED_GAP = 1e-10  # the same, at which a solved equation counts as solved
MAX_STEPS = 3_000  # of projected gradients
FEW_STEPS, MANY_STEPS = 12, 300  # of Frank and Wolfe
HEIGHT_RTOL = 1e-14  # of a height, within which rounding decides
MIXTURE_RESIDUAL = 1e-4  # up to which a point below the best tokens is trusted
ARMIJO = 1e-4  # share of the predicted fall that a step must bring
LOOK_BACK = 8  # heights among which the largest must be undercut
BACKTRACKS = 30

Projection = Callable[[FloatArray, float], FloatArray]


def _onto_l1(x: FloatArray, radius: float) -> FloatArray:
    """Project onto the ball of ℓ1, by the threshold that all moduli lose (Duchi et al., 2008)."""
    moduli = np.abs(x)
    if moduli.sum() <= radius:
        return x
    ordered = np.sort(moduli, axis=None)[::-1]
    excess = (np.cumsum(ordered) - radius) / np.arange(1, ordered.size + 1)
    threshold = excess[np.flatnonzero(ordered > excess)[-1]]
    return np.sign(x) * np.maximum(moduli - threshold, 0.0)


def _onto_rows(x: FloatArray, radius: float, axis: int | None) -> FloatArray:
    """Project onto the points whose rows, or the whole, are no longer than the radius."""
    lengths = np.sqrt(np.sum(x * x, axis=axis, keepdims=True))
    return x * np.minimum(1.0, radius / np.where(lengths > 0.0, lengths, 1.0))


def _onto_values(x: FloatArray, radius: float, onto: Projection) -> FloatArray:
    """Project onto the ball of a norm of singular values."""
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


@path_search.register(object)
def general_search(risk: Risk, region: object, restarts: int | None, norm: Norm = L2()) -> GeneralSearch:
    """Return the search for a risk without its own search, and for balls of any norm."""
    no_region(region, type(risk).__name__)
    return GeneralSearch(risk, 8 if restarts is None else restarts, norm)


@dataclass(frozen=True)
class GeneralSearch(PathSearch):
    """The best of several local minima in each ball of a norm."""

    risk: Any
    restarts: int
    norm: Norm = L2()
    by_value: bool = False  # whether points are ordered by the risk itself

    def follow(self, state: SearchState, radius: float) -> SearchState:
        """Return the best point found at the next radius, from the previous point, steepest points and max-margin directions."""
        shape, last = tuple(self.risk.shape), state.points[-1:]
        drawn = [self.norm.steepest(g) for g in state.generator.standard_normal((self.restarts, *shape))]
        downhill = -direction_of(self.norm, self.risk.gradient(np.zeros(shape)))
        starts = [downhill, *drawn, *self._margin_starts(), *(x / (self.norm.value(x) or 1.0) for x in last)]
        minima = [self._minimum(radius, radius * start) for start in starts]
        best = min([*last, *minima], key=self._height)
        if self._has_excess and self._is_mixture(best):
            return replace(self, by_value=True).follow(state, radius)
        return state.reached(radius, best)

    def _is_mixture(self, x: FloatArray) -> bool:
        """Return whether a point has less risk than the best tokens."""
        return float(self.risk.excess(x, self.risk.best_tokens()).sign) < 0.0

    def _margin_starts(self) -> list[FloatArray]:
        """Return the max-margin direction of the best tokens in the norm, of norm one, if there is one."""
        if type(self.risk) not in (SoftmaxRisk, AttentionRisk):
            return []
        try:
            x = att_svm(self.risk.data, self.risk.best_tokens(), norm=self.norm).x
        except InputError:  # a norm without a solver
            return []
        return [x / self.norm.value(x)] if np.isfinite(x).all() and x.any() else []

    @property
    def _has_excess(self) -> bool:
        """True if the risk has an excess over that of its best tokens, by which points are ordered."""
        return not self.by_value and isinstance(self.risk, SoftmaxRisk | MatrixRisk)

    def _height(self, x: FloatArray) -> tuple[bool, float]:
        """Compute the height by which points are ordered: the logarithm of the excess over the best tokens if it is known, else
        that of the risk if it is a number, else the risk.
        """
        if self._has_excess:
            excess = self.risk.excess(x, self.risk.best_tokens())
            return True, float(excess.log) if float(excess.sign) > 0.0 else -np.inf
        if self.by_value:
            return False, float(self.risk.value(x))
        log = float(self.risk.log_value(x))
        return (False, float(self.risk.value(x))) if np.isnan(log) else (True, log)

    def _slope(self, x: FloatArray) -> tuple[float, FloatArray]:
        """Return the height and its gradient."""
        gradient, (is_log, height) = self.risk.gradient(x), self._height(x)
        if not is_log or not np.isfinite(height):
            return height, gradient.value()
        return height, np.exp(float(gradient.log_norm) - height) * gradient.direction()

    def _gap(self, x: FloatArray, g: FloatArray, radius: float) -> float:
        """Return (⟨g, x⟩ + R ‖g‖_*)/(R ‖g‖_*), which is zero at stationary points."""
        dual = self.norm.dual(g)
        return 0.0 if dual == 0.0 else float(np.sum(g * x)) / (radius * dual) + 1.0

    def _minimum(self, radius: float, start: FloatArray) -> FloatArray:
        """Find a local minimum over the ball from a point of it."""
        kind = defining_class(self.norm)
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
        """Take projected gradient steps until the gap is closed or nothing in the ball changes the height visibly.

        The lowest point is kept; of those that rounding does not tell apart that of the least gap.
        """
        height, g = self._slope(x)
        size, heights = radius / max(float(np.max(np.abs(g))), 1e-300), [height]
        best, lowest, least = x, height, self._gap(x, g, radius)
        for _ in range(MAX_STEPS):
            rounding = HEIGHT_RTOL * max(1.0, abs(height))
            if least <= GAP_RTOL or radius * self.norm.dual(g) <= rounding:
                break
            target = project(x - size * g, radius) - x
            slope = float(np.sum(g * target))
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
            if height < lowest - rounding or (height <= lowest + rounding and gap < least):
                best, lowest, least = x, height, gap
            if not moved.any():
                break
        return best

    def _by_frank_wolfe(self, x: FloatArray, radius: float, n_steps: int) -> FloatArray:
        """Take steps towards the steepest point of the ball, each of the length that lowers the height most."""
        for _ in range(n_steps):
            _, g = self._slope(x)
            if self._gap(x, g, radius) <= GAP_RTOL:
                break
            move = -radius * self.norm.steepest(g) - x

            def along(share: float, x: FloatArray = x, move: FloatArray = move) -> float:
                """Return the height after a share of the move."""
                return float(self._height(x + share * move)[1])

            share = scipy.optimize.minimize_scalar(along, bounds=(0.0, 1.0), method="bounded").x
            if not along(share) < along(0.0):
                break
            x = x + share * move
        return x

    def _solved(self, x: FloatArray, radius: float) -> FloatArray:
        """Solve x = -R s(∇L(x)) near x, and keep the solution if it is no higher; there is none for a minimum inside the ball."""

        def missing(z: FloatArray) -> FloatArray:
            point = z.reshape(x.shape)
            return (z + radius * direction_of(self.norm, self.risk.gradient(point)).ravel()) / radius

        with np.errstate(all="ignore"):
            found = scipy.optimize.root(missing, x.ravel(), tol=1e-15).x.reshape(x.shape)
        if not np.isfinite(found).all() or self.norm.value(found) > radius * (1.0 + 1e-12):
            return x
        height, ahead = self._height(x)[1], self._height(found)[1]
        solved = length(missing(found.ravel())) < length(missing(x.ravel()))
        return found if solved and ahead <= height + HEIGHT_RTOL * max(1.0, abs(height)) else x

    def finish(self, state: SearchState) -> PathPoints:
        """Return points, tokens, the risk itself or its excess over the last tokens, and whether the ball binds."""
        points = np.stack(state.points)
        selected = np.stack([np.asarray(self.risk.select(x)) for x in points])
        binds = np.array([self.norm.value(x) for x in points]) >= state.radii * (1.0 - GENERAL_BOUNDARY_RTOL)
        if self._has_excess:
            excess = [self.risk.excess(x, selected[-1]) for x in points]
            logs, signs = (np.array([float(getattr(one, part)) for one in excess]) for part in ("log", "sign"))
            mixtures = np.array([self._is_mixture(x) for x in points])
            trusted = ~mixtures | (self.kkt_residual(state) <= MIXTURE_RESIDUAL)
            return PathPoints(points, selected, logs, signs, ball_bindings(binds), trusted)
        values = np.array([float(self.risk.value(x)) for x in points])
        logs = np.array([float(self.risk.log_value(x)) for x in points])
        with np.errstate(divide="ignore"):
            logs = np.where(np.isnan(logs), np.log(np.abs(values)), logs)
        trusted = self._slopes(state)[:, 1] > logs + LOG_VISIBLE_CHANGE
        return PathPoints(points, selected, logs, np.where(values < 0.0, -1.0, 1.0), ball_bindings(binds), trusted)

    def kkt_residual(self, state: SearchState) -> FloatArray:
        """Return the relative gradient that a Euclidean ball does not balance, (n_radii,); inside the ball relative to that a
        short step away.

        In other norms the gap of Frank and Wolfe over R ‖∇L‖_*, or the gradient over that at zero if that is less.
        """
        if defining_class(self.norm) is L2:
            return self._slopes(state)[:, 0]
        at_zero = float(self.risk.gradient(np.zeros(self.risk.shape)).log_norm)
        residuals = []
        for x, radius in zip(state.points, state.radii.tolist(), strict=True):
            gradient = self.risk.gradient(x)
            gap = abs(self._gap(x, gradient.direction(), radius))
            residuals.append(min(gap, float(np.exp(min(0.0, float(gradient.log_norm) - at_zero)))))
        return np.array(residuals)

    def _slopes(self, state: SearchState) -> FloatArray:
        """Return the residual of each point, and the logarithm of the change of the risk in a step around it, (n_radii, 2)."""
        slopes = np.zeros((len(state.radii), 2))
        for k, (x, radius) in enumerate(zip(state.points, state.radii.tolist(), strict=True)):
            gradient, norm = self.risk.gradient(x), float(length(x.ravel()))
            g, u, step, scale = gradient.direction().ravel(), unit(x.ravel()), radius, float(gradient.log_norm)
            if norm >= radius * (1.0 - GENERAL_BOUNDARY_RTOL) and g @ u < 0.0:
                slopes[k, 0] = np.linalg.norm(g - (g @ u) * u)
            else:  # the smaller of two slopes: around a minimum both are large, where the risk only levels off one of them is smaller yet
                step = INSIDE_STEP * radius
                away = step * (u if norm > 0.0 else unit(np.ones(x.size))).reshape(x.shape)
                scale = min(float(self.risk.gradient(x + side).log_norm) for side in (-away, away))
                slopes[k, 0] = np.exp(min(0.0, float(gradient.log_norm) - scale)) if g.any() else 0.0
            slopes[k, 1] = scale + np.log(step)
        return slopes

    def split(self, state: SearchState) -> Any:
        """Return the parts of the points, if the risk has parts."""
        return self.risk.split(np.stack(state.points)) if hasattr(self.risk, "split") else super().split(state)
