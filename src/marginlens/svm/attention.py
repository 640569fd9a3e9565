"""ATT-SVM, its relaxation for joint training, and the head's SVM: problems in one vector over a dataset of tokens."""

from __future__ import annotations

import numpy as np

from marginlens.data.tokens import TokenDataset
from marginlens.errors import InputError, array_of_any, index_array, n_axes, real_array, share_number
from marginlens.kinds import defining_class
from marginlens.norms import L2, Norm
from marginlens.papers import implements
from marginlens.svm.on_device import solve_on_device
from marginlens.svm.pairs import token_pairs
from marginlens.svm.solution import MarginSolution
from marginlens.svm.solvers.least_distance import least_distance, shortest_above
from marginlens.typing import ArrayLike, BoolArray, FloatArray


@implements("A", "ATT-SVM")
@implements("D", "W-SVM")
def att_svm(
    data: TokenDataset, selected: ArrayLike, *, norm: Norm = L2(), query: ArrayLike | None = None, device: str = "cpu"
) -> MarginSolution:
    r"""Find the shortest p under which the selected token of every input beats its other tokens by at least one.

    .. math:: \min_p \|p\| \ \text{s.t.}\ p^\top (k_{i\alpha_i} - k_{it}) \ge 1, \quad t \ne \alpha_i,\ i \in [n]

    With queries z_i the unknown is the key-query matrix W of `MatrixRisk`, whose logits are X_i Wᵀ z_i:

    .. math:: \min_W \|W\| \ \text{s.t.}\ z_i^\top W (k_{i\alpha_i} - k_{it}) \ge 1

    Args:
        data: keys `data.K` of shape (n_inputs, n_tokens, d_key), or a batch of such problems.

        selected: (n_inputs,) or (batch, n_inputs): the token index alpha_i of each input.

        norm: the norm of p (`L2`, `L1`, `LInf` or `Lp`) or of W (also `Spectral`, `Nuclear` or `MaxRow`), or your own norm, for
            which cutting planes are used. In a norm other than L2, `bracket()` proves x and `is_unique` says whether it is
            unique.

        query: one query (d_query,) for all inputs, or one for each, (n_inputs, d_query) or (batch, n_inputs, d_query); x is
            then W (d_query, d_key).

        device: "cpu", or "cuda" or "cuda:1" for batches with up to 64 rows in L2, n_inputs (n_tokens - 1) ≤ 64. The GPU solves and
            checks them, and the CPU solves the problems that remain unproved; larger problems run on the CPU.

    Returns:
        A solution whose `multipliers[r] >= 0` belongs to `pairs[r]` = (input, selected, other) and p = sum_r multipliers[r] *
        rows[r]. Inputs with one token constrain nothing. `kkt_residual()` and `certificate_residual()` check it, and so does
        `bracket()` in any norm; `rank()` is the rank of W.

    Examples:
        >>> import marginlens as ml
        >>> data, head = ml.data.figure_1b()
        >>> solution = ml.att_svm(data, [1])
        >>> print(solution.x.round(3) + 0.0, round(solution.margin, 3))
        [1. 0.] 1.0
        >>> solution.pairs.tolist()  # input, selected token, other token
        [[0, 1, 0], [0, 1, 2]]
    """
    rows, pairs = token_pairs(data, selected)
    lower = (pairs[..., 0] >= 0).astype(np.float64)
    if query is not None:
        z = queries_of_inputs(data, query)
        of_row = np.take_along_axis(z, np.maximum(pairs[..., :1], 0), axis=-2)  # (…, n_pairs, d_query)
        rows = of_row[..., :, None] * rows[..., None, :]
    if device == "cpu":
        return shortest_above(rows, lower, norm=norm, pairs=pairs)
    if query is not None or defining_class(norm) is not L2:
        raise InputError("device", "'cpu' with queries or a norm other than L2", repr(device))
    return solve_on_device(device, data, data.selection(selected), rows, pairs)


def queries_of_inputs(data: TokenDataset, query: ArrayLike) -> FloatArray:
    """Check queries and broadcast them to every input of every problem, (…, n_inputs, d_query)."""
    axes: tuple[str | int, ...] = ("d_query",)
    if n_axes(query) > 1:
        axes = (*(data.batch_shape if n_axes(query) == 3 else ()), data.n_inputs, "d_query")
    z = real_array(query, "query", axes)
    return np.broadcast_to(z, (*data.y.shape, z.shape[-1]))


@implements("A", "Eq. (10)", "Eq. (78)")
def relaxed_svm(
    data: TokenDataset, selected: ArrayLike, support: ArrayLike, *, outside: float = 0.0, norm: Norm = L2()
) -> MarginSolution:
    r"""Find the shortest p that separates the selected token of inputs in the support set and merely selects it in the others.

    .. math:: \min_p \|p\| \ \text{s.t.}\ p^\top (k_{i\alpha_i} - k_{it}) \ge 1\ (i \in \mathcal S),\ \ge \epsilon\ (i \notin \mathcal S),
        \quad t \ne \alpha_i

    with ε = 0 in Eq. (10). Eq. (78), p^{ε-relax}, requires a small margin ε > 0 outside S; ε = 1 is ATT-SVM.

    Args:
        data: keys `data.K` of shape (n_inputs, n_tokens, d_key), or a batch of such problems.

        selected: (n_inputs,) or (batch, n_inputs): the token index alpha_i of each input.

        support: the set S: a list of input indices, the same for every problem, or a boolean mask (n_inputs,) or
            (batch, n_inputs) such as `label_svm(...).active`.

        outside: ε, the required margin outside S, from 0 to 1.

        norm: the norm of p, `L2`, `L1`, `LInf` or `Lp`. In a norm other than L2, `bracket()` proves p and `is_unique` says whether it is
            unique.

    Returns:
        A solution whose `multipliers[r] >= 0` belongs to `pairs[r]` = (input, selected, other) and p = sum_r multipliers[r] *
        rows[r]; its margin is that of the inputs in S. If S is empty, or all inputs of S have a single token, p = 0.
        `kkt_residual()` and `certificate_residual()` check it.

    Examples:
        >>> import marginlens as ml
        >>> data = ml.data.figure_3a()
        >>> print(ml.relaxed_svm(data, [1, 1, 1], support=[0]).x.round(3))
        [0.5 0.5]
    """
    epsilon = share_number(outside, "outside")
    rows, pairs = token_pairs(data, selected)
    counts = np.broadcast_to(_support(data, support), data.y.shape)  # (…, n_inputs)
    inside = np.take_along_axis(counts, np.maximum(pairs[..., 0], 0), axis=-1)
    lower = np.where(pairs[..., 0] >= 0, np.where(inside, 1.0, epsilon), 0.0)
    return shortest_above(rows, lower, norm=norm, pairs=pairs)


def _support(data: TokenDataset, support: ArrayLike) -> BoolArray:
    """Mark the inputs in S, with shape (n_inputs,) or (batch, n_inputs)."""
    expected = f"input indices from 0 to {data.n_inputs - 1}, or a boolean mask of shape {data.y.shape}"
    given = array_of_any(support, "support", expected)
    if given.dtype.kind == "b":
        if given.shape not in ((data.n_inputs,), data.y.shape):
            raise InputError("support", expected, f"a mask of shape {given.shape}")
        return given
    return np.isin(np.arange(data.n_inputs), index_array(given, "support", expected, (-1,), below=data.n_inputs))


@implements("A", "(SVM)")
def label_svm(R: ArrayLike, y: ArrayLike, *, norm: Norm = L2()) -> MarginSolution:
    r"""Find the shortest head v that classifies every representation with margin at least one, without a bias.

    .. math:: \min_v \|v\| \ \text{s.t.}\ y_i\, v^\top r_i \ge 1, \quad i \in [n]

    Args:
        R: representations r_i, (n_inputs, d_model) or (batch, n_inputs, d_model).

        y: labels, each -1 or +1, of shape (n_inputs,) or (batch, n_inputs).

        norm: the norm of v, `L2`, `L1`, `LInf` or `Lp`.

    Returns:
        A solution with v = sum_i multipliers[i] * y_i r_i, multipliers >= 0; `active` marks the support set, the
        inputs with y_i v·r_i = 1. `kkt_residual()` and `certificate_residual()` check it.

    Examples:
        >>> import marginlens as ml
        >>> solution = ml.label_svm([[2.0, 0.0], [0.0, -1.0], [5.0, -1.0]], [1, -1, 1])
        >>> print(solution.x.round(3), solution.active)
        [0.5 1. ] [ True  True False]
    """
    axes = ("batch", "n_inputs", "d_model") if n_axes(R) == 3 else ("n_inputs", "d_model")
    points = real_array(R, "R", axes)
    labels = real_array(y, "y", points.shape[-2:-1] if n_axes(y) == 1 else points.shape[:-1])
    wrong = np.abs(labels) != 1.0
    if wrong.any():
        raise InputError("y", "labels, each -1 or +1", f"the label {labels[wrong][0]:g}")
    rows = points * labels[..., None]
    return least_distance(rows, np.ones(rows.shape[:-1]), norm=norm)
