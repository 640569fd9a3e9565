"""The approach to a proved limit: norm and angle after further steps, predicted by the law of residual attention and bracketed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from marginlens.arithmetic.directions import length
from marginlens.errors import InputError, float_array
from marginlens.losses.margin import slope_of
from marginlens.optimizers import GradientDescent, NormalizedGD
from marginlens.result import Result, Tabular
from marginlens.theory.attraction import dependent_part, steepness_of
from marginlens.theory.residual_law import ResidualLaw, residual_law
from marginlens.typing import ArrayLike, BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from marginlens.theory.certificate import Certificate

SIMULATED = 1_000  # steps of the limiting motion; what the second half of them does on average goes on for ever


class Range(NamedTuple):
    """A predicted quantity with proved bounds."""

    predicted: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True, repr=False, eq=False)
class Forecast(Result, Tabular):
    """The predicted position of a run after further steps.

    Attributes:
        steps: (m,) further steps; further lengths for the flow.

        along: p̄·p.

        norm: ‖p‖.

        angle: to the limit, in radians. Each is a `Range`: the prediction, and bounds that X Thm 1 proves.

    `to_frame()` has one row per number of steps: steps, norm, norm_low, norm_high, angle, angle_low, angle_high.
    """

    steps: FloatArray
    along: Range
    norm: Range
    angle: Range
    quantities = "after {steps}: norm {norm.predicted}, angle {angle.predicted}"

    def _columns(self) -> dict[str, Any]:
        columns: dict[str, Any] = {"steps": self.steps}
        for name in ("norm", "angle"):
            predicted, low, high = getattr(self, name)
            columns |= {name: predicted, f"{name}_low": low, f"{name}_high": high}
        return columns


def forecast(proof: Certificate, steps: ArrayLike) -> Forecast:
    """Compute the result of `Certificate.forecast`; the bounds are derived at the end of docs/proofs/attraction.md."""
    expected = "numbers of further steps, or lengths of the flow, at least 0"
    asked = np.atleast_1d(float_array(steps, "steps", expected)).ravel()
    if not np.all(asked >= 0.0) or not np.isfinite(asked).all():
        raise InputError("steps", expected, repr(steps))
    law = residual_law(dependent_part(proof.data, proof.head), proof.head, proof.selected, loss=proof.loss)
    rows = _rows_of(proof, law)
    motion = _limiting_motion(proof, law, rows)
    if type(proof.optimizer) is GradientDescent:
        along = _plain_steps(proof, law, rows, asked)
        distance = motion.distance_where(along.predicted - _along(proof))
    else:
        along = _steps_of_one_length(proof, rows, asked, motion)
        distance = motion.distance_after(asked * getattr(proof.optimizer, "size", 1.0))
    along = along._replace(predicted=np.clip(along.predicted, along.low, along.high))
    anchor = float(length(law.offset))
    farthest = anchor + np.sqrt(proof.radius**2 + proof.growth * (along.high - proof.along))
    nearest = np.maximum(0.0, 2.0 * anchor - farthest)
    norm = Range(*map(np.hypot, along, (distance, nearest, farthest)))
    # the bound on ‖q‖/P has one maximum over P, at (‖q*‖ + u)² = ‖q*‖² + K P_0 - R² with u² = R² + K (P - P_0)
    inside = anchor**2 + proof.growth * proof.along - proof.radius**2
    turn = max(proof.radius, np.sqrt(max(0.0, inside)) - anchor)
    worst = proof.along + (turn**2 - proof.radius**2) / proof.growth if proof.growth > 0.0 else proof.along
    worst = np.clip(worst, along.low, along.high)
    widest = anchor + np.sqrt(proof.radius**2 + proof.growth * (worst - proof.along))
    angle = Range(np.arctan2(distance, along.predicted), np.arctan2(nearest, along.high), np.arctan2(widest, worst))
    return Forecast(asked, along, norm, angle)


def _along(proof: Certificate) -> float:
    """Return p̄·p at the point, the centre of the ball that the proof covers."""
    return float(proof.point @ proof.direction)


class _Rows(NamedTuple):
    """The rows of the proof: key differences a, score differences Δ, log(-ℓ'(γ_α)/n), a·p̄, ‖a^⊥‖, the input, and whether on the margin."""

    a: FloatArray
    delta: FloatArray
    log_slope: FloatArray
    toward: FloatArray
    wide: FloatArray
    input: IntArray
    on_margin: BoolArray


def _rows_of(proof: Certificate, law: ResidualLaw) -> _Rows:
    pairs = np.asarray(law.solution.pairs)
    real = pairs[:, 0] >= 0
    a, (i, chosen, other), scores = law.solution.rows[real], pairs[real].T, proof.data.scores(proof.head)
    toward = a @ proof.direction
    wide = np.sqrt(np.maximum(0.0, np.sum(a**2, axis=-1) - toward**2))
    log_slope = slope_of(proof.loss, scores[i, chosen]).log - np.log(proof.data.n_inputs)
    return _Rows(a, scores[i, chosen] - scores[i, other], log_slope, toward, wide, i, law.carrying[real])


class _Motion(NamedTuple):
    """The motion of saturated attention: for each length, the distance travelled along the ray and the distance from it."""

    lengths: FloatArray
    along: FloatArray
    distance: FloatArray

    def along_after(self, lengths: FloatArray) -> FloatArray:
        """Return the position along the ray; beyond the simulated lengths, by the mean speed of their second half."""
        middle, beyond = len(self.lengths) // 2, np.maximum(0.0, lengths - self.lengths[-1])
        speed = (self.along[-1] - self.along[middle]) / (self.lengths[-1] - self.lengths[middle])
        return np.interp(lengths, self.lengths, self.along) + speed * beyond

    def distance_after(self, lengths: FloatArray) -> FloatArray:
        """Return the distance from the ray; beyond the simulated lengths, the mean of their second half."""
        mean = float(np.mean(self.distance[len(self.lengths) // 2 :]))
        return np.where(lengths > self.lengths[-1], mean, np.interp(lengths, self.lengths, self.distance))

    def distance_where(self, along: FloatArray) -> FloatArray:
        """Return the distance from the ray when p has come this far along it."""
        return np.interp(along, self.along, self.distance)


def _limiting_motion(proof: Certificate, law: ResidualLaw, rows: _Rows) -> _Motion:
    """Simulate steps from the point on with the pull of the rows of saturated attention; a few longer steps stand for very short ones.

    They come to rest at the law's offset, plus the component of the point outside the span of the margin's rows; steps longer
    than `law.largest_step` circle around it for ever.
    """
    short = 0.25 * min(law.largest_step, 4.0 / proof.margin)  # steps up to this length follow the flow
    size = max(short, proof.optimizer.size) if type(proof.optimizer) is NormalizedGD else short
    with np.errstate(divide="ignore"):
        log_weights = rows.log_slope + np.log(np.abs(rows.delta))
    signs, points = np.sign(rows.delta), np.tile(proof.point, (SIMULATED + 1, 1))
    for k in range(SIMULATED):
        logs = log_weights - rows.a @ points[k]
        pull = (signs * np.exp(logs - logs.max())) @ rows.a
        points[k + 1] = points[k] + size * pull / np.sqrt(np.einsum("d,d->", pull, pull))  # no square leaves the range
    along = points @ proof.direction
    distance = length(points - along[:, None] * proof.direction)
    return _Motion(size * np.arange(SIMULATED + 1.0), along - along[0], distance)


def _steps_of_one_length(proof: Certificate, rows: _Rows, asked: FloatArray, motion: _Motion) -> Range:
    """Bound P after normalised steps, or along the flow: a step of length h adds at least hθ'/√(θ'² + y²) and at most h."""
    lengths, first = asked * getattr(proof.optimizer, "size", 1.0), _along(proof)
    sideways = np.max(rows.wide) + (proof.margin - proof.progress) * np.max(rows.wide / rows.toward)
    least = proof.progress / np.hypot(proof.progress, sideways)
    return Range(first + motion.along_after(lengths), proof.along + least * lengths, first + proof.tolerance + lengths)


def _plain_steps(proof: Certificate, law: ResidualLaw, rows: _Rows, asked: FloatArray) -> Range:
    """Bound P after plain steps, which become ever shorter: each lets e^(θP) grow by about ηθ e^ρ̄."""
    theta, size, R = proof.margin, proof.optimizer.size, proof.radius
    on, delta = rows.on_margin, rows.delta
    near = np.exp(rows.wide * R - rows.toward * proof.along - rows.a @ law.offset)
    eps = np.bincount(rows.input, near, proof.data.n_inputs)[rows.input]
    raised, fallen = np.zeros((2, proof.data.n_inputs))
    np.maximum.at(raised, rows.input, delta)
    np.maximum.at(fallen, rows.input, -delta)
    raised, fallen = raised[rows.input], fallen[rows.input]
    steepness: Any = steepness_of(proof.loss, proof.data.n_inputs)
    if steepness < 0.0:  # 1/(γ_α - εΔ⁺)
        reciprocal = -steepness * np.exp(rows.log_slope)
        steepness = reciprocal / (1.0 - eps * raised * reciprocal)
    below = (eps * steepness * fallen - np.log1p(-eps))[on] - np.log1p(-(eps * raised)[on] / delta[on])  # -log m_-
    bound = (
        np.exp(rows.log_slope + steepness * eps * raised) * (np.abs(delta) + eps * np.maximum(raised, fallen)) * near
    )
    rate = float(np.min(rows.toward - rows.wide * proof.growth / (2.0 * R)))
    longest = size * float(bound @ length(rows.a))  # of the steps
    with np.errstate(divide="ignore"):  # far out pulls underflow, and p moves by less than rounding
        log_most = np.log(rate * size * float(bound @ rows.toward)) + rate * longest
    shares = law.multipliers[law.carrying] / np.sum(law.multipliers[law.carrying])
    level = float(shares @ law.log_ratio[law.carrying]) - np.log(proof.data.n_inputs * theta)  # ρ̄
    with np.errstate(divide="ignore"):
        log_asked = np.log(asked)
    grown, first = np.log(size) + log_asked + level, _along(proof)
    low = np.logaddexp(theta * proof.along, np.log(proof.progress) - np.max(below) + grown) / theta
    high = first + proof.tolerance + np.minimum(np.logaddexp(0.0, log_most + log_asked) / rate, longest * asked)
    return Range(np.logaddexp(theta * first, np.log(theta) + grown) / theta, low, high)
