"""Graph-SVM in independent parts: groups of last tokens whose embeddings are orthogonal to all others', each in few coordinates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from marginlens.data.tokens import BoolArray, FloatArray, IntArray
from marginlens.svm.graph_large import IMPOSSIBLE, solve_large
from marginlens.svm.graph_products import GraphProducts
from marginlens.svm.graph_rows import GraphRows
from marginlens.svm.least_distance import least_distance
from marginlens.svm.solution import Status

FORMED = 1_000_000  # up to so many entries, the rows of a group are formed and given to the exact solver
DECOMPOSED = 100_000_000  # up to so many operations, equalities are removed by a singular value decomposition
_MANY = 4096  # last tokens beyond which a dense table of their products is not worth its room
_ORTHOGONAL = 8 * 2.0**-52  # a cosine that is rounding


@dataclass(frozen=True, repr=False, eq=False)
class Part:
    """What one group contributes: multipliers of its rows, or a Farkas vector, and W as left @ rightᵀ.

    `strict` and `tied` list the group's rows among all; `left` and `right` are (d_model, rank).
    """

    strict: IntArray
    tied: IntArray
    status: Status
    weights: FloatArray
    forces: FloatArray
    left: FloatArray
    right: FloatArray

    def __repr__(self) -> str:
        return f"Part({self.status.name}, {len(self.strict)} strict, {len(self.tied)} tied)"


def group_labels(rows: GraphRows, ties: GraphRows) -> tuple[IntArray, IntArray]:
    """The last tokens of all rows, and a group number for each: tokens of different groups have orthogonal embeddings."""
    last = np.union1d(rows.last, ties.last)
    if rows.thin is not None:
        Q = rows.thin[last]
        near = abs(Q @ Q.T)
    elif len(last) <= _MANY:
        Q = rows.E[last] / np.maximum(np.linalg.norm(rows.E[last], axis=1, keepdims=True), 1e-300)
        close = np.abs(Q @ Q.T) > _ORTHOGONAL
        if close[0].all():
            return last, np.zeros(len(last), dtype=np.int64)
        near = csr_array(close)
    else:
        return last, np.zeros(len(last), dtype=np.int64)
    return last, connected_components(near, directed=False)[1].astype(np.int64)


def solve_part(
    rows: GraphRows, ties: GraphRows, strict: IntArray, tied: IntArray, *, formed: int | None = None
) -> Part:
    """Solve for the rows `strict` and `tied` of one group.

    Args:
        formed: the most entries that the rows may have to be formed for the exact solver; beyond, or with 0, they never are.
    """
    here = np.concatenate([rows.triples[strict], ties.triples[tied]])
    tokens, last = _Coordinates(rows, np.unique(here[:, 1:]), True), _Coordinates(rows, np.unique(here[:, 0]), False)
    width, n_equal = tokens.width * last.width, len(tied)
    limit = FORMED if formed is None else formed
    if len(here) * width <= limit and n_equal * width * min(n_equal, width) <= DECOMPOSED * bool(limit):
        part = _exact(rows, (strict, tied), here, tokens, last)
        if part.status is not Status.INACCURATE:
            return part
    return _structured(rows, (strict, tied), here, tokens, last)


class _Coordinates:
    """Embeddings of some tokens in as few coordinates as they need: of their differences where `centred`."""

    def __init__(self, rows: GraphRows, tokens: IntArray, centred: bool) -> None:
        self.tokens = tokens
        E = rows.E[tokens]
        self.columns = np.unique(rows.thin[tokens].tocoo().col) if rows.thin is not None else np.arange(E.shape[1])
        E = E[:, self.columns]
        rank = len(tokens) - centred
        self.basis: FloatArray | None = None
        if rank < len(self.columns):
            spanning = E[1:] - E[0] if centred else E
            self.basis = np.linalg.qr(spanning.T)[0]  # (n_columns, rank)
        self.E = self.of((E - E.mean(axis=0)) if centred and self.basis is not None else E, False)

    @property
    def width(self) -> int:
        return len(self.columns) if self.basis is None else self.basis.shape[1]

    def of(self, vectors: FloatArray, full: bool = True) -> FloatArray:
        """Vectors (n, d_model), or (n, n_columns) when not `full`, in these coordinates."""
        vectors = vectors[:, self.columns] if full else vectors
        return vectors if self.basis is None else vectors @ self.basis

    def back(self, coordinates: FloatArray, d: int) -> FloatArray:
        """Columns (width, n) of coordinates as columns (d_model, n)."""
        columns = np.zeros((d, coordinates.shape[1]))
        columns[self.columns] = coordinates if self.basis is None else self.basis @ coordinates
        return columns


def _exact(
    rows: GraphRows, named: tuple[IntArray, IntArray], here: IntArray, tokens: _Coordinates, last: _Coordinates
) -> Part:
    strict, tied = named
    E, d = rows.E, rows.E.shape[1]
    D, Q = tokens.of(E[here[:, 1]] - E[here[:, 2]]), last.of(E[here[:, 0]])
    formed = (D[:, :, None] * Q[:, None, :]).reshape(len(here), -1)
    n = len(strict)
    found = least_distance(formed[:n], np.ones(n), equalities=formed[n:] if len(tied) else None)
    weights = found.multipliers if found.certificate is None else found.certificate
    forces = np.zeros(0) if found.equality_multipliers is None else found.equality_multipliers
    left = tokens.back(found.x.reshape(tokens.width, last.width), d)
    return Part(strict, tied, found.status, weights, forces, left, last.back(np.eye(last.width), d))


def _structured(
    rows: GraphRows, named: tuple[IntArray, IntArray], here: IntArray, tokens: _Coordinates, last: _Coordinates
) -> Part:
    strict, tied = named
    places = np.column_stack([np.searchsorted(last.tokens, here[:, 0]), np.searchsorted(tokens.tokens, here[:, 1:])])
    sizes = GraphRows(rows.E, here[np.argsort(here[:, 0], kind="stable")]).sizes
    order = np.argsort(here[:, 0], kind="stable")
    free: BoolArray = order >= len(strict)
    used = np.flatnonzero(sizes > 0.0)
    products = GraphProducts(tokens.E, last.E, places[order][used], sizes[used])
    found = solve_large(products, np.where(free, 0.0, 1.0)[used] / sizes[used], free[used])
    everyone = np.zeros(len(here))
    everyone[order[used]] = found.weights / sizes[used]
    weights, forces = everyone[: len(strict)], everyone[len(strict) :]
    status = Status.INFEASIBLE if found.code == IMPOSSIBLE else Status.OPTIMAL
    subset = GraphRows(rows.E, here[order])
    return Part(strict, tied, status, weights, forces, subset.pulls(everyone[order]).T, rows.E[subset.last].T)
