"""The rows of Graph-SVM, (e_i - e_j) e_kᵀ: as wide as W has entries, and known by their three tokens."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import coo_array, csr_array

from marginlens.data.tokens import BoolArray, FloatArray, IntArray
from marginlens.directions import length
from marginlens.runtime.compilation import njit

_CHUNK = 1 << 22  # entries of embedding differences formed at a time
_WIDE, _THIN = 128, 0.1  # embeddings this wide with so small a share of nonzero entries are kept as a sparse matrix


class GraphRows:
    r"""Rows :math:`a_r = (e_i - e_j)\,e_k^\top` of unknowns W (d_model, d_model), which are never formed.

    Args:
        E: (n_vocabulary, d_model) the embeddings.
        triples: (n_rows, 3) the tokens (k, i, j) of each row, ordered by k.

    `np.asarray(rows)` forms them, (n_rows, d_model²).
    """

    def __init__(self, E: FloatArray, triples: IntArray) -> None:
        self.E, self.triples = E, triples
        self.last, starts = np.unique(triples[:, 0], return_index=True)  # the last tokens that occur
        self._edges = np.append(starts, len(triples))
        self.thin: csr_array | None = None  # E where it is mostly zeros, as one-hot embeddings are
        if E.shape[1] >= _WIDE and np.count_nonzero(E) <= _THIN * E.size:
            self.thin = csr_array(E)

    def __repr__(self) -> str:
        return f"GraphRows({len(self)} rows, {len(self.last)} last tokens, d={self.E.shape[1]})"

    def __len__(self) -> int:
        return len(self.triples)

    def some(self, places: IntArray) -> GraphRows:
        """The rows at increasing `places`."""
        return GraphRows(self.E, self.triples[places])

    @property
    def shape(self) -> tuple[int, int]:
        """n_rows and d_model²."""
        return len(self), self.E.shape[1] ** 2

    @cached_property
    def sizes(self) -> FloatArray:
        """(n_rows,) the norms ‖e_i - e_j‖ ‖e_k‖."""
        sizes = np.empty(len(self))
        if self.thin is not None:
            entries = self._thin_differences()
            sizes = np.sqrt(_summed(entries.row, entries.data**2, len(self)))
        else:
            for some in self._chunks(0, len(self)):
                sizes[some] = length(self.differences(some))
        return sizes * length(self.E)[self.triples[:, 0]]

    def vanish(self, some: IntArray) -> BoolArray:
        """(n_some,) whether rows are zero as they are, and not by underflow."""
        return (self.differences(some) == 0.0).all(axis=1) | (self.E[self.triples[some, 0]] == 0.0).all(axis=1)

    def apply(self, x: FloatArray) -> FloatArray:
        """(n_rows,) the gaps (e_i - e_j)ᵀ W e_k; differences are taken of embeddings, not of logits, which may nearly agree."""
        d, k = self.E.shape[1], self.triples[:, 0]
        W, images = x.reshape(d, d), np.zeros((len(self.E), d))
        if self.thin is not None:
            images[self.last] = self.thin[self.last] @ W.T
            entries = self._thin_differences()
            return _summed(entries.row, entries.data * images[k[entries.row], entries.col], len(self))
        images[self.last] = self.E[self.last] @ W.T
        gaps = np.empty(len(self))
        for some in self._chunks(0, len(self)):
            gaps[some] = np.einsum("rd,rd->r", self.differences(some), images[k[some]])
        return gaps

    def combine(self, weights: FloatArray) -> FloatArray:
        """(d_model²,) the sum of the rows times `weights` (n_rows,)."""
        pulls = self.pulls(weights)
        if self.thin is not None:
            return np.asarray((csr_array(pulls.T) @ self.thin[self.last]).todense()).reshape(-1)
        return (pulls.T @ self.E[self.last]).reshape(-1)

    def pulls(self, weights: FloatArray) -> FloatArray:
        """(n_last, d_model) the sum of weights times e_i - e_j over the rows of each last token of `last`."""
        if self.thin is not None:
            entries = self._thin_differences()
            place = np.searchsorted(self.last, self.triples[:, 0])[entries.row]
            shape = (len(self.last), self.E.shape[1])
            summed = coo_array((entries.data * weights[entries.row], (place, entries.col)), shape=shape)
            return np.asarray(summed.todense())
        if 0 < len(self) * self.E.shape[1] <= _CHUNK:
            return np.add.reduceat(weights[:, None] * self.differences(slice(None)), self._edges[:-1], axis=0)
        pulls = np.zeros((len(self.last), self.E.shape[1]))
        for row, (start, stop) in enumerate(pairwise(self._edges.tolist())):
            for some in self._chunks(start, stop):
                pulls[row] += weights[some] @ self.differences(some)
        return pulls

    def differences(self, some: slice | IntArray) -> FloatArray:
        """(n_some, d_model) e_i - e_j of some rows."""
        return self.E[self.triples[some, 1]] - self.E[self.triples[some, 2]]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> FloatArray:
        rows = self.differences(slice(None))[:, :, None] * self.E[self.triples[:, 0]][:, None, :]
        return rows.reshape(self.shape).astype(dtype or np.float64, copy=False)

    def _thin_differences(self) -> coo_array:
        if self.thin is None:
            raise TypeError("the embeddings are dense")
        return coo_array(self.thin[self.triples[:, 1]] - self.thin[self.triples[:, 2]])

    def _chunks(self, start: int, stop: int) -> list[slice]:
        step = max(1, _CHUNK // self.E.shape[1])
        return [slice(first, min(stop, first + step)) for first in range(start, stop, step)]


def _summed(place: Any, values: FloatArray, size: int) -> FloatArray:
    """(size,) the sum of the values at each place."""
    totals: FloatArray = np.bincount(place, values, size).astype(np.float64)
    return totals


class BilinearRows:
    r"""Rows :math:`a_r = (x_i - x_j)\,q_k^\top` of unknowns W (d_tokens, d_queries), which are never formed.

    Args:
        X: (n_tokens, d_tokens) the tokens.
        Q: (n_queries, d_queries) the queries.
        triples: (n_rows, 3) query k, token i and token j of each row, ordered by k.

    `np.asarray(rows)` forms them, (n_rows, d_tokens times d_queries).
    """

    def __init__(self, X: FloatArray, Q: FloatArray, triples: IntArray) -> None:
        self.X, self.Q, self.triples = X, Q, triples
        self._products = GraphProducts(X, Q, triples, np.ones(len(triples)))

    def __repr__(self) -> str:
        return f"BilinearRows({len(self)} rows, {len(self.Q)} queries, {self.X.shape[1]} by {self.Q.shape[1]})"

    def __len__(self) -> int:
        return len(self.triples)

    def some(self, places: IntArray) -> BilinearRows:
        """The rows at increasing `places`."""
        return BilinearRows(self.X, self.Q, self.triples[places])

    @property
    def shape(self) -> tuple[int, int]:
        """n_rows and the number of entries of W."""
        return len(self), self.X.shape[1] * self.Q.shape[1]

    @cached_property
    def sizes(self) -> FloatArray:
        """(n_rows,) the norms ‖x_i - x_j‖ ‖q_k‖."""
        return length(self.differences) * length(self.Q)[self.triples[:, 0]]

    @property
    def differences(self) -> FloatArray:
        """(n_rows, d_tokens) x_i - x_j."""
        return self.X[self.triples[:, 1]] - self.X[self.triples[:, 2]]

    @property
    def vanish(self) -> BoolArray:
        """(n_rows,) whether rows are zero as they are, and not by underflow."""
        return (self.differences == 0.0).all(axis=1) | (self.Q == 0.0).all(axis=1)[self.triples[:, 0]]

    def apply(self, x: FloatArray) -> FloatArray:
        """(n_rows,) the gaps (x_i - x_j)ᵀ W q_k; differences are taken of tokens, not of logits, which may nearly agree."""
        return self._products.apply(x.reshape(self.X.shape[1], self.Q.shape[1]))

    def combine(self, weights: FloatArray) -> FloatArray:
        """The sum of the rows times `weights` (n_rows,), flattened."""
        some = np.flatnonzero(weights)
        return self._products.combine(weights[some], some).reshape(-1)

    def scaled(self) -> GraphProducts:
        """The same rows with norm one, in as few coordinates of the queries as they need."""
        Q = self.Q
        if len(Q) < Q.shape[1]:
            Q = np.asarray(np.linalg.qr(Q.T, mode="r")).T  # (n_queries, n_queries) with the inner products of Q
        return GraphProducts(self.X, Q, self.triples, self.sizes)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> FloatArray:
        rows = self.differences[:, :, None] * self.Q[self.triples[:, 0]][:, None, :]
        return rows.reshape(self.shape).astype(dtype or np.float64, copy=False)


_COMPILED: dict[str, Any] = {"cache": True, "nogil": True, "fastmath": {"contract", "reassoc"}}
_DEPENDENT = 1e-6  # added to the squared norm of unit rows, some of which may depend on others
_LARGEST_BLOCK = 256  # rows of one last token that the preconditioner treats together


class Terms(NamedTuple):
    """Rows by their tokens: row r is (E[i[r]] - E[j[r]]) Q[k[r]]ᵀ scale[r], ordered by k."""

    E: FloatArray  # (n_tokens, width)
    k: IntArray  # (n_rows,)
    i: IntArray  # (n_rows,)
    j: IntArray  # (n_rows,)
    scale: FloatArray  # (n_rows,)


class GraphProducts:
    """What the large-scale method needs of its rows: products with all or with some of them.

    Args:
        E: (n_tokens, width) and Q: (n_last, width of queries), coordinates of tokens and of last tokens.
        triples: (n_rows, 3) rows (k, i, j) by place in Q and E, ordered by k.
        sizes: (n_rows,) their norms.
    """

    def __init__(self, E: FloatArray, Q: FloatArray, triples: IntArray, sizes: FloatArray) -> None:
        k, i, j = np.ascontiguousarray(triples.T)
        self.terms = Terms(np.ascontiguousarray(E), k, i, j, 1.0 / sizes)
        self.Q = np.ascontiguousarray(Q)
        self.everyone = np.arange(len(triples))
        self.n_products = 0

    def apply(self, W: FloatArray, some: IntArray | None = None) -> FloatArray:
        """(n_some,) inner products of rows with W (width, width of queries)."""
        return self._gaps(self.Q @ W.T, self.everyone if some is None else some)

    def combine(self, weights: FloatArray, some: IntArray) -> FloatArray:
        """(width, width of queries) the sum of some rows times `weights` (n_some,)."""
        return self._pulls(weights, some).T @ self.Q

    def gram(self, weights: FloatArray, some: IntArray) -> FloatArray:
        """(n_some,) the Gram matrix of some rows times `weights` (n_some,)."""
        self.n_products += 1
        return self._gaps(self.Q @ (self.Q.T @ self._pulls(weights, some)), some)

    def formed(self, some: IntArray) -> FloatArray:
        """(n_some, width times width of queries) some rows in full; for a few."""
        E, k, i, j, scale = self.terms
        differences = (E[i[some]] - E[j[some]]) * scale[some, None]
        return (differences[:, :, None] * self.Q[k[some]][:, None, :]).reshape(len(some), -1)

    def preconditioner(self, some: IntArray, shift: float) -> BlockInverse:
        """The inverse of shift + Gram matrix, blind to products of rows with different last tokens."""
        E, k, i, j, scale = self.terms
        ends = np.append(np.flatnonzero(np.diff(k[some])) + 1, len(some))
        starts = np.append(0, ends[:-1])
        pieces = [
            (first, min(int(stop), first + _LARGEST_BLOCK))
            for start, stop in zip(starts, ends, strict=True)
            for first in range(int(start), int(stop), _LARGEST_BLOCK)
        ]
        inverses = []
        for first, stop in pieces:
            here = some[first:stop]
            rows = (E[i[here]] - E[j[here]]) * (scale[here, None] * np.linalg.norm(self.Q[k[here[0]]]))
            block = rows @ rows.T
            block[np.diag_indices_from(block)] += shift + _DEPENDENT
            inverses.append(np.linalg.inv(block).reshape(-1))
        edges = np.array([first for first, _ in pieces] + [len(some)], dtype=np.int64)
        return BlockInverse(edges, np.concatenate(inverses) if inverses else np.empty(0))

    def _pulls(self, weights: FloatArray, some: IntArray) -> FloatArray:
        pulls = np.zeros((len(self.Q), self.terms.E.shape[1]))
        _pull(self.terms, some, weights, pulls)
        return pulls

    def _gaps(self, images: FloatArray, some: IntArray) -> FloatArray:
        gaps = np.empty(len(some))
        _gap(self.terms, some, np.ascontiguousarray(images), gaps)
        return gaps


class BlockInverse(NamedTuple):
    """A block-diagonal matrix: block p acts on the entries edges[p]:edges[p + 1]; all entries lie one after the other."""

    edges: IntArray
    entries: FloatArray

    def times(self, vector: FloatArray) -> FloatArray:
        """The matrix times a vector."""
        out = np.empty_like(vector)
        _times_blocks(self.edges, self.entries, vector, out)
        return out


@njit(**_COMPILED)
def _pull(terms: Terms, some: IntArray, weights: FloatArray, pulls: FloatArray) -> None:
    """Add to pulls[k] the weighted differences of the rows of last token k."""
    E, k, i, j, scale = terms
    for p in range(len(some)):
        r = some[p]
        weight, plus, minus, into = weights[p] * scale[r], E[i[r]], E[j[r]], pulls[k[r]]
        for c in range(E.shape[1]):
            into[c] += weight * (plus[c] - minus[c])


@njit(**_COMPILED)
def _gap(terms: Terms, some: IntArray, images: FloatArray, gaps: FloatArray) -> None:
    """How far the image of k ranks i above j, for every row of `some`."""
    E, k, i, j, scale = terms
    for p in range(len(some)):
        r = some[p]
        plus, minus, image, total = E[i[r]], E[j[r]], images[k[r]], 0.0
        for c in range(E.shape[1]):
            total += (plus[c] - minus[c]) * image[c]
        gaps[p] = total * scale[r]


@njit(**_COMPILED)
def _times_blocks(edges: IntArray, entries: FloatArray, vector: FloatArray, out: FloatArray) -> None:
    place = 0
    for block in range(len(edges) - 1):
        for row in range(edges[block], edges[block + 1]):
            total = 0.0
            for column in range(edges[block], edges[block + 1]):
                total += entries[place] * vector[column]
                place += 1
            out[row] = total
