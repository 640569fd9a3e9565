"""Optimizers in the form that the compiled loop of `core/steepest_descent.h` takes."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

from marginlens import core
from marginlens.kinds import inherited_attr
from marginlens.norms.entrywise import EUCLIDEAN
from marginlens.optimizers.protocol import Optimizer
from marginlens.optimizers.schedules import StepSize

# The kinds of update, as in core/steepest_descent.h.
STEEPEST, GRADIENT, ADAM, MIRROR = range(4)


class Rule(NamedTuple):
    """An optimizer in the form that the compiled loop takes; `Optimizer.compiled` makes it.

    Attributes:
        kind: STEEPEST, GRADIENT (plain gradient descent), ADAM or MIRROR.

        size: the step size, or its schedule.

        settings: a structured array whose fields are those of `OptimizerSettings` in the core: `rule.settings["momentum"]`.

        norm_code: the code of the norm of steepest descent.
    """

    kind: int
    size: StepSize
    settings: np.ndarray
    norm_code: int = EUCLIDEAN

    @property
    def momentum(self) -> float:
        """The share of the running sum that remains after a step."""
        return float(self.settings["momentum"])

    @classmethod
    def of(cls, kind: int, size: StepSize, norm_code: int = EUCLIDEAN, **settings: float) -> Self:
        """Make the rule with these settings, zero for the others."""
        numbers = np.zeros((), dtype=core.struct_type("OptimizerSettings"))
        for name, value in settings.items():
            numbers[name] = value
        return cls(kind, size, numbers, norm_code)


def compiled_rule(optimizer: Optimizer, shape: tuple[int, ...]) -> Rule | None:
    """Return the rule of an optimizer on points of this shape; None if it has none, or a subclass has changed its steps."""
    compiled = inherited_attr(optimizer, "compiled")
    if compiled is None:
        return None
    rule: Rule | None = compiled(shape)
    if rule is not None:
        rule.settings["decay"] = getattr(optimizer, "weight_decay", 0.0)
    return rule
