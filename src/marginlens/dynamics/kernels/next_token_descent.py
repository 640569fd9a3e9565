"""Descent on W by the compiled loop of `core/next_token_descent.h`, in slices that can be interrupted and resumed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marginlens import core
from marginlens.dynamics.kernels.attention_descent import n_places
from marginlens.risk.next_token import NextTokenRisk, loss_code, needs_whole_heads
from marginlens.runtime.progress import ProgressCallback
from marginlens.runtime.threads import Work, in_slices
from marginlens.typing import FloatArray, IntArray


def moves_in_weights(n_pairs: int, n_queries: int, d: int) -> bool:
    """Whether the state of a descent is W, or a vector for each query if there are fewer than 2 d, and not coefficients over the pairs.

    By the time of a step in units of one product in a Gram matrix, as measured: a pair costs 1.5 d + 30, a query .75 d² + 300.
    """
    return 6 * n_pairs * (d + 20) + 3 * n_queries * (d * d + 400) < 4 * n_pairs * n_pairs


@dataclass
class NextTokenState:
    """Where a batch of descents stands, with all that the next step depends on.

    Attributes:
        start: (batch, d_model, d_model). states: of all problems one after the other, see `core/next_token_descent.h`.
        offsets: (batch + 1,) where each problem's state begins. logits: of all pairs. scales: (batch,) logarithms of the last weights'
            scales. ends: (batch, 2) how each run ended and after how many steps.
    """

    start: FloatArray
    states: FloatArray
    offsets: IntArray
    logits: FloatArray
    scales: FloatArray
    ends: IntArray

    def copy(self) -> NextTokenState:
        """The same in arrays of its own."""
        states, logits, scales = self.states.copy(), self.logits.copy(), self.scales.copy()
        return NextTokenState(self.start, states, self.offsets, logits, scales, self.ends.copy())


@dataclass(frozen=True, eq=False)
class NextTokenLoop:
    """Compiled descent on W for a loss with a code.

    Attributes:
        risk: the problems. normalized, size: the step rule.
    """

    risk: NextTokenRisk
    normalized: bool
    size: float

    def begin(self, start: FloatArray) -> NextTokenState:
        """The state before the first step, which fills it."""
        batch = self.risk.batch
        d = batch.d_model
        wide = [d * (queries if queries < 2 * d else d) for _, queries in self._sizes]
        widths = [
            width if moves_in_weights(pairs, queries, d) else pairs
            for width, (pairs, queries) in zip(wide, self._sizes, strict=True)
        ]
        offsets = np.concatenate([[0], np.cumsum(widths)]).astype(np.int64)
        ends = np.zeros((len(batch), 2), dtype=np.int64)
        return NextTokenState(
            start, np.empty(offsets[-1]), offsets, np.empty(len(batch.keys)), np.zeros(len(batch)), ends
        )

    @property
    def _sizes(self) -> list[list[int]]:
        """Pairs and queries of each problem."""
        sizes: list[list[int]] = np.diff(self.risk.batch.parts[:, :2], axis=0).tolist()
        return sizes

    def advance(
        self, state: NextTokenState, span: tuple[int, int], save: IntArray, progress: ProgressCallback | None
    ) -> FloatArray:
        """Take the steps of `span`; W after the steps `save`, (batch, n_saved, d_model, d_model)."""
        risk, batch, (begin, end) = self.risk, self.risk.batch, span
        d, sizes = batch.d_model, self._sizes
        points = np.empty((len(batch), len(save), d, d))
        rule = (self.normalized, self.size, loss_code(risk.loss, risk.heads, batch), end)
        embeddings, entries, heads, parts = batch.packed(risk.heads, needs_whole_heads(risk.loss))
        problems = (*embeddings, *entries, heads, parts)
        grams: dict[int, tuple[FloatArray, IntArray]] = {}  # of problems that take several slices

        def advance(first: int, last: int, low: int, high: int) -> None:
            whole = (low, high) == (0, end - begin)
            size = 0 if whole or moves_in_weights(sizes[first][0], sizes[first][1], d) else sizes[first][0]
            gram = grams.setdefault(first, (np.empty(size * n_places(size, 1)), np.zeros(1, dtype=np.int64)))
            carried = (state.states, state.offsets, state.logits, state.scales, state.ends, *gram)
            core.descend_next_tokens(first, last, *problems, state.start, *rule, begin + high, save, *carried, points)
            if high == end - begin:
                del grams[first]

        pairs = max(m for m, _ in sizes)
        queries = max(q for _, q in sizes)
        product = 2.0 * d * (pairs + queries * d) if moves_in_weights(pairs, queries, d) else float(pairs * pairs)
        cost = 2.0 * product + 20.0 * len(batch.reduced.tokens) / len(batch)
        in_slices(advance, Work(len(batch), end - begin, cost), progress)
        return points
