"""The risk over a cyclic subset as a function on S_cyc."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from scipy.linalg import cho_solve, solve_triangular
from scipy.sparse import csr_array
from scipy.sparse.linalg import LinearOperator, cg, eigsh

from marginlens.data.tokens import FloatArray, IntArray
from marginlens.errors import reject
from marginlens.graphs.cyclic import CyclicSubset
from marginlens.graphs.subspace import CyclicSubspace, near_one
from marginlens.losses.next_token import NextTokenLoss
from marginlens.nexttoken.component_risk import ComponentRisk, RiskPoint
from marginlens.risk.reduced_sequences import reduce_sequences

_SMALL = 800  # up to this rank, coordinates in a basis and dense Hessians are the quickest


class Landscape:
    """The mean loss over a cyclic subset, by the logits of its cells (token, last token), in the order of the subspace.

    Embeddings are brought near length one by a power of two: with those given, the weights W of here are W · 2^(-2 `power`) and have the
    same logits, and gradients are larger by 2^(2 `power`).

    Args:
        subset: the samples. space: S_cyc of the same graphs. scores: H = C Eᵀ, or None for the identity. loss: the loss.
    """

    def __init__(
        self, subset: CyclicSubset, space: CyclicSubspace, scores: FloatArray | None, loss: NextTokenLoss
    ) -> None:
        E, self.power = near_one(space.E)
        self.space, self.subset = replace(space, E=E), copy(subset)
        self.subset.E = E
        self.risk = ComponentRisk(reduce_sequences(self.subset), scores=scores, loss=loss)
        K, queries = len(space.E), self.risk.problem.queries
        have, want = queries[self.risk.columns] * K + self.risk.tokens, space.queries[space.columns] * K + space.tokens
        if len(have) != len(want) or not np.array_equal(np.sort(have), np.sort(want)):
            raise reject(
                "graphs", "graphs of these sequences and no others", "components with tokens that no sequence keeps"
            )
        order = np.argsort(have)
        self.place: IntArray = order[
            np.searchsorted(have, want, sorter=order)
        ]  # where each of the subspace's cells is in the risk's

    def __repr__(self) -> str:
        return f"Landscape({self.risk!r}, {self.space!r})"

    # ---- by cells

    def at(self, cells: FloatArray) -> RiskPoint:
        """The risk at logits (n_cells,) in the order of the subspace."""
        values = np.empty_like(cells)
        values[self.place] = cells
        return self.risk.at_cells(values)

    def slope(self, point: RiskPoint) -> FloatArray:
        """(n_cells,) the gradient by the cells; it adds up to zero over each component."""
        return self.space.centre(point.cell_gradient[self.place])

    def curvature(self, point: RiskPoint) -> csr_array:
        """(n_cells, n_cells) the Hessian by the cells; zero between different components."""
        return csr_array(point.hessian()[self.place][:, self.place])

    def bend(self, point: RiskPoint, cells: FloatArray) -> FloatArray:
        """(n_cells,) the Hessian applied to a vector of cells."""
        values = np.empty_like(cells)
        values[self.place] = cells
        return self.space.centre(point.cell_product(values)[self.place])

    def gradient(self, W: FloatArray) -> FloatArray:
        """(d_model, d_model) the gradient by W."""
        return self.space.lift(self.slope(self.at(self.space.cells(W))))

    # ---- blocks: the cells of one component

    @cached_property
    def blocks(self) -> list[slice]:
        """The cells of each component."""
        starts = np.append(np.searchsorted(self.space.groups, np.arange(self.space.n_groups)), len(self.space.groups))
        return [slice(int(a), int(b)) for a, b in pairwise(starts)]

    @cached_property
    def block_of(self) -> IntArray:
        """(n_samples,) the component of each merged sample."""
        groups = np.empty(len(self.place), dtype=np.int64)
        groups[self.place] = self.space.groups
        return groups[self.risk.cell[self.risk.problem.offsets[:-1]]]

    # ---- between cells and W

    @cached_property
    def small(self) -> bool:
        """Whether coordinates in a basis of S_cyc are worth forming."""
        return self.space.direct and min(self.space.n_generators, self.space.E.shape[1] ** 2) <= _SMALL

    @cached_property
    def table(self) -> FloatArray:
        """(n_cells, rank) the logits, up to a constant for each component, of an orthonormal basis of S_cyc."""
        space = self.space
        if space.factor is None:
            return space.table_basis()
        table = np.zeros((len(space.tokens), space.n_generators))
        table[space.free] = space.factor
        return table

    def coordinates(self, W: FloatArray) -> FloatArray:
        """(rank,) the coordinates of W in S_cyc, in the basis of `table`."""
        space = self.space
        if space.factor is None:
            return np.asarray(np.tensordot(space.basis, W, axes=2))
        return np.asarray(solve_triangular(space.factor, space.apart(space.cells(W)), lower=True))

    def matrix(self, coordinates: FloatArray) -> FloatArray:
        """(d_model, d_model) the W with these coordinates."""
        if self.space.factor is None:
            return np.asarray(np.tensordot(coordinates, self.space.basis, axes=1))
        return self.weights(self.space.centre(self.table @ coordinates))

    def weights(self, cells: FloatArray) -> FloatArray:
        """(d_model, d_model) the W in S_cyc with these centred logits, where the embeddings in use are independent."""
        space = self.space
        if space.scales is not None:
            return space.lift(cells / space.scales[space.columns])
        if space.factor is not None:
            W = np.zeros((space.E.shape[1], space.E.shape[1]))
            for _ in range(3):
                missing = space.apart(cells - space.cells(W))
                W = W + space.lift(space.joined(cho_solve((space.factor, True), missing)))
            return W
        found = np.zeros_like(cells)
        gram = LinearOperator(
            (len(cells), len(cells)), matvec=lambda a: space.centre(space.cells(space.lift(space.centre(np.ravel(a)))))
        )
        noise, missing = 1e-15 * float(np.linalg.norm(cells)), cells
        for _ in range(3):
            if np.linalg.norm(missing) <= noise:
                break
            more = found + space.centre(cg(gram, missing, rtol=1e-13, atol=noise, maxiter=20 * len(cells))[0])
            after = cells - gram.matvec(more)
            if not np.linalg.norm(after) < np.linalg.norm(missing):
                break
            found, missing = more, after
        return space.lift(space.centre(found))

    def smallest_eigenvalue(self, W: FloatArray) -> float:
        """The smallest eigenvalue of the Hessian by W inside S_cyc, in orthonormal coordinates."""
        space, point = self.space, self.at(self.space.cells(W))
        if space.rank == 0:
            return float("inf")
        if space.scales is not None:
            hessian = self.curvature(point)
            return min(
                _smallest_centred(hessian[block, block].toarray()) * space.scales[space.columns[block.start]]
                for block in self.blocks
            )
        if space.direct:
            return float(np.linalg.eigvalsh(self.table.T @ (self.curvature(point) @ self.table))[0])
        d = space.E.shape[1]
        top = float(np.linalg.norm(space.E, 2) ** 4)

        def apply(w: FloatArray) -> FloatArray:
            inside = space.project(np.ravel(w).reshape(d, d))
            outside = np.ravel(w).reshape(d, d) - inside
            return np.ravel(space.project(space.lift(self.bend(point, space.cells(inside)))) + top * outside)

        operator = LinearOperator((d * d, d * d), matvec=apply, dtype=np.float64)
        start = np.random.default_rng(0).standard_normal(d * d)  # the same in every run
        return float(eigsh(operator, k=1, which="SA", tol=1e-6, v0=start, return_eigenvectors=False)[0])


def _smallest_centred(hessian: FloatArray) -> float:
    """The smallest eigenvalue of a Hessian orthogonal to the constants, which it annihilates."""
    size = len(hessian)
    above = 2.0 * float(np.abs(hessian).sum(axis=1).max(initial=1.0))
    return float(np.linalg.eigvalsh(hessian + above / size)[0])
