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
from marginlens.kernels.blocks import (
    arrange,
    centred_columns,
    close,
    combine,
    dot_and_size,
    gram_matrix,
    inner_products,
    largest_modulus,
    n_places,
    square_of,
    subtract,
)
from marginlens.kernels.lanes import pointer
from marginlens.kernels.linalg import COMPILED, all_finite, norm
from marginlens.risk.kernels.gradient_coefficients import ROOM_PER_LANE, block_weights
from marginlens.runtime.compilation import njit
from marginlens.runtime.progress import ProgressCallback
from marginlens.runtime.threads import Work, in_slices
from marginlens.typing import FloatArray, IntArray

_RESYNC = 64  # steps after which accumulated logits are computed afresh
N_VECTORS = 9  # that a problem needs beside keys and Gram matrix
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
        carried: arrays that are read and filled: states (batch, d or n_places), logits (batch, n_places), how each run ended and the
            steps it has taken (batch, 2), and room for a Gram matrix (n_places²,) that serves several calls on one problem, with one
            number that says whether it is filled; or (0,), then it is made anew.
        out: (batch, n_saved, d) p at the kept steps.
    """
    keys, states, logits, gram = problems[0], carried[0], carried[1], carried[3]
    T, d, m = keys.shape[2], keys.shape[3], logits.shape[1]
    columns, vectors = np.zeros(d * m), np.empty((N_VECTORS, max(d, m, ROOM_PER_LANE * (m // T))))
    if states.shape[1] < m:
        gains = columns
    elif gram.shape[0] > 0:
        gains = gram
    else:
        gains = np.empty(m * m)
    for b in range(first, last):
        _descend_problem(b, problems, start, rule, save, carried, (columns, gains, vectors), out)


@njit(**COMPILED)
def _descend_problem(
    b: int, problems: Any, start: Any, rule: Any, save: Any, carried: Any, work: Any, out: Any
) -> None:
    """The same for problem b, in arrays that serve one problem after the other: keys, their Gram matrix, and vectors."""
    keys, scores, lengths = problems
    states, logits, ends, gram, filled = carried
    columns, gains, vectors = work
    normalized, eta, code, n_steps, stop = rule
    j, (n, T, d), m, width = b % keys.shape[0], keys.shape[1:], logits.shape[1], states.shape[1]
    in_keys = width < m
    origin, first_logits, scored, state, a = vectors[0], vectors[1], vectors[2], states[b], logits[b]
    centred_columns(keys[j], lengths[j], columns)
    unit = _key_unit(columns, start[b], eta) if normalized else 1.0
    from_zero = True
    for k in range(d):
        origin[k] = start[b, k] * unit  # of normalised descent on unit p, with keys in units
        from_zero = from_zero and origin[k] == 0.0
    if unit != 1.0:
        for k in range(d * m):
            columns[k] /= unit
    if from_zero:
        for k in range(m):
            first_logits[k] = 0.0
    else:
        combine(pointer(columns), d, m, pointer(origin), pointer(first_logits))
    close(lengths[j], T, m, first_logits)
    if ends[b, 1] == 0:
        for k in range(width):
            state[k] = origin[k] if in_keys else 0.0
        for k in range(m):
            a[k] = first_logits[k]
        ends[b, 0] = RAN_ALL if all_finite(a) else NON_FINITE
    at = (pointer(columns), pointer(origin), d, m, in_keys, unit)
    if ends[b, 0] == RAN_ALL:
        arrange(scores[j], lengths[j], scored)
        if in_keys:
            for k in range(m):
                first_logits[k] = 0.0
            close(lengths[j], T, m, first_logits)
        elif gram.shape[0] == 0 or filled[0] == 0:
            gram_matrix(pointer(columns), d, m, pointer(gains))
            filled[0] = 1
        problem = (pointer(gains), pointer(scored), pointer(first_logits), n, T)
        scaled = (normalized, eta * unit, code)
        room = (pointer(state), pointer(a), pointer(vectors[3]), pointer(vectors[4]), pointer(vectors[5]))
        more = (pointer(vectors[6]), pointer(vectors[7]), pointer(vectors[8]))
        ends[b, 0], ends[b, 1] = _take_steps(at, problem, scaled, ends[b, 1], stop, save, room, more, out[b])
    if ends[b, 0] != RAN_ALL or ends[b, 1] == n_steps:
        for k in range(save.shape[0]):
            if save[k] >= ends[b, 1]:
                _write(at, pointer(state), pointer(out[b, k]))


@njit(**COMPILED)
def _take_steps(
    at: Any, problem: Any, rule: Any, taken: int, stop: int, save: Any, state_and_logits: Any, room: Any, out: Any
) -> Any:
    """Steps `taken` … `stop` - 1 of one problem, which move `state` and the logits `a`; returns how it ended and the steps taken.

    Args:
        at: keys (d rows of places), start, d, number of places, whether states are points, and the unit of the keys.
        problem: the matrix that turns states into changes of logits (keys or their Gram matrix), scores, the logits of the state zero,
            and the numbers of inputs and of tokens.
        rule: (normalized, step size, loss code).
    """
    columns, _, d, m, in_keys, _ = at
    gains, scores, first_logits, n, T = problem
    normalized, eta, code = rule
    state, a, state_next, a_next, gradient = state_and_logits
    w, h, slopes = room
    width = d if in_keys else m
    for k in range(ROOM_PER_LANE * (m // T)):
        slopes[k] = np.nan
    saved = 0
    while saved < save.shape[0] and save[saved] < taken:
        saved += 1
    status, step = RAN_ALL, taken
    while step < stop:
        while saved < save.shape[0] and save[saved] == step:
            _write(at, state, pointer(out[saved]))
            saved += 1
        log_scale = block_weights(a, scores, n, T, code, slopes, w)
        if in_keys:
            inner_products(columns, d, m, w, gradient)
            combine(columns, d, m, gradient, h)
            square, size = square_of(gradient, d), 0.0
        else:
            combine(gains, m, m, w, h)
            square, size = dot_and_size(w, h, m)
        if square > 1e-6 * size and 1e-280 < square < 1e280:
            reach = math.sqrt(square)
        elif normalized or not square > 0.0:  # the Gram matrix has cancelled
            reach = _norm_of_combination(columns, d, m, w)
        else:
            reach = 1.0
        if reach == 0.0:
            status = STATIONARY
            break
        move = eta / reach if normalized else eta * math.exp(log_scale) / n
        finite = subtract(state, move, gradient if in_keys else w, width, state_next)
        if (step + 1) % _RESYNC == 0:
            combine(gains, width, m, state_next, a_next)
            finite = subtract(first_logits, -1.0, a_next, m, a_next) and finite
        else:
            finite = subtract(a, move, h, m, a_next) and finite
        if not finite:
            status = NON_FINITE
            break
        state, state_next = state_next, state
        a, a_next = a_next, a
        step += 1
    if (step - taken) % 2 == 1:  # the caller's arrays are the next ones now
        for k in range(width):
            state_next[k] = state[k]
        for k in range(m):
            a_next[k] = a[k]
    return status, step


@njit(**COMPILED)
def _norm_of_combination(columns: Any, d: int, m: int, w: Any) -> float:
    """The length of Σ w_k k_k, from the keys."""
    gradient = np.empty(d)
    inner_products(columns, d, m, w, pointer(gradient))
    return norm(gradient)


@njit(**COMPILED)
def _write(at: Any, state: Any, out: Any) -> None:
    """p of a state, in the caller's units, written into `out` (d,)."""
    columns, start, d, m, in_keys, unit = at
    if in_keys:
        for k in range(d):
            out[k] = state[k] / unit
        return
    inner_products(columns, d, m, state, out)
    for k in range(d):
        out[k] = (out[k] + start[k]) / unit


@njit(**COMPILED)
def _key_unit(columns: Any, start: Any, eta: float) -> float:
    """The power of two next to the largest entry of extreme keys; 1 for others, and where scaling would round start or step."""
    size = largest_modulus(pointer(columns), columns.shape[0])
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
        start: (batch, d_key). states: (batch, d_key) p, or (batch, n_places) its coefficients over the keys. logits: (batch, n_places),
            in the order of `marginlens.kernels.blocks`.
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
            descend_problems(first, last, arrays, state.start, (*rule, begin + high), save, carried, points)
            if high == end - begin:
                del grams[first]

        cost = n_rows * (2.0 * min(2 * batch.d_key, n_rows) + 40.0)
        in_slices(advance, Work(len(batch), end - begin, cost), progress)
        return points
