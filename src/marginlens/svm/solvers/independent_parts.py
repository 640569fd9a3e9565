"""Graph-SVM in independent parts: groups of last tokens whose embeddings are orthogonal to all others', each in few coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from marginlens.data.tokens import FloatArray, IntArray
from marginlens.directions import length
from marginlens.graphs.priority import PriorityGraph, thinned
from marginlens.runtime.progress import ProgressCallback
from marginlens.svm.solution import Status
from marginlens.svm.solvers.augmented_lagrangian import solve_large
from marginlens.svm.solvers.least_distance import least_distance
from marginlens.svm.solvers.rows import GraphProducts, GraphRows

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


def solve_part(rows: GraphRows, ties: GraphRows, strict: IntArray, tied: IntArray, *, formed: int = FORMED) -> Part:
    """Solve for the rows `strict` and `tied` of one group.

    Args:
        formed: the most entries that rows may have to be formed for the exact solver; with 0 they never are.
    """
    problem = _Problem(rows, ties, strict, tied)
    if problem.n_entries <= formed and problem.n_operations <= DECOMPOSED:
        part = problem.exact()
        if part.status is not Status.INACCURATE:
            return part
    elif formed:
        contradiction = _alone(rows, ties, strict, tied)
        if contradiction is not None:
            return contradiction
    return problem.structured()


def _alone(rows: GraphRows, ties: GraphRows, strict: IntArray, tied: IntArray) -> Part | None:
    """A last token that cannot be satisfied even by itself, which is quick to find; or None."""
    of_strict, of_tied = rows.triples[strict, 0], ties.triples[tied, 0]
    several = np.unique(of_strict)
    for k in several if len(several) > 1 else ():
        some, equal = (slice(*np.searchsorted(of, [k, k + 1])) for of in (of_strict, of_tied))
        problem = _Problem(rows, ties, strict[some], tied[equal])
        if problem.n_entries <= FORMED and problem.n_operations <= DECOMPOSED:
            part = problem.exact()
            if part.status is Status.INFEASIBLE:
                return part
    return None


class _Problem:
    """The rows of one group and the coordinates that its tokens and last tokens need."""

    def __init__(self, rows: GraphRows, ties: GraphRows, strict: IntArray, tied: IntArray) -> None:
        self._rows, self._strict, self._tied = rows, strict, tied
        self._here = np.concatenate([rows.triples[strict], ties.triples[tied]])
        self._tokens = _Coordinates(rows, np.unique(self._here[:, 1:]), self._here[:, 1:])
        self._last = _Coordinates(rows, np.unique(self._here[:, 0]))

    @property
    def n_entries(self) -> int:
        """How many entries the rows have when formed."""
        return len(self._here) * self._tokens.width * self._last.width

    @property
    def n_operations(self) -> int:
        """About how many operations it takes to remove the equalities."""
        n, width = len(self._tied), self._tokens.width * self._last.width
        return n * width * min(n, width)

    def exact(self) -> Part:
        """Through formed rows."""
        E, d, here, n = self._rows.E, self._rows.E.shape[1], self._here, len(self._strict)
        D, Q = self._tokens.of(E[here[:, 1]] - E[here[:, 2]]), self._last.of(E[here[:, 0]])
        formed = (D[:, :, None] * Q[:, None, :]).reshape(len(here), -1)
        found = least_distance(formed[:n], np.ones(n), equalities=formed[n:] if len(self._tied) else None)
        weights = found.multipliers if found.certificate is None else found.certificate
        forces = np.zeros(0) if found.equality_multipliers is None else found.equality_multipliers
        left = self._tokens.back(found.x.reshape(self._tokens.width, self._last.width), d)
        right = self._last.back(np.eye(self._last.width), d)
        return Part(self._strict, self._tied, found.status, weights, forces, left, right)

    def structured(self) -> Part:
        """Through products with rows that are never formed; whether it is proved, the whole solution's residual says."""
        E, n = self._rows.E, len(self._strict)
        order = np.argsort(self._here[:, 0], kind="stable")
        sorted_rows = GraphRows(E, self._here[order])
        used, free = np.flatnonzero(sorted_rows.sizes > 0.0), order >= n
        k = np.searchsorted(self._last.tokens, sorted_rows.triples[used, 0])
        pairs = np.searchsorted(self._tokens.tokens, sorted_rows.triples[used, 1:])
        sizes = sorted_rows.sizes[used]
        products = GraphProducts(self._tokens.E, self._last.E, np.column_stack([k, pairs]), sizes)
        with threadpool_limits(1, user_api="blas"):  # thousands of small products: threads would wait for each other
            found = solve_large(products, np.where(free[used], 0.0, 1.0 / sizes), free[used])
        weights = np.zeros(len(order))
        weights[used] = found.weights / sizes
        everyone = np.empty_like(weights)
        everyone[order] = weights
        status = Status.INFEASIBLE if found.impossible else Status.OPTIMAL
        left, right = sorted_rows.pulls(weights).T, E[sorted_rows.last].T
        return Part(self._strict, self._tied, status, everyone[:n], everyone[n:], left, right)


class _Coordinates:
    """Embeddings of some tokens in as few coordinates as they need, or as the differences of `pairs` (n_pairs, 2) of them need."""

    def __init__(self, rows: GraphRows, tokens: IntArray, pairs: IntArray | None = None) -> None:
        self.tokens = tokens
        E = rows.E[tokens]
        self.columns = np.unique(rows.thin[tokens].tocoo().col) if rows.thin is not None else np.arange(E.shape[1])
        E = E[:, self.columns]
        spanning = E if pairs is None else _forest(E, np.searchsorted(tokens, pairs))
        self.basis: FloatArray | None = None
        if len(spanning) < len(self.columns):
            self.basis = np.linalg.qr(spanning.T)[0]  # (n_columns, rank)
        self.E = self.of(E if pairs is None or self.basis is None else E - E.mean(axis=0), False)

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


def _forest(E: FloatArray, pairs: IntArray) -> FloatArray:
    """(n_edges, n_columns) the differences of a shortest spanning forest: that of any pair is a sum of some that are no longer than it.

    So all differences lie in their span up to rounding, however long some tokens are and however close others.
    """
    i, j = np.unique(np.sort(pairs, axis=1), axis=0).T
    tree = minimum_spanning_tree(csr_array((length(E[i] - E[j]), (i, j)), shape=(len(E), len(E)))).tocoo()
    return E[tree.row] - E[tree.col]


_ORTHONORMAL = 2.0**-48  # how far E Eᵀ may be from the identity: rounding of unit rows


class Columns(NamedTuple):
    """W (d_model, d_model), and the multipliers of the strict and of the tied triples in the order in which they were given."""

    W: FloatArray
    strict: FloatArray
    tied: FloatArray


def is_orthonormal(E: FloatArray) -> bool:
    """Whether all embeddings have norm one and are orthogonal to each other, as one-hot rows are."""
    if E.shape[0] > E.shape[1]:
        return False
    return bool(np.abs(E @ E.T - np.eye(len(E))).max() <= _ORTHONORMAL)


def solve_columns(
    E: FloatArray,
    graphs: Mapping[int, PriorityGraph],
    strict: IntArray,
    tied: IntArray,
    progress: ProgressCallback | None = None,
) -> Columns | None:
    r"""The shortest W, which for orthonormal rows of E falls apart into one problem for each last token.

    .. math:: W = E^\top U E, \quad \min \|u_k\| \ \text{s.t.}\ u_{ik} - u_{jk} \ge 1\ (i \Rightarrow j),\ = 0\ (i \asymp j)

    Tokens of a component share their number, and pairs that a chain implies are left out, so each problem has as many unknowns as
    components. There is always a solution.

    Args:
        E: (n_vocabulary, d_model) with orthonormal rows. graphs: by last token.
        strict, tied: (n, 3) the triples (k, i, j) of all graphs; the tied ones compare the first token of a component with the others.
        progress: called as `progress(done, total)` after each last token.
    Returns:
        W with its multipliers, which are zero for pairs left out; None where a problem was not solved to full accuracy.
    """
    U = np.zeros((len(E), len(E)))  # (token, last token)
    weight = np.zeros(len(strict))
    keys = _keys(strict, len(E))
    order = np.argsort(keys)
    for done, (k, graph) in enumerate(graphs.items()):
        if progress is not None:
            progress(done, len(graphs))
        pairs = thinned(graph).strict
        if not len(pairs):
            continue
        solved = _one_token(graph, pairs)
        if solved is None:
            return None
        U[graph.nodes, k], multipliers = solved
        wanted = _keys(np.column_stack([np.full(len(pairs), k), pairs]), len(E))
        weight[order[np.searchsorted(keys, wanted, sorter=order)]] = multipliers
    pulls = np.zeros_like(U)
    np.add.at(pulls, (strict[:, 1], strict[:, 0]), weight)
    np.add.at(pulls, (strict[:, 2], strict[:, 0]), -weight)
    ties = (
        pulls[tied[:, 2], tied[:, 0]] - U[tied[:, 2], tied[:, 0]]
    )  # what the strict pairs leave to the tie of each token
    return Columns(E.T @ U @ E, weight, ties)


def _keys(triples: IntArray, n_vocabulary: int) -> IntArray:
    """(n,) one number for each triple."""
    return (triples[:, 0] * n_vocabulary + triples[:, 1]) * n_vocabulary + triples[:, 2]


def _one_token(graph: PriorityGraph, pairs: IntArray) -> tuple[FloatArray, FloatArray] | None:
    """(n_nodes,) the heights of one last token, and the multipliers of the pairs."""
    size = np.sqrt(np.bincount(graph.component_of).astype(np.float64))  # makes the norm that of all tokens
    upper, lower = graph.component_of[np.searchsorted(graph.nodes, pairs)].T
    rows = np.zeros((len(pairs), len(size)))
    rows[np.arange(len(pairs)), upper] = 1.0 / size[upper]
    rows[np.arange(len(pairs)), lower] = -1.0 / size[lower]
    found = least_distance(rows, np.ones(len(pairs)))
    if found.status.name != "OPTIMAL":
        return None
    return (found.x / size)[graph.component_of], found.multipliers
