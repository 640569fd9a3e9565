"""Regularisation paths: where the risk is smallest among all p up to a norm, as the norm grows; globally or inside a cone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from marginlens.data import TokenDataset
from marginlens.data.generators import as_generator
from marginlens.directions import correlation, unit
from marginlens.dynamics.ball import Region, minimise, pressure
from marginlens.dynamics.cone import Cone
from marginlens.dynamics.landscape import Landscape
from marginlens.dynamics.risk import ExcessRisk
from marginlens.errors import n_axes, real_array, reject, whole_number
from marginlens.losses import Logistic, Loss, as_loss
from marginlens.papers import implements

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
_LEAP = 2.0  # factor by which the ball grows between two rounds of a branch
_APPROACH = 5  # rounds in which a new start grows up to its ball
_BRANCHES = 8  # local minima that are carried on to the next radius
_SAME = 1e-7  # distance, relative to the radius, at which two local minima are one


class Binding(Enum):
    """What keeps a point of a path from going further."""

    BALL = "The norm is at its limit R."
    CONE = "The point is at the edge of the cone or at its smallest norm."
    BOTH = "The norm is at its limit R and the point is at the edge of the cone."
    NONE = "Nothing: the risk has a local minimum there."


@dataclass(frozen=True, repr=False, eq=False)
class Path:
    r"""A finished regularisation path.

    Attributes:
        radii: (n_radii,) the norms R. points: (n_radii, d_key) p̄(R).
        selected: (n_inputs,) the tokens with the largest logits at the last point.
        log_excess_risk, excess_sign: (n_radii,) the risk less that of selecting these tokens outright, as logarithm and sign.
        binds: (n_radii,) a `Binding` for each radius.
    """

    radii: FloatArray
    points: FloatArray
    selected: IntArray
    log_excess_risk: FloatArray
    excess_sign: FloatArray
    binds: npt.NDArray[np.object_]
    _problem: tuple[TokenDataset, Any, Loss, Cone | None]

    @property
    def norm(self) -> FloatArray:
        """‖p̄(R)‖, (n_radii,): R where the ball binds."""
        return np.linalg.norm(self.points, axis=-1)

    def distance(self, direction: Any) -> FloatArray:
        """‖p̄(R)/R - direction‖ for a direction (d_key,), which is normalised first; (n_radii,)."""
        q = unit(real_array(direction, "direction", (self.points.shape[-1],)))
        return np.linalg.norm(self.points / self.radii[:, None] - q, axis=-1)

    def correlation(self, direction: Any) -> FloatArray:
        """Cosine of p̄(R) with a direction (d_key,), (n_radii,)."""
        q = real_array(direction, "direction", (self.points.shape[-1],))
        return np.asarray(correlation(self.points, q))

    def kkt_residual(self) -> FloatArray:
        r"""Slope that nothing holds, relative to the terms it is summed from, (n_radii,); recomputed from the stored problem.

        .. math:: \Big\| \nabla L(\bar p) + \lambda \bar p + \sum_c \mu_c n_c \Big\| \Big/ \sum_{it} |w_{it}| \|k_{it} - k_{i\alpha_i}\|,
            \quad \lambda, \mu \ge 0
        """
        data, v, loss, cone = self._problem
        landscape = Landscape(data, v, loss, None if cone is None else cone.axis)
        left = np.zeros(len(self.radii))
        for k, (radius, point) in enumerate(zip(self.radii, self.points, strict=True)):
            c = (point @ landscape.basis)[None]
            seen = landscape.view(c)
            slope = pressure(_region(landscape, float(radius), cone), c, seen.gradient).slope
            left[k] = float(np.linalg.norm(slope)) / float(seen.size[0]) if seen.size[0] > 0.0 else 0.0
        return left

    def __repr__(self) -> str:
        last = self.binds[-1].name
        return (
            f"Path({len(self.radii)} radii {self.radii[0]:.4g} … {self.radii[-1]:.4g}, selected={self.selected.tolist()}, "
            f"norm={self.norm[-1]:.4g} at the last, bound by {last})"
        )


@implements("A", "Eq. (2)", "Eq. (9)", "Eq. (66)")
def regularization_path(
    data: TokenDataset,
    v: Any,
    radii: Any,
    *,
    loss: Loss = Logistic(),  # noqa: B008
    cone: Cone | None = None,
    restarts: int = 16,
    rng: Any = 0,
) -> Path:
    r"""The point of smallest risk in each ball, or in what a cone leaves of it.

    .. math:: \bar p(R) = \arg\min_{\|p\| \le R,\ p \in C} L(p)

    At every radius all local minima of the last one are carried on and new starts are added: random directions and norms and, for a
    linear head, the direction of the optimal tokens. Candidates are compared by the logarithm of their excess risk over one selection
    of tokens, so that radii of 1e4/margin and beyond are no different from small ones.

    Args:
        data: one problem. v: linear head (d_model,), or a nonlinear one: a torch module or function from (n, d_model) to n numbers.
        radii: (n_radii,) positive and increasing; none below the cone's own radius.
        cone: where p may be; everywhere by default.
        restarts: new starts at each radius. More of them make it surer that the minimum is global.
        rng: a `numpy.random.Generator`, or a whole number to seed one.
    Returns:
        A `Path`. Check it with `path.kkt_residual()`, and for being global with another `rng` and more restarts.
    """
    if data.is_batch:
        raise reject("data", "one problem", f"a batch of {len(data)}", "Take one with data[j].")
    limits = _increasing(radii, cone)
    if cone is not None and (not isinstance(cone, Cone) or len(cone.axis) != data.d_key):
        got = f"an axis of length {len(cone.axis)}" if isinstance(cone, Cone) else type(cone).__name__
        raise reject("cone", f"a Cone with an axis of length {data.d_key}", got)
    whole_number(restarts, "restarts", at_least=0)
    generator = as_generator(rng)
    landscape = Landscape(data, v, as_loss(loss), None if cone is None else cone.axis)
    branches, last = np.empty((0, landscape.basis.shape[1])), 0.0
    points: list[FloatArray] = []
    for radius in limits.tolist():
        region = _region(landscape, radius, cone)
        found = [_grow(landscape, branches, last, radius, cone), _fresh(landscape, region, restarts, generator, cone)]
        if points:
            found.append(minimise(landscape, points[-1][None], region))  # the last point is still allowed
        branches = _distinct(landscape, np.concatenate(found), radius)
        points.append(branches[0])
        last = radius
    return _finish(landscape, limits, np.stack(points), (data, v, as_loss(loss), cone))


def _finish(landscape: Landscape, radii: FloatArray, c: FloatArray, problem: tuple[Any, ...]) -> Path:
    alpha = landscape.selected(c[-1:])
    excess = landscape.excess(c, np.repeat(alpha, len(c), axis=0))
    binds = np.empty(len(c), dtype=object)
    for k, radius in enumerate(radii.tolist()):
        seen = landscape.view(c[k : k + 1])
        region = _region(landscape, radius, problem[-1])
        held = pressure(region, c[k : k + 1], seen.gradient)
        on_ball, on_cone = bool(held.ball[0] > 0.0), bool(held.cone[0] > 0.0 or held.ball[0] < 0.0)
        names = {(True, True): Binding.BOTH, (True, False): Binding.BALL, (False, True): Binding.CONE}
        binds[k] = names.get((on_ball, on_cone), Binding.NONE)
    return Path(radii, c @ landscape.basis.T, alpha[0], excess.log, excess.sign, binds, problem)


def _region(landscape: Landscape, radius: float, cone: Cone | None) -> Region:
    if cone is None:
        return Region(radius)
    return Region(radius, unit(cone.axis @ landscape.basis), cone.half_angle, cone.radius)


def _grow(landscape: Landscape, c: FloatArray, last: float, radius: float, cone: Cone | None) -> FloatArray:
    """Local minima over the ball of radius `last` followed to a larger one."""
    if len(c) == 0:
        return c
    n_rounds = max(1, int(np.ceil(np.log(radius / last) / np.log(_LEAP) - 1e-9)))
    factor = (radius / last) ** (1.0 / n_rounds)
    size = last
    for k in range(n_rounds):
        bound = np.linalg.norm(c, axis=-1, keepdims=True) >= size * (1.0 - _SAME)
        size = radius if k == n_rounds - 1 else size * factor
        c = minimise(landscape, np.where(bound, c * factor, c), _region(landscape, size, cone))
    return c


def _fresh(
    landscape: Landscape, region: Region, restarts: int, generator: np.random.Generator, cone: Cone | None
) -> FloatArray:
    """Local minima from new starts: some on the boundary of the ball, some grown up to it, some from inside it."""
    r = landscape.basis.shape[1]
    directions = unit(generator.standard_normal((restarts, r))) if r else np.zeros((restarts, 0))
    floor = max(region.floor, min(region.radius, 0.1 / landscape.reach if landscape.reach > 0.0 else region.radius))
    norms = floor * (region.radius / floor) ** generator.random(restarts)
    if region.axis is not None:
        sideways = directions - np.outer(directions @ region.axis, region.axis)
        turn = region.half_angle * generator.random(restarts)[:, None]
        directions = np.cos(turn) * region.axis + np.sin(turn) * np.where(r > 1, unit(sideways), 0.0)
    norms = np.where(np.arange(restarts) % 2 == 0, region.radius, norms)
    starts = [directions * norms[:, None], _obvious(landscape) * region.radius]
    if region.axis is not None:
        starts += [region.axis[None] * region.radius, region.axis[None] * region.floor]
    inside = np.concatenate(starts)
    start_radius = max(region.radius / _LEAP**_APPROACH, region.floor)
    ends = [minimise(landscape, inside, region)]
    if region.radius > start_radius:
        grown = minimise(landscape, inside[: restarts + 1], _region(landscape, start_radius, cone))
        ends.append(_grow(landscape, grown, start_radius, region.radius, cone))
    return np.concatenate(ends)


def _obvious(landscape: Landscape) -> FloatArray:
    """Towards the optimal tokens of a linear head, (1, r); down the slope at the origin for any other."""
    r = landscape.basis.shape[1]
    towards = -landscape.view(np.zeros((1, r))).gradient
    if landscape.is_linear:
        best = landscape.best_tokens()
        towards = landscape.keys[np.arange(len(best)), best].sum(axis=0)[None]
    length = np.linalg.norm(towards)
    return towards / length if length > 0.0 else towards


def _distinct(landscape: Landscape, c: FloatArray, radius: float) -> FloatArray:
    """The best of the points (m, r) first, then the others by risk without repetition, `_BRANCHES` in all."""
    kept: list[FloatArray] = []
    while len(c) and len(kept) < _BRANCHES:
        best = c[_lowest(landscape, c)]
        kept.append(best)
        c = c[np.linalg.norm(c - best, axis=-1) > _SAME * radius]
    return np.stack(kept)


def _lowest(landscape: Landscape, c: FloatArray) -> int:
    """Index of the smallest risk among points (m, r), decided relative to the tokens that the best one so far selects."""
    best = 0
    for _ in range(len(c)):
        excess: ExcessRisk = landscape.excess(c, np.repeat(landscape.selected(c[best : best + 1]), len(c), axis=0))
        order = np.lexsort((np.where(excess.sign == 0.0, 0.0, excess.sign * excess.log), excess.sign))
        if excess.sign[order[0]] == excess.sign[best] and excess.log[order[0]] == excess.log[best]:
            return best
        best = int(order[0])
    return best


def _increasing(radii: Any, cone: Any) -> FloatArray:
    limits = real_array(radii if n_axes(radii) else [radii], "radii", ("n_radii",))
    if len(limits) == 0 or limits[0] <= 0.0 or np.any(np.diff(limits) <= 0.0):
        wrong = limits[limits <= 0.0]
        got = f"{wrong[0]:g}" if len(wrong) else "none" if len(limits) == 0 else "radii that do not increase"
        raise reject("radii", "positive numbers, each larger than the one before", got)
    if isinstance(cone, Cone) and limits[0] < cone.radius:
        raise reject("radii", f"at least the cone's radius {cone.radius:g}", f"{limits[0]:g}")
    return limits
