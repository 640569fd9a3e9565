"""Certificates that the gradient flow ends at a finite minimum: a ball around a point in which the risk is strictly convex."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marginlens.arithmetic.directions import length
from marginlens.losses.margin import Exponential, Logistic, Loss
from marginlens.papers import implements
from marginlens.theory.certificate import Proof
from marginlens.theory.checks import TheoremVerdict
from marginlens.theory.minimum_conditions import minimum_conditions
from marginlens.theory.scored_tokens import ScoredTokens
from marginlens.typing import FloatArray
from marginlens.words import Fact

TOLERANCE = 1e-9  # radius of the ball of points that the proof is for, relative to the point's norm
_THIRD = 3.5  # of |third derivative of an input's mean score|, over ε Γ D³


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
    at = problem.risk.second_order(point[None])
    hessian, gradient = (float(np.exp(at.log_scale[0])) * part[0] for part in (at.hessian, at.gradient))
    smallest = float(np.linalg.eigvalsh(hessian)[0]) if np.isfinite(hessian).all() else -1.0
    third = _third_bound(problem, point, 0.0)
    if not (smallest > 0.0 and third > 0.0):
        return None
    radius = min(0.25 * smallest / third, 1.0)
    while radius * _third_bound(problem, point, radius) > 0.5 * smallest:
        radius *= 0.5
    curvature, tolerance = 0.4 * smallest, min(TOLERANCE * float(length(point)), 0.25 * radius)
    if not tolerance + 2.0 * float(length(gradient)) / curvature <= 0.9 * radius:
        return None
    return MinimumCertificate(problem.data, problem.head, problem.loss, point, tolerance, radius, curvature)


def _loss_bounds(loss: Loss, low: float) -> tuple[float, float, float]:
    """Bound |ℓ'|, ℓ'' and |ℓ'''| for margins from `low` on."""
    if type(loss) is Logistic:
        return 1.0 / (1.0 + float(np.exp(low))), 0.25, 0.1
    return (float(np.exp(-low)),) * 3 if type(loss) is Exponential else (1.0, 0.0, 0.0)


def _third_bound(problem: ScoredTokens, p: FloatArray, radius: float) -> float:
    """Bound the third derivatives of the risk within a radius of p, up to rounding; see docs/proofs/attraction.md."""
    data, scores, total = problem.data, problem.scores, 0.0
    for i, count in enumerate(data.lengths.tolist()):
        keys, gamma = data.K[i, :count], scores[i, :count]
        logits = keys @ p
        best = int(np.argmax(logits))
        away = length(keys[best] - keys)
        others = float(np.sum(np.delete(np.exp(away * radius + logits - logits[best]), best)))
        eps, D = min(others, 1.0), float(np.max(length(keys[:, None] - keys[None])))
        span = float(np.ptp(gamma))
        first, second, third = _loss_bounds(problem.loss, float(gamma.min()))
        slope = 2.0 * eps * span * D
        total += first * _THIRD * eps * span * D**3 + 3.0 * second * slope**2 * D + third * slope**3
    return total / data.n_inputs
