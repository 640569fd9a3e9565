"""Your own torch module as a risk, for descent, optimizers, mini-batches and paths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from marginlens.arithmetic.log_scaled import LogScaled
from marginlens.errors import InputError, missing_extra, whole_number
from marginlens.result import Described
from marginlens.risk.protocol import MarginRows, as_points
from marginlens.typing import ArrayLike, FloatArray, IntArray, Seed

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False, repr=False)
class TorchRisk(Described):
    """The loss of a torch module as a function of the concatenation of all its parameters that require a gradient.

    Gradients are those of autograd in float64 and no more accurate. If a softmax saturates, they are formed by subtraction;
    anything below some 1e-16 of the terms is rounding, which normalised steps would follow. `noise(x)` measures this part of a
    gradient.
    """

    module: Any
    loss: Callable[..., Any]
    choose: Callable[[Any], Any] | None = None
    n_inputs: int | None = None
    inputs: IntArray | None = None
    quantities = "{module.__class__.__name__}, {shape[0]} parameters"

    @property
    def _parameters(self) -> list[Any]:
        return [one for one in self.module.parameters() if one.requires_grad]

    @property
    def shape(self) -> tuple[int]:
        """The shape of a point, (n_parameters,)."""
        return (sum(one.numel() for one in self._parameters),)

    def start(self, start: ArrayLike | None) -> FloatArray:
        """Return a start (n_parameters,), or for None the parameters that the module has now, as a new array (1, n_parameters)."""
        if start is not None:
            return np.array(as_points(start, self.shape, "start"))[None]
        return np.concatenate([one.detach().cpu().numpy().ravel() for one in self._parameters])[None].astype(np.float64)

    def load(self, x: ArrayLike) -> Any:
        """Put these parameters into the module and return it."""
        import torch

        values = torch.as_tensor(np.array(as_points(x, self.shape)))
        with torch.no_grad():
            parts = torch.split(values, [one.numel() for one in self._parameters])
            for one, part in zip(self._parameters, parts, strict=True):
                one.copy_(part.reshape(one.shape))
        return self.module

    def _loss_at(self, x: ArrayLike) -> Any:
        module = self.load(x)
        return self.loss(module) if self.inputs is None else self.loss(module, self.inputs)

    def value(self, x: ArrayLike) -> float:
        """Return the loss."""
        import torch

        with torch.no_grad():
            return float(self._loss_at(x))

    def log_value(self, x: ArrayLike) -> float:
        """Return the logarithm of the loss: -inf if torch's float64 has underflowed, nan if the loss is negative."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.log(self.value(x)))

    def gradient(self, x: ArrayLike) -> LogScaled:
        """Return the gradient that autograd gives in float64; see `noise`."""
        import torch

        loss = self._loss_at(x)
        gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        parts = [
            np.zeros(one.numel()) if part is None else part.detach().cpu().numpy().ravel()
            for one, part in zip(self._parameters, gradients, strict=True)
        ]
        array = np.concatenate(parts).astype(np.float64)
        largest = float(np.max(np.abs(array), initial=0.0))
        if largest == 0.0 or not np.isfinite(largest):
            return LogScaled(array, np.asarray(0.0))
        return LogScaled(array / largest, np.asarray(np.log(largest)))

    def noise(self, x: ArrayLike, rng: Seed = 0) -> float:
        """Measure how much of the gradient is rounding: how far it moves, relative to its length, if every operation rounds differently.

        Every result that torch computes, forward and backward, is changed in its last bits at random. The result is near zero
        if the gradient is exact, of order one or more if saturation has left nothing of it, and infinite if it has underflowed.
        """
        generator = np.random.default_rng(rng)
        exact = self.gradient(x).value()
        with _rounding_otherwise(generator):
            moved = self.gradient(x).value()
        size = float(np.linalg.norm(exact))
        return float(np.linalg.norm(exact - moved)) / size if size > 0.0 else np.inf

    def select(self, x: ArrayLike) -> IntArray:
        """Return what the function `select` given to `from_torch` chooses; nothing if none was given."""
        if self.choose is None:
            return np.zeros(0, dtype=np.int64)
        import torch

        with torch.no_grad():
            chosen = self.choose(self.load(x))
        return np.asarray(chosen.cpu() if hasattr(chosen, "cpu") else chosen, dtype=np.int64)

    def margin_rows(self, selected: ArrayLike) -> MarginRows:
        """Raise, because margins of a module are not linear in its parameters."""
        raise InputError("risk", "one whose margins are linear in the point", "a torch module")

    def smoothness(self) -> float:
        """Return infinity: no Lipschitz constant of the gradient is known."""
        return np.inf

    def of_inputs(self, inputs: IntArray) -> TorchRisk:
        """Restrict the loss to some of the inputs, given by their indices: a mini-batch."""
        return TorchRisk(self.module, self.loss, self.choose, self.n_inputs, np.asarray(inputs))


def _rounding_otherwise(generator: np.random.Generator) -> Any:
    """Return a mode of torch that changes the last bits of all results; what shares memory with an argument stays as it is."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map

    class Rounding(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = {one.data_ptr() for one in args if isinstance(one, torch.Tensor)}

            def moved(result: object) -> Any:
                if not (isinstance(result, torch.Tensor) and result.is_floating_point()) or result.data_ptr() in given:
                    return result
                bits = torch.as_tensor(generator.uniform(-1.0, 1.0, tuple(result.shape)), dtype=result.dtype)
                return result * (1.0 + torch.finfo(result.dtype).eps * bits.to(result.device))

            return tree_map(moved, func(*args, **(kwargs or {})))

    return Rounding()


def from_torch(
    module: torch.nn.Module,
    loss: Callable[..., Any],
    *,
    select: Callable[[Any], Any] | None = None,
    n_inputs: int | None = None,
) -> TorchRisk:
    """Make a risk of your own torch module, for `descend`, optimizers, mini-batches and `path`.

    Args:
        module: a `torch.nn.Module`. It is converted to float64, and its parameters are changed in place; training starts from
            their present values.

        loss: a function that takes the module and returns its loss on your data, one number. With `n_inputs` it also takes the
            indices of inputs (n_taken,), and returns their mean loss.

        select: a function that takes the module and returns a whole number for each input, such as the token with the most
            attention.

        n_inputs: the number of inputs; needed for `descend(..., batch_size=…)`.

    Returns:
        A `TorchRisk`, which passes `marginlens.testing.check_risk` if the loss is smooth. `risk.noise(x)` shows whether
        autograd has lost the gradient to rounding at x, and `risk.load(run.final)` puts weights into the module.
    """
    try:
        import torch
    except ModuleNotFoundError as problem:
        raise missing_extra("torch", "torch", "A torch module as a risk") from problem
    if not isinstance(module, torch.nn.Module):
        raise InputError("module", "a torch.nn.Module", type(module).__name__)
    if not callable(loss):
        raise InputError("loss", "a function of the module", repr(loss))
    module.double()
    if not any(one.requires_grad for one in module.parameters()):
        raise InputError("module", "one with parameters that require a gradient", "one without")
    if n_inputs is None:
        return TorchRisk(module, loss, select)
    count = whole_number(n_inputs, "n_inputs", at_least=1)
    return TorchRisk(module, loss, select, count, np.arange(count))
