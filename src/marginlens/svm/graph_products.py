"""Products with the rows (e_i - e_j) q_kᵀ of one group of last tokens, for rows of norm one that are never formed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marginlens.data.tokens import FloatArray, IntArray
from marginlens.runtime.compilation import njit

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
