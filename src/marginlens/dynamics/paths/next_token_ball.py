"""The point of smallest next-token risk in a ball: the part that shows in the risk, then the tail in logarithms, then both at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.data.tokens import FloatArray, IntArray
from marginlens.dynamics.paths.landscape import View
from marginlens.dynamics.paths.projected_newton import ON_THE_EDGE, Region, minimise
from marginlens.dynamics.paths.split_risk import Slopes, SplitRisk
from marginlens.risk.attention import ExcessRisk

_POLISH = 12  # Newton steps on the conditions of a minimum
_GAIN = 0.5  # factor by which such a step must shrink what is left


@dataclass(frozen=True)
class Whole:
    """L less what putting out every label would cost, over all coordinates, as `minimise` reads it."""

    risk: SplitRisk

    @property
    def reach(self) -> float:
        """The longest row, which bounds the logits of a unit step."""
        return self.risk.reach

    def excess(self, c: FloatArray, selected: IntArray) -> ExcessRisk:
        """The difference at points (batch, r), which is positive on cyclic data."""
        return ExcessRisk(np.ones(len(c)), self._log(c))

    def view(self, c: FloatArray) -> View:
        """Gradient and second derivative at points (batch, r)."""
        all_ = [self.risk.slopes(one) for one in c]
        plain = [np.exp(one.log_unit) for one in all_]
        gradient = [np.concatenate([s.inner, e * s.outer]) for s, e in zip(all_, plain, strict=True)]
        bend = [
            np.block([[s.inner_bend, e * s.cross_bend.T], [e * s.cross_bend, e * s.outer_bend]])
            for s, e in zip(all_, plain, strict=True)
        ]
        size = [s.inner_size + e * s.outer_size for s, e in zip(all_, plain, strict=True)]
        return _view(np.array(gradient), np.array(bend), size, self._log(c), np.zeros(len(c)))

    def _log(self, c: FloatArray) -> FloatArray:
        return np.log(self.risk.body(c) - self.risk.floor + np.exp(self.risk.log_tail(c)))


@dataclass(frozen=True)
class Tail:
    """T over the complement of S_cyc at one x (n_cyclic,), as `minimise` reads it."""

    risk: SplitRisk
    x: FloatArray

    @property
    def reach(self) -> float:
        """The longest row."""
        return self.risk.reach

    def excess(self, z: FloatArray, selected: IntArray) -> ExcessRisk:
        """T at points (batch, r - n_cyclic)."""
        log = self.risk.log_tail(self.whole(z))
        return ExcessRisk(np.where(np.isneginf(log), 0.0, 1.0), log)

    def view(self, z: FloatArray) -> View:
        """Gradient and second derivative at points (batch, r - n_cyclic)."""
        all_ = [self.risk.slopes(one) for one in self.whole(z)]
        units = np.array([one.log_unit for one in all_])
        gradient, bend = (np.array([getattr(one, name) for one in all_]) for name in ("outer", "outer_bend"))
        return _view(gradient, bend, [one.outer_size for one in all_], self.risk.log_tail(self.whole(z)), units)

    def whole(self, z: FloatArray) -> FloatArray:
        """The points (batch, r) with this x."""
        return np.concatenate([np.broadcast_to(self.x, (len(z), len(self.x))), z], axis=1)


def _view(gradient: FloatArray, bend: FloatArray, size: Any, log_size: FloatArray, log_unit: FloatArray) -> View:
    nothing = np.zeros((len(gradient), 1), dtype=np.int64)
    return View(nothing, gradient, bend, np.array(size), log_size, log_unit)


# ---- minima


def smallest_tail(risk: SplitRisk, starts: FloatArray, radius: float) -> FloatArray:
    """The lowest of the minima of T over z of norm at most `radius` that starts (batch, r) with one common x lead to, (r,)."""
    m = risk.n_cyclic
    tail: Any = Tail(risk, starts[0, :m])
    found = tail.whole(minimise(tail, starts[:, m:], Region(radius)))
    return found[int(np.argmin(risk.log_tail(found)))]


def smallest_risk(risk: SplitRisk, starts: FloatArray, radius: float) -> FloatArray:
    """The lowest of the minima of L over the ball that starts (batch, r) lead to, (r,)."""
    if risk.n_cyclic == 0:
        return _polished(risk, smallest_tail(risk, starts, radius), radius)
    whole: Any = Whole(risk)
    inside = np.stack([_on_the_ball(one, risk.n_cyclic, radius) for one in starts])
    found = minimise(whole, inside, Region(radius))
    c = found[_lowest(risk, found)]
    room = radius**2 - float(c[: risk.n_cyclic] @ c[: risk.n_cyclic])
    if len(c) > risk.n_cyclic and room > 0.0:
        c = smallest_tail(risk, c[None], float(np.sqrt(room)))
    return _polished(risk, c, radius)


def _lowest(risk: SplitRisk, c: FloatArray) -> int:
    """Which of the points (batch, r) has the smallest risk; where the sums round to the same number, the smallest tail."""
    total = risk.body(c) + np.exp(risk.log_tail(c))
    same = total <= total.min() + 4.0 * np.finfo(float).eps * np.abs(total).max()
    return int(np.argmin(np.where(same, risk.log_tail(c), np.inf)))


def _polished(risk: SplitRisk, c: FloatArray, radius: float) -> FloatArray:
    """A point near a minimum, moved by Newton steps as long as they help: the two parts of the conditions are of unlike size."""
    here = Conditions.at(risk, c, radius)
    for _ in range(_POLISH):
        trial = Conditions.at(risk, _on_the_ball(here.newton(), risk.n_cyclic, radius), radius)
        if not trial.left < _GAIN * here.left:
            break
        here = trial
    return here.c


def _on_the_ball(c: FloatArray, n_cyclic: int, radius: float) -> FloatArray:
    """A point that has left the ball, or is within rounding of it, put on it by shortening z (or x where there is no z)."""
    if np.linalg.norm(c) < radius * (1.0 - ON_THE_EDGE):
        return c
    x, z = c[:n_cyclic], c[n_cyclic:]
    room, length = radius**2 - float(x @ x), float(np.linalg.norm(z))
    if room <= 0.0 or length == 0.0:
        return c * (radius / np.linalg.norm(c))
    return np.concatenate([x, z * (np.sqrt(room) / length)])


@dataclass(frozen=True)
class Conditions:
    r"""What is left of the conditions :math:`\nabla L + \nu W = 0, \nu \ge 0, \nu (R - \|W\|) = 0` at one point (r,).

    The part along S_cyc is in the units of the risk, the other divided by its own size, exp(log_unit): far out it is
    :math:`e^{-R\cdot\text{margin}}` and no less exact.
    """

    c: FloatArray
    slopes: Slopes
    nu: float  # over exp(log_unit)
    binds: bool

    @classmethod
    def at(cls, risk: SplitRisk, c: FloatArray, radius: float) -> Conditions:
        """The conditions at a point of the ball."""
        m, seen = risk.n_cyclic, risk.slopes(c)
        binds = bool(np.linalg.norm(c) >= radius * (1.0 - ON_THE_EDGE))
        z = c[m:]
        if float(z @ z) > 0.0:
            nu = -float(seen.outer @ z) / float(z @ z)
        else:
            nu = -float(seen.inner @ c[:m]) / max(float(c[:m] @ c[:m]), np.finfo(float).tiny) * np.exp(-seen.log_unit)
        return cls(c, seen, max(nu, 0.0) if binds else 0.0, binds)

    @property
    def residuals(self) -> tuple[FloatArray, FloatArray]:
        """The two parts of ∇L + ν W."""
        m = len(self.slopes.inner)
        plain = self.nu * np.exp(self.slopes.log_unit)
        return self.slopes.inner + plain * self.c[:m], self.slopes.outer + self.nu * self.c[m:]

    @property
    def left(self) -> float:
        """The larger of the two parts, each relative to the terms it is summed from."""
        return max(_ratio(self.residuals[0], self.slopes.inner_size), self.outer_left)

    @property
    def outer_left(self) -> float:
        """The part across S_cyc alone."""
        return _ratio(self.residuals[1], self.slopes.outer_size)

    def newton(self) -> FloatArray:
        """The point (r,) where the conditions hold to first order; rows, steps and ν are scaled to have no units."""
        m, seen = len(self.slopes.inner), self.slopes
        plain, (inner, outer) = np.exp(seen.log_unit), self.residuals
        matrix = np.block(
            [
                [seen.inner_bend + plain * self.nu * np.eye(m), plain * seen.cross_bend.T],
                [seen.cross_bend, seen.outer_bend + self.nu * np.eye(len(outer))],
            ]
        )
        length = float(np.linalg.norm(self.c)) or 1.0
        sizes = np.repeat([seen.inner_size or 1.0, seen.outer_size or 1.0], [m, len(outer)])
        matrix, right = matrix * (length / sizes[:, None]), -np.concatenate([inner, outer]) / sizes
        if self.binds:
            column = np.concatenate([plain * self.c[:m], self.c[m:]]) / sizes
            column /= float(np.linalg.norm(column)) or 1.0
            matrix = np.block([[matrix, column[:, None]], [self.c[None] / length, np.zeros((1, 1))]])
            right = np.append(right, 0.0)
        return self.c + length * np.linalg.lstsq(matrix, right, rcond=None)[0][: len(self.c)]


def _ratio(part: FloatArray, size: float) -> float:
    return float(np.linalg.norm(part)) / size if size > 0.0 else 0.0
