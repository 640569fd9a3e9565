"""Polyak's step size, from the exact excess risk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marginlens.errors import positive_number, reject
from marginlens.risk.log_scaled import LogScaled
from marginlens.typing import FloatArray


@dataclass(frozen=True)
class PolyakStep:
    r"""Gradient descent with Polyak's step size.

    .. math:: x \leftarrow x - c\, \frac{L(x) - L^\star}{\|\nabla L(x)\|^2} \nabla L(x)

    L⋆ is the risk of selecting the token with the highest score in every input, its infimum where these can be selected. Excess risk and
    gradient are both of the size e^(-margin·norm) and are divided as logarithms, so that steps stay right at any norm.

    Args:
        scale: c, positive; 1 is Polyak's choice.
    """

    scale: float = 1.0
    batched: ClassVar[bool] = True
    needs_excess: ClassVar[bool] = True  # descent fills `gradient.excess`

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", positive_number(self.scale, "scale"))

    def init(self, x0: FloatArray) -> None:
        """Nothing is remembered."""

    def update(self, gradient: LogScaled, state: None) -> tuple[FloatArray, None]:
        """-c (L - L⋆)/‖∇L‖ times the direction of the gradient; zero where the gradient is."""
        if gradient.excess is None:
            raise reject(
                "optimizer",
                "PolyakStep only for a risk whose infimum is known, such as AttentionRisk",
                "a gradient without excess risk",
            )
        with np.errstate(invalid="ignore"):
            size = self.scale * gradient.excess.sign * np.exp(gradient.excess.log - gradient.log_norm)
        size = np.where(gradient.is_zero(), 0.0, size)
        return -gradient.aligned(size) * gradient.direction(), None
