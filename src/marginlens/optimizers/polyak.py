"""Polyak's step size, from the exact excess risk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marginlens.errors import positive_number, reject
from marginlens.optimizers.decay import Decaying, decays, remembers_point
from marginlens.risk.log_scaled import LogScaled
from marginlens.typing import FloatArray


@dataclass(frozen=True, repr=False)
class PolyakStep(Decaying):
    r"""Gradient descent with Polyak's step size.

    .. math:: x \leftarrow x - c\, \frac{L(x) - L^\star}{\|\nabla L(x)\|^2} \nabla L(x)

    L⋆ is the risk of selecting the token with the highest score in every input, its infimum where these can be selected. Excess risk and
    gradient are both of the size e^(-margin·norm) and are divided as logarithms, so that steps stay right at any norm.

    Args:
        scale: c, positive; 1 is Polyak's choice.
        weight_decay: λ; a step shrinks weights by 1 - cλ first. It cannot be coupled: the infimum of L + λ/2 ‖x‖² is not known.
    """

    scale: float = 1.0
    batched: ClassVar[bool] = True
    needs_excess: ClassVar[bool] = True  # descent fills `gradient.excess`

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", positive_number(self.scale, "scale"))
        if self.coupled:
            raise reject("coupled", "False: the infimum of a risk with decay is not known", "True")
        self.check_decay()

    def decay_size(self, step: int) -> float:
        """c: the sizes of steps depend on the risk, and decay does not."""
        return self.scale

    @remembers_point
    def init(self, x0: FloatArray) -> None:
        """Nothing is remembered."""

    @decays
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
