"""Random problems by counter, made on a device: the arrays of `marginlens.data.counter_based`, bit by bit."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marginlens.gpu.device import Device, Layout

_SOURCE, _LAYOUT = "random.cu", Layout(warps_per_block=8)


class Numbers(NamedTuple):
    """The numbers of random problems: from `first` on, with a seed and a cell."""

    first: int
    seed: int
    cell: int

    def words(self) -> tuple[int, int, int]:
        """Return the numbers as signed 64-bit numbers with the same bits."""
        first, seed, cell = (int(np.uint64(number).astype(np.int64)) for number in self)
        return first, seed, cell


class RandomArrays(NamedTuple):
    """Arrays on the device: tokens X and keys K (n, n_inputs, n_tokens, d), heads v (n, d) and labels y (n, n_inputs)."""

    X: Any
    K: Any
    v: Any
    y: Any


def random_arrays(device: Device, numbers: Numbers, shape: tuple[int, int, int, int], W: Any = None) -> RandomArrays:
    """Make problems on the device: on the sphere with K = X, or, given W (d, d), normal problems with keys K = X Wᵀ.

    Args:
        device: the device of the arrays.

        numbers: the numbers of the problems.

        shape: (n_problems, n_inputs, n_tokens, d).

        W: the key-query matrix of the cell, from `marginlens.data.counter_based.shared_matrix`.
    """
    n_problems, n_inputs, n_tokens, d = shape
    n_rows = n_inputs * n_tokens
    with device.active():
        xp = device.xp
        X, v, y = (xp.empty(size) for size in (shape, (n_problems, d), (n_problems, n_inputs)))
        kernel = device.kernel(_SOURCE, "random_problems", {}, _LAYOUT)
        kernel(n_problems, *numbers.words(), n_rows, n_inputs, d, W is None, X, v, y)
        if W is None:
            return RandomArrays(X, X, v, y)
        K, transposed = xp.empty(shape), xp.asarray(np.ascontiguousarray(W.T))
        device.kernel(_SOURCE, "random_keys", {}, _LAYOUT)(n_problems, n_rows, d, transposed, X, K)
    return RandomArrays(X, K, v, y)


def token_scores(device: Device, made: RandomArrays) -> Any:
    r"""Compute the token scores :math:`\gamma_{it} = Y_i v^\top x_{it}`, (n, n_inputs, n_tokens) on the device."""
    with device.active():
        scores = device.xp.empty(made.X.shape[:3])
        kernel = device.kernel("scores.cu", "token_scores", {}, _LAYOUT)
        kernel(len(scores), made.X, made.y, made.v, *made.X.shape[1:], scores)
    return scores
