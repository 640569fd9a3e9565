"""Random problems by counter, made on a device: the arrays of `marginlens.data.counter_based`, bit by bit."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marginlens.errors import InputError
from marginlens.gpu.device import Device, Layout, parts

_SOURCE, _LAYOUT = "random.cu", Layout(warps_per_block=8)


class Numbers(NamedTuple):
    """Which problems: from `first` on under a seed, in a cell."""

    first: int
    seed: int
    cell: int

    def words(self) -> tuple[int, int, int]:
        """The same as signed 64-bit numbers with the same bits."""
        first, seed, cell = (int(np.uint64(number).astype(np.int64)) for number in self)
        return first, seed, cell


class RandomArrays(NamedTuple):
    """Arrays on the device: tokens (n, n_inputs, n_tokens, d), heads (n, d) and labels (n, n_inputs)."""

    X: Any
    v: Any
    y: Any


def random_arrays(
    device: Device, numbers: Numbers, shape: tuple[int, int, int, int], *, on_sphere: bool
) -> RandomArrays:
    """Tokens, heads and labels of as many problems as `shape` = (n_problems, n_inputs, n_tokens, d) says; refused where they do not fit."""
    n_problems, n_inputs, n_tokens, d = shape
    require_memory(device, n_problems, 8 * (n_inputs * n_tokens * d + d + n_inputs))
    with device.active():
        X, v, y = (device.xp.empty(size) for size in (shape, (n_problems, d), (n_problems, n_inputs)))
        kernel = device.kernel(_SOURCE, "random_problems", {}, _LAYOUT)
        kernel(n_problems, *numbers.words(), n_inputs * n_tokens, n_inputs, d, on_sphere, X, v, y)
    return RandomArrays(X, v, y)


def random_keys(device: Device, W: Any, X: Any) -> Any:
    """K = X Wᵀ on the device, summed over coordinates in their order, from W (d, d) of NumPy."""
    n_problems, n_inputs, n_tokens, d = X.shape
    require_memory(device, n_problems, 8 * n_inputs * n_tokens * d)
    with device.active():
        K, transposed = device.xp.empty(X.shape), device.xp.asarray(np.ascontiguousarray(W.T))
        device.kernel(_SOURCE, "random_keys", {}, _LAYOUT)(n_problems, n_inputs * n_tokens, d, transposed, X, K)
    return K


def require_memory(device: Device, n_problems: int, bytes_per_problem: int) -> None:
    """Refuse a batch that the device has no memory for, with the number of problems that fit."""
    fits = next(parts(device, n_problems, bytes_per_problem))[1]
    if fits < n_problems:
        raise InputError(
            f"{n_problems} problems need {n_problems * bytes_per_problem / 1e9:.3g} GB on {device.name}, where {fits} fit: "
            f"make them in parts of {fits}."
        )
