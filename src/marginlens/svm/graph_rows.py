"""The rows of Graph-SVM, (e_i - e_j) e_kᵀ: as wide as W has entries, and known by their three tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.data.tokens import FloatArray, IntArray
from marginlens.directions import length

_CHUNK = 1 << 22              # entries of embedding differences formed at a time


class GraphRows:
    r"""Rows :math:`a_r = (e_i - e_j)\,e_k^\top` of unknowns W (d_model, d_model), which are never formed.

    Args:
        E: (n_vocabulary, d_model) the embeddings.
        triples: (n_rows, 3) the tokens (k, i, j) of each row, ordered by k.

    `np.asarray(rows)` forms them, (n_rows, d_model²).
    """

    def __init__(self, E: FloatArray, triples: IntArray) -> None:
        self.E, self.triples = E, triples
        self._last, self._starts = np.unique(triples[:, 0], return_index=True)

    def __repr__(self) -> str:
        return f"GraphRows({len(self)} rows, {len(self._last)} last tokens, d={self.E.shape[1]})"

    def __len__(self) -> int:
        return len(self.triples)

    @property
    def shape(self) -> tuple[int, int]:
        """n_rows and d_model²."""
        return len(self), self.E.shape[1] ** 2

    @property
    def sizes(self) -> FloatArray:
        """(n_rows,) the norms ‖e_i - e_j‖ ‖e_k‖."""
        sizes = np.empty(len(self))
        for some in self._chunks():
            sizes[some] = length(self._differences(some))
        return sizes * length(self.E)[self.triples[:, 0]]

    def apply(self, x: FloatArray) -> FloatArray:
        """(n_rows,) the gaps (e_i - e_j)ᵀ W e_k of W, given flattened or not; differences are taken of embeddings, not of logits."""
        d = self.E.shape[1]
        image = np.zeros((len(self.E), d))
        image[self._last] = self.E[self._last] @ x.reshape(d, d).T
        gaps = np.empty(len(self))
        for some in self._chunks():
            gaps[some] = np.einsum("rd,rd->r", self._differences(some), image[self.triples[some, 0]])
        return gaps

    def combine(self, weights: FloatArray) -> FloatArray:
        """(d_model²,) the sum of the rows times `weights` (n_rows,)."""
        d = self.E.shape[1]
        pulls = np.zeros((len(self._last), d))
        for place, (start, stop) in enumerate(zip(self._starts, [*self._starts[1:], len(self)], strict=False)):
            for first in range(start, stop, max(1, _CHUNK // d)):
                some = slice(first, min(stop, first + max(1, _CHUNK // d)))
                pulls[place] += weights[some] @ self._differences(some)
        return (pulls.T @ self.E[self._last]).reshape(-1)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> FloatArray:
        rows = self._differences(slice(None))[:, :, None] * self.E[self.triples[:, 0]][:, None, :]
        return rows.reshape(self.shape).astype(dtype or np.float64, copy=False)

    def _differences(self, some: slice) -> FloatArray:
        return self.E[self.triples[some, 1]] - self.E[self.triples[some, 2]]

    def _chunks(self) -> list[slice]:
        step = max(1, _CHUNK // self.E.shape[1])
        return [slice(first, first + step) for first in range(0, len(self), step)]
