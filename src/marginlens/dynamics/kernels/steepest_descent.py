"""Descent by every optimizer but the plain Euclidean two, on p and on W, by the compiled loop of `core/steepest_descent.h`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from marginlens import core
from marginlens.data.tokens import TokenDataset
from marginlens.optimizers.compiled import MIRROR, Rule
from marginlens.optimizers.schedules import sizes_of
from marginlens.runtime.progress import ProgressCallback
from marginlens.runtime.threads import Work, in_slices
from marginlens.typing import FloatArray, IntArray

N_WINDOWS = 2  # the present one and the one before
CROSS_ENTROPY = 3  # the code of a classifier's loss


@dataclass
class MatrixState:
    """Where a batch of descents stands, with all that the next step depends on.

    Attributes:
        points: (batch, d_query, d) W. logits: (batch, n_rows). ends: (batch, 2) how each run ended and after how many steps.
        memory: (batch, 2, max(d_query, n_terms), d) running sums, means or the mirror image. scales: (batch, n_terms) their logarithms.
        residuals: (batch, 2, n_rows) weights of the tokens, summed up since the last power of two among the steps and over the window
            before that. anchors: (batch, 2, d_query, d) W at the beginning of either window.
    """

    points: FloatArray
    logits: FloatArray
    memory: FloatArray
    scales: FloatArray
    residuals: FloatArray
    anchors: FloatArray
    ends: IntArray

    def copy(self) -> MatrixState:
        """The same in arrays of its own."""
        return MatrixState(*(np.array(array) for array in self.arrays))

    @property
    def arrays(self) -> tuple[Any, ...]:
        """All of them, as the kernel takes them."""
        return (self.points, self.logits, self.memory, self.scales, self.residuals, self.anchors, self.ends)


@dataclass(frozen=True, eq=False)
class MatrixLoop:
    """Compiled descent on p or W for a linear head and a loss with a code.

    Attributes:
        batch: the problems. head: (d_model,) or (batch, d_model). code: of the loss. rule: of the optimizer.
        queries: (n_terms, d_query) or (batch, n_terms, d_query), n_terms being 1 for a query that all inputs share, or n_inputs; None on p.
    """

    batch: TokenDataset
    head: Any
    code: int
    rule: Rule
    queries: FloatArray | None = None

    def begin(self, start: FloatArray) -> MatrixState:
        """The state before the first step, from `start` (batch, d_query, d), or (batch, d) of p."""
        batch, queries = self.batch, self._queries
        count, n_rows, d = len(batch), batch.n_inputs * batch.n_tokens, batch.d_key
        n_terms, d_query = queries.shape[-2:]
        points = np.array(start, dtype=np.float64).reshape(count, d_query, d)
        memory = np.zeros((count, 2, max(d_query, n_terms), d))
        if self.rule.kind == MIRROR:
            memory[:, 0, :d_query] = np.sign(points) * np.abs(points) ** (self.rule.settings[6] - 1.0)
        return MatrixState(
            points,
            np.empty((count, n_rows)),
            memory,
            np.full((count, n_terms), -np.inf),
            np.zeros((count, N_WINDOWS, n_rows)),
            np.zeros((count, N_WINDOWS, d_query, d)),
            np.zeros((count, 2), dtype=np.int64),
        )

    @property
    def _queries(self) -> FloatArray:
        return np.ones((1, 1)) if self.queries is None else self.queries

    def advance(
        self, state: MatrixState, span: tuple[int, int], save: IntArray, progress: ProgressCallback | None
    ) -> FloatArray:
        """Take the steps of `span`; the points after the steps `save`, (batch, n_saved, *shape)."""
        batch, queries, (begin, end) = self.batch, self._queries, span
        shared = batch.is_repeated and np.ndim(self.head) == 1 and queries.ndim == 2  # many starts on one problem
        problems = batch[0].as_batch() if shared else batch
        scores = np.where(problems.mask, problems.finite_scores(self.head), 0.0)
        arrays = (
            np.ascontiguousarray(problems.K),
            np.ascontiguousarray(scores),
            np.ascontiguousarray(problems.lengths),
            np.array(np.broadcast_to(queries, (len(problems), *queries.shape[-2:])), order="C"),
        )
        sizes = sizes_of(self.rule.size, begin, end)
        rule = (self.rule.kind, self.rule.norm_code, self.code, self.rule.settings, sizes, begin, end)
        d_query = queries.shape[-1]
        points = np.empty((len(batch), len(save), d_query, batch.d_key))

        def advance(first: int, last: int, low: int, high: int) -> None:
            core.descend_matrices(first, last, *arrays, *rule, begin + high, save, *state.arrays, points)

        n_rows, entries = batch.n_inputs * batch.n_tokens, d_query * batch.d_key
        in_slices(
            advance, Work(len(batch), end - begin, n_rows * (4.0 * batch.d_key + 40.0) + 50.0 * entries), progress
        )
        return points[:, :, 0] if self.queries is None else points


@dataclass(frozen=True, eq=False)
class ClassifierLoop:
    """Descent on a linear classifier (n_classes, d) under cross-entropy, whose transpose is the W of inputs with classes for tokens.

    Attributes:
        H: (n_points, d) the points, in place of queries. classes: (n_points,). n_classes: their number. rule: of the optimizer.
    """

    H: FloatArray
    classes: IntArray
    n_classes: int
    rule: Rule

    @cached_property
    def transposed(self) -> MatrixLoop:
        """The loop on the transpose."""
        right = np.eye(self.n_classes)[self.classes][
            ..., None
        ]  # (n_points, n_classes, 1), of which the head makes scores
        keys = np.broadcast_to(np.eye(self.n_classes), (len(self.H), self.n_classes, self.n_classes))
        inputs = TokenDataset(right, np.ones(len(self.H)), K=keys).as_batch()
        return MatrixLoop(inputs, np.ones(1), CROSS_ENTROPY, self.rule, self.H)

    def begin(self, start: FloatArray) -> MatrixState:
        """The state before the first step."""
        return self.transposed.begin(np.ascontiguousarray(np.swapaxes(start, -1, -2)))

    def advance(
        self, state: MatrixState, span: tuple[int, int], save: IntArray, progress: ProgressCallback | None
    ) -> FloatArray:
        """Take the steps of `span`; the classifiers after the steps `save`, (batch, n_saved, n_classes, d)."""
        return np.ascontiguousarray(np.swapaxes(self.transposed.advance(state, span, save, progress), -1, -2))
