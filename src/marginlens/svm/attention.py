"""ATT-SVM: the shortest p that separates the selected token of every input from its other tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.data.tokens import FloatArray, IntArray, TokenDataset, as_dataset
from marginlens.papers import implements
from marginlens.svm.least_distance import least_distance
from marginlens.svm.solution import MarginSolution


@implements("A", "ATT-SVM")
def att_svm(data: TokenDataset, selected: Any) -> MarginSolution:
    r"""Shortest p under which the selected token of every input beats its other tokens by at least one.

    .. math:: \min_p \|p\| \ \text{s.t.}\ p^\top (k_{i\alpha_i} - k_{it}) \ge 1, \quad t \ne \alpha_i,\ i \in [n]

    Args:
        data: keys `data.K` of shape (n_inputs, n_tokens, d_key), or a batch of such problems.
        selected: (n_inputs,) or (batch, n_inputs): the token index alpha_i of each input.
    Returns:
        A solution whose `multipliers[r] >= 0` belongs to `pairs[r]` = (input, selected, other) and
        p = sum_r multipliers[r] * rows[r]. Inputs with one token constrain nothing. `kkt_residual()` and
        `certificate_residual()` check it.
    """
    rows, pairs = token_pairs(data, selected)
    return least_distance(rows, (pairs[..., 0] >= 0).astype(np.float64), pairs=pairs)


def token_pairs(data: TokenDataset, selected: Any) -> tuple[FloatArray, IntArray]:
    r"""Key differences :math:`k_{i\alpha_i} - k_{it}` for every other token t of every input, and their names.

    Args:
        data: one problem, or a batch of them.
        selected: (n_inputs,) or (batch, n_inputs): the token index alpha_i of each input.
    Returns:
        rows (…, n_pairs, d_key) and pairs (…, n_pairs, 3) with (input, selected, other), ordered by input. One
        problem has exactly its own pairs; in a batch n_pairs = n_inputs (n_tokens - 1), where an input is shorter its
        missing pairs are zero rows marked -1, to be given the floor 0.
    """
    alpha = as_dataset(data).selection(selected)[..., None]  # (…, n_inputs, 1)
    slot = np.arange(data.n_tokens - 1)
    other = slot + (slot >= alpha)  # (…, n_inputs, n_tokens - 1)
    present = other < data.lengths[..., None]
    inputs = np.broadcast_to(np.arange(data.n_inputs)[:, None], other.shape)
    pairs = np.stack([inputs, np.broadcast_to(alpha, other.shape), other], axis=-1)
    first = np.arange(alpha.size).reshape(alpha.shape) * data.n_tokens  # where each input's tokens begin
    tokens = data.K.reshape(-1, data.d_key)  # (all tokens, d_key)
    rows = np.take(tokens, first + other, axis=0)  # (…, n_inputs, n_tokens - 1, d_key)
    with np.errstate(over="ignore"):  # the solver refuses rows that are not finite
        np.subtract(np.take(tokens, first + alpha, axis=0), rows, out=rows)
    if not data.is_batch:
        return np.ascontiguousarray(rows[present]), np.ascontiguousarray(pairs[present])
    rows[~present], pairs[~present] = 0.0, -1
    n_pairs = data.n_inputs * (data.n_tokens - 1)
    return rows.reshape(len(data), n_pairs, data.d_key), pairs.reshape(len(data), n_pairs, 3)
