"""Rows (x_i - x_j) q_kᵀ of problems in a matrix W: each is given by a query and two tokens, and never formed."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy

from marginlens import core
from marginlens.arithmetic.directions import length
from marginlens.errors import InputError
from marginlens.result import Described
from marginlens.typing import FloatArray, IntArray

# Norms of x_i - x_j and q_k between which multipliers stay in double precision.
MIN_FACTOR_NORM, MAX_FACTOR_NORM = 1e-50, 1e50
# Matrices this wide, with so small a share of nonzero entries, are multiplied as sparse ones.
_SPARSE_WIDTH, _SPARSE_SHARE = 128, 0.1
# Added to the squared norm of unit rows in the preconditioner, some of which may be dependent.
_BLOCK_SHIFT = 1e-6
# Rows of one query that the preconditioner treats together.
_MAX_BLOCK = 256


class Terms(NamedTuple):
    """The input of the compiled loops: row r is (X[i[r]] - X[j[r]]) Q[k[r]]ᵀ scale[r]."""

    X: FloatArray  # (n_tokens, d_tokens)
    k: IntArray  # (n_rows,)
    i: IntArray  # (n_rows,)
    j: IntArray  # (n_rows,)
    scale: FloatArray  # (n_rows,)


class BilinearRows(Described):
    r"""Rows :math:`a_r = s_r (x_i - x_j)\,q_k^\top` of unknowns W (d_tokens, d_queries), which are never formed.

    Args:
        X: (n_tokens, d_tokens) the tokens.

        Q: (n_queries, d_queries) the queries; in Graph-SVM both are the embeddings.

        triples: (n_rows, 3) query k, token i and token j of each row, ordered by k.

        scale: (n_rows,) the factors s, one by default.

    `np.asarray(rows)` forms them, (n_rows, d_tokens times d_queries).
    """

    quantities = "{self:#} rows, {X.shape[1]} by {Q.shape[1]}"

    def __init__(self, X: FloatArray, Q: FloatArray, triples: IntArray, scale: FloatArray | None = None) -> None:
        self.X, self.Q, self.triples = np.ascontiguousarray(X), np.ascontiguousarray(Q), triples
        k, i, j = np.ascontiguousarray(triples.T)
        self.terms = Terms(self.X, k, i, j, np.ones(len(triples)) if scale is None else scale)
        self.all_rows = np.arange(len(triples))
        # Products with a Gram matrix of rows, so far.
        self.n_products = 0
        self._product_Q = sparse_if_thin(self.Q)

    def __len__(self) -> int:
        return len(self.triples)

    @property
    def parts(self) -> tuple[FloatArray, FloatArray, IntArray, FloatArray]:
        """The arguments that define the rows: X, Q, triples and scale."""
        return self.X, self.Q, self.triples, self.terms.scale

    @property
    def shape(self) -> tuple[int, int]:
        """The shape: n_rows and the number of entries of W."""
        return len(self), self.X.shape[1] * self.Q.shape[1]

    @cached_property
    def row_norms(self) -> FloatArray:
        """The norms (n_rows,); zero only for zero rows."""
        norms = np.empty(len(self))
        core.find_difference_norms(*self.terms, norms)
        return norms * length(self.Q)[self.terms.k]

    def check_range(self, argument: str) -> None:
        """Refuse tokens and queries whose rows or multipliers would leave double precision, by the name of the argument."""
        norms = np.empty(len(self))
        core.find_difference_norms(*self.terms, norms)
        for norm, what in ((norms, "differences of tokens"), (length(self.Q)[self.terms.k], "queries")):
            outside = (norm > 0.0) & ~((norm >= MIN_FACTOR_NORM) & (norm <= MAX_FACTOR_NORM))
            if outside.any():
                expected = f"{what} that are zero or have norms between {MIN_FACTOR_NORM:g} and {MAX_FACTOR_NORM:g}"
                raise InputError(argument, expected, f"{norm[outside][0]:g}", "Rescale it.")

    def take(self, indices: IntArray) -> BilinearRows:
        """Take the rows at increasing `indices`."""
        return BilinearRows(self.X, self.Q, self.triples[indices], self.terms.scale[indices])

    def unit_rows(self) -> BilinearRows:
        """Scale the rows to norm one, in as few coordinates of the queries as they need."""
        Q = self.Q
        if len(Q) < Q.shape[1]:
            # (n_queries, n_queries) with the same inner products as Q.
            Q = np.asarray(np.linalg.qr(Q.T, mode="r")).T
        return BilinearRows(self.X, Q, self.triples, 1.0 / self.row_norms)

    def apply(self, W: FloatArray, indices: IntArray | None = None) -> FloatArray:
        """Compute the inner products (n_indices,) of rows with W from differences of tokens, not of logits, which may nearly agree."""
        W = W.reshape(self.X.shape[1], self.Q.shape[1])
        return self._inner_products(np.asarray(self._product_Q @ W.T), indices)

    def combine(self, weights: FloatArray, indices: IntArray | None = None) -> FloatArray:
        """Compute the sum (d_tokens, d_queries) of rows times `weights` (n_indices,)."""
        return np.asarray((self._product_Q.T @ self.query_sums(weights, indices)).T)

    def gram_product(self, weights: FloatArray, indices: IntArray) -> FloatArray:
        """Compute the Gram matrix of rows times `weights` (n_indices,): (n_indices,)."""
        self.n_products += 1
        return self._inner_products(self.Q @ (self.Q.T @ self.query_sums(weights, indices)), indices)

    def query_sums(self, weights: FloatArray, indices: IntArray | None = None) -> FloatArray:
        """Sum weights times x_i - x_j over the rows of each query: (n_queries, d_tokens)."""
        sums = np.zeros((len(self.Q), self.X.shape[1]))
        chosen = self.all_rows if indices is None else indices
        core.add_weighted_differences(*self.terms, chosen, weights, sums)
        return sums

    def differences(self, indices: IntArray) -> FloatArray:
        """Compute the scaled x_i - x_j of rows: (n_indices, d_tokens)."""
        X, _, i, j, scale = self.terms
        return (X[i[indices]] - X[j[indices]]) * scale[indices, None]

    def formed(self, indices: IntArray) -> FloatArray:
        """Form a few rows in full: (n_indices, d_tokens times d_queries)."""
        rows = self.differences(indices)[:, :, None] * self.Q[self.terms.k[indices]][:, None, :]
        return rows.reshape(len(indices), self.shape[1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> FloatArray:
        return self.formed(self.all_rows).astype(dtype or np.float64, copy=False)

    def preconditioner(self, indices: IntArray, shift: float) -> BlockInverse:
        """Invert shift + Gram matrix of rows, ignoring products of rows with different queries."""
        k = self.terms.k[indices]
        ends = np.append(np.flatnonzero(np.diff(k)) + 1, len(indices))
        starts = np.append(0, ends[:-1])
        blocks = [
            (first, min(int(stop), first + _MAX_BLOCK))
            for start, stop in zip(starts, ends, strict=True)
            for first in range(int(start), int(stop), _MAX_BLOCK)
        ]
        inverses = []
        for first, stop in blocks:
            rows = self.differences(indices[first:stop]) * np.linalg.norm(self.Q[k[first]])
            block = rows @ rows.T
            block[np.diag_indices_from(block)] += shift + _BLOCK_SHIFT
            inverses.append(np.linalg.inv(block).reshape(-1))
        edges = np.array([first for first, _ in blocks] + [len(indices)], dtype=np.int64)
        return BlockInverse(edges, np.concatenate(inverses) if inverses else np.empty(0))

    def _inner_products(self, images: FloatArray, indices: IntArray | None) -> FloatArray:
        """Compute the scaled (x_i - x_j) · images[k]: (n_indices,)."""
        indices = self.all_rows if indices is None else indices
        products = np.empty(len(indices))
        core.multiply_differences(*self.terms, indices, images, products)
        return products


class BlockInverse(NamedTuple):
    """A block-diagonal matrix: block p acts on the entries edges[p]:edges[p + 1]; the entries of all blocks are stored consecutively."""

    edges: IntArray
    entries: FloatArray

    def times(self, vector: FloatArray) -> FloatArray:
        """Multiply the matrix by a vector."""
        out = np.empty_like(vector)
        core.multiply_blocks(self.edges, self.entries, vector, out)
        return out


def sparse_if_thin(matrix: FloatArray) -> Any:
    """Convert `matrix` to a sparse one if it is wide and mostly zeros, as one-hot embeddings are."""
    thin = matrix.shape[1] >= _SPARSE_WIDTH and np.count_nonzero(matrix) <= _SPARSE_SHARE * matrix.size
    return scipy.sparse.csr_array(matrix) if thin else matrix
