"""Rows of the problems that select tokens: differences of keys, and the pairs of tokens behind them."""

from __future__ import annotations

import numpy as np

from marginlens.data.tokens import TokenDataset, as_dataset
from marginlens.typing import ArrayLike, FloatArray, IntArray


def token_pairs(data: TokenDataset, selected: ArrayLike) -> tuple[FloatArray, IntArray]:
    r"""Compute the key differences :math:`k_{i\alpha_i} - k_{it}` for every other token t of every input, and name their pairs.

    Args:
        data: one problem, or a batch of them.

        selected: (n_inputs,) or (batch, n_inputs): the token index alpha_i of each input.

    Returns:
        rows (…, n_pairs, d_key) and pairs (…, n_pairs, 3) with (input, selected, other), ordered by input. One problem has
        exactly its own pairs. In a batch n_pairs = n_inputs (n_tokens - 1); the missing pairs of shorter inputs are zero rows
        marked -1, whose lower bound must be 0.
    """
    alpha = as_dataset(data).selection(selected)[..., None]  # (…, n_inputs, 1)
    slot = np.arange(data.n_tokens - 1)
    other = slot + (slot >= alpha)  # (…, n_inputs, n_tokens - 1)
    present = other < data.lengths[..., None]
    inputs = np.broadcast_to(np.arange(data.n_inputs)[:, None], other.shape)
    pairs = np.stack([inputs, np.broadcast_to(alpha, other.shape), other], axis=-1)
    # Where the tokens of each input begin.
    first = np.arange(alpha.size).reshape(alpha.shape) * data.n_tokens
    tokens = data.K.reshape(-1, data.d_key)  # (all tokens, d_key)
    rows = np.take(tokens, first + other, axis=0)  # (…, n_inputs, n_tokens - 1, d_key)
    # The solver refuses rows that are not finite, in words that name them.
    with np.errstate(over="ignore"):
        np.subtract(np.take(tokens, first + alpha, axis=0), rows, out=rows)
    if not data.is_batch:
        if present.all():
            return rows.reshape(-1, data.d_key), pairs.reshape(-1, 3)
        return np.ascontiguousarray(rows[present]), np.ascontiguousarray(pairs[present])
    rows[~present], pairs[~present] = 0.0, -1
    n_pairs = data.n_inputs * (data.n_tokens - 1)
    return rows.reshape(len(data), n_pairs, data.d_key), pairs.reshape(len(data), n_pairs, 3)
