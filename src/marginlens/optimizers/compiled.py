"""Optimizers as the compiled loop of `core/steepest_descent.h` knows them."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np

from marginlens.kinds import declared
from marginlens.norms.entrywise import EUCLIDEAN
from marginlens.optimizers.schedules import StepSize
from marginlens.typing import FloatArray

STEEPEST, GRADIENT, ADAM, MIRROR = range(4)  # kinds of update
_SETTINGS = ("power", "momentum", "nesterov", "beta_1", "beta_2", "eps", "mirror_power", "normalized", "weight_decay")


class Rule(NamedTuple):
    """An optimizer as the compiled loop knows it; its method `compiled` makes it.

    Attributes:
        kind: STEEPEST, GRADIENT (plain gradient descent), ADAM or MIRROR.
        size: of the steps.
        settings: (9,) p of ℓp, momentum, whether it is Nesterov's, β₁, β₂, ε, p of mirror descent, whether that is normalised, and
            decoupled weight decay.
        norm_code: of the norm of steepest descent.
    """

    kind: int
    size: StepSize
    settings: FloatArray
    norm_code: int = EUCLIDEAN

    @property
    def momentum(self) -> float:
        """The share of the last step's sum that a step keeps."""
        return float(self.settings[_SETTINGS.index("momentum")])

    @classmethod
    def of(cls, kind: int, size: StepSize, norm_code: int = EUCLIDEAN, **settings: float) -> Self:
        """The rule with these settings, zero for the others."""
        return cls(kind, size, np.array([float(settings.get(name, 0.0)) for name in _SETTINGS]), norm_code)


def compiled_rule(optimizer: Any, shape: tuple[int, ...]) -> Rule | None:
    """The rule of an optimizer on points of this shape; None where it has none, or a subclass has changed its steps."""
    compiled = declared(optimizer, "compiled")
    if compiled is None:
        return None
    rule: Rule | None = compiled(shape)
    if rule is not None:
        rule.settings[_SETTINGS.index("weight_decay")] = getattr(optimizer, "weight_decay", 0.0)
    return rule
