"""The compiled loop: gradient descent on p for one problem at a time, exact at any norm, cost per step independent of d.

Three facts carry it. Gradients are formed pairwise, so nothing cancels when the softmax saturates. Weights that would underflow are
formed from logarithms relative to the largest. And p moves in the span of the keys, so the state is either p itself (when d is small)
or its coefficients over the n·T keys with the Gram matrix standing in for the keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.data.tokens import TokenDataset
from marginlens.dynamics.kernels import NON_FINITE, RAN_ALL, STATIONARY
from marginlens.kernels.linalg import COMPILED, all_finite, centred, dot, dot_and_size, matvec, max_abs, norm
from marginlens.risk.kernels.gradient_coefficients import pair_weights
from marginlens.runtime.compilation import njit
from marginlens.runtime.progress import ProgressCallback
from marginlens.runtime.threads import Work, in_slices
from marginlens.typing import FloatArray, IntArray

_RESYNC = 64  # steps after which accumulated logits are computed afresh
_EXTREME = 1e60  # keys beyond, or whose inverses are, are rescaled, so that no product of two keys and a weight leaves the range


def moves_in_keys(n_rows: int, d: int) -> bool:
    """Whether the state of a descent is p itself, (d,), and not its coefficients over the rows, (n_rows,)."""
    return 2 * d <= n_rows


@njit(**COMPILED)
def descend_problems(
    first: int, last: int, problems: Any, start: Any, rule: Any, save: Any, carried: Any, out: Any
) -> None:
    """Take steps of problems first … last - 1, from where `carried` says they are.

    Slices are assigned entry by entry here and below: assigning them whole takes seconds to compile.

    Args:
        problems: keys (batch, n_inputs, n_tokens, d), scores and lengths; or (1, …) of each for one problem shared by all starts.
        start: (batch, d).
        rule: (normalized, step size, loss code, number of steps, number of the step to stop before).
        save: increasing steps after which p is kept.
        carried: arrays that are read and filled: states (batch, d or n_rows), logits (batch, n_rows), how each run ended and the steps
            it has taken (batch, 2), and room for a Gram matrix (n_rows, n_rows) that serves several calls on one problem, with one
            number that says whether it is filled; or (0, 0), then it is made anew.
        out: (batch, n_saved, d) p at the kept steps.
    """
    keys, scores, lengths = problems
    states, logits, ends, gram, filled = carried
    n_steps, stop = rule[3], rule[4]
    for b in range(first, last):
        j = b % keys.shape[0]
        rows = centred(keys[j], lengths[j])
        m, d = rows.shape
        unit = _key_unit(rows, start[b], rule[1]) if rule[0] else 1.0
        origin = np.empty(d)
        for k in range(d):
            origin[k] = start[b, k] * unit  # of normalised descent on unit p, with keys in units
        if unit != 1.0:
            for i in range(m):
                for k in range(d):
                    rows[i, k] /= unit
        columns = np.empty((d, m))
        for i in range(m):
            for k in range(d):
                columns[k, i] = rows[i, k]
        state, a = states[b], logits[b]
        if ends[b, 1] == 0:
            matvec(rows, origin, a)
            for k in range(state.shape[0]):
                state[k] = origin[k] if state.shape[0] == d and 2 * d <= m else 0.0
            ends[b, 0] = RAN_ALL if all_finite(a) else NON_FINITE
        if ends[b, 0] == RAN_ALL:
            if 2 * d <= m:
                spread = rows
            elif gram.shape[0] == 0:
                spread = np.dot(rows, columns)
            else:
                spread = gram
                if filled[0] == 0:
                    made = np.dot(rows, columns)
                    for i in range(m):
                        for k in range(m):
                            gram[i, k] = made[i, k]
                    filled[0] = 1
            scaled = (rule[0], rule[1] * unit, rule[2], unit)
            ends[b, 0], ends[b, 1] = _take_steps(
                rows, columns, spread, scores[j], lengths[j], origin, scaled, stop, save, ends[b, 1], state, a, out[b]
            )
        if ends[b, 0] != RAN_ALL or ends[b, 1] == n_steps:
            for k in range(save.shape[0]):
                if save[k] >= ends[b, 1]:
                    _write(columns, origin, state, unit, out[b, k])


@njit(**COMPILED)
def _take_steps(
    rows: Any,
    columns: Any,
    spread: Any,
    scores: Any,
    lengths: Any,
    start: Any,
    rule: Any,
    stop: int,
    save: Any,
    taken: int,
    state: Any,
    a: Any,
    out: Any,
) -> Any:
    """Steps `taken` … `stop` - 1 of one problem, which move `state` and the logits `a`; returns how it ended and the steps taken."""
    normalized, eta, code, unit = rule
    m, d = rows.shape
    in_keys = 2 * d <= m
    first = np.zeros(m)  # logits = first + spread state
    if not in_keys:
        matvec(rows, start, first)
    w, h, gradient = np.zeros(m), np.zeros(m), np.zeros(d)
    a_next, state_next = np.empty(m), np.empty(state.shape[0])
    saved = 0
    while saved < save.shape[0] and save[saved] < taken:
        saved += 1
    for step in range(taken, stop):
        while saved < save.shape[0] and save[saved] == step:
            _write(columns, start, state, unit, out[saved])
            saved += 1
        log_scale = pair_weights(a, scores, lengths, code, w)
        if in_keys:
            matvec(columns, w, gradient)
            matvec(rows, gradient, h)
            direction, square, size = gradient, dot(gradient, gradient), 0.0
        else:
            matvec(spread, w, h)
            direction = w
            square, size = dot_and_size(w, h)
        if square > 1e-6 * size and 1e-280 < square < 1e280:
            reach = math.sqrt(square)
        elif normalized or not square > 0.0:  # the Gram matrix has cancelled
            matvec(columns, w, gradient)
            reach = norm(gradient)
        else:
            reach = 1.0
        if reach == 0.0:
            return STATIONARY, step
        move = eta / reach if normalized else eta * math.exp(log_scale) / scores.shape[0]
        for k in range(state.shape[0]):
            state_next[k] = state[k] - move * direction[k]
        if (step + 1) % _RESYNC == 0:
            matvec(spread, state_next, a_next)
            for k in range(m):
                a_next[k] += first[k]
        else:
            for k in range(m):
                a_next[k] = a[k] - move * h[k]
        if not (all_finite(a_next) and all_finite(state_next)):
            return NON_FINITE, step
        for k in range(m):
            a[k] = a_next[k]
        for k in range(state.shape[0]):
            state[k] = state_next[k]
    return RAN_ALL, stop


@njit(**COMPILED)
def _write(columns: Any, start: Any, state: Any, unit: float, out: Any) -> None:
    """p of a state, in the caller's units, written into `out` (d,)."""
    d, m = columns.shape
    if 2 * d <= m:
        for k in range(d):
            out[k] = state[k] / unit
        return
    matvec(columns, state, out)
    for k in range(d):
        out[k] = (out[k] + start[k]) / unit


@njit(**COMPILED)
def _key_unit(rows: Any, start: Any, eta: float) -> float:
    """The power of two next to the largest entry of extreme keys; 1 for others, and where scaling would round start or step."""
    size = max_abs(rows)
    if size == 0.0 or not math.isfinite(size) or 1.0 / _EXTREME < size < _EXTREME:
        return 1.0
    unit = 2.0 ** min(max(math.floor(math.log2(size)), -1022), 1022)
    exact = eta * unit / unit == eta
    for k in range(start.shape[0]):
        exact = exact and start[k] * unit / unit == start[k]
    return unit if exact else 1.0


# ---- the loop as descent calls it


@dataclass
class AttentionState:
    """Where a batch of descents stands, with all that the next step depends on.

    Attributes:
        start: (batch, d_key). states: (batch, d_key) p, or (batch, n_rows) its coefficients over the keys. logits: (batch, n_rows).
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
        n_rows = self.batch.n_inputs * self.batch.n_tokens
        width = self.batch.d_key if moves_in_keys(n_rows, self.batch.d_key) else n_rows
        count = len(self.batch)
        return AttentionState(
            start, np.empty((count, width)), np.empty((count, n_rows)), np.zeros((count, 2), dtype=np.int64)
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
            size = 0 if whole or moves_in_keys(n_rows, batch.d_key) else n_rows
            gram = grams.setdefault(first, (np.empty((size, size)), np.zeros(1, dtype=np.int64)))
            carried = (state.states, state.logits, state.ends, *gram)
            descend_problems(first, last, arrays, state.start, (*rule, begin + high), save, carried, points)
            if high == end - begin:
                del grams[first]

        cost = n_rows * (2.0 * min(2 * batch.d_key, n_rows) + 40.0)
        in_slices(advance, Work(len(batch), end - begin, cost), progress)
        return points
