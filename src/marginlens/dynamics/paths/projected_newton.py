"""Local minima of a risk over a ball, or over what a cone leaves of it: projected Newton steps on the logarithm of the excess risk.

Far out the excess risk is a sum of exponentials. Its logarithm is nearly quadratic where they balance, and gradient and Hessian of the
risk are known to rounding relative to their own size, so that a handful of steps reaches a stationary point at any norm.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from marginlens.arithmetic.log_scaled import ExcessRisk
from marginlens.risk.attention import SecondOrder
from marginlens.typing import ArrayLike, BoolArray, FloatArray, Index, IntArray

BOUNDARY_RTOL = (
    1e-12  # distance to a boundary, relative to the radius (or in the sine of the angle), that counts as on it
)
STATIONARY_RTOL = 1e-11  # gradient left along the boundary, relative to its terms, at which a point is final
LOGIT_ROUNDOFF = 16.0 * np.finfo(float).eps  # relative rounding of logits and their logarithms
ARMIJO = 1e-4  # share of the predicted decrease that a step must bring
LOGARITHMIC_SHARE = 0.2  # of its terms' size, above which the excess risk is modelled by its logarithm
BELOW_SELECTED = (
    0.1  # share of the selected tokens' risk below which the risk itself is modelled: it vanishes in the excess
)
STEP_SHARES = tuple(0.5 ** np.arange(low, high) for low, high in ((0, 1), (1, 10), (10, 28), (28, 46)))  # tried in turn


class SmoothRisk(Protocol):
    """The protocol of a risk for the minimiser, at points (n_points, r)."""

    @property
    def logit_scale(self) -> float:
        """The most that a unit step changes a logit."""

    @property
    def is_nonnegative(self) -> bool:
        """True if the risk is known never to be negative."""

    def excess(self, x: FloatArray, selected: IntArray) -> ExcessRisk:
        """Return the risk less that of selecting these tokens outright."""

    def log_value(self, x: FloatArray) -> FloatArray:
        """Return the logarithm of the risk."""

    def second_order(self, x: FloatArray) -> SecondOrder:
        """Return gradient and Hessian."""


@dataclass(frozen=True)
class PositiveRisk(ABC):
    """A risk whose reference is zero: a subclass gives its logarithm and, at the scale of its choice, its derivatives."""

    @property
    def is_nonnegative(self) -> bool:
        """Always."""
        return True

    @abstractmethod
    def log_value(self, x: FloatArray) -> FloatArray:
        """Return the logarithm of the risk at points (n_points, r); -inf if it is zero."""

    def excess(self, x: FloatArray, selected: IntArray) -> ExcessRisk:
        """Return the risk itself."""
        log = self.log_value(x)
        return ExcessRisk(np.where(np.isneginf(log), 0.0, 1.0), log)

    @staticmethod
    def expansion(
        gradient: FloatArray, hessian: FloatArray, terms: ArrayLike, log: FloatArray, log_scale: ArrayLike
    ) -> SecondOrder:
        """Return the derivatives of a risk that selects nothing."""
        nothing = np.zeros((len(gradient), 1), dtype=np.int64)
        return SecondOrder(nothing, gradient, hessian, np.asarray(terms), log, np.asarray(log_scale))


class ActiveConstraints(NamedTuple):
    """The constraints that bind at points (n_points, r), with multipliers in units of the gradient's scale.

    Attributes:
        slope: (n_points, r) the gradient less what the constraints hold.

        normals: (n_points, 2, r) unit normals, zero rows for constraints that do not bind.

        multipliers: (n_points, 2), zero if nothing binds; that of a ball is negative at a cone's smallest norm.

        curvature: (n_points, r, r) what the curved boundary adds to the Hessian.
    """

    slope: FloatArray
    normals: FloatArray
    multipliers: FloatArray
    curvature: FloatArray

    @classmethod
    def of(cls, gradient: FloatArray, normals: FloatArray, multipliers: FloatArray, curvature: FloatArray) -> Self:
        """Make the result with the slope that these normals leave."""
        normals = normals * (multipliers != 0.0)[..., None]
        slope = gradient - np.einsum("bk,bkr->br", np.einsum("bkr,br->bk", normals, gradient), normals)
        return cls(slope, normals, multipliers, curvature)

    def take(self, which: Index) -> ActiveConstraints:
        """Take some of the points."""
        return ActiveConstraints(*(part[which] for part in self))


@dataclass(frozen=True)
class Ball:
    """Points no longer than `radius`; with an axis (r,), also within `half_angle` of it and at least `shortest` long."""

    radius: float
    axis: FloatArray | None = None
    half_angle: float = np.pi
    shortest: float = 0.0

    def project(self, c: FloatArray) -> FloatArray:
        """Rotate points (n_points, r) about the origin into the cone, then shorten or lengthen them into the ball."""
        norm = np.linalg.norm(c, axis=-1, keepdims=True)
        u = _normalized(c)
        if self.axis is not None:
            u = np.where(norm > 0.0, u, self.axis)
            along = u @ self.axis
            across = u - along[:, None] * self.axis
            edge = np.broadcast_to(self.axis, u.shape)
            if len(self.axis) > 1:
                edge = np.cos(self.half_angle) * self.axis + np.sin(self.half_angle) * _across(across, self.axis)
            outside = np.arctan2(np.linalg.norm(across, axis=-1), along) > self.half_angle
            u = np.where(outside[:, None], edge, u)
        return u * np.clip(norm, self.shortest, self.radius)

    def kkt_multipliers(self, c: FloatArray, gradient: FloatArray) -> ActiveConstraints:
        """Find the constraints that bind at points (n_points, r) with this gradient, and the multipliers of the ball and of the cone."""
        norm, u = np.linalg.norm(c, axis=-1), _normalized(c)
        normal, outward = np.zeros_like(u), -np.sum(gradient * u, axis=-1)
        binds, of_cone, steepness = (
            (norm >= self.radius * (1.0 - BOUNDARY_RTOL)) & (outward > 0.0),
            np.zeros(len(c)),
            1.0,
        )
        if self.axis is not None:
            binds |= (norm <= self.shortest * (1.0 + BOUNDARY_RTOL)) & (outward < 0.0)
            along = c @ self.axis
            angle = np.arctan2(np.linalg.norm(c - along[:, None] * self.axis, axis=-1), along)
            normal = _normalized((u @ self.axis)[:, None] * u - self.axis)  # out of the cone
            sideways = -np.sum(gradient * normal, axis=-1)
            of_cone = np.where((angle >= self.half_angle - BOUNDARY_RTOL) & (sideways > 0.0), sideways, 0.0)
            steepness = float(np.tan(self.half_angle))
        of_ball = np.where(binds, outward, 0.0)
        roundness = (of_ball + of_cone / steepness) / np.maximum(norm, np.finfo(float).tiny)
        tangent = np.eye(c.shape[-1]) - u[:, :, None] * u[:, None, :]
        multipliers = np.stack([of_ball, of_cone], axis=-1)
        return ActiveConstraints.of(
            gradient, np.stack([u, normal], axis=1), multipliers, roundness[:, None, None] * tangent
        )


@dataclass(frozen=True)
class TwoBalls:
    """Points whose first `split` coordinates are no longer than `radii[0]`, and whose others no longer than `radii[1]`."""

    radii: FloatArray
    split: int

    @property
    def radius(self) -> float:
        """The smaller radius, in whose units both parts are meant to be."""
        return float(np.min(self.radii))

    def project(self, c: FloatArray) -> FloatArray:
        """Shorten each part into its ball."""
        parts = zip(np.split(c, [self.split], axis=-1), self.radii, strict=True)
        return np.concatenate([Ball(float(radius)).project(part) for part, radius in parts], axis=-1)

    def kkt_multipliers(self, c: FloatArray, gradient: FloatArray) -> ActiveConstraints:
        """Return the multipliers of the two balls."""
        normals, multipliers = np.zeros((len(c), 2, c.shape[-1])), np.zeros((len(c), 2))
        curvature = np.zeros((len(c), c.shape[-1], c.shape[-1]))
        for k, part in enumerate((slice(0, self.split), slice(self.split, None))):
            active = Ball(float(self.radii[k])).kkt_multipliers(c[:, part], gradient[:, part])
            normals[:, k, part], multipliers[:, k] = active.normals[:, 0], active.multipliers[:, 0]
            curvature[:, part, part] = active.curvature
        return ActiveConstraints.of(gradient, normals, multipliers, curvature)


Region = Ball | TwoBalls  # where points may be


def kkt_residual(risk: SmoothRisk, c: FloatArray, region: Region) -> float:
    """Return the gradient at a point (r,) that no constraint balances, relative to the terms of its sum."""
    at = risk.second_order(c[None])
    slope = region.kkt_multipliers(c[None], at.gradient).slope
    return float(np.linalg.norm(slope)) / float(at.terms[0]) if at.terms[0] > 0.0 else 0.0


def minimise(risk: SmoothRisk, starts: FloatArray, region: Region, max_steps: int = 60) -> FloatArray:
    """Find local minima of the risk over the region, one for each start (n_points, r); after `max_steps` a point stays where it is."""
    c = region.project(starts)
    tolerance = STATIONARY_RTOL + LOGIT_ROUNDOFF * region.radius * risk.logit_scale
    moving = np.arange(len(c))
    for _ in range(max_steps if len(c) else 0):
        at = risk.second_order(c[moving])
        active = region.kkt_multipliers(c[moving], at.gradient)
        go = np.linalg.norm(active.slope, axis=-1) > tolerance * at.terms
        if not go.any():
            break
        moving = moving[go]
        new = _step(risk, region, c[moving], at.take(go), active.take(go))
        moved = np.any(new != c[moving], axis=-1)
        c[moving] = new
        moving = moving[moved]
        if len(moving) == 0:
            break
    return c


def _step(risk: SmoothRisk, region: Region, c: FloatArray, at: SecondOrder, active: ActiveConstraints) -> FloatArray:
    """Take one Newton step along the boundary that binds, halved until the risk falls; return the same points if it never does."""
    model = _Model.at(risk, c, at)
    slope = active.slope * model.scale[:, None]
    step = _newton_step(region, c, at, active, model)
    predicted = np.sum(slope * step, axis=-1)
    uphill = ~(predicted < 0.0)
    step = np.where(uphill[:, None], -slope, step)
    predicted = np.where(uphill, -np.sum(slope**2, axis=-1), predicted)
    finite_log = np.abs(np.where(np.isfinite(model.log), model.log, 0.0))
    noise = LOGIT_ROUNDOFF * (region.radius * risk.logit_scale + finite_log)
    residual = np.linalg.norm(active.slope, axis=-1) / np.where(at.terms > 0.0, at.terms, 1.0)
    new, waiting = c.copy(), np.arange(len(c))
    for shares in STEP_SHARES:  # many shares cost little more than one
        each, share = np.repeat(waiting, len(shares)), np.tile(shares, len(waiting))
        trial = region.project(c[each] + share[:, None] * step[each])
        change, expected, blur = model.take(each).change(risk, trial), share * predicted[each], noise[each]
        accepted = change <= ARMIJO * expected
        doubtful = ~accepted & (np.abs(expected) <= blur) & (change <= blur)
        if doubtful.any():  # too little to see in the risk: the slope decides
            ahead = risk.second_order(trial[doubtful])
            left = np.linalg.norm(region.kkt_multipliers(trial[doubtful], ahead.gradient).slope, axis=-1)
            accepted[doubtful] = left < 0.7 * residual[each[doubtful]] * ahead.terms
        decrease = np.where(accepted, change, np.inf).reshape(len(waiting), -1)
        best, taken = np.argmin(decrease, axis=-1), accepted.reshape(decrease.shape).any(axis=-1)
        new[waiting[taken]] = trial.reshape(*decrease.shape, -1)[taken, best[taken]]
        waiting = waiting[~taken & (np.abs(predicted[waiting]) * shares[-1] > 1e-3 * noise[waiting])]
        if len(waiting) == 0:
            break
    return new


class _Model(NamedTuple):
    """A function that falls with the risk at points (n_points, r): its log if it is far below that of the selected tokens, ±log
    of the excess over theirs if its terms agree in sign, else the excess itself.

    `scale` turns the gradient into the model's, `outer_factor` is the factor of gradient gradientᵀ in its Hessian.
    """

    selected: IntArray
    sign: FloatArray
    log: FloatArray
    log_terms: FloatArray
    logarithmic: BoolArray
    below: BoolArray
    scale: FloatArray
    outer_factor: FloatArray

    @classmethod
    def at(cls, risk: SmoothRisk, c: FloatArray, at: SecondOrder) -> _Model:
        excess = risk.excess(c, at.selected)
        log_terms = np.where(np.isfinite(at.log_excess_terms), at.log_excess_terms, at.log_scale)
        below, log_value = below_selected_risk(risk, c, excess)
        sign, log = np.where(below, 1.0, excess.sign), np.where(below, log_value, excess.log)
        logarithmic = below | ((sign != 0.0) & (log > log_terms + np.log(LOGARITHMIC_SHARE)))
        scale = np.exp(at.log_scale - np.where(logarithmic, log, log_terms))
        return cls(at.selected, sign, log, log_terms, logarithmic, below, scale, np.where(logarithmic, -sign, 0.0))

    def take(self, which: IntArray) -> _Model:
        parts: Any = (part[which] for part in self)
        return _Model(*parts)

    def change(self, risk: SmoothRisk, trial: FloatArray) -> FloatArray:
        """Compute the change of the model from its points to the trial points, (n_points,)."""
        ahead = risk.excess(trial, self.selected)
        with np.errstate(invalid="ignore", over="ignore"):
            same = np.where(ahead.log == self.log, 0.0, self.sign * (ahead.log - self.log))
            crossed = np.where(ahead.sign > self.sign, np.inf, -np.inf)
            plain = ahead.sign * np.exp(ahead.log - self.log_terms) - self.sign * np.exp(self.log - self.log_terms)
        change = np.where(self.logarithmic, np.where(ahead.sign == self.sign, same, crossed), plain)
        return np.where(self.below, risk.log_value(trial) - self.log, change) if self.below.any() else change


def below_selected_risk(risk: SmoothRisk, c: FloatArray, excess: ExcessRisk) -> tuple[BoolArray, FloatArray]:
    """Find the points (n_points, r) whose risk is far below that of the tokens to which `excess` is relative; also return the
    log risk.
    """
    if not ((excess.sign < 0.0).any() and risk.is_nonnegative):
        return np.zeros(len(c), dtype=np.bool_), np.zeros(len(c))
    log_value = risk.log_value(c)
    return (excess.sign < 0.0) & (log_value < excess.log + np.log(BELOW_SELECTED)), log_value


def _newton_step(
    region: Region, c: FloatArray, at: SecondOrder, active: ActiveConstraints, model: _Model
) -> FloatArray:
    """Return the minimiser of the quadratic model along the binding boundary, with eigenvalues in absolute value, (n_points, r)."""
    scale = model.scale[:, None, None]
    g = at.gradient * model.scale[:, None]
    hessian = (at.hessian + active.curvature) * scale + (model.outer_factor[:, None] * g)[:, :, None] * g[:, None, :]
    free = np.eye(c.shape[-1]) - np.einsum("bkr,bks->brs", active.normals, active.normals)
    values, vectors = np.linalg.eigh(free @ hessian @ free)
    slope = np.einsum("brk,br->bk", vectors, active.slope * model.scale[:, None])
    longest = 4.0 * region.radius
    size = np.maximum(np.abs(values), np.linalg.norm(slope, axis=-1, keepdims=True) / longest)
    step = -np.einsum("brk,bk->br", vectors, slope / np.where(size > 0.0, size, 1.0))
    return np.einsum("brs,bs->br", free, step)


def _normalized(x: FloatArray) -> FloatArray:
    """Divide rows by their lengths; zero rows stay zero."""
    norm = np.linalg.norm(x, axis=-1, keepdims=True)
    return np.where(norm > 0.0, x / np.where(norm > 0.0, norm, 1.0), 0.0)


def _across(x: FloatArray, axis: FloatArray) -> FloatArray:
    """Return the parts of vectors across the axis as unit vectors; if they vanish, any direction across it."""
    other = np.eye(len(axis))[np.argmin(np.abs(axis))]
    other = _normalized((other - (other @ axis) * axis)[None])[0]
    return np.where(np.linalg.norm(x, axis=-1, keepdims=True) > 0.0, _normalized(x), other)
