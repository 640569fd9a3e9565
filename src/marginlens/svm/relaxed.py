"""The relaxed problem of joint training: separate the selected token where the head needs it, select it elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.data.tokens import BoolArray, TokenDataset
from marginlens.errors import array_of_any, real_number, reject
from marginlens.papers import implements
from marginlens.svm.attention import token_pairs
from marginlens.svm.least_distance import least_distance
from marginlens.svm.solution import MarginSolution


@implements("A", "Eq. (10)", "Eq. (78)")
def relaxed_svm(data: TokenDataset, selected: Any, support: Any, *, outside: float = 0.0) -> MarginSolution:
    r"""Shortest p that separates the selected token where the head has a support vector and merely selects it elsewhere.

    .. math:: \min_p \|p\| \ \text{s.t.}\ p^\top (k_{i\alpha_i} - k_{it}) \ge 1\ (i \in \mathcal S),\ \ge \epsilon\ (i \notin \mathcal S),
        \quad t \ne \alpha_i

    with ε = 0 in Eq. (10). Eq. (78), p^{ε-relax}, asks for a small margin ε > 0 outside S; ε = 1 is ATT-SVM.

    Args:
        data: keys `data.K` of shape (n_inputs, n_tokens, d_key), or a batch of such problems.
        selected: (n_inputs,) or (batch, n_inputs): the token index alpha_i of each input.
        support: the set S: a list of input indices, the same for every problem, or a boolean mask (n_inputs,) or
            (batch, n_inputs) such as `label_svm(...).active`.
        outside: ε, the margin asked for outside S, from 0 to 1.
    Returns:
        A solution whose `multipliers[r] >= 0` belongs to `pairs[r]` = (input, selected, other) and
        p = sum_r multipliers[r] * rows[r]; its margin is that of the inputs in S. With S empty, or where the inputs of
        S have one token each, p = 0 is enough. `kkt_residual()` and `certificate_residual()` check it.
    """
    epsilon = real_number(outside, "outside", "a margin from 0 to 1")
    if not 0.0 <= epsilon <= 1.0:
        raise reject("outside", "a margin from 0 to 1", epsilon)
    rows, pairs = token_pairs(data, selected)
    counts = np.broadcast_to(_support(data, support), data.y.shape)  # (…, n_inputs)
    inside = np.take_along_axis(counts, np.maximum(pairs[..., 0], 0), axis=-1)
    floor = np.where(pairs[..., 0] >= 0, np.where(inside, 1.0, epsilon), 0.0)
    return least_distance(rows, floor, pairs=pairs)


def _support(data: TokenDataset, support: Any) -> BoolArray:
    """Whether each input is in S, of shape (n_inputs,) or (batch, n_inputs)."""
    expected = f"input indices from 0 to {data.n_inputs - 1}, or a boolean mask of shape {data.y.shape}"
    given = array_of_any(support, "support", expected)
    if given.dtype.kind == "b":
        if given.shape not in ((data.n_inputs,), data.y.shape):
            raise reject("support", expected, f"a mask of shape {given.shape}")
        return given
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise reject("support", expected, f"shape {given.shape} with dtype {given.dtype}")
    indices = given.astype(np.int64)
    outside = (indices < 0) | (indices >= data.n_inputs)
    if outside.any():
        raise reject("support", expected, f"index {indices[outside][0]}")
    return np.isin(np.arange(data.n_inputs), indices)
