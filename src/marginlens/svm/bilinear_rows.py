"""The rows (x_i - x_j) q_kᵀ of problems in a matrix W: as wide as W has entries, and known by a query and two tokens."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from marginlens.data.tokens import BoolArray, FloatArray, IntArray
from marginlens.directions import length
from marginlens.svm.graph_products import GraphProducts


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
