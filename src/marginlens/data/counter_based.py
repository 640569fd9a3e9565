"""Random problems by counter: the numbers of a problem depend only on the seed, the cell and the problem's number.

Numbers come from Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): a bijection of a counter of four
32-bit words under a key of two. The key is the seed; the counter of problem j is (block, j mod 2³², j div 2³², cell). Each
block of 128 bits gives two normals by the Box–Muller method. Any problem can therefore be made without those before it, on any
thread, process or device.

Only additions, multiplications, divisions and square roots are used, none of them fused, and sums have a fixed order: the bits are the
same on every processor.
"""

from __future__ import annotations

import numpy as np

from marginlens import core
from marginlens.data.tokens import TokenDataset
from marginlens.errors import InputError, whole_number
from marginlens.runtime.threads import parallel_over
from marginlens.typing import FloatArray

MAX_SEED, MAX_CELL, MAX_PROBLEM, MAX_BLOCKS = 2**64 - 1, 2**32 - 1, 2**63 - 1, 2**32 - 1
# The problem number that all problems of a cell share.
SHARED_PROBLEM = 2**64 - 1


def sphere_problems(
    first: int,
    last: int,
    n_inputs: int,
    n_tokens: int,
    d_model: int,
    seed: int,
    cell: int = 0,
) -> tuple[TokenDataset, FloatArray]:
    """Draw problems first … last - 1 of a cell as `sphere_tokens` does: tokens and head uniform on the unit sphere, labels ±1, W = I.

    Problem j is the same, bit by bit, whatever `first` and `last` are, and on every processor and device.

    Args:
        first: the number of the first problem, from 0.

        last: one more than the number of the last problem, at most 2⁶³ - 1.

        seed: from 0 to 2⁶⁴ - 1.

        cell: from 0 to 2³² - 1, an independent family of problems, such as a point of a grid.

    Returns:
        A batch of last - first problems and their heads v, (last - first, d_model).
    """
    return _problems((first, seed, cell), last, (n_inputs, n_tokens, d_model), on_sphere=True)


def gaussian_problems(
    first: int,
    last: int,
    n_inputs: int,
    n_tokens: int,
    d_model: int,
    seed: int,
    cell: int = 0,
) -> tuple[TokenDataset, FloatArray]:
    """Draw problems first … last - 1 of a cell as `gaussian_tokens` does: standard normal tokens and heads, labels ±1, keys X Wᵀ.

    W (d_model, d_model) has entries of variance 1/d_model and is the same for all problems of a cell. Arguments and returned values are
    those of `sphere_problems`.
    """
    return _problems((first, seed, cell), last, (n_inputs, n_tokens, d_model), on_sphere=False)


def shared_matrix(d_model: int, seed: int, cell: int = 0) -> FloatArray:
    """Return the key-query matrix W (d_model, d_model) of `gaussian_problems`: normal entries over √d_model."""
    matrix = np.empty((1, d_model, d_model))
    core.fill_normals(0, 1, SHARED_PROBLEM, seed, cell, 0, False, matrix)
    return np.asarray(matrix[0] / np.sqrt(float(d_model)))


def check_problems(first: int, last: int, shape: tuple[int, int, int], seed: int, cell: int) -> None:
    """Raise if a number is outside the range of the counter; shape = (n_inputs, n_tokens, d_model)."""
    whole_number(first, "first", at_least=0)
    whole_number(last, "last", at_least=first + 1)
    for name, size in zip(("n_inputs", "n_tokens", "d_model"), shape, strict=True):
        whole_number(size, name, at_least=1)
    for name, number, largest in (("seed", seed, MAX_SEED), ("cell", cell, MAX_CELL)):
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number <= largest:
            raise InputError(name, f"a whole number from 0 to {largest}", repr(number))
    n_inputs, n_tokens, d = map(int, shape)
    if (n_inputs * n_tokens + 1) * _n_blocks(d) + -(-n_inputs // 128) > MAX_BLOCKS:
        raise InputError("d_model", f"small enough for {2 * MAX_BLOCKS} numbers a problem", d)


def _n_blocks(d: int) -> int:
    """Return the number of blocks of two normals that one token takes."""
    return -(-d // 2)


def _problems(
    numbers: tuple[int, int, int], last: int, shape: tuple[int, int, int], *, on_sphere: bool
) -> tuple[TokenDataset, FloatArray]:
    """Return the problems of numbers = (first, seed, cell), with shape = (n_inputs, n_tokens, d_model)."""
    first, seed, cell = numbers
    check_problems(first, last, shape, seed, cell)
    n_inputs, n_tokens, d = map(int, shape)
    n_problems, n_rows, n_blocks = int(last - first), n_inputs * n_tokens, _n_blocks(d)
    numbers = int(first), int(seed), int(cell)
    X, v, y = np.empty((n_problems, n_rows, d)), np.empty((n_problems, 1, d)), np.empty((n_problems, n_inputs))
    for rows, block in ((X, 0), (v, n_rows * n_blocks)):
        cost = 20.0 * rows.shape[1] * d
        parallel_over(core.fill_normals, n_problems, *numbers, block, on_sphere, rows, step_cost=cost)
    core.fill_labels(*numbers, (n_rows + 1) * n_blocks, y)
    tokens = X.reshape(n_problems, n_inputs, n_tokens, d)
    if on_sphere:
        return TokenDataset(tokens, y), v[:, 0]
    K, transposed = np.empty_like(tokens), np.ascontiguousarray(shared_matrix(d, seed, cell).T)
    pairs = (X.reshape(-1, d), K.reshape(-1, d))
    parallel_over(core.fill_keys, len(pairs[0]), transposed, *pairs, step_cost=2.0 * d * d)
    return TokenDataset(tokens, y, K=K), v[:, 0]
