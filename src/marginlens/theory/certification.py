"""Proofs that begin at a given point: where training from it ends, whatever led there."""

from __future__ import annotations

import numpy as np

from marginlens.arithmetic.directions import length
from marginlens.data.tokens import TokenDataset, without_offsets
from marginlens.errors import InputError
from marginlens.losses.margin import Logistic, Loss
from marginlens.norms.choice import as_norm
from marginlens.optimizers.gradient_descent import PlainDescent, has_plain_steps
from marginlens.optimizers.protocol import Optimizer, as_optimizer
from marginlens.papers import implements
from marginlens.theory.any_norm import (
    Lacking,
    SteepestSteps,
    certificate_at,
    lacking_fact,
    place_at,
    plan_for,
    steepest_steps,
)
from marginlens.theory.attraction import BOUNDED_LOSSES, TUBE_LOSSES, Missing, missing_fact, steepness_of, tubes_at
from marginlens.theory.certificate import Certificate, certificate_of
from marginlens.theory.optimality import directional_margin
from marginlens.theory.scored_tokens import ScoredTokens
from marginlens.theory.steepest_certificate import SteepestCertificate
from marginlens.typing import ArrayLike, FloatArray


@implements("X", "Thm 1", "Thm 4")
def certify(
    data: TokenDataset,
    head: ArrayLike,
    point: ArrayLike,
    *,
    optimizer: Optimizer | None = None,
    loss: Loss | None = None,
) -> Certificate | SteepestCertificate:
    """Certify where training from `point` on ends, with the tokens that lead there.

    For the gradient flow and for plain or normalised steps, the direction converges to the max-margin direction of these tokens.
    Steps that are steepest in another norm select them for ever, and their margin in that norm ends in a bracket.

    Args:
        data: one problem.

        head: v (d_model,).

        point: (d_key,).

        optimizer: `NormalizedGD(size)`, `GradientDescent(size)`, steepest descent in a norm without weight decay, or None for
            the gradient flow. Momentum begins at the point, without earlier gradients.

        loss: logistic by default.

    Returns:
        A `Certificate`, or a `SteepestCertificate` for steps in another norm.

    Raises:
        InputError: if no proof begins at this point; it says what is missing.

    Examples:
        >>> import marginlens as ml
        >>> data, heads = ml.data.sphere_tokens(1, n_inputs=3, n_tokens=4, d_model=5, rng=0)
        >>> risk = ml.AttentionRisk(data[0], heads[0])
        >>> point = ml.descend(risk, optimizer=ml.NormalizedGD(1.0), n_steps=300).final
        >>> proof = ml.theory.certify(data[0], heads[0], point, optimizer=ml.NormalizedGD(1.0))
        >>> proof.verify().applies
        True
        >>> point = ml.descend(risk, optimizer=ml.SignDescent(0.01), n_steps=3000).final
        >>> ml.theory.certify(data[0], heads[0], point, optimizer=ml.SignDescent(0.01)).verify().applies
        True
    """
    if type(data) is not TokenDataset:
        raise InputError("data", "a TokenDataset itself, not a subclass", type(data).__name__)
    problem_loss = Logistic() if loss is None else loss
    losses = TUBE_LOSSES if optimizer is None or has_plain_steps(optimizer) else BOUNDED_LOSSES
    if type(problem_loss) not in losses:
        bounded = ", ".join(kind.__name__ for kind in losses)
        raise InputError("loss", f"one of {bounded}, whose slopes the proof bounds", type(problem_loss).__name__)
    problem, p = ScoredTokens(data, data.head(head), problem_loss), data.point(point, "point")
    if not (optimizer is None or has_plain_steps(optimizer)):
        without_offsets(data, "X Theorem 4")
    if optimizer is None or has_plain_steps(optimizer):
        return _around_a_ray(problem, p, optimizer)
    steps = steepest_steps(as_optimizer(optimizer))
    if steps is None:
        expected = (
            "None for the flow, NormalizedGD(size), GradientDescent(size), or steepest descent in a norm of this library without"
            " weight decay"
        )
        raise InputError("optimizer", expected, repr(optimizer))
    return _in_a_norm(problem, p, steps)


def _no_proof(point: FloatArray, because: object) -> InputError:
    got = f"one of norm {float(length(point)):.4g} at which {because}"
    return InputError("point", "a point from which the limit is proved", got)


def _around_a_ray(problem: ScoredTokens, point: FloatArray, optimizer: PlainDescent | None) -> Certificate:
    """Certify by X Theorem 1."""
    tubes = tubes_at(problem.as_batch(), point[None], optimizer)
    if tubes.missing[0]:
        raise _no_proof(point, missing_fact(Missing(tubes.missing[0])))
    return certificate_of(problem.data, problem.head, problem.loss, optimizer, point, tubes, 0)


def _in_a_norm(problem: ScoredTokens, point: FloatArray, steps: SteepestSteps) -> SteepestCertificate:
    """Certify by X Theorem 4."""
    as_norm(steps.norm, point.shape)
    at = directional_margin(problem.data, point if np.any(point) else np.ones_like(point))
    if not (at.unique and np.any(point)):
        raise _no_proof(point, missing_fact(Missing.TIED))
    plan = plan_for(problem, at.selected, steps, point.shape)
    place = place_at(plan, point, steps, steepness_of(problem.loss, problem.data.n_inputs), point.shape)
    if place.lacking is not Lacking.NOTHING:
        raise _no_proof(point, lacking_fact(place.lacking))
    return certificate_at(problem, point, plan, place, steps, point.shape)
