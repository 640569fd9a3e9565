"""Gradient descent with a constant step, and normalised gradient descent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, TypeGuard

import numpy as np

from marginlens.arithmetic.log_scaled import LogScaled
from marginlens.errors import InputError, positive_number
from marginlens.optimizers.compiled import GRADIENT, STEEPEST, Rule
from marginlens.optimizers.decay import Decaying, as_share, decays, remembers_point, running_sum
from marginlens.papers import implements
from marginlens.typing import FloatArray


@dataclass(frozen=True, repr=False)
class _Euclidean(Decaying):
    """Steps along the gradient, or along its running sum m = μ m + ∇L."""

    size: float
    momentum: float = field(default=0.0, kw_only=True)
    batched: ClassVar[bool] = True
    # The optimizer that takes the same steps with sizes that depend on the step.
    with_schedule: ClassVar[str]

    def __post_init__(self) -> None:
        if callable(self.size) and not isinstance(self.size, type):
            raise InputError("size", "a positive number", repr(self.size), self.with_schedule)
        object.__setattr__(self, "size", positive_number(self.size, "size"))
        object.__setattr__(self, "momentum", as_share(self.momentum, "momentum"))
        self.check_decay()

    @property
    def is_plain(self) -> bool:
        """True if the steps are those of the papers, without momentum and weight decay."""
        return self.momentum == 0.0 and self.weight_decay == 0.0


@implements("A", "Eq. (3)")
@dataclass(frozen=True, repr=False)
class GradientDescent(_Euclidean):
    r"""Gradient descent with a constant step: :math:`x \leftarrow x - \eta \nabla L(x)`.

    Args:
        size: η, positive.

        momentum: μ, at least 0 and below 1; the running sum m = μ m + ∇L then replaces the gradient.

        weight_decay: λ, decoupled as in AdamW; see `marginlens.optimizers.Decaying`.

    Examples:
        >>> import marginlens as ml
        >>> data, heads = ml.data.sphere_tokens(1, n_inputs=3, n_tokens=4, d_model=5, rng=0)
        >>> risk = ml.AttentionRisk(data[0], heads[0])
        >>> run = ml.descend(risk, optimizer=ml.GradientDescent(0.1), n_steps=200)
        >>> bool(run.risk.value(run.final) < risk.value(0.0 * run.final))
        True
    """

    with_schedule: ClassVar[str] = "ml.MirrorDescent(2, size) takes such steps with a schedule."

    @remembers_point
    def init(self, x0: FloatArray) -> LogScaled | None:
        """Start without a running sum of gradients."""

    @decays
    def update(self, gradient: LogScaled, state: LogScaled | None) -> tuple[FloatArray, LogScaled | None]:
        """Return -η ∇L."""
        total = running_sum(gradient, state, self.momentum)
        return -self.size * (gradient if total is None else total).value(), total

    def compiled(self, shape: tuple[int, ...]) -> Rule:
        """Return the rule of the compiled loop."""
        return Rule.of(GRADIENT, self.size, momentum=self.momentum)


@dataclass(frozen=True, repr=False)
class NormalizedGD(_Euclidean):
    r"""Normalised gradient descent: :math:`x \leftarrow x - \eta \nabla L(x) / \|\nabla L(x)\|`.

    Args:
        size: η, positive.

        momentum: μ, as for `GradientDescent`.

        weight_decay: λ, as for `GradientDescent`.

    Examples:
        >>> import marginlens as ml
        >>> data, heads = ml.data.sphere_tokens(1, n_inputs=3, n_tokens=4, d_model=5, rng=0)
        >>> risk = ml.AttentionRisk(data[0], heads[0])
        >>> run = ml.descend(risk, optimizer=ml.NormalizedGD(0.1), n_steps=200)
        >>> run.selected.tolist()
        [0, 3, 1]
    """

    size: float = 1.0
    with_schedule: ClassVar[str] = "ml.SteepestDescent(ml.L2(), size) takes such steps with a schedule."

    @remembers_point
    def init(self, x0: FloatArray) -> LogScaled | None:
        """Start without a running sum of gradients."""

    @decays
    def update(self, gradient: LogScaled, state: LogScaled | None) -> tuple[FloatArray, LogScaled | None]:
        """Return -η ∇L/‖∇L‖; zero if the gradient is exactly zero."""
        total = running_sum(gradient, state, self.momentum)
        return -self.size * (gradient if total is None else total).direction(), total

    def compiled(self, shape: tuple[int, ...]) -> Rule:
        """Return the rule of the compiled loop."""
        return Rule.of(STEEPEST, self.size, power=2.0, momentum=self.momentum)


PlainDescent = GradientDescent | NormalizedGD


def has_plain_steps(optimizer: object) -> TypeGuard[PlainDescent]:
    """Return whether an optimizer is one of these two without momentum and decay. A subclass does not count, since it may take
    any steps.
    """
    if not isinstance(optimizer, PlainDescent) or type(optimizer) not in (GradientDescent, NormalizedGD):
        return False
    return optimizer.is_plain and bool(0.0 < optimizer.size < np.inf)
