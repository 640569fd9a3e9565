"""Graph-SVM in independent parts: one small problem per last token for orthonormal embeddings, else one per group of last tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy

from marginlens.arithmetic.directions import length
from marginlens.arithmetic.rounding import EPS
from marginlens.graphs.priority import PriorityGraph
from marginlens.runtime.progress import ProgressCallback
from marginlens.runtime.threads import single_blas_thread
from marginlens.svm.solution import Status
from marginlens.svm.solvers.augmented_lagrangian import augmented_lagrangian
from marginlens.svm.solvers.least_distance import least_distance
from marginlens.svm.solvers.rows import BilinearRows, sparse_if_thin
from marginlens.typing import FloatArray, IntArray

# Rows are formed and given to the exact solver if they have no more entries than this.
MAX_FORMED_PART_ENTRIES = 1_000_000
# Equalities are removed by a singular value decomposition if this takes no more operations.
MAX_NULL_SPACE_OPERATIONS = 100_000_000
# A table of the products of dense vectors is worth its memory up to so many vectors.
_MAX_PRODUCT_TABLE = 4096
# A cosine this small is rounding.
_ORTHOGONAL_ATOL = 8 * EPS
# E Eᵀ may differ from the identity by this much, the rounding of unit rows.
_ORTHONORMAL_ATOL = 16 * EPS


class GraphMultipliers(NamedTuple):
    """W (d_tokens, d_queries), and the multipliers of all strict and of all tied rows; or a Farkas vector instead."""

    W: FloatArray
    strict: FloatArray
    tied: FloatArray
    infeasible: bool = False


# ---- orthonormal embeddings


def is_orthonormal(E: FloatArray) -> bool:
    """Return whether all embeddings have norm one and are orthogonal to each other, as one-hot rows are."""
    if E.shape[0] > E.shape[1]:
        return False
    return bool(np.abs(E @ E.T - np.eye(len(E))).max() <= _ORTHONORMAL_ATOL)


def solve_orthonormal(
    E: FloatArray,
    graphs: Mapping[int, PriorityGraph],
    rows: BilinearRows,
    ties: BilinearRows,
    sufficient: Mapping[int, IntArray],
    progress: ProgressCallback | None = None,
) -> GraphMultipliers | None:
    r"""Find the shortest W for orthonormal rows of E: one independent problem for each last token.

    .. math:: W = E^\top U E, \quad \min \|u_k\| \ \text{s.t.}\ u_{ik} - u_{jk} \ge 1\ (i \Rightarrow j),\ = 0\ (i \asymp j)

    Tokens of a component share their value u, so each problem has as many unknowns as components. There is always a solution.

    Args:
        E: (n_vocabulary, d_model) with orthonormal rows.

        graphs: by last token.

        rows, ties: of all graphs; ties compare the first token of a component with the others.

        sufficient: which rows of each last token imply its others.

        progress: called as `progress(done, total)` after each last token.

    Returns:
        W with its multipliers, which are zero for other rows; None if a problem was not solved to full accuracy.
    """
    U = np.zeros((len(E), len(E)))  # (token, last token)
    multipliers = np.zeros(len(rows))
    for done, (k, graph) in enumerate(graphs.items()):
        if progress is not None:
            progress(done, len(graphs))
        indices = sufficient[k]
        if not len(indices):
            continue
        # Makes the norm that of all tokens.
        unit = np.sqrt(np.bincount(graph.component_of).astype(np.float64))
        upper, lower = graph.component_of[np.searchsorted(graph.nodes, rows.triples[indices, 1:])].T
        formed = np.zeros((len(indices), len(unit)))
        formed[np.arange(len(indices)), upper] = 1.0 / unit[upper]
        formed[np.arange(len(indices)), lower] = -1.0 / unit[lower]
        solution = least_distance(formed, np.ones(len(indices)))
        if solution.status is not Status.OPTIMAL:
            return None
        U[graph.nodes, k], multipliers[indices] = (solution.x / unit)[graph.component_of], solution.multipliers
    sums = np.zeros_like(U)
    k, i, j = rows.triples.T
    np.add.at(sums, (i, k), multipliers)
    np.add.at(sums, (j, k), -multipliers)
    # The strict pairs leave the difference to the tie of each token.
    k, _, j = ties.triples.T
    return GraphMultipliers(E.T @ U @ E, multipliers, (sums - U)[j, k])


# ---- groups of last tokens whose embeddings are orthogonal to all others'


def solve_groups(
    rows: BilinearRows, ties: BilinearRows, sufficient: IntArray, progress: ProgressCallback | None = None
) -> GraphMultipliers:
    """Find the shortest W that satisfies the rows `sufficient` and all ties, group by group; its residual says whether it is proved.

    Args:
        progress: called as `progress(done, total)` after each group.
    """
    last, label = query_groups(rows, ties)
    group = label[np.searchsorted(last, rows.triples[sufficient, 0])]
    group_of_ties = label[np.searchsorted(last, ties.triples[:, 0])]
    groups = np.unique(group).tolist()
    factors, multipliers, equality_multipliers = [], np.zeros(len(rows)), np.zeros(len(ties))
    for done, number in enumerate(groups, start=1):
        strict, tied = sufficient[group == number], np.flatnonzero(group_of_ties == number)
        part = _solve_group(rows, ties, strict, tied)
        if part.status is Status.INFEASIBLE:
            multipliers[:], equality_multipliers[:] = 0.0, 0.0
        multipliers[part.strict], equality_multipliers[part.tied] = part.multipliers, part.equality_multipliers
        if part.status is Status.INFEASIBLE:
            return GraphMultipliers(
                np.full((rows.X.shape[1], rows.Q.shape[1]), np.nan), multipliers, equality_multipliers, True
            )
        factors.append((part.left, part.right))
        if progress is not None:
            progress(done, len(groups))
    left, right = (np.concatenate(side, axis=1) for side in zip(*factors, strict=True))
    W = np.ascontiguousarray((sparse_if_thin(right) @ left.T).T)
    return GraphMultipliers(W, multipliers, equality_multipliers)


def query_groups(rows: BilinearRows, ties: BilinearRows) -> tuple[IntArray, IntArray]:
    """Find the last tokens of all rows and a group number for each: tokens of different groups have orthogonal embeddings."""
    last = np.union1d(rows.triples[:, 0], ties.triples[:, 0])
    return last, orthogonal_groups(rows.Q[last])


def orthogonal_groups(vectors: Any) -> IntArray:
    """Number the groups (n,) of vectors (n, d), an array or a sparse matrix: vectors of different groups are orthogonal.

    Many dense vectors form one group, because the table of their products would take too much memory.
    """
    V = sparse_if_thin(vectors) if isinstance(vectors, np.ndarray) else vectors
    is_dense, together = isinstance(V, np.ndarray), np.zeros(V.shape[0], dtype=np.int64)
    if is_dense and len(V) > _MAX_PRODUCT_TABLE:
        return together
    size = length(V) if is_dense else np.sqrt(np.asarray((V * V).sum(axis=1)).ravel())
    unit = scipy.sparse.diags_array(1.0 / np.where(size == 0.0, 1.0, size)) @ V
    close = abs(unit @ unit.T) > _ORTHOGONAL_ATOL
    if is_dense and close[0].all():
        return together
    labels = scipy.sparse.csgraph.connected_components(scipy.sparse.csr_array(close), directed=False)[1]
    return np.asarray(labels, dtype=np.int64)


class _Part(NamedTuple):
    """The contribution of one group: multipliers of the rows `strict` and `tied`, or a Farkas vector, and W = left rightᵀ."""

    strict: IntArray
    tied: IntArray
    status: Status
    multipliers: FloatArray
    equality_multipliers: FloatArray
    left: FloatArray
    right: FloatArray


def _solve_group(rows: BilinearRows, ties: BilinearRows, strict: IntArray, tied: IntArray) -> _Part:
    """Solve one group: with formed rows if they are small; else look for a last token that is infeasible by itself; else
    through products.
    """
    group = _Group(rows, ties, strict, tied)
    if group.is_small():
        part = group.solve_formed()
        if part.status is not Status.INACCURATE:
            return part
    elif MAX_FORMED_PART_ENTRIES:
        of_strict, of_tied = rows.triples[strict, 0], ties.triples[tied, 0]
        several = np.unique(of_strict)
        for k in several if len(several) > 1 else ():
            single = _Group(rows, ties, strict[of_strict == k], tied[of_tied == k])
            if single.is_small() and (part := single.solve_formed()).status is Status.INFEASIBLE:
                return part
    return group.solve_structured()


class _Group:
    """The rows of one group and the coordinates that its tokens and last tokens need."""

    def __init__(self, rows: BilinearRows, ties: BilinearRows, strict: IntArray, tied: IntArray) -> None:
        self._X, self._Q, self._strict, self._tied = rows.X, rows.Q, strict, tied
        self._triples = np.concatenate([rows.triples[strict], ties.triples[tied]])
        self._tokens = _Coordinates(self._X, np.unique(self._triples[:, 1:]), self._triples[:, 1:])
        self._queries = _Coordinates(self._Q, np.unique(self._triples[:, 0]))

    def is_small(self) -> bool:
        """Return whether its rows may be formed, and its equalities removed from them."""
        n, width = len(self._tied), self._tokens.width * self._queries.width
        formed, operations = len(self._triples) * width, n * width * min(n, width)
        return formed <= MAX_FORMED_PART_ENTRIES and operations <= MAX_NULL_SPACE_OPERATIONS

    def solve_formed(self) -> _Part:
        """Solve exactly, with formed rows."""
        X, (k, i, j), n = self._X, self._triples.T, len(self._strict)
        D, Q = self._tokens.of(X[i] - X[j]), self._queries.of(self._Q[k])
        formed = (D[:, :, None] * Q[:, None, :]).reshape(len(self._triples), -1)
        solution = least_distance(formed[:n], np.ones(n), equalities=formed[n:] if len(self._tied) else None)
        multipliers = solution.multipliers if solution.certificate is None else solution.certificate
        mu = np.zeros(0) if solution.equality_multipliers is None else solution.equality_multipliers
        left = self._tokens.back(solution.x.reshape(self._tokens.width, self._queries.width))
        right = self._queries.back(np.eye(self._queries.width))
        return _Part(self._strict, self._tied, solution.status, multipliers, mu, left, right)

    def solve_structured(self) -> _Part:
        """Solve through products with rows that are never formed."""
        n, order = len(self._strict), np.argsort(self._triples[:, 0], kind="stable")
        triples = self._triples[order]
        k = np.searchsorted(self._queries.tokens, triples[:, 0])
        rows = BilinearRows(self._X, self._queries.full, np.column_stack([k, triples[:, 1:]]))
        used, is_equality, norms = np.flatnonzero(rows.row_norms > 0.0), order >= n, rows.row_norms
        pairs = np.searchsorted(self._tokens.tokens, triples[used, 1:])
        reduced = np.column_stack([k[used], pairs])
        unit = BilinearRows(self._tokens.reduced, self._queries.reduced, reduced, 1.0 / norms[used])
        lower = np.where(is_equality, 0.0, 1.0)[used] / norms[used]
        # For thousands of small products, threads would wait for each other.
        with single_blas_thread():
            outcome = augmented_lagrangian(unit, lower, is_equality[used])
        multipliers = np.zeros(len(order))
        multipliers[order[used]] = outcome.multipliers / norms[used]
        status = Status.INFEASIBLE if outcome.infeasible else Status.OPTIMAL
        left, right = rows.query_sums(multipliers[order]).T, rows.Q.T
        return _Part(self._strict, self._tied, status, multipliers[:n], multipliers[n:], left, right)


class _Coordinates:
    """Embeddings of some tokens in as few coordinates as they, or the differences of `pairs` (n_pairs, 2) of them, need."""

    def __init__(self, E: FloatArray, tokens: IntArray, pairs: IntArray | None = None) -> None:
        self.tokens, self.full = tokens, E[tokens]
        self.columns = np.flatnonzero(self.full.any(axis=0))
        short = self.full[:, self.columns]
        spanning = short if pairs is None else _spanning_differences(short, np.searchsorted(tokens, pairs))
        self.basis: FloatArray | None = None
        if len(spanning) < len(self.columns):
            self.basis = np.linalg.qr(spanning.T)[0]  # (n_columns, rank)
        centred = pairs is not None and self.basis is not None
        self.reduced = self._rotated(short - short.mean(axis=0) if centred else short)

    @property
    def width(self) -> int:
        return len(self.columns) if self.basis is None else self.basis.shape[1]

    def of(self, vectors: FloatArray) -> FloatArray:
        """Convert vectors (n, d_model) to these coordinates."""
        return self._rotated(vectors[:, self.columns])

    def back(self, coordinates: FloatArray) -> FloatArray:
        """Convert columns (width, n) of coordinates to columns (d_model, n)."""
        columns = np.zeros((self.full.shape[1], coordinates.shape[1]))
        columns[self.columns] = coordinates if self.basis is None else self.basis @ coordinates
        return columns

    def _rotated(self, short: FloatArray) -> FloatArray:
        return short if self.basis is None else short @ self.basis


def _spanning_differences(E: FloatArray, pairs: IntArray) -> FloatArray:
    """Compute the differences (n_edges, n_columns) of a shortest spanning forest: that of any pair is a sum of differences that
    are no longer.

    So all differences lie in their span up to rounding, even if some tokens are very long and others very close.
    """
    i, j = np.unique(np.sort(pairs, axis=1), axis=0).T
    tree = scipy.sparse.csgraph.minimum_spanning_tree(
        scipy.sparse.csr_array((length(E[i] - E[j]), (i, j)), shape=(len(E), len(E)))
    ).tocoo()
    return E[tree.row] - E[tree.col]
