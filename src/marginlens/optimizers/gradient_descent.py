"""Gradient descent with a constant step, and normalised gradient descent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from marginlens.errors import positive_number
from marginlens.optimizers.compiled import GRADIENT, STEEPEST, Rule
from marginlens.papers import implements
from marginlens.risk.log_scaled import LogScaled
from marginlens.typing import FloatArray


@implements("A", "Eq. (3)")
@dataclass(frozen=True)
class GradientDescent:
    r"""Gradient descent with a constant step: :math:`x \leftarrow x - \eta \nabla L(x)`."""

    size: float
    batched: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", positive_number(self.size, "size"))

    def init(self, x0: FloatArray) -> None:
        """Nothing is remembered."""

    def update(self, gradient: LogScaled, state: None) -> tuple[FloatArray, None]:
        """-η ∇L."""
        return -self.size * gradient.value(), None

    def compiled(self, shape: tuple[int, ...]) -> Rule:
        """As the compiled loops know it."""
        return Rule.of(GRADIENT, self.size)


@dataclass(frozen=True)
class NormalizedGD:
    r"""Normalised gradient descent: :math:`x \leftarrow x - \eta \nabla L(x) / \|\nabla L(x)\|`."""

    size: float = 1.0
    batched: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", positive_number(self.size, "size"))

    def init(self, x0: FloatArray) -> None:
        """Nothing is remembered."""

    def update(self, gradient: LogScaled, state: None) -> tuple[FloatArray, None]:
        """-η ∇L/‖∇L‖; zero where the gradient is exactly zero."""
        return -self.size * gradient.direction(), None

    def compiled(self, shape: tuple[int, ...]) -> Rule:
        """As the compiled loops know it."""
        return Rule.of(STEEPEST, self.size, power=2.0)
