"""Tubes around max-margin directions that gradient flow and descent provably never leave, found at points of a run."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from marginlens import core
from marginlens.arithmetic.directions import length
from marginlens.data.tokens import TokenDataset
from marginlens.errors import InputError
from marginlens.losses.margin import ArcsineLoss, CorrelationLoss, Exponential, Logistic, LogProbability, Loss, slope_of
from marginlens.names import kebab
from marginlens.optimizers import NormalizedGD
from marginlens.optimizers.gradient_descent import PlainDescent, has_plain_steps
from marginlens.optimizers.protocol import Optimizer
from marginlens.papers import implements
from marginlens.runtime.threads import parallel_over
from marginlens.status import Status
from marginlens.theory.optimality import directional_margin
from marginlens.theory.scored_tokens import ScoredTokens
from marginlens.theory.steep_tubes import NO_SLACK, SteepRows, find_steep_tube
from marginlens.typing import ArrayLike, BoolArray, FloatArray, IntArray
from marginlens.words import Fact

SUPPORT_RTOL = 1e-9  # multipliers, relative to the largest, below which a token carries nothing of the margin
TOLERANCE = 1e-6  # radius of the ball around a point that a tube has to hold, relative to the point's norm
STEEPNESS: dict[type[Loss], float] = {Logistic: 1.0, Exponential: 1.0, CorrelationLoss: 0.0}  # bounds |d log|ℓ'|/du|
BOUNDED_LOSSES = (*STEEPNESS, LogProbability)  # whose slopes all proofs about steps bound
TUBE_LOSSES = (*BOUNDED_LOSSES, ArcsineLoss)  # whose slopes those about tubes do


class Missing(IntEnum):
    """The condition of a proof that a point fails; the first eight are those of `attraction.h`."""

    NOTHING = 0
    SUPPORT_SCORES_HIGHER = 1
    DEPENDENT_SUPPORT = 2
    TIGHT_WITHOUT_WEIGHT = 3
    WEIGHTS_TOO_LARGE = 4
    OUTWEIGHED = 5
    TUBE_TOO_STEEP = 6
    TUBE_TOO_NARROW = 7
    INFEASIBLE = 8
    TIED = 9
    ROUNDING_DECIDES = 10
    BELOW_ONE = 11


def missing_fact(missing: Missing) -> Fact:
    """State the condition that a point fails, as a clause."""
    return Fact(f"outcome.missing.{missing.name.lower()}")


def steepness_of(loss: Loss, n_inputs: int) -> float:
    """Return Λ as the core takes it: for -log u it is minus the number of inputs, as Λ depends on the score of the selected token."""
    return -float(n_inputs) if type(loss) is LogProbability else STEEPNESS[type(loss)]


def moving_fact(optimizer: PlainDescent | None) -> Fact:
    """Name what moves, the gradient flow or the steps, as a noun."""
    if optimizer is None:
        return Fact("outcome.moving.flow")
    kind = kebab(type(optimizer).__name__).replace("-", "_")
    return Fact(f"outcome.moving.{kind}", {"size": optimizer.size})


class Tubes(NamedTuple):
    """The tubes of a batch of points, one for each problem.

    Attributes:
        missing: (batch,) `Missing.NOTHING` if a tube is proved.
        selected: (batch, n_inputs) the tokens that lead at the points.
        direction, anchor: (batch, d_key) p̄ and q*.
        margin: (batch,) θ.
        support: (batch, n_inputs, n_tokens) the tokens on the margin.
        blur: (batch,) the radius of the ball around the point.
        along, deviation: (batch,) P_0 and ‖q - q*‖ at the worst point of that ball.
        radius, growth: (batch,) R and K.
        share: (batch,) ψ of the proof.
        step: (batch,) a bound on the length of steps.
        progress: (batch,) θ'.
    """

    missing: IntArray
    selected: IntArray
    direction: FloatArray
    anchor: FloatArray
    margin: FloatArray
    support: BoolArray
    blur: FloatArray
    along: FloatArray  # from here on in the order of the core's constants
    deviation: FloatArray
    radius: FloatArray
    growth: FloatArray
    share: FloatArray
    step: FloatArray
    progress: FloatArray


def dependent_part(data: TokenDataset, head: ArrayLike) -> TokenDataset:
    """Return the data with a single token for every input whose output does not depend on p, so that it constrains nothing."""
    return ScoredTokens(data, head).shortened.data


@implements("X", "Thm 1")
def find_tubes(
    data: TokenDataset, head: ArrayLike, points: ArrayLike, optimizer: Optimizer | None, loss: Loss
) -> Tubes:
    r"""Find a tube around each point that the flow or descent never leaves, so that its direction converges to that of the tube.

    .. math:: p = P\bar p + q,\ q \perp \bar p: \qquad P \ge P_0, \quad \|q - q^\star\| \le R + \tfrac{K}{2R}(P - P_0)

    The direction is the max-margin direction of the tokens that lead at the point, and q⋆ is the deviation from its ray at
    which the tokens on the margin pull exactly along it. Steps no longer than θ/A², where A is half the spread of the key
    differences, have K = 0. The proof is in docs/proofs/attraction.md.

    Args:
        data: a batch.
        head: (batch, d_model).
        points: (batch, d_key).
        optimizer: `NormalizedGD(size)` or `GradientDescent(size)`; None for the gradient flow.
        loss: one of `TUBE_LOSSES`.
    Returns:
        A tube for each, or what is missing.
    """
    if type(data) is not TokenDataset:
        raise InputError("data", "a TokenDataset itself, not a subclass", type(data).__name__)
    if not (optimizer is None or has_plain_steps(optimizer)):
        raise InputError("optimizer", "None for the flow, NormalizedGD(size) or GradientDescent(size)", repr(optimizer))
    return tubes_at(ScoredTokens(data, head, loss), np.asarray(points, dtype=np.float64), optimizer)


def tubes_at(problem: ScoredTokens, points: FloatArray, optimizer: PlainDescent | None) -> Tubes:
    """Find the tube around each point (batch, d_key) of a batch, or what is missing."""
    scored = problem.shortened
    part = scored.data
    left_out = problem.undecided.any(axis=-1)
    points = np.ascontiguousarray(points)
    at = directional_margin(part, np.where(np.any(points, axis=-1, keepdims=True), points, 1.0))
    rays = _rays(problem, at.selected, np.any(points, axis=-1))
    chosen = np.take_along_axis(scored.scores, at.selected[..., None], axis=-1)[..., 0]
    difference, near = scored.sharp_differences(at.selected)
    with np.errstate(divide="ignore"):  # a slope that is infinite belongs to a loss that has another search
        log_slope = slope_of(problem.loss, chosen).log - np.log(part.n_inputs)
    blur = TOLERANCE * np.maximum(length(points), 1e-300)
    anchor, outcome = np.zeros_like(points), np.zeros(len(part), dtype=np.int64)
    constants: FloatArray = np.zeros((len(part), 7))
    support = rays.multipliers > SUPPORT_RTOL * rays.multipliers.max(axis=(-2, -1), keepdims=True)
    support &= rays.multipliers > 0.0
    if type(problem.loss) is ArcsineLoss:
        for j in np.flatnonzero(rays.solved):
            rows = _steep_rows(part[j], at.selected[j], difference[j], support[j], rays, int(j))
            outcome[j], anchor[j], constants[j] = _steep_tube(rows, chosen[j], points[j], float(blur[j]), optimizer)
    else:
        parallel_over(
            core.find_tubes,
            len(part),
            *map(np.ascontiguousarray, (part.K, -difference)),
            np.ascontiguousarray(part.offsets).ravel() if part.has_offsets else np.empty(0),
            *map(np.ascontiguousarray, (part.lengths, at.selected, log_slope)),
            steepness_of(problem.loss, part.n_inputs),
            *map(np.ascontiguousarray, (rays.multipliers, rays.direction, 1.0 / rays.norm, points, blur)),
            int(type(optimizer) is NormalizedGD),
            0.0 if optimizer is None else optimizer.size,
            anchor,
            constants,
            outcome,
        )
    outcome = np.where(left_out | (support & near).any(axis=(-2, -1)), Missing.ROUNDING_DECIDES, outcome)
    outcome = np.where(rays.solved, np.where(at.unique, outcome, Missing.TIED), Missing.INFEASIBLE)
    return Tubes(outcome, at.selected, rays.direction, anchor, 1.0 / rays.norm, support, blur, *constants.T)


class _Rays(NamedTuple):
    """The max-margin directions of a batch, their multipliers in units of the margin, and which problems have one.

    Problems without one have norm 1 and zeros.
    """

    solved: BoolArray
    norm: FloatArray
    direction: FloatArray
    multipliers: FloatArray


def _rays(problem: ScoredTokens, selected: IntArray, moved: BoolArray) -> _Rays:
    """Solve for the max-margin directions of the selected tokens of the inputs whose output depends on p, if the point is not zero."""
    data, solutions = problem.data, problem.margins_of_dependent(selected)
    solved = np.array([each.status is Status.OPTIMAL for each in solutions]) & moved & problem.dependent.any(axis=-1)
    norm, direction = np.ones(len(data)), np.zeros((len(data), data.d_key))
    multipliers = np.zeros(problem.shortened.data.mask.shape)
    for j in np.flatnonzero(solved):
        solution, inputs = solutions[j], np.flatnonzero(problem.dependent[j])
        norm[j] = length(solution.x)
        direction[j] = solution.x / norm[j]
        i, _, other = np.asarray(solution.pairs).T
        multipliers[j, inputs[i], other] = solution.multipliers / norm[j]
    return _Rays(solved, norm, direction, multipliers)


def _steep_rows(
    data: TokenDataset, selected: IntArray, difference: FloatArray, support: BoolArray, rays: _Rays, j: int
) -> SteepRows:
    """Return the rows of problem j of a batch, of all tokens that are not selected."""
    others = data.mask & (np.arange(data.n_tokens) != selected[:, None])
    i, t = np.nonzero(others)
    top, n = selected[i], data.n_inputs
    multiplier = np.where(support, rays.multipliers[j], 0.0)[i, t]
    a, lead = data.K[i, top] - data.K[i, t], data.offsets[i, top] - data.offsets[i, t]
    return SteepRows(a, difference[i, t], lead, i, multiplier, rays.direction[j], 1.0 / float(rays.norm[j]), n)


def _steep_tube(
    rows: SteepRows, chosen: FloatArray, point: FloatArray, blur: float, optimizer: PlainDescent | None
) -> tuple[Missing, FloatArray, FloatArray]:
    """Return what is missing, the anchor and the constants of a tube under the arcsine."""
    nothing = np.zeros_like(point), np.zeros(7)
    if not (chosen[rows.input] == 1.0).all():
        return Missing.BELOW_ONE, *nothing
    if not (rows.delta[rows.support] > 0.0).all():
        return Missing.SUPPORT_SCORES_HIGHER, *nothing
    if not (rows.a @ rows.direction > (1.0 + NO_SLACK) * rows.theta)[~rows.support].all():
        return Missing.TIGHT_WITHOUT_WEIGHT, *nothing
    S = rows.a[rows.support]
    if np.linalg.matrix_rank(S) < len(S):
        return Missing.DEPENDENT_SUPPORT, *nothing
    size = 0.0 if optimizer is None else optimizer.size
    tube = find_steep_tube(rows, point, blur, size, normalized=type(optimizer) is NormalizedGD)
    if tube is None:
        return Missing.TUBE_TOO_NARROW, *nothing
    return Missing.NOTHING, rows.anchor()[0], np.array(tube)
