"""Decoupled weight decay and momentum, which every optimizer of the library takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import wraps
from typing import Any, NamedTuple, Self

import numpy as np

from marginlens.arithmetic.log_scaled import LogScaled
from marginlens.errors import InputError, nonnegative_number, real_number
from marginlens.optimizers.schedules import size_at
from marginlens.typing import FloatArray


def as_share(value: object, argument: str) -> float:
    """Return `value` as a number of [0, 1): the share of a running sum that remains after a step."""
    return real_number(value, argument, "a number of at least 0 and below 1", lambda number: 0.0 <= number < 1.0)


@dataclass(frozen=True, repr=False)
class Decaying:
    r"""The base of optimizers with weight decay λ; with λ = 0 there is none.

    The decay is decoupled, as in AdamW: a step of size η first shrinks the weights, :math:`x \leftarrow (1 - \eta\lambda) x`, and then
    follows the gradient of L alone.

    Steps of length η in a norm keep :math:`\|x\| \le 1/\lambda` in that norm once it holds: they are Frank–Wolfe steps in the
    ball of radius 1/λ.
    """

    weight_decay: float = field(default=0.0, kw_only=True)

    def __new__(cls, *settings: Any, **named: Any) -> Self:
        """Raise an error that says what replaces the setting `coupled` of earlier versions, if it is given."""
        if "coupled" in named:
            raise TypeError(
                f"{cls.__name__} has no setting coupled any more: weight_decay is decoupled, as in AdamW; for coupled decay "
                "train on a risk of your own that adds λ/2 ‖x‖²."
            )
        return super().__new__(cls)

    def check_decay(self) -> None:
        """Raise if the decay is not a nonnegative number, or if its first step would shrink weights beyond zero."""
        decay = nonnegative_number(self.weight_decay, "weight_decay")
        object.__setattr__(self, "weight_decay", decay)
        first = size_at(self.size, 0) if decay > 0.0 else 0.0  # type: ignore[attr-defined]
        if first * decay >= 1.0:
            raise InputError("weight_decay", f"a number below 1/size = {1.0 / first:g}", f"{decay:g}")

    def __repr__(self) -> str:
        settings = sorted(fields(self), key=lambda one: one.kw_only is True)
        shown = [
            f"{one.name}={value!r}"
            for one in settings
            if (value := getattr(self, one.name)) != one.default or not one.kw_only
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


class DecayState(NamedTuple):
    """The number of steps taken, the iterate, and the state of the optimizer itself."""

    step: int
    x: FloatArray
    inner: Any


def remembers_point(init: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the method `init` of an optimizer, which with weight decay remembers the iterate too."""

    @wraps(init)
    def begin(self: Any, x0: FloatArray) -> Any:
        inner = init(self, x0)
        return inner if self.weight_decay == 0.0 else DecayState(0, np.array(x0, dtype=np.float64), inner)

    return begin


def decays(update: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the method `update` of an optimizer, to apply weight decay if there is any."""

    @wraps(update)
    def step(self: Any, gradient: LogScaled, state: Any) -> tuple[FloatArray, Any]:
        if self.weight_decay == 0.0:
            move, inner = update(self, gradient, state)
            return move, inner
        move, inner = update(self, gradient, state.inner)
        move = move - size_at(self.size, state.step) * self.weight_decay * state.x
        return move, DecayState(state.step + 1, state.x + move, inner)

    return step


def running_sum(gradient: LogScaled, total: LogScaled | None, momentum: float) -> LogScaled | None:
    """Return m = μ m + ∇L, in the log domain; None without momentum."""
    if momentum == 0.0:
        return None
    own = LogScaled(gradient.array, gradient.log_scale, gradient.axes, terms=gradient.terms)
    return own if total is None else own.plus(total, momentum)
