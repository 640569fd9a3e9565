"""The subspace S_cyc: the directions of W that distinguish tokens of the same component."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import scipy

from marginlens.arithmetic.directions import length
from marginlens.arithmetic.rounding import EPS
from marginlens.errors import n_axes, real_array
from marginlens.graphs.priority import PriorityGraph, as_graphs
from marginlens.papers import implements
from marginlens.result import Described
from marginlens.typing import ArrayLike, FloatArray, IntArray

# A basis is found by one singular value decomposition if there are no more generators or coordinates than this.
_MAX_BASIS = 2_500
# Up to so many, that decomposition is quicker than anything else.
_QUICK_BASIS = 250
# Up to so many independent generators, their Gram matrix is factored instead.
_MAX_FACTORED = 4_000
# Rounding of the inner products of orthogonal rows.
_ORTHOGONAL_RTOL = 16 * EPS
# A squared pivot below this says that generators are nearly dependent.
_GENERATOR_PIVOT_RTOL = 1e-10
# Powers of two from length one at which products of four embeddings may overflow or underflow.
_MAX_EXPONENT = 200


@implements("C", "Def 3")
def cyclic_subspace(E: ArrayLike, graphs: Mapping[int, PriorityGraph]) -> CyclicSubspace:
    r"""Compute the span of the differences that separate tokens of the same component from their mean, for every last token.

    .. math:: \mathcal S_{\rm cyc} = {\rm span}\{(e_j - \bar e_i^{(k)})\, e_k^\top :\ j \in \mathcal C_i^{(k)},\ |\mathcal C_i^{(k)}| > 1\}

    Args:
        E: embeddings (n_vocabulary, d_model).

        graphs: last token → `PriorityGraph`, from `priority_graphs` or `pseudo_graphs`.

    Returns:
        A `CyclicSubspace`. W is orthogonal to it if and only if all tokens of a component have the same logit at their last
        token.
    """
    embeddings = real_array(E, "E", ("n_vocabulary", "d_model"))
    tokens, columns, groups, n_groups = [], [], [], 0
    queries: list[int] = []
    for last, graph in as_graphs(graphs, len(embeddings)).items():
        sizes = np.bincount(graph.component_of, minlength=graph.n_components)
        inside = sizes[graph.component_of] > 1
        if not inside.any():
            continue
        _, number = np.unique(graph.component_of[inside], return_inverse=True)
        order = np.argsort(number, kind="stable")
        tokens.append(graph.nodes[inside][order])
        groups.append(number[order] + n_groups)
        columns.append(np.full(len(order), len(queries)))
        queries.append(int(last))
        n_groups += int(number.max()) + 1
    flat = [np.concatenate(part) if part else np.empty(0, dtype=np.int64) for part in (tokens, columns, groups)]
    return CyclicSubspace(embeddings, np.array(queries, dtype=np.int64), *flat)


@dataclass(frozen=True, repr=False, eq=False)
class CyclicSubspace(Described):
    r"""S_cyc, with its rank, an orthonormal basis and the projection onto it.

    Attributes:
        E: (n_vocabulary, d_model) the embeddings.

        queries: (n_queries,) the last tokens whose graph has a component of several tokens.

        tokens: (n_cells,) the tokens of those components, component after component.

        columns: (n_cells,) the index in `queries` of their last token.

        groups: (n_cells,) the number of their component.

    Singular values of the normalised generators below 64 max(shape) roundoffs of the largest count as zero. If the rows of E in
    use are orthogonal and equally long, such as one-hot rows, projection is centring within components, and no basis is formed.
    If a basis would take long, the generators' Gram matrix is factored, or projections are computed as least-squares problems
    by iteration.
    """

    E: FloatArray
    queries: IntArray
    tokens: IntArray
    columns: IntArray
    groups: IntArray
    quantities = "{n_groups} components, {n_generators} generators, d_model={E.shape[1]}"

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of W, (d_model, d_model)."""
        return self.E.shape[1], self.E.shape[1]

    @property
    def n_groups(self) -> int:
        """The number of components of several tokens over all last tokens."""
        return int(self.groups.max(initial=-1)) + 1

    @property
    def n_generators(self) -> int:
        """The sum of `|C| - 1` over the components: the rank if the embeddings in use are linearly independent."""
        return len(self.tokens) - self.n_groups

    @property
    def reach(self) -> float:
        """The largest change of a logit by a W of norm one, up to the angles between embeddings."""
        return float(np.linalg.norm(self.E, axis=1).max()) ** 2

    @cached_property
    def rank(self) -> int:
        """The dimension of S_cyc."""
        if self.n_generators == 0:
            return 0
        if self._near is not None:
            return self._near.rank
        return self.n_generators if self.scales is not None or self.independent else len(self._reduced[0])

    @cached_property
    def independent(self) -> bool:
        """True if the embeddings of the tokens in use, and those of the last tokens, are linearly independent."""
        return all(_independent(self.E[np.unique(used)]) for used in (self.tokens, self.queries))

    @cached_property
    def scales(self) -> FloatArray | None:
        """The products ‖e_x‖²‖e_k‖², (n_queries,), if the rows of E in use are orthogonal and the tokens' rows equally long,
        otherwise None.
        """
        rows, ends = self.E[np.unique(self.tokens)], self.E[self.queries]
        if len(rows) > self.E.shape[1] or len(ends) > self.E.shape[1] or len(rows) == 0:
            return None
        inner, outer = rows @ rows.T, ends @ ends.T
        a, b = float(np.mean(np.diag(inner))), np.diag(outer)
        if a == 0.0 or not b.all():
            return None
        deviation = max(
            np.abs(inner / a - np.eye(len(rows))).max(),
            np.abs(outer / np.sqrt(np.outer(b, b)) - np.eye(len(ends))).max(),
        )
        return a * b if deviation <= _ORTHOGONAL_RTOL else None

    @property
    def direct(self) -> bool:
        """True if projecting needs no iteration."""
        return self.scales is not None or self._spanned or self.factor is not None

    @property
    def _spanned(self) -> bool:
        """True if a basis is quick to compute."""
        fewest = min(self.n_generators, self._width)
        return fewest <= _QUICK_BASIS or (fewest <= _MAX_BASIS and not self.independent)

    @cached_property
    def factor(self) -> FloatArray | None:
        """The lower Cholesky factor (n_generators, n_generators) of the inner products of the matrices (e_j - e_first)e_kᵀ.

        None if they are dependent, nearly so, or too many.
        """
        if not self.independent or self.n_generators > _MAX_FACTORED:
            return None
        differences = self.E[self.tokens[self.free]] - self.E[self.tokens[self.first]]
        ends = self.E[self.queries[self.columns[self.free]]]
        gram = (differences @ differences.T) * (ends @ ends.T)
        try:
            factor = np.asarray(np.linalg.cholesky(gram), dtype=np.float64)
        except np.linalg.LinAlgError:
            return None
        pivots = np.diag(factor) ** 2 / np.diag(gram)
        return factor if pivots.min() > _GENERATOR_PIVOT_RTOL else None

    @cached_property
    def free(self) -> IntArray:
        """The cells that are not the first of their component, (n_generators,)."""
        return np.flatnonzero(np.diff(self.groups, prepend=-1) == 0)

    @cached_property
    def first(self) -> IntArray:
        """The first cell of the component of each free cell, (n_generators,)."""
        return np.searchsorted(self.groups, self.groups[self.free])

    def differences(self, values: FloatArray) -> FloatArray:
        """Return the differences of values (n_cells,) to the first cell of each component, (n_generators,)."""
        return values[self.free] - values[self.first]

    def differences_transposed(self, weights: FloatArray) -> FloatArray:
        """Return values (n_cells,) that add up to zero in each component and equal `weights` at its free cells: the transpose
        of `differences`.
        """
        values = np.zeros(len(self.tokens))
        values[self.free] = weights
        np.subtract.at(values, self.first, weights)
        return values

    # ---- coordinates: one number for each cell (token of a component, last token)

    def centre(self, values: FloatArray) -> FloatArray:
        """Subtract from `values` (…, n_cells) their mean over each component."""
        if self.n_groups == 0:
            return values
        starts = np.searchsorted(self.groups, np.arange(self.n_groups))
        sizes = np.diff(np.append(starts, len(self.groups)))
        return values - np.repeat(np.add.reduceat(values, starts, axis=-1) / sizes, sizes, axis=-1)

    def cells(self, W: FloatArray) -> FloatArray:
        """Return the logits e_xᵀ W e_k of each cell, (…, n_cells)."""
        table = self.E @ (W @ self.E[self.queries].T)
        return table[..., self.tokens, self.columns]

    def lift(self, values: FloatArray) -> FloatArray:
        """Return Σ values[c] e_x e_kᵀ over the cells, (d_model, d_model): the transpose of `cells`, inside S_cyc for centred values."""
        table = np.zeros((*values.shape[:-1], len(self.E), len(self.queries)))
        table[..., self.tokens, self.columns] = values
        return self.E.T @ table @ self.E[self.queries]

    # ---- projection

    @implements("C", "Lemma 2")
    def project(self, W: ArrayLike) -> FloatArray:
        """Return the part of W (…, d_model, d_model) inside S_cyc: all of W^cyc, and nothing of W^mm."""
        shape = self.shape
        weights = real_array(W, "W", ("…",) * (n_axes(W) - 2) + shape)
        if self.n_generators == 0:
            return np.zeros_like(weights)
        if self._near is not None:
            return self._near.project(weights)
        if self.scales is not None:
            return self.lift(self.centre(self.cells(weights)) / self.scales[self.columns])
        if self._spanned:
            basis, left, right = self._reduced
            inner = (left.T @ weights @ right).reshape(*weights.shape[:-2], -1)
            return (
                left @ (inner @ basis.T @ basis).reshape(*weights.shape[:-2], left.shape[1], right.shape[1]) @ right.T
            )
        many = weights.reshape(-1, *shape)
        return np.stack([self._project_one(matrix) for matrix in many]).reshape(weights.shape)

    def complement(self, W: ArrayLike) -> FloatArray:
        """Return the part of W (…, d_model, d_model) orthogonal to S_cyc."""
        inside = self.project(W)
        return np.asarray(W, dtype=np.float64) - inside

    @cached_property
    def _near(self) -> CyclicSubspace | None:
        """The same subspace with embeddings scaled near length one, if those of `E` are far from it."""
        E, power = scale_to_unit(self.E)
        return replace(self, E=E) if abs(power) > _MAX_EXPONENT else None

    @cached_property
    def basis(self) -> FloatArray:
        """Orthonormal matrices (rank, d_model, d_model) that span S_cyc. The array can be large; use `project` if that is enough."""
        if self.n_generators == 0:
            return np.zeros((0, *self.shape))
        if self._near is not None:
            return self._near.basis
        basis, left, right = self._reduced
        return np.asarray(left @ basis.reshape(len(basis), left.shape[1], right.shape[1]) @ right.T)

    def table_basis(self) -> FloatArray:
        """Return the centred logits of each basis matrix, (n_cells, rank)."""
        basis, left, right = self._reduced
        rows, ends = self.E @ left, self.E[self.queries] @ right
        cores = basis.reshape(len(basis), left.shape[1], right.shape[1])
        tables = rows @ cores @ ends.T  # (rank, n_vocabulary, n_queries)
        return np.ascontiguousarray(self.centre(tables[:, self.tokens, self.columns]).T)

    @property
    def _width(self) -> int:
        """An upper bound on the number of coordinates of W in the spans of the tokens and of the last tokens."""
        d = self.E.shape[1]
        return min(len(np.unique(self.tokens)), d) * min(len(self.queries), d)

    @cached_property
    def _reduced(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """An orthonormal basis (rank, r·s) in the coordinates of two orthonormal frames (d_model, r) and (d_model, s)."""
        # The frames of tokens and queries of any length.
        left, right = (_frame(_unit(self.E[np.unique(used)])) for used in (self.tokens, self.queries))
        starts = np.append(np.searchsorted(self.groups, np.arange(self.n_groups)), len(self.groups))
        rows, ends = self.E @ left, self.E[self.queries] @ right
        parts = []
        for first, end in pairwise(starts):
            members = rows[self.tokens[first:end]]
            inner = _frame(members - members.mean(axis=0))  # (r, rank of the component's differences)
            parts.append(np.einsum("ra,s->ars", inner, _unit(ends[self.columns[first]])).reshape(inner.shape[1], -1))
        generators = np.concatenate(parts)
        return _frame(generators).T, left, right

    def _project_one(self, W: FloatArray) -> FloatArray:
        """Project one W, by a factored Gram matrix with refinement or by least squares over centred cell values."""
        if self.factor is not None:
            projection = np.zeros_like(W)
            for _ in range(3):
                missing = self.differences(self.cells(W - projection))
                projection = projection + self.lift(
                    self.differences_transposed(scipy.linalg.cho_solve((self.factor, True), missing))
                )
            return projection
        n = len(self.tokens)
        forward = scipy.sparse.linalg.LinearOperator(
            (W.size, n),
            matvec=lambda a: self.lift(self.centre(np.ravel(a))).reshape(-1),
            rmatvec=lambda w: self.centre(self.cells(np.ravel(w).reshape(self.shape))),
        )
        values = scipy.sparse.linalg.lsqr(forward, W.reshape(-1), atol=1e-15, btol=1e-15, conlim=0.0, iter_lim=20 * n)[
            0
        ]
        return self.lift(self.centre(values))


def scale_to_unit(E: FloatArray) -> tuple[FloatArray, int]:
    """Scale `E` by a power of two to a largest entry between one half and one; also return the power that undoes it."""
    power = int(np.frexp(np.abs(E).max(initial=0.0))[1])
    return np.ldexp(E, -power), power


def _frame(rows: FloatArray) -> FloatArray:
    """Return an orthonormal frame (d, rank) of the span of `rows` (n, d)."""
    _, values, right = np.linalg.svd(rows, full_matrices=False)
    in_rank = values > 64 * EPS * max(rows.shape) * values.max(initial=0.0)
    return np.ascontiguousarray(right[in_rank].T)


def _independent(rows: FloatArray) -> bool:
    return len(rows) <= rows.shape[1] and _frame(_unit(rows)).shape[1] == len(rows)


def _unit(rows: FloatArray) -> FloatArray:
    """Scale rows (…, d) to length one; zero rows stay zero."""
    size = length(rows)[..., None]
    return rows / np.where(size == 0.0, 1.0, size)
