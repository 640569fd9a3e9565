"""The rows of Graph-SVM, (e_i - e_j) e_kᵀ: as wide as W has entries, and known by their three tokens."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.sparse import coo_array, csr_array

from marginlens.data.tokens import BoolArray, FloatArray, IntArray
from marginlens.directions import length

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
