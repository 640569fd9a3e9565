"""The optimizer protocol: how an iterate moves when it sees a gradient."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from marginlens.arithmetic.log_scaled import LogScaled
from marginlens.errors import InputError
from marginlens.typing import FloatArray


@runtime_checkable
class Optimizer(Protocol):
    r"""A rule that turns gradients into steps: :math:`x(t+1) = x(t) + \text{step}(t)`.

    An optimizer holds its settings and nothing else; what it remembers from step to step is the state, which descent carries for it, so
    that runs can be resumed and many problems share one optimizer. Descent calls it on one problem at a time, with arrays of the shape of
    one point. An optimizer whose class says `batched = True` is called on all problems of a batch at once instead, with the batch axis
    first. It may say more: `norm`, the norm in which its steps are steepest, from which `predict` takes the margin problem of its runs; and
    `compiled(shape)`, its `Rule` in the compiled loop. `marginlens.testing.check_optimizer` runs the contract that every optimizer passes,
    a user's own too.
    """

    def init(self, x0: FloatArray) -> Any:
        """Return the state before the first step from `x0`; None if nothing is remembered."""

    def update(self, gradient: LogScaled, state: Any) -> tuple[FloatArray, Any]:
        """Return the step to take, of the iterate's shape, and the next state; neither `gradient` nor `state` may be changed in place."""


def as_optimizer(optimizer: object) -> Optimizer:
    """Return `optimizer` if it has the methods of one, else the error that says what is expected."""
    if isinstance(optimizer, type) or not isinstance(optimizer, Optimizer):
        got = f"the class {optimizer.__name__}" if isinstance(optimizer, type) else repr(optimizer)
        expected = "an optimizer such as ml.NormalizedGD(size) or ml.GradientDescent(size), or an object with the methods init and update"
        raise InputError("optimizer", expected, got)
    return optimizer
