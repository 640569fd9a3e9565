"""Local minima of the risk over a ball, or over what a cone leaves of it: projected Newton steps on the logarithm of the excess risk.

Far out the excess risk is a sum of exponentials. Its logarithm is nearly quadratic where they balance, and the slope and curvature of
the risk are known to rounding relative to their own size, so that a handful of steps reaches a stationary point at any norm.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from marginlens.dynamics.paths.landscape import Landscape, View
from marginlens.risk.attention import ExcessRisk

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
ON_THE_EDGE = (
    1e-12  # distance to a boundary, relative to the radius (or in the sine of the angle), that counts as on it
)
STATIONARY = 1e-11  # slope left along the boundary, relative to its terms, at which a point is left alone
_ARMIJO = 1e-4  # share of the predicted decrease that a step must bring
_SHARES = tuple(
    0.5 ** np.arange(low, high) for low, high in ((0, 1), (1, 10), (10, 28), (28, 46))
)  # of a step, tried in turn
_ONE_SIGN = 0.2  # share of its terms' size above which the excess risk is modelled by its logarithm
_SUNK = 0.1  # share of the selected tokens' risk below which the risk itself is modelled: it vanishes in the excess over theirs
_NOISE = 16.0 * np.finfo(float).eps  # relative rounding of logits and their logarithms


@dataclass(frozen=True)
class Region:
    """Points no longer than `radius`; with an axis (r,), also within `half_angle` of it and at least `floor` long."""

    radius: float
    axis: FloatArray | None = None
    half_angle: float = np.pi
    floor: float = 0.0

    def project(self, c: FloatArray) -> FloatArray:
        """Points (batch, r) turned about the origin into the cone, then shortened or lengthened into the ball."""
        norm = np.linalg.norm(c, axis=-1, keepdims=True)
        u = np.where(norm > 0.0, c / np.where(norm > 0.0, norm, 1.0), 0.0)
        if self.axis is not None:
            u = np.where(norm > 0.0, u, self.axis)
            along = u @ self.axis
            sideways = u - along[:, None] * self.axis
            width = np.linalg.norm(sideways, axis=-1)
            turned = np.cos(self.half_angle) * self.axis + np.sin(self.half_angle) * _units(sideways, self.axis)
            turned = turned if len(self.axis) > 1 else np.broadcast_to(self.axis, u.shape)
            u = np.where((np.arctan2(width, along) > self.half_angle)[:, None], turned, u)
        return u * np.clip(norm, self.floor, self.radius)

    def edges(self, c: FloatArray) -> tuple[BoolArray, BoolArray, BoolArray]:
        """Which points (batch, r) lie on the ball, on the cone, and on the cone's smallest norm."""
        norm = np.linalg.norm(c, axis=-1)
        ball, none = norm >= self.radius * (1.0 - ON_THE_EDGE), np.zeros(len(c), dtype=np.bool_)
        if self.axis is None:
            return ball, none, none
        along = c @ self.axis
        angle = np.arctan2(np.linalg.norm(c - along[:, None] * self.axis, axis=-1), along)
        return ball, angle >= self.half_angle - ON_THE_EDGE, norm <= self.floor * (1.0 + ON_THE_EDGE)

    def normal(self, u: FloatArray) -> FloatArray:
        """Unit vectors that point out of the cone at unit vectors (batch, r) on its boundary; zero where there is no cone."""
        if self.axis is None:
            return np.zeros_like(u)
        out = (u @ self.axis)[:, None] * u - self.axis
        length = np.linalg.norm(out, axis=-1, keepdims=True)
        return np.where(length > 0.0, out / np.where(length > 0.0, length, 1.0), 0.0)


@dataclass(frozen=True)
class Pressure:
    """How the risk presses points (batch, r) against the boundary, in units of the view's scale.

    Attributes:
        slope: (batch, r) the gradient less what the boundary holds. ball, cone: (batch,) multipliers, zero where nothing binds.
        held: (batch, 2, r) unit normals of the binding constraints, zero rows for the others.
    """

    slope: FloatArray
    ball: FloatArray
    cone: FloatArray
    held: FloatArray

    def only(self, which: BoolArray) -> Pressure:
        """The same for some of the points."""
        return Pressure(self.slope[which], self.ball[which], self.cone[which], self.held[which])


def pressure(region: Region, c: FloatArray, gradient: FloatArray) -> Pressure:
    """Which constraints bind at points (batch, r) where the risk has this gradient, with which multipliers."""
    norm = np.linalg.norm(c, axis=-1, keepdims=True)
    u = np.where(norm > 0.0, c / np.where(norm > 0.0, norm, 1.0), 0.0)
    on_ball, on_cone, on_floor = region.edges(c)
    n = region.normal(u)
    outward, sideways = -np.sum(gradient * u, axis=-1), -np.sum(gradient * n, axis=-1)
    ball = np.where((on_ball & (outward > 0.0)) | (on_floor & (outward < 0.0)), outward, 0.0)
    cone = np.where(on_cone & (sideways > 0.0), sideways, 0.0)
    held = np.stack([u * (ball != 0.0)[:, None], n * (cone != 0.0)[:, None]], axis=1)
    slope = gradient - np.einsum("bk,bkr->br", np.einsum("bkr,br->bk", held, gradient), held)
    return Pressure(slope, ball, cone, held)


def minimise(landscape: Landscape, starts: FloatArray, region: Region, max_steps: int = 60) -> FloatArray:
    """Local minima of the risk over the region, one for each start (batch, r); after `max_steps` a point is left where it is."""
    c = region.project(starts)
    blur = STATIONARY + _NOISE * region.radius * landscape.reach
    moving = np.arange(len(c))
    for _ in range(max_steps if len(c) else 0):
        seen = landscape.view(c[moving])
        held = pressure(region, c[moving], seen.gradient)
        go = np.linalg.norm(held.slope, axis=-1) > blur * seen.size
        if not go.any():
            break
        moving = moving[go]
        new = _step(landscape, region, c[moving], seen.only(go), held.only(go))
        moved = np.any(new != c[moving], axis=-1)
        c[moving] = new
        moving = moving[moved]
        if len(moving) == 0:
            break
    return c


def _step(landscape: Landscape, region: Region, c: FloatArray, seen: View, held: Pressure) -> FloatArray:
    """One Newton step along the boundary that binds, halved until the risk falls; the same points where it never does."""
    model = _Model.at(landscape, c, seen)
    slope = held.slope * model.scale[:, None]
    step = _newton(region, c, seen, held, model)
    predicted = np.sum(slope * step, axis=-1)
    uphill = ~(predicted < 0.0)
    step = np.where(uphill[:, None], -slope, step)
    predicted = np.where(uphill, -np.sum(slope**2, axis=-1), predicted)
    noise = _NOISE * (region.radius * landscape.reach + np.abs(np.where(np.isfinite(model.log), model.log, 0.0)))
    left = np.linalg.norm(held.slope, axis=-1) / np.where(seen.size > 0.0, seen.size, 1.0)
    new, open_ = c.copy(), np.arange(len(c))
    for shares in _SHARES:  # many shares cost little more than one
        each = np.repeat(open_, len(shares))
        share = np.tile(shares, len(open_))
        trial = region.project(c[each] + share[:, None] * step[each])
        change, expected, blur = model.only(each).change(landscape, trial), share * predicted[each], noise[each]
        accepted = change <= _ARMIJO * expected
        doubtful = ~accepted & (np.abs(expected) <= blur) & (change <= blur)
        if doubtful.any():  # too little to see in the risk: the slope decides
            ahead = landscape.view(trial[doubtful])
            rest = np.linalg.norm(pressure(region, trial[doubtful], ahead.gradient).slope, axis=-1)
            accepted[doubtful] = rest < 0.7 * left[each[doubtful]] * ahead.size
        fall = np.where(accepted, change, np.inf).reshape(len(open_), -1)
        best, taken = np.argmin(fall, axis=-1), accepted.reshape(fall.shape).any(axis=-1)
        new[open_[taken]] = trial.reshape(*fall.shape, -1)[taken, best[taken]]
        open_ = open_[~taken & (np.abs(predicted[open_]) * shares[-1] > 1e-3 * noise[open_])]
        if len(open_) == 0:
            break
    return new


@dataclass(frozen=True)
class _Model:
    """What falls with the risk at points (batch, r): its log where it is far below that of the selected tokens, ±log of the excess over
    theirs where its terms agree in sign, the excess itself elsewhere.

    `scale` turns the view's gradient into the model's, `bend` is the factor of gradient gradientᵀ in its curvature.
    """

    selected: npt.NDArray[np.int64]
    sign: FloatArray
    log: FloatArray
    log_size: FloatArray
    logarithmic: BoolArray
    sunk: BoolArray
    scale: FloatArray
    bend: FloatArray

    @classmethod
    def at(cls, landscape: Landscape, c: FloatArray, seen: View) -> _Model:
        excess = landscape.excess(c, seen.selected)
        size = np.where(np.isfinite(seen.log_size), seen.log_size, seen.log_unit)
        sunk, risk = is_sunk(landscape, c, excess)
        sign, log = np.where(sunk, 1.0, excess.sign), np.where(sunk, risk, excess.log)
        logarithmic = sunk | ((sign != 0.0) & (log > size + np.log(_ONE_SIGN)))
        unit = np.where(logarithmic, log, size)
        bend = np.where(logarithmic, -sign, 0.0)
        return cls(seen.selected, sign, log, size, logarithmic, sunk, np.exp(seen.log_unit - unit), bend)

    def only(self, which: npt.NDArray[np.int64]) -> _Model:
        return _Model(*(getattr(self, one.name)[which] for one in fields(self)))

    def change(self, landscape: Landscape, trial: FloatArray) -> FloatArray:
        """How much the model changes from its points to the trial points, (batch,)."""
        ahead = landscape.excess(trial, self.selected)
        with np.errstate(invalid="ignore", over="ignore"):
            same = np.where(ahead.log == self.log, 0.0, self.sign * (ahead.log - self.log))
            crossed = np.where(ahead.sign > self.sign, np.inf, -np.inf)
            plain = ahead.sign * np.exp(ahead.log - self.log_size) - self.sign * np.exp(self.log - self.log_size)
        change = np.where(self.logarithmic, np.where(ahead.sign == self.sign, same, crossed), plain)
        return np.where(self.sunk, landscape.log_risk(trial) - self.log, change) if self.sunk.any() else change


def is_sunk(landscape: Landscape, c: FloatArray, excess: ExcessRisk) -> tuple[BoolArray, FloatArray]:
    """Where the risk at points (batch, r) is far below that of the tokens that `excess` is relative to, and the risk's logarithm."""
    if not ((excess.sign < 0.0).any() and landscape.is_positive):
        return np.zeros(len(c), dtype=np.bool_), np.zeros(len(c))
    risk = landscape.log_risk(c)
    return (excess.sign < 0.0) & (risk < excess.log + np.log(_SUNK)), risk


def _newton(region: Region, c: FloatArray, seen: View, held: Pressure, model: _Model) -> FloatArray:
    """Minimiser of the quadratic model along the binding boundary, with curvature taken in absolute value, (batch, r)."""
    norm = np.maximum(np.linalg.norm(c, axis=-1), np.finfo(float).tiny)
    u, identity = c / norm[:, None], np.eye(c.shape[-1])
    g = seen.gradient * model.scale[:, None]
    curvature = seen.hessian * model.scale[:, None, None] + (model.bend[:, None] * g)[:, :, None] * g[:, None, :]
    steepness = np.tan(region.half_angle) if region.axis is not None else 1.0
    round_ = (held.ball + held.cone / steepness) * model.scale / norm  # the boundary's own curvature
    tangent = identity - u[:, :, None] * u[:, None, :]
    free = identity - np.einsum("bkr,bks->brs", held.held, held.held)
    values, vectors = np.linalg.eigh(free @ (curvature + round_[:, None, None] * tangent) @ free)
    slope = np.einsum("brk,br->bk", vectors, held.slope * model.scale[:, None])
    longest = 4.0 * region.radius
    size = np.maximum(np.abs(values), np.linalg.norm(slope, axis=-1, keepdims=True) / longest)
    size = np.where(size > 0.0, size, 1.0)
    step = -np.einsum("brk,bk->br", vectors, slope / size)
    return np.einsum("brs,bs->br", free, step)


def _units(x: FloatArray, axis: FloatArray) -> FloatArray:
    """Vectors across the axis as unit vectors; where they vanish, any direction across it, zero in one dimension."""
    length = np.linalg.norm(x, axis=-1, keepdims=True)
    other = np.eye(len(axis))[np.argmin(np.abs(axis))]
    other = other - (other @ axis) * axis
    size = np.linalg.norm(other)
    other = other / size if size > 0.0 else other
    return np.where(length > 0.0, x / np.where(length > 0.0, length, 1.0), other)
