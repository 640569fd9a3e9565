"""The optimizer protocol: how an iterate moves, given a gradient."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from marginlens.arithmetic.log_scaled import LogScaled
from marginlens.errors import InputError
from marginlens.typing import FloatArray


@runtime_checkable
class Optimizer(Protocol):
    r"""A rule that turns gradients into steps: :math:`x(t+1) = x(t) + \text{step}(t)`.

    An optimizer holds only its settings. Whatever it remembers from step to step is its state, which descent keeps, so runs can
    be resumed and many problems can share one optimizer. Descent calls the optimizer on one problem at a time, with arrays of
    the shape of one point. If its class has `batched = True`, it is called on all problems of a batch at once, with the batch
    axis first. Two more attributes are optional: `norm`, the norm in which its steps are steepest, gives `predict` the margin
    problem of its runs, and `compiled(shape)` returns its `Rule` in the compiled loop. `marginlens.testing.check_optimizer`
    runs the contract that every optimizer must pass, including your own.
    """

    def init(self, x0: FloatArray) -> Any:
        """Return the state before the first step from `x0`; None if nothing is remembered."""

    def update(self, gradient: LogScaled, state: Any) -> tuple[FloatArray, Any]:
        """Return the step to take, of the iterate's shape, and the next state; neither `gradient` nor `state` may be changed in place."""


def as_optimizer(optimizer: object) -> Optimizer:
    """Return `optimizer` if it has the methods of an optimizer, otherwise raise."""
    if isinstance(optimizer, type) or not isinstance(optimizer, Optimizer):
        got = f"the class {optimizer.__name__}" if isinstance(optimizer, type) else repr(optimizer)
        expected = "an optimizer such as ml.NormalizedGD(size) or ml.GradientDescent(size), or an object with the methods init and update"
        raise InputError("optimizer", expected, got)
    return optimizer
