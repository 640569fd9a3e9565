"""Gradient descent on p by the compiled loop of `core/attention_descent.h`, in slices that can be interrupted and resumed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens import core
from marginlens.data.tokens import TokenDataset
from marginlens.runtime.progress import ProgressCallback
from marginlens.runtime.threads import Work, in_slices
from marginlens.typing import FloatArray, IntArray

N_LANES = 4  # inputs that the core takes at a time


def n_places(n_inputs: int, n_tokens: int) -> int:
    """How many places the tokens of a problem take in the core, see `core/places.h`."""
    return -(-n_inputs // N_LANES) * N_LANES * n_tokens


def moves_in_keys(n_rows: int, d: int) -> bool:
    """Whether the state of a descent is p itself, (d,), and not its coefficients over the rows, (n_rows,)."""
    return 2 * d <= n_rows


@dataclass
class AttentionState:
    """Where a batch of descents stands, with all that the next step depends on.

    Attributes:
        start: (batch, d_key). states: (batch, d_key) p, or (batch, n_places) its coefficients over the keys. logits: (batch, n_places),
            in the order of `core/places.h`.
        ends: (batch, 2) how each run ended and after how many steps.
    """

    start: FloatArray
    states: FloatArray
    logits: FloatArray
    ends: IntArray

    def copy(self) -> AttentionState:
        """The same in arrays of its own."""
        return AttentionState(self.start, self.states.copy(), self.logits.copy(), self.ends.copy())


@dataclass(frozen=True, eq=False)
class AttentionLoop:
    """Compiled descent on p for a linear head and a loss with a code.

    Attributes:
        batch: the problems. head: (d_model,) or (batch, d_model). normalized, size: the step rule. code: of the loss.
    """

    batch: TokenDataset
    head: Any
    normalized: bool
    size: float
    code: int

    def begin(self, start: FloatArray) -> AttentionState:
        """The state before the first step, which fills it."""
        batch, places = self.batch, n_places(self.batch.n_inputs, self.batch.n_tokens)
        width = batch.d_key if moves_in_keys(batch.n_inputs * batch.n_tokens, batch.d_key) else places
        count = len(batch)
        return AttentionState(
            start, np.empty((count, width)), np.empty((count, places)), np.zeros((count, 2), dtype=np.int64)
        )

    def advance(
        self, state: AttentionState, span: tuple[int, int], save: IntArray, progress: ProgressCallback | None
    ) -> FloatArray:
        """Take the steps of `span`; p after the steps `save`, (batch, n_saved, d_key)."""
        batch, (begin, end) = self.batch, span
        shared = batch.is_repeated and np.ndim(self.head) == 1  # many starts on one problem
        problems = batch[0].as_batch() if shared else batch
        scores = np.where(problems.mask, problems.finite_scores(self.head), 0.0)
        arrays = (np.ascontiguousarray(problems.K), scores, np.ascontiguousarray(problems.lengths))
        points = np.empty((len(batch), len(save), batch.d_key))
        n_rows = batch.n_inputs * batch.n_tokens
        rule = (self.normalized, self.size, self.code, end)
        grams: dict[int, tuple[FloatArray, IntArray]] = {}  # of problems that take several slices

        def advance(first: int, last: int, low: int, high: int) -> None:
            whole = (low, high) == (0, end - begin)
            size = 0 if whole or moves_in_keys(n_rows, batch.d_key) else state.logits.shape[1]
            gram = grams.setdefault(first, (np.empty(size * size), np.zeros(1, dtype=np.int64)))
            carried = (state.states, state.logits, state.ends, *gram)
            core.descend_attention(first, last, *arrays, state.start, *rule, begin + high, save, *carried, points)
            if high == end - begin:
                del grams[first]

        cost = n_rows * (2.0 * min(2 * batch.d_key, n_rows) + 40.0)
        in_slices(advance, Work(len(batch), end - begin, cost), progress)
        return points
