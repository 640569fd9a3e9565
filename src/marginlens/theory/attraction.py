"""Tubes around max-margin directions which the gradient flow and descent provably never leave, found at points of a run."""

from __future__ import annotations

import json
from enum import IntEnum
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from marginlens import core
from marginlens.arithmetic.directions import length
from marginlens.data.tokens import TokenDataset
from marginlens.errors import InputError
from marginlens.losses.margin import CorrelationLoss, Exponential, Logistic, Loss, slope_of
from marginlens.optimizers import NormalizedGD
from marginlens.optimizers.gradient_descent import has_plain_steps
from marginlens.papers import implements
from marginlens.runtime.threads import over_problems
from marginlens.status import Status
from marginlens.svm import att_svm
from marginlens.theory.optimality import depends_on_p, directional_margin, rounding_decides, sharp_differences
from marginlens.typing import BoolArray, FloatArray, IntArray

TOLERANCE = 1e-6  # radius of the ball around a point that a tube has to hold, relative to the point's norm
STEEPNESS: dict[type[Loss], float] = {Logistic: 1.0, Exponential: 1.0, CorrelationLoss: 0.0}  # bounds |d log|ℓ'|/du|


class Missing(IntEnum):
    """What a point lacks for a proof; the first eight are those of `attraction.h`."""

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


WORDS: dict[str, dict[str, str]] = json.loads(
    (files("marginlens.theory") / "outcome.json").read_text(encoding="utf-8")
)  # what predictions say, here and in the lab
SENTENCES = {Missing[name]: sentence for name, sentence in WORDS["missing"].items()}


class Tubes(NamedTuple):
    """The tubes of a batch of points, one for each problem.

    Attributes:
        missing: (batch,) `Missing.NOTHING` where a tube is proved.
        selected: (batch, n_inputs) the tokens that lead at the points.
        direction, anchor: (batch, d_key) p̄ and q*.
        margin: (batch,) θ.
        support: (batch, n_inputs, n_tokens) the tokens on the margin.
        blur: (batch,) the radius of the ball around the point.
        along, deviation: (batch,) P_0 and ‖q - q*‖ at the worst of that ball.
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


def dependent_part(data: TokenDataset, head: Any) -> TokenDataset:
    """The data with one token left of every input whose output does not depend on p, so that it constrains nothing."""
    dependent = depends_on_p(data, head)
    if dependent.all():
        return data
    return data.shortened(np.where(dependent, data.lengths, 1))


@implements("X", "Thm 1")
def find_tubes(data: TokenDataset, head: Any, points: Any, optimizer: Any, loss: Loss) -> Tubes:
    r"""Whether each point lies in a tube that the flow or descent never leaves, so that its direction converges to the tube's.

    .. math:: p = P\bar p + q,\ q \perp \bar p: \qquad P \ge P_0, \quad \|q - q^\star\| \le R + \tfrac{K}{2R}(P - P_0)

    The direction is that of the max-margin problem of the tokens that lead at the point, and q⋆ the deviation from its ray at which the
    tokens on the margin pull exactly along it. Steps that are not longer than θ/A², A half of the spread of key differences, have
    K = 0. The proof is in docs/proofs/attraction.md.

    Args:
        data: a batch.
        head: (batch, d_model).
        points: (batch, d_key).
        optimizer: `NormalizedGD(size)` or `GradientDescent(size)`; None for the gradient flow.
        loss: a key of `STEEPNESS`.
    Returns:
        A tube for each, or what is missing.
    """
    if type(data) is not TokenDataset:
        raise InputError("data", "a TokenDataset itself, not a subclass", type(data).__name__)
    if not (optimizer is None or has_plain_steps(optimizer)):
        raise InputError("optimizer", "None for the flow, NormalizedGD(size) or GradientDescent(size)", repr(optimizer))
    part = dependent_part(data, head)
    left_out = np.zeros(len(data), dtype=np.bool_) if part is data else rounding_decides(data, head).any(axis=-1)
    points = np.ascontiguousarray(points, dtype=np.float64)
    at = directional_margin(part, np.where(np.any(points, axis=-1, keepdims=True), points, 1.0))
    solution = att_svm(part, at.selected)
    shape = (len(part), part.n_inputs, part.n_tokens)
    solved = np.array([status is Status.OPTIMAL for status in solution.status]) & np.any(points, axis=-1)
    norm = np.where(solved, length(np.where(solved[:, None], solution.x, 1.0)), 1.0)
    direction = np.where(solved[:, None], solution.x / norm[:, None], 0.0)
    multipliers = np.zeros(shape)
    pairs = np.asarray(solution.pairs)
    problem, row = np.nonzero(pairs[..., 0] >= 0)
    places = (problem, pairs[problem, row, 0], pairs[problem, row, 2])
    multipliers[places] = np.where(solved[problem], solution.multipliers[problem, row] / norm[problem], 0.0)
    chosen = np.take_along_axis(part.scores(head), at.selected[..., None], axis=-1)[..., 0]
    difference, near = sharp_differences(part, head, at.selected)
    log_slope = slope_of(loss, chosen).log - np.log(part.n_inputs)
    blur = TOLERANCE * np.maximum(length(points), 1e-300)
    anchor, outcome = np.empty_like(points), np.empty(len(part), dtype=np.int64)
    constants: FloatArray = np.empty((len(part), 7))
    over_problems(
        core.find_tubes,
        len(part),
        *map(np.ascontiguousarray, (part.K, -difference, part.lengths, at.selected, log_slope)),
        STEEPNESS[type(loss)],
        *map(np.ascontiguousarray, (multipliers, direction, 1.0 / norm, points, blur)),
        int(type(optimizer) is NormalizedGD),
        0.0 if optimizer is None else optimizer.size,
        anchor,
        constants,
        outcome,
    )
    support = multipliers > 1e-9 * multipliers.max(axis=(-2, -1), keepdims=True)
    support &= multipliers > 0.0
    outcome = np.where(left_out | (support & near).any(axis=(-2, -1)), Missing.ROUNDING_DECIDES, outcome)
    outcome = np.where(solved, np.where(at.unique, outcome, Missing.TIED), Missing.INFEASIBLE)
    return Tubes(outcome, at.selected, direction, anchor, 1.0 / norm, support, blur, *constants.T)
