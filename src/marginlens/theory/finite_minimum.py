"""Certificates that the gradient flow ends at a finite minimum: a ball around a point in which the risk is strictly convex."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marginlens import core
from marginlens.arithmetic.directions import length
from marginlens.losses.margin import compiled_code
from marginlens.papers import implements
from marginlens.theory.attraction import STEEPNESS
from marginlens.theory.certificate import Proof
from marginlens.theory.checks import TheoremVerdict
from marginlens.theory.minimum_conditions import minimum_conditions
from marginlens.theory.scored_tokens import ScoredTokens
from marginlens.typing import FloatArray
from marginlens.words import Fact


@dataclass(frozen=True, repr=False, eq=False)
class MinimumCertificate(Proof):
    r"""A proof that gradient flow from `point` on converges to a finite minimum of the risk within `radius` of it.

    Attributes:
        data, head, loss: the problem.
        point: (d_key,) where the proof begins; it holds for every point within `tolerance` of it.
        radius: of a ball around the point in which all second derivatives are at least `curvature`.

    `verify()` checks it again from the data alone. `to_frame()` has one row per condition.
    """

    radius: float
    curvature: float
    format = "marginlens-minimum-1"
    losses = tuple(STEEPNESS)
    positive = ("radius", "curvature")
    quantities = "norm={norm:.4g}, radius={radius:.3g}, curvature={curvature:.3g}"

    @implements("X", "Thm 2")
    def verify(self) -> TheoremVerdict:
        """Recompute every inequality of the proof from the data, in exact products and intervals of 300 bits."""
        checks = self.refused() or tuple(minimum_conditions(self))
        return TheoremVerdict("X Thm 2", checks, Fact("minimum.proved"))


@implements("X", "Thm 2")
def certify_minimum(problem: ScoredTokens, point: FloatArray) -> MinimumCertificate | None:
    r"""Certify that the flow ends at a finite minimum near a point; None if the curvature and the gradient do not show one.

    In a ball of radius r around p every second derivative is at least :math:`m = \lambda_{\min}(\nabla^2 L(p)) - r M`, where M
    bounds the third derivatives. If :math:`\delta + 2\|\nabla L(p)\|/m \le r`, the ball holds one stationary point, and the
    flow from within δ of p stays in it and converges to that point: the distance to it never grows.
    """
    if problem.data.has_offsets or type(problem.loss) not in STEEPNESS:
        return None
    at = problem.risk.second_order(point[None])
    hessian, gradient = (float(np.exp(at.log_scale[0])) * part[0] for part in (at.hessian, at.gradient))
    smallest = float(np.linalg.eigvalsh(hessian)[0]) if np.isfinite(hessian).all() else -1.0
    data, ball = problem.data, np.empty(3)
    of_data = (data.K, np.where(data.mask, problem.scores, 0.0), data.lengths, compiled_code(problem.loss), point)
    if not core.find_ball(*of_data, smallest, float(length(gradient)), ball):
        return None
    radius, curvature, tolerance = ball.tolist()
    return MinimumCertificate(data, problem.head, problem.loss, point, tolerance, radius, curvature)
