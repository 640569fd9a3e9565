"""Step sizes over time: constant, falling like a power of the step, or any function of the step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from marginlens.errors import InputError, nonnegative_number, positive_number
from marginlens.typing import FloatArray

StepSize = float | Callable[[int], float]


@dataclass(frozen=True)
class PowerDecay:
    r"""Step sizes that decrease like a power of the step, :math:`\eta_t = \text{size} \cdot (t + 1)^{-\text{power}}`, t = 0, 1, ….

    Args:
        size: the size of the first step.

        power: at least 0. For a power of at most 1 the step sizes have an infinite sum, so weights can go to infinity.

    Examples:
        >>> from marginlens.optimizers import PowerDecay
        >>> size = PowerDecay(1.0, 0.5)
        >>> size(0), size(3)
        (1.0, 0.5)
    """

    size: float
    power: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", positive_number(self.size, "size"))
        object.__setattr__(self, "power", nonnegative_number(self.power, "power"))

    def __call__(self, t: int) -> float:
        """Return the size of step t."""
        return float(self.size * (t + 1.0) ** -self.power)


def as_step_size(size: object) -> StepSize:
    """Return a positive number, or a function t → size such as `PowerDecay`, as it is; raise for anything else."""
    if isinstance(size, type):
        raise InputError("size", "a positive number or a function of the step", f"the class {size.__name__}")
    if callable(size):
        schedule: StepSize = size
        return schedule
    return positive_number(size, "size")


def size_at(size: StepSize, t: int) -> float:
    """Return the size of step t; zero, nan, infinity and negative numbers are refused."""
    if not callable(size):
        return size
    expected = "a positive number at every step"
    try:
        value = float(size(t))
    except (TypeError, ValueError) as problem:
        raise InputError("size", expected, f"a schedule that failed at step {t} ({problem})") from problem
    if not (np.isfinite(value) and value > 0.0):
        raise InputError("size", expected, f"a schedule that gives {value:g} at step {t}")
    return value


def sizes_of(size: StepSize, begin: int, end: int) -> FloatArray:
    """Return the sizes of steps `begin` … `end` - 1, (end - begin,)."""
    if not callable(size):
        return np.full(end - begin, size)
    if isinstance(size, PowerDecay):
        sizes = size.size * np.arange(begin + 1.0, end + 1.0) ** -size.power
        # Otherwise `size_at` below refuses the first size that is not positive.
        if np.all(sizes > 0.0):
            return np.asarray(sizes)
    return np.array([size_at(size, t) for t in range(begin, end)])
