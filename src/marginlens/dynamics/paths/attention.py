"""Regularisation paths: where the risk is smallest among all p up to a norm, as the norm grows; globally or inside a cone."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from marginlens.data.random_tokens import as_generator
from marginlens.data.tokens import TokenDataset, as_dataset
from marginlens.directions import correlation, unit
from marginlens.dynamics.paths.cone import Cone
from marginlens.dynamics.paths.landscape import Landscape
from marginlens.dynamics.paths.projected_newton import Region, is_sunk, minimise, pressure
from marginlens.errors import n_axes, real_array, reject, whole_number
from marginlens.losses.margin import Logistic, Loss, as_loss
from marginlens.papers import implements
from marginlens.risk.attention import ExcessRisk
from marginlens.runtime.progress import ProgressCallback, as_progress
from marginlens.svm import att_svm

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
_LEAP = 3.2  # factor by which the ball grows while local minima are followed
_SOFT = 64.0  # largest logit at which the risk is still smooth enough for a start from anywhere
_SHORT = 8  # Newton steps for a start at a max-margin direction: enough where there is a local minimum near it
_BRANCHES = 4  # local minima that are carried on at least; with more restarts as many as there are of these
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
    _search: _Search
    _reached: _Reached

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

    def resume(self, radii: Any, *, progress: ProgressCallback | None = None) -> Path:
        """The path to further radii, all larger than its own: exactly what one path over all the radii gives.

        Args:
            radii: (n_radii,) positive and increasing. progress: as for `regularization_path`.
        """
        further = _increasing(radii, self._problem[-1])
        if further[0] <= self.radii[-1]:
            raise reject("radii", f"larger than the last radius {self.radii[-1]:g}", f"{further[0]:g}")
        return _followed(self._search, self._reached, further, self._problem, as_progress(progress))

    def __repr__(self) -> str:
        last = self.binds[-1].name
        return (
            f"Path({len(self.radii)} radii {self.radii[0]:.4g} … {self.radii[-1]:.4g}, selected={self.selected.tolist()}, "
            f"norm={self.norm[-1]:.4g} at the last, bound by {last})"
        )


@implements("A", "Eq. (2)", "Eq. (9)", "Eq. (66)", "Thm 4", "Thm 7", "Thm 8")
def regularization_path(
    data: TokenDataset,
    v: Any,
    radii: Any,
    *,
    loss: Loss = Logistic(),  # noqa: B008
    cone: Cone | None = None,
    restarts: int = 16,
    rng: Any = 0,
    progress: ProgressCallback | None = None,
) -> Path:
    r"""The point of smallest risk in each ball, or in what a cone leaves of it.

    .. math:: \bar p(R) = \arg\min_{\|p\| \le R,\ p \in C} L(p)

    Local minima are followed from small balls to large ones, and new starts are added on the way: random points while the risk is
    smooth, then max-margin directions of what random directions select and, for a linear head, of the optimal tokens. Candidates are
    compared by the logarithm of their excess risk over one selection of tokens, so that radii of 1e4/margin and beyond are no
    different from small ones.

    Args:
        data: one problem. v: linear head (d_model,), or a nonlinear one: a torch module or function from (n, d_model) to n numbers.
        radii: (n_radii,) positive and increasing; none below the cone's own radius.
        cone: where p may be; everywhere by default.
        restarts: new starts at each radius. More of them make it surer that the minimum is global.
        rng: a `numpy.random.Generator`, or a whole number to seed one.
        progress: called as `progress(done, total)` after each ball that is searched, those between the radii included. What it raises
            ends the search, as Ctrl-C does.
    Returns:
        A `Path`; `path.resume(radii)` follows it further. Check it with `path.kkt_residual()`, and for being global with another `rng`
        and more restarts.
    """
    if as_dataset(data).is_batch:
        raise reject("data", "one problem", f"a batch of {len(data)}", "Take one with data[j].")
    limits = _increasing(radii, cone)
    if cone is not None and (not isinstance(cone, Cone) or len(cone.axis) != data.d_key):
        got = f"an axis of length {len(cone.axis)}" if isinstance(cone, Cone) else type(cone).__name__
        raise reject("cone", f"a Cone with an axis of length {data.d_key}", got)
    whole_number(restarts, "restarts", at_least=0)
    search = _Search(Landscape(data, v, as_loss(loss), None if cone is None else cone.axis), cone, restarts)
    begin = _Reached(np.empty((0, search.landscape.basis.shape[1])), None, (), (), as_generator(rng))
    return _followed(search, begin, limits, (data, v, as_loss(loss), cone), as_progress(progress))


@dataclass(frozen=True)
class _Reached:
    """How far a search has come: the local minima in the last ball, its radius, the radii asked for with their points, the generator."""

    branches: FloatArray
    radius: float | None
    radii: tuple[float, ...]
    points: tuple[FloatArray, ...]
    generator: np.random.Generator


def _followed(
    search: _Search, begin: _Reached, radii: FloatArray, problem: tuple[Any, ...], progress: ProgressCallback | None
) -> Path:
    """The path over the radii of `begin` and these."""
    with threadpool_limits(1, "blas"):  # matrices this small only wait for each other's threads
        reached = search.along(begin, radii, progress)
        return _finish(search, reached, problem)


def _finish(search: _Search, reached: _Reached, problem: tuple[Any, ...]) -> Path:
    landscape, radii, c = search.landscape, np.array(reached.radii), np.stack(reached.points)
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
    return Path(radii, c @ landscape.basis.T, alpha[0], excess.log, excess.sign, binds, problem, search, reached)


def _region(landscape: Landscape, radius: float, cone: Cone | None) -> Region:
    if cone is None:
        return Region(radius)
    return Region(radius, unit(cone.axis @ landscape.basis), cone.half_angle, cone.radius)


@dataclass(frozen=True)
class _Search:
    """Local minima followed from small balls to large ones, with new starts on the way."""

    landscape: Landscape
    cone: Cone | None
    restarts: int

    def along(self, begin: _Reached, radii: FloatArray, progress: ProgressCallback | None) -> _Reached:
        """The best point found at each further radius, and what the search beyond them needs."""
        soft = _SOFT / self.landscape.reach if self.landscape.reach > 0.0 else np.inf
        branches, generator, points = begin.branches, begin.generator, list(begin.points)
        if begin.radius is None:
            first = (
                self.cone.radius
                if self.cone is not None
                else min(float(radii[0]), 1.0 / max(self.landscape.reach, 1.0 / radii[0]))
            )
            last, ladder = first, _ladder(first, radii)
        else:
            last, ladder = begin.radius, _ladder(begin.radius, radii)[1:]
            generator = copy.deepcopy(generator)  # so that a path can be resumed twice
        for k, radius in enumerate(ladder):
            region, before = _region(self.landscape, radius, self.cone), branches[:1]
            bound = np.linalg.norm(branches, axis=-1, keepdims=True) >= last * (1.0 - _SAME)
            starts = [np.where(bound, branches * (radius / last), branches)]
            starts += [self._anywhere(region, generator)] if radius <= soft or len(branches) == 0 else []
            found = [minimise(self.landscape, np.concatenate(starts), region)]
            if radius in radii:
                found.append(minimise(self.landscape, self._margins(region, generator), region, _SHORT))
            everything, count = np.concatenate(found), max(_BRANCHES, self.restarts)
            branches, last = _distinct(self.landscape, everything, radius, count), radius
            if (
                _lowest(self.landscape, np.concatenate([branches[:1], before])) == 1
            ):  # a smaller ball had something better
                branches = np.concatenate([before, branches])
            branches[:1] = minimise(self.landscape, branches[:1], region)  # nothing to do unless it was cut short
            points += [branches[0]] if radius in radii else []
            if progress is not None:
                progress(k + 1, len(ladder))
        return _Reached(branches, last, (*begin.radii, *radii.tolist()), tuple(points), copy.deepcopy(generator))

    def _directions(self, region: Region, generator: np.random.Generator) -> FloatArray:
        """Random unit vectors of the region, (restarts, r); the axis of the cone first."""
        r = self.landscape.basis.shape[1]
        directions = unit(generator.standard_normal((self.restarts, r))) if r else np.zeros((self.restarts, 0))
        if region.axis is None:
            return directions
        sideways = directions - np.outer(directions @ region.axis, region.axis)
        turn = region.half_angle * generator.random((self.restarts, 1))
        tilted = (
            np.cos(turn) * region.axis + np.sin(turn) * unit(sideways) if r > 1 else np.abs(turn) * 0.0 + region.axis
        )
        return np.concatenate([region.axis[None], tilted])

    def _anywhere(self, region: Region, generator: np.random.Generator) -> FloatArray:
        """Random starts on the ball and inside it, and one down the slope at the origin; for balls so small that the risk is smooth."""
        directions = self._directions(region, generator)
        share = np.where(np.arange(len(directions)) % 2 == 0, 1.0, generator.random(len(directions)))
        downhill = -self.landscape.view(np.zeros((1, directions.shape[1]))).gradient
        length = float(np.linalg.norm(downhill))
        steepest = downhill * (region.radius / length) if length > 0.0 else downhill
        return np.concatenate([directions * (region.radius * share)[:, None], steepest])

    def _margins(self, region: Region, generator: np.random.Generator) -> FloatArray:
        """Starts along the max-margin directions of what random directions select, and of the optimal tokens of a linear head."""
        selected = self.landscape.selected(self._directions(region, generator))
        if self.landscape.is_linear:
            selected = np.concatenate([self.landscape.best_tokens()[None], selected])
        selected = np.unique(selected, axis=0)
        x = att_svm(self.landscape.data.repeat(len(selected)), selected).x @ self.landscape.basis
        return unit(x[np.isfinite(x).all(axis=-1) & np.any(x != 0.0, axis=-1)]) * region.radius


def _ladder(first: float, radii: FloatArray) -> list[float]:
    """The radii, and between them and from `first` on as many others as keep each at most `_LEAP` times the one before."""
    rungs = [first]
    for radius in radii.tolist():
        n_rungs = max(1, int(np.ceil(np.log(radius / rungs[-1]) / np.log(_LEAP) - 1e-9)))
        rungs += [*np.geomspace(rungs[-1], radius, n_rungs + 1)[1:-1].tolist(), radius]
    return rungs if len(rungs) == 1 or rungs[1] > first else rungs[1:]


def _distinct(landscape: Landscape, c: FloatArray, radius: float, count: int) -> FloatArray:
    """The best of the points (m, r) first, then the others by risk without repetition, up to `count` in all."""
    kept: list[FloatArray] = []
    while len(c) and len(kept) < count:
        best = c[_lowest(landscape, c)]
        kept.append(best)
        c = c[np.linalg.norm(c - best, axis=-1) > _SAME * radius]
    return np.stack(kept)


def _lowest(landscape: Landscape, c: FloatArray) -> int:
    """Index of the smallest risk among points (m, r), decided relative to the tokens that the best one so far selects."""
    best = 0
    for _ in range(len(c)):
        excess: ExcessRisk = landscape.excess(c, np.repeat(landscape.selected(c[best : best + 1]), len(c), axis=0))
        sunk, risk = is_sunk(landscape, c, excess)
        kind = np.where(sunk, -2.0, excess.sign)
        height = np.where(sunk, risk, excess.sign * np.where(excess.sign == 0.0, 0.0, excess.log))
        order = np.lexsort((height, kind))
        if kind[order[0]] == kind[best] and height[order[0]] == height[best]:
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
