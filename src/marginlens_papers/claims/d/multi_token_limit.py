"""Attention that keeps several tokens of an input: the finite part of its key-query matrix, and the direction in which the rest grows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from marginlens.arithmetic.directions import correlation
from marginlens.data.tokens import TokenDataset, as_dataset
from marginlens.errors import InputError, n_axes, real_array
from marginlens.kinds import defining_class
from marginlens.norms import L2, Frobenius, Norm
from marginlens.norms.choice import as_norm
from marginlens.papers import implements
from marginlens.svm import MarginSolution, least_distance
from marginlens.svm.sets import as_optimal_sets
from marginlens.svm.solvers.norms import solve_in_norm
from marginlens.typing import ArrayLike, FloatArray, IntArray

_SPAN_RTOL = 1e-10  # singular values of the equations below this share of the largest count as zero


class MatrixParts(NamedTuple):
    """A matrix W as a sum: its part in the span of the finite equations, and the rest."""

    finite: FloatArray
    growing: FloatArray


class MultiTokenLimit(NamedTuple):
    r"""The limit of W if each input keeps a set of tokens: :math:`W \approx W^{fin} + R\, W^{dir}` with R growing.

    Attributes:
        finite: (d_query, d_model) W^fin, in the span of the equations' rows.
        direction: the margin problem of W^dir; INFEASIBLE if no W ranks the sets above the other tokens with equal logits within.
        equations: (n_equations, 3) (input, first token of its set, another one), whose logits W^fin sets apart.
        goals: (n_equations,) log(s_other/s_first).
        basis: (d_query · d_model, rank) orthonormal, of the span of z_i (x_other - x_first)ᵀ.
        residual: the largest |logit difference - goal| of W^fin: rounding, unless equations contradict each other.
    """

    finite: FloatArray
    direction: MarginSolution
    equations: IntArray
    goals: FloatArray
    basis: FloatArray
    residual: float

    def split(self, W: ArrayLike) -> MatrixParts:
        """W (d_query, d_model) as its part in the span of the equations, which tends to `finite`, and the rest, which grows."""
        matrix = real_array(W, "W", self.finite.shape)
        finite = (self.basis @ (self.basis.T @ matrix.ravel())).reshape(matrix.shape)
        return MatrixParts(finite, matrix - finite)

    def finite_error(self, W: ArrayLike) -> float:
        """How far the finite part of W is from W^fin, in the Frobenius norm."""
        return float(np.linalg.norm(self.split(W).finite - self.finite))

    def correlation(self, W: ArrayLike) -> float:
        """Cosine of the growing part of W with W^dir."""
        return float(correlation(self.split(W).growing.ravel(), self.direction.x.ravel()))


@implements("D", "SVMeq")
def multi_token_limit(
    data: TokenDataset, selected: Any, attention: ArrayLike, query: ArrayLike, *, norm: Norm = Frobenius()
) -> MultiTokenLimit:
    r"""The finite part and the direction of a key-query matrix whose attention stays on a set of tokens O_i of each input.

    .. math:: W^{fin} = \arg\min \|W\|_F \ \text{s.t.}\ z_i^\top W (x_{it} - x_{iu}) = \log(s_{it}/s_{iu}), \quad t, u \in O_i

    .. math:: W^{dir} = \arg\min \|W\| \ \text{s.t.}\ z_i^\top W (x_{it} - x_{iu})
        = 0\ (t, u \in O_i),\quad \ge 1\ (t \in O_i, u \notin O_i)

    Args:
        data: one problem with keys `data.K` (n_inputs, n_tokens, d_model).
        selected: the sets O_i: for every input a list of tokens.
        attention: (n_inputs, n_tokens) the limit s of the attention, positive on the sets; entries outside are not read.
        query: z of shape (d_query,) for all inputs, or (n_inputs, d_query).
        norm: of W^dir; W^fin, which is unique in the span of its equations, has the Frobenius norm.
    Returns:
        A `MultiTokenLimit`. With one token in every set W^fin is zero and W^dir is that of `att_svm(data, selected, query=query)`.
    """
    as_dataset(data)
    if data.batch_shape:
        raise InputError("data", "one problem", f"a batch of {len(data)}", "Take one with data[j].")
    sets = as_optimal_sets(data, selected)
    s = real_array(attention, "attention", (data.n_inputs, data.n_tokens))
    z = real_array(query, "query", ("d_query",) if n_axes(query) == 1 else (data.n_inputs, "d_query"))
    z = np.broadcast_to(z, (data.n_inputs, z.shape[-1]))
    shape = (z.shape[1], data.d_key)
    equations = np.array([(i, t[0], u) for i, t in enumerate(sets) for u in t[1:]], dtype=np.int64).reshape(-1, 3)
    others = [np.setdiff1d(np.arange(data.lengths[i]), tokens) for i, tokens in enumerate(sets)]
    pairs = np.array([(i, sets[i][0], u) for i, rest in enumerate(others) for u in rest], dtype=np.int64).reshape(-1, 3)
    i, first, other = equations.T
    weights = np.stack([s[i, first], s[i, other]])
    if (weights <= 0.0).any():
        raise InputError("attention", "positive on every token of a set", f"{weights.min():g}")
    C, A = -_rows(data, z, equations), _rows(data, z, pairs)
    goals = np.log(weights[1]) - np.log(weights[0])
    left, values, right = np.linalg.svd(C, full_matrices=False)
    used = values > _SPAN_RTOL * values.max(initial=0.0)
    basis = right[used].T
    finite = basis @ ((left[:, used].T @ goals) / values[used])
    residual = float(np.abs(C @ finite - goals).max(initial=0.0))
    euclidean = defining_class(as_norm(norm, shape)) is L2
    direction = least_distance(A, np.ones(len(A)), equalities=C if len(C) else None, pairs=pairs)
    direction = replace(direction, x=direction.x.reshape(shape))
    direction = replace(direction, norm=norm) if euclidean else solve_in_norm(direction, norm)
    return MultiTokenLimit(finite.reshape(shape), direction, equations, goals, basis, residual)


def _rows(data: TokenDataset, z: FloatArray, triples: IntArray) -> FloatArray:
    """(n, d_query · d_model) the rows z_i (x_it - x_iu)ᵀ of triples (i, t, u)."""
    i, t, u = triples.T
    differences = data.K[i, t] - data.K[i, u]
    return (z[i][:, :, None] * differences[:, None, :]).reshape(len(triples), z.shape[1] * data.d_key)
