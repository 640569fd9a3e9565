"""Regularisation paths of any risk, through its value and gradient alone.

The logarithm of the risk is minimised over each ball by sequential quadratic programming, from the point before, from down the slope at
the origin and from random points. Derivatives of second order are estimated, so that points are right to about six digits, as long as
the risk changes by more than its rounding in the ball: where it tends to a positive number, it soon does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from marginlens.directions import length, unit
from marginlens.dynamics.paths.path import PathPoints, SearchState, ball_bindings, increasing, no_region, path_search
from marginlens.errors import reject
from marginlens.runtime.progress import ProgressCallback
from marginlens.typing import ArrayLike, FloatArray

GENERAL_BOUNDARY_RTOL = 1e-6  # distance to the ball, relative to its radius, that counts as on it
GENERAL_FTOL = 1e-14  # change of the log risk at which a search ends
MAX_GENERAL_STEPS = 300
INSIDE_STEP = 1e-2  # distance, relative to the radius, at which the slope around a minimum inside the ball is looked at
LOG_VISIBLE_CHANGE = np.log(1e-10)  # of the risk around a point, relative to it: of less, rounding leaves few digits


@path_search.register(object)
def general_search(risk: Any, region: Any, restarts: int | None) -> GeneralSearch:
    """The search for a risk that has none of its own."""
    no_region(region, type(risk).__name__)
    return GeneralSearch(risk, 8 if restarts is None else restarts)


@dataclass(frozen=True)
class GeneralSearch:
    """The best of several local minima in each ball."""

    risk: Any
    restarts: int

    def check_radii(self, radii: ArrayLike) -> FloatArray:
        """Increasing radii."""
        return increasing(radii)

    def begin(self, generator: np.random.Generator) -> SearchState:
        """No radius yet."""
        return SearchState(np.empty(0), (), None, generator)

    def extend(self, state: SearchState, radii: FloatArray, progress: ProgressCallback | None) -> SearchState:
        """The best point found at each further radius."""
        points, size = list(state.points), int(np.prod(self.risk.shape))
        downhill = -self.risk.gradient(np.zeros(self.risk.shape)).direction().ravel()
        for k, radius in enumerate(radii.tolist()):
            directions = unit(state.generator.standard_normal((self.restarts, size)))
            starts = [downhill, *directions]
            if points:
                last = points[-1].ravel()
                starts = [last / radius, last / (float(length(last)) or 1.0), *starts]
            minima = [self._minimum(radius, start) for start in starts]
            points.append(min([*points[-1:], *minima], key=self._height))
            if progress is not None:
                progress(k + 1, len(radii))
        return state._replace(radii=np.append(state.radii, radii), points=tuple(points))

    def _height(self, x: FloatArray) -> tuple[bool, float]:
        """What orders points by their risk, in logarithms where these are numbers."""
        log = float(self.risk.log_value(x))
        return (False, float(self.risk.value(x))) if np.isnan(log) else (True, log)

    def _minimum(self, radius: float, start: FloatArray) -> FloatArray:
        """A local minimum over the ball, in units of its radius from `start` (size,)."""

        def log_risk(z: FloatArray) -> tuple[float, FloatArray]:
            x = (radius * z).reshape(self.risk.shape)
            gradient, log = self.risk.gradient(x), float(self.risk.log_value(x))
            if not np.isfinite(log):  # not positive: the risk itself
                return float(self.risk.value(x)), radius * gradient.value().ravel()
            scale = np.exp(gradient.log_norm - log)
            return log, radius * float(scale) * gradient.direction().ravel()

        ball = {"type": "ineq", "fun": lambda z: 1.0 - z @ z, "jac": lambda z: -2.0 * z}
        options = {"maxiter": MAX_GENERAL_STEPS, "ftol": GENERAL_FTOL}
        with np.errstate(all="ignore"):
            z = scipy.optimize.minimize(
                log_risk, start, jac=True, method="SLSQP", constraints=[ball], options=options
            ).x
        z = start if not np.isfinite(z).all() else z
        return (radius * z / max(1.0, float(np.linalg.norm(z)))).reshape(self.risk.shape)

    def finish(self, state: SearchState) -> PathPoints:
        """Points, tokens, the risk itself, and whether the ball binds."""
        points = np.stack(state.points)
        values = np.array([float(self.risk.value(x)) for x in points])
        logs = np.array([float(self.risk.log_value(x)) for x in points])
        with np.errstate(divide="ignore"):
            logs = np.where(np.isnan(logs), np.log(np.abs(values)), logs)
        binds = length(points.reshape(len(points), -1)) >= state.radii * (1.0 - GENERAL_BOUNDARY_RTOL)
        return PathPoints(
            points=points,
            selected=np.stack([np.asarray(self.risk.select(x)) for x in points]),
            log_excess=logs,
            excess_sign=np.where(values < 0.0, -1.0, 1.0),
            binding=ball_bindings(binds),
            trusted=self._slopes(state)[:, 1] > logs + LOG_VISIBLE_CHANGE,
        )

    def kkt_residual(self, state: SearchState) -> FloatArray:
        """(n_radii,) the gradient that the ball does not hold, relative to all of it; inside the ball to that a short step away."""
        return self._slopes(state)[:, 0]

    def _slopes(self, state: SearchState) -> FloatArray:
        """(n_radii, 2) the residual of each point, and the logarithm of what the risk changes in a step around it."""
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
        """The parts of the points, where the risk has them."""
        if not hasattr(self.risk, "split"):
            raise reject("risk", "one whose points have parts, such as JointRisk", type(self.risk).__name__)
        return self.risk.split(np.stack(state.points))
