"""Margin problems of attention that mix several tokens of an input, as nonlinear heads make it do (paper D)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from marginlens.arithmetic.directions import correlation
from marginlens.data.tokens import TokenDataset, as_dataset
from marginlens.errors import InputError, real_array
from marginlens.kinds import defining_class
from marginlens.norms import L2, Norm
from marginlens.norms.choice import as_norm
from marginlens.papers import implements
from marginlens.svm.attention import queries_of_inputs
from marginlens.svm.sets import as_optimal_sets
from marginlens.svm.solution import MarginSolution
from marginlens.svm.solvers.least_distance import least_distance
from marginlens.svm.solvers.norms import solve_in_norm
from marginlens.typing import ArrayLike, FloatArray, IntArray

# Singular values of the equations below this share of the largest count as zero.
TIED_RANK_RTOL = 1e-10


class MixtureParts(NamedTuple):
    """Weights p or W as a sum: their part in the span of the equations, which tends to a limit, and the rest, which grows."""

    finite: FloatArray
    growing: FloatArray


@dataclass(frozen=True, repr=False, eq=False)
class MixtureSolution(MarginSolution):
    r"""The direction in which p or W grows if attention mixes a set of tokens of each input, and the finite part that weights them.

    .. math:: p \approx p^{fin} + R\, p^{mm}, \qquad R \to \infty

    It is the `MarginSolution` of the direction, with rows between a set's first token and the tokens outside, and one equality
    for each further token of a set.

    Attributes:
        finite: p^fin in the shape of x, the shortest weights that give the tokens of each set their shares, or the shortest of
            least squares if there are none.

        ties: (n_equalities, 3) (input, first token of its set, another token of it).

        goals: (n_equalities,) by how much the logit of the other token exceeds that of the first.
    """

    finite: FloatArray = field(kw_only=True)
    ties: IntArray = field(kw_only=True)
    goals: FloatArray = field(kw_only=True)

    @property
    def residual(self) -> float:
        """The largest error of the differences of logits at `finite`: rounding, unless the equations contradict each other."""
        if self.equalities is None:
            return 0.0
        return float(np.abs(self.equalities @ self.finite.ravel() + self.goals).max(initial=0.0))

    @cached_property
    def _basis(self) -> FloatArray:
        """An orthonormal basis (rank, size of x) of the span of the equations' rows."""
        C = np.zeros((0, self.x.size)) if self.equalities is None else self.equalities
        _, values, right = np.linalg.svd(C, full_matrices=False)
        return right[values > TIED_RANK_RTOL * values.max(initial=0.0)]

    def at(self, R: float) -> FloatArray:
        """Return p^fin + R p^mm, whose attention has the given weights up to a share of order e^(-R)."""
        return self.finite + R * self.x

    def split(self, x: ArrayLike) -> MixtureParts:
        """Split p or W into its part in the span of the equations, which tends to `finite`, and the rest, which grows.

        Args:
            x: weights in the shape of the solution's x.
        """
        weights = real_array(x, "x", self.x.shape)
        finite = ((weights.ravel() @ self._basis.T) @ self._basis).reshape(weights.shape)
        return MixtureParts(finite, weights - finite)

    def finite_error(self, x: ArrayLike) -> float:
        """Return the distance of the finite part of p or W from `finite`."""
        return float(np.linalg.norm(self.split(x).finite - self.finite))

    def correlation(self, x: ArrayLike) -> float:
        """Return the cosine of the growing part of p or W with the solution's x."""
        return float(correlation(self.split(x).growing.ravel(), self.x.ravel()))


@implements("D", "SVMeq")
def mixture_svm(
    data: TokenDataset,
    selected: Any,
    weights: ArrayLike | None = None,
    *,
    query: ArrayLike | None = None,
    norm: Norm = L2(),
) -> MixtureSolution:
    r"""Find where p tends if attention ends on a set of tokens O_i of each input, mixed with fixed weights.

    .. math:: p^{mm} = \arg\min \|p\| \ \text{s.t.}\ p^\top (k_{it} - k_{iu})
        = 0\ (t, u \in O_i),\quad \ge 1\ (t \in O_i, u \notin O_i)

    .. math:: p^{fin} = \arg\min \|p\|_2 \ \text{s.t.}\ p^\top (k_{it} - k_{iu}) = \log(s_{it}/s_{iu}), \quad t, u \in O_i

    A linear head never asks for it: one token of each input scores highest. A nonlinear head may be best at a mixture. With
    queries z_i the unknown is the matrix W of `MatrixRisk`, and products are z_iᵀ W k instead of pᵀ k.

    Args:
        data: one problem with keys `data.K` of shape (n_inputs, n_tokens, d_key). Offsets of its logits move p^fin.

        selected: one list of token indices per input, the set O_i.

        weights: s of shape (n_inputs, n_tokens), the shares of attention, positive on the sets; other entries are not read, and a
            common factor of an input changes nothing. Equal shares by default.

        query: one query (d_query,) for all inputs, or one for each, (n_inputs, d_query); x is then W (d_query, d_key).

        norm: the norm of p or W, as for `att_svm`. The finite part, which is unique in the span of its equations, has the
            Euclidean one.

    Returns:
        A `MixtureSolution`. With one token in every set it is the solution of `att_svm`, with a finite part of zero.

    Examples:
        >>> import marginlens as ml
        >>> data = ml.TokenDataset([[[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]], [1])
        >>> solution = ml.svm.mixture_svm(data, [[0, 1]], [[0.75, 0.25, 0.0]])
        >>> print(solution.x.round(3), solution.finite.round(3))
        [0.333 0.333] [ 0.549 -0.549]
    """
    if as_dataset(data).is_batch:
        raise InputError("data", "one problem", f"a batch of {len(data)}", "Take one with data[j].")
    sets = as_optimal_sets(data, selected)
    shares = np.ones(data.mask.shape) if weights is None else real_array(weights, "weights", data.mask.shape)
    least = min(float(shares[i, tokens].min()) for i, tokens in enumerate(sets))
    if least <= 0.0:
        raise InputError("weights", "positive on every token of a set", f"{least:g}")
    queries = None if query is None else queries_of_inputs(data, query)
    ties = _triples([(i, tokens[0], u) for i, tokens in enumerate(sets) for u in tokens[1:]])
    outside = [np.setdiff1d(np.arange(n), tokens) for n, tokens in zip(data.lengths, sets, strict=True)]
    pairs = _triples([(i, sets[i][0], u) for i, others in enumerate(outside) for u in others])
    C, A = _rows(data, queries, ties), _rows(data, queries, pairs)
    i, first, other = ties.T
    logits = np.log(np.where(shares > 0.0, shares, 1.0)) - data.offsets
    goals = logits[i, other] - logits[i, first]
    finite = np.linalg.lstsq(-C, goals, rcond=TIED_RANK_RTOL)[0]
    shape = (data.d_key,) if queries is None else (queries.shape[-1], data.d_key)
    solution = least_distance(A, np.ones(len(A)), equalities=C if len(C) else None, pairs=pairs)
    parts = vars(solution) | {"x": solution.x.reshape(shape), "finite": finite.reshape(shape), "ties": ties}
    found = MixtureSolution(**parts, goals=goals)
    return found if defining_class(as_norm(norm, shape)) is L2 else solve_in_norm(found, norm)


def _triples(listed: list[tuple[Any, ...]]) -> IntArray:
    return np.array(listed, dtype=np.int64).reshape(-1, 3)


def _rows(data: TokenDataset, queries: FloatArray | None, triples: IntArray) -> FloatArray:
    """Form k_it - k_iu, or z_i (k_it - k_iu)ᵀ in one row, for triples (i, t, u): (n_triples, size of the unknown)."""
    i, t, u = triples.T
    differences = data.K[i, t] - data.K[i, u]
    if queries is None:
        return differences
    return (queries[i][:, :, None] * differences[:, None, :]).reshape(len(triples), queries.shape[1] * data.d_key)
