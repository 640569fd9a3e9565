"""What a query or key projection computes: a plain layer's weights as they are, anything else as it is measured to act."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.errors import InputError

AFFINE = 0.05  # of its outputs, by which a module may miss the affine map measured on it: inputs rounded to 8 bits cost up to 0.03
_SIZES = (0.1, 1.0, 10.0)  # of the random inputs that the measured map is tried on, each on its own
_TRIED = 64  # random inputs of each size
_STEEPEST = 2.0**12  # the largest multiple of unit vectors that is tried
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


@dataclass(frozen=True, eq=False)
class AffineMap:
    """What one module does to a token: x W + b.

    Attributes:
        W: (d_in, d_out) and b: (d_out,), or None where there is no bias, as torch tensors.
        deviation: by how much the module misses this on random inputs, relative to its outputs; None where W is the module's own weight.
    """

    W: Any
    b: Any
    deviation: float | None = None


def affine_map(module: Any, d_in: int, name: str, like: Any, used: int | None = None) -> AffineMap:
    r"""The affine map that a module computes.

    A linear layer with nothing around it has it in its weights. What is wrapped by an adapter, quantised, parametrised or hooked has
    weights that are not what it computes, so that the module :math:`f` itself is asked, in evaluation mode: b = f(0) and
    :math:`W_j = (f(c\, e_j) - b)/c` for the unit vectors, with c so large that b takes no digits from W. Random inputs then tell how far
    f is from it; where that is more than `AFFINE` of its outputs there is no W, which one sentence says.

    Args:
        d_in: width of the inputs. name: what the module is called in its model.
        like: a torch tensor with the device and the precision that the module reads.
        used: how many of the outputs are queries and keys, from the first on; all where left out.
    """
    import torch

    if is_plain(module):
        W, b = module.weight.T if isinstance(module, torch.nn.Linear) else module.weight, module.bias
        return AffineMap(W[:, :used], b if b is None else b[:used])
    what = f"The module {name} of type {type(module).__name__}"

    def applied(inputs: Any) -> Any:
        return _applied(module, inputs, what)[:, :used]

    with torch.no_grad(), evaluating(module):
        b = applied(like.new_zeros((1, 1, d_in)))[0]
        eye = torch.eye(d_in, device=like.device, dtype=like.dtype)[None]
        W = applied(eye) - b
        steep = _steepness(W, b)
        if steep > 1.0:
            W = (applied(steep * eye) - b) / steep
        tried = [size * _random(d_in, like) for size in _SIZES]
        deviation = max(_missed(applied(x), x[0].cpu().double() @ W + b) for x in tried)
    if deviation > AFFINE:
        raise InputError(
            f"{what} is not an affine map of each token: on random inputs it misses the one measured at unit vectors by {deviation:.0%} "
            f"of its outputs, more than {AFFINE:.0%}, so that its heads have no key-query matrix."
        )
    return AffineMap(W, b, deviation)


def is_plain(module: Any) -> bool:
    """Whether a module's weight and bias say what it computes: it is a linear layer of torch or transformers, with nothing around it."""
    import torch
    from transformers.pytorch_utils import Conv1D

    if type(module) not in (torch.nn.Linear, Conv1D) or "forward" in vars(module):
        return False
    if any(getattr(module, hooks) for hooks in _HOOKS):
        return False
    dense = (torch.nn.Parameter, torch.Tensor)
    return all(
        type(one) in dense and one.is_floating_point() for one in (module.weight, module.bias) if one is not None
    )


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Without dropout, and afterwards every module as it was."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _applied(module: Any, inputs: Any, what: str) -> Any:
    """(n, d_out) what the module makes of (1, n, d_in), in float64."""
    outputs = module(inputs)
    if getattr(outputs, "shape", ())[:2] != inputs.shape[:2]:
        raise InputError(f"{what} does not give one vector for each token, so that its heads have no key-query matrix.")
    found = outputs[0].detach().cpu().double()
    if not bool(found.isfinite().all()):
        raise InputError(f"{what} gives numbers that are not finite, so that its heads have no key-query matrix.")
    return found


def _steepness(W: Any, b: Any) -> float:
    """The power of two by which unit vectors are multiplied, so that what they add to b is as large as b."""
    typical, offset = float(W.square().mean().sqrt()), float(b.abs().max())
    if typical == 0.0 or offset <= typical:
        return 1.0
    return float(min(2.0 ** np.ceil(np.log2(offset / typical)), _STEEPEST))


def _random(d_in: int, like: Any) -> Any:
    """(1, n, d_in) standard normal inputs, always the same."""
    import torch

    drawn = np.random.default_rng(0).standard_normal((1, _TRIED, d_in))
    return torch.as_tensor(drawn, device=like.device, dtype=like.dtype)


def _missed(outputs: Any, expected: Any) -> float:
    """How far the worst coordinate of outputs (n, d_out) is off, relative to all outputs; root mean squares over the inputs."""
    apart, size = (outputs - expected).square().mean(dim=0).max().sqrt(), outputs.square().mean().sqrt()
    return float(apart / size) if float(size) > 0.0 else float(apart > 0.0)
