"""Mirror descent with the potential of a power norm, as used on attention."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from marginlens.arithmetic.log_scaled import LogScaled
from marginlens.errors import InputError, real_number
from marginlens.optimizers.compiled import MIRROR, Rule
from marginlens.optimizers.decay import Decaying, as_share, running_sum
from marginlens.optimizers.schedules import StepSize, as_step_size, size_at
from marginlens.typing import FloatArray


class MirrorState(NamedTuple):
    """The number of steps taken, the iterate x, its mirror image ∇ψ(x), and the running sum of gradients."""

    step: int
    x: FloatArray
    image: FloatArray
    total: LogScaled | None


@dataclass(frozen=True, repr=False)
class MirrorDescent(Decaying):
    r"""Mirror descent with the potential :math:`\psi(x) = \|x\|_p^p / p`, p > 1.

    .. math:: \nabla\psi(x^+) = \nabla\psi(x) - \eta_t \nabla L(x), \qquad \nabla\psi(x)_j = \operatorname{sign}(x_j) |x_j|^{p-1}

    Args:
        p: the power, above 1; p = 2 is gradient descent.

        size: η, a positive number, or a function t → η_t such as `PowerDecay(size, power)`.

        normalized: whether to divide the gradient by its dual norm :math:`\|\nabla L\|_q`, 1/p + 1/q = 1. Weights then keep
            growing at any norm; otherwise they grow like the logarithm of the number of steps.

        momentum: μ of the running sum that replaces the gradient.

        weight_decay: λ; each step first multiplies x by 1 - η_t λ.

    Examples:
        >>> import marginlens as ml
        >>> data, heads = ml.data.sphere_tokens(1, n_inputs=3, n_tokens=4, d_model=5, rng=0)
        >>> risk = ml.AttentionRisk(data[0], heads[0])
        >>> rule = ml.MirrorDescent(3.0, 0.1, normalized=True)
        >>> bias = ml.theory.implicit_bias(rule, risk)
        >>> bias.norm
        Lp(p=3.0)
    """

    p: float
    size: StepSize
    normalized: bool = False
    momentum: float = field(default=0.0, kw_only=True)
    batched: ClassVar[bool] = True

    def __post_init__(self) -> None:
        p = real_number(self.p, "p", "a number above 1")
        if not (np.isfinite(p) and p > 1.0):
            advice = "The potential of p = 1 has no mirror map." if p == 1.0 else ""
            raise InputError("p", "a number above 1", f"{p:g}", advice)
        object.__setattr__(self, "p", p)
        object.__setattr__(self, "size", as_step_size(self.size))
        object.__setattr__(self, "momentum", as_share(self.momentum, "momentum"))
        self.check_decay()

    def init(self, x0: FloatArray) -> MirrorState:
        """Return the start and its image."""
        x = np.array(x0, dtype=np.float64)
        return MirrorState(0, x, np.sign(x) * np.abs(x) ** (self.p - 1.0), None)

    def update(self, gradient: LogScaled, state: MirrorState) -> tuple[FloatArray, MirrorState]:
        """Return the step to the iterate whose image is ∇ψ(x) - η_t ∇L."""
        size = size_at(self.size, state.step)
        kept = 1.0 - size * self.weight_decay
        total = running_sum(gradient, state.total, self.momentum)
        followed = gradient if total is None else total
        change = dual_unit(followed, self.p) if self.normalized else followed.value()
        image = kept ** (self.p - 1.0) * state.image - size * change
        step = np.sign(image) * np.abs(image) ** (1.0 / (self.p - 1.0)) - state.x
        return step, MirrorState(state.step + 1, state.x + step, image, total)

    def compiled(self, shape: tuple[int, ...]) -> Rule:
        """Return the rule of the compiled loop."""
        return Rule.of(MIRROR, self.size, mirror_power=self.p, normalized=self.normalized, momentum=self.momentum)


def dual_unit(gradient: LogScaled, p: float) -> FloatArray:
    """Divide gradients by their norm ‖·‖_q with 1/p + 1/q = 1; zero gradients stay zero."""
    q, scaled = p / (p - 1.0), gradient.direction()
    axes = tuple(range(scaled.ndim - gradient.axes, scaled.ndim))
    norms = np.sum(np.abs(scaled) ** q, axis=axes, keepdims=True) ** (1.0 / q)
    return np.divide(scaled, norms, out=np.zeros_like(scaled), where=norms > 0.0)
