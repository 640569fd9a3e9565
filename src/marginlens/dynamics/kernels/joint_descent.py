"""The compiled loop: descent on head and attention weights at once, for one problem at a time, exact at any norm of either.

The weights of p are those of `pair_weights` with scores recomputed from v at every step. The gradient of v is a sum of attention outputs
weighted by the loss's slopes; it is formed from their logarithms relative to the largest, so it stays exact when every input is
classified with a margin of ten thousand. Both live in their own spaces: joint training is meant for few, short inputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.data.tokens import TokenDataset
from marginlens.dynamics.kernels import NON_FINITE, RAN_ALL, STATIONARY
from marginlens.kernels.linalg import COMPILED, all_finite, centred, matvec, norm
from marginlens.risk.kernels.gradient_coefficients import largest_of, log_slope, pair_weights
from marginlens.runtime.compilation import njit
from marginlens.runtime.progress import ProgressCallback
from marginlens.runtime.threads import Work, in_slices
from marginlens.typing import FloatArray, IntArray


@njit(**COMPILED)
def _head_gradient(
    tokens: Any, labels: Any, lengths: Any, at: Any, code: int, log_weights: Any, gradient: Any
) -> float:
    """∇_v L = e^s/n · gradient, written into `gradient` (d,); returns s, the largest log|ℓ'| over the inputs."""
    n, T, d = tokens.shape
    a, scores = at
    largest = -np.inf
    for i in range(n):
        base = i * T
        best = largest_of(a, base, lengths[i])
        rest, delta = 0.0, 0.0
        for t in range(lengths[i]):
            if t != best:
                e = math.exp(a[base + t] - a[base + best])
                rest += e
                delta += e * (scores[i, best] - scores[i, t])
        log_weights[i] = log_slope(code, scores[i, best] - delta / (1.0 + rest))
        largest = max(largest, log_weights[i])
    for k in range(d):
        gradient[k] = 0.0
    for i in range(n):
        weight = -labels[i] * math.exp(log_weights[i] - largest)
        base = i * T
        best = largest_of(a, base, lengths[i])
        rest = 0.0
        for t in range(lengths[i]):
            if t != best:
                rest += math.exp(a[base + t] - a[base + best])
        for k in range(d):
            gradient[k] += weight * tokens[i, best, k]
        for t in range(lengths[i]):
            if t != best:
                share = weight * math.exp(a[base + t] - a[base + best]) / (1.0 + rest)
                for k in range(d):
                    gradient[k] -= share * (tokens[i, best, k] - tokens[i, t, k])
    return largest


@njit(**COMPILED)
def _move(here: Any, gradient: Any, normalized: bool, eta: float, log_factor: float, there: Any) -> bool:
    """One step of one part, written into `there`; whether it moved."""
    size = norm(gradient)
    factor = 0.0
    if size != 0.0:
        factor = eta / size if normalized else eta * math.exp(log_factor)
    for k in range(here.shape[0]):
        there[k] = here[k] - factor * gradient[k]
    return size != 0.0


@njit(**COMPILED)
def descend_problems(first: int, last: int, problems: Any, rule: Any, save: Any, carried: Any, out: Any) -> None:
    """Take steps of problems first … last - 1, from where `carried` says they are.

    Args:
        problems: tokens (batch, n_inputs, n_tokens, d_model), keys, labels and lengths; or (1, …) of each for one problem shared by all.
        rule: (normalized, step size, loss code, number of steps, number of the step to stop before).
        save: increasing steps after which v and p are kept.
        carried: arrays that are read and filled: v (batch, d_model), p (batch, d_key), and how each run ended and the steps it has
            taken (batch, 2).
        out: v and p at the kept steps, (batch, n_saved, d_model) and (batch, n_saved, d_key).
    """
    tokens, keys, labels, lengths = problems
    heads, points = out
    for b in range(first, last):
        j = b % keys.shape[0]
        v, p = carried[0][b], carried[1][b]
        if carried[2][b, 0] == RAN_ALL:
            problem = (tokens[j], centred(keys[j], lengths[j]), labels[j], lengths[j])
            carried[2][b, 0], carried[2][b, 1] = _take_steps(
                problem, v, p, rule, save, carried[2][b, 1], (heads[b], points[b])
            )
        if carried[2][b, 0] != RAN_ALL or carried[2][b, 1] == rule[3]:
            for k in range(save.shape[0]):
                if save[k] >= carried[2][b, 1]:
                    _copy(v, heads[b, k])
                    _copy(p, points[b, k])


@njit(**COMPILED)
def _copy(x: Any, out: Any) -> None:
    for k in range(x.shape[0]):  # entry by entry: assigning slices takes seconds to compile
        out[k] = x[k]


@njit(**COMPILED)
def _take_steps(problem: Any, v: Any, p: Any, rule: Any, save: Any, taken: int, out: Any) -> Any:
    """Steps of one problem from number `taken` on, which move v and p; returns how it ended and the steps taken."""
    tokens, rows, labels, lengths = problem
    normalized, eta, code, _, stop = rule
    heads, points = out
    n, T, d = tokens.shape
    flat, columns = tokens.reshape(n * T, d), np.ascontiguousarray(rows.T)
    scores, a, w, log_weights = np.zeros((n, T)), np.zeros(n * T), np.zeros(n * T), np.zeros(n)
    slope_v, slope_p = np.zeros(d), np.zeros(rows.shape[1])
    v_next, p_next = np.zeros(d), np.zeros(rows.shape[1])
    saved = 0
    while saved < save.shape[0] and save[saved] < taken:
        saved += 1
    for step in range(taken, stop):
        while saved < save.shape[0] and save[saved] == step:
            _copy(v, heads[saved])
            _copy(p, points[saved])
            saved += 1
        matvec(rows, p, a)
        matvec(flat, v, scores.reshape(n * T))
        for i in range(n):
            for t in range(T):
                scores[i, t] *= labels[i]
        if not (all_finite(a) and all_finite(scores.reshape(n * T))):
            return NON_FINITE, step
        log_v = _head_gradient(tokens, labels, lengths, (a, scores), code, log_weights, slope_v)
        log_p = pair_weights(a, scores, lengths, code, w)
        matvec(columns, w, slope_p)
        moved_v = _move(v, slope_v, normalized, eta, log_v - math.log(n), v_next)
        moved_p = _move(p, slope_p, normalized, eta, log_p - math.log(n), p_next)
        if not (moved_v or moved_p):
            return STATIONARY, step
        if not (all_finite(v_next) and all_finite(p_next)):
            return NON_FINITE, step
        _copy(v_next, v)
        _copy(p_next, p)
    return RAN_ALL, stop


# ---- the loop as descent calls it


@dataclass
class JointState:
    """Where a batch of descents stands: v (batch, d_model), p (batch, d_key), and how each run ended and after how many steps."""

    v: FloatArray
    p: FloatArray
    ends: IntArray

    def copy(self) -> JointState:
        """The same in arrays of its own."""
        return JointState(self.v.copy(), self.p.copy(), self.ends.copy())


@dataclass(frozen=True, eq=False)
class JointLoop:
    """Compiled descent on v and p, each by its own gradient, for a loss with a code.

    Attributes:
        batch: the problems. normalized, size: the step rule of either part. code: of the loss.
    """

    batch: TokenDataset
    normalized: bool
    size: float
    code: int

    def begin(self, start: FloatArray) -> JointState:
        """The state before the first step."""
        d, ends = self.batch.d_model, np.zeros((len(start), 2), dtype=np.int64)
        return JointState(start[:, :d].copy(), start[:, d:].copy(), ends)

    def advance(
        self, state: JointState, span: tuple[int, int], save: IntArray, progress: ProgressCallback | None
    ) -> FloatArray:
        """Take the steps of `span`; v followed by p after the steps `save`, (batch, n_saved, d_model + d_key)."""
        batch, (begin, end) = self.batch, span
        problems = batch[0].as_batch() if batch.is_repeated else batch  # many starts on one problem
        arrays = tuple(np.ascontiguousarray(array) for array in (problems.X, problems.K, problems.y, problems.lengths))
        heads = np.empty((len(batch), len(save), batch.d_model))
        points = np.empty((len(batch), len(save), batch.d_key))
        rule = (self.normalized, self.size, self.code, end)

        def advance(first: int, last: int, low: int, high: int) -> None:
            carried = (state.v, state.p, state.ends)
            descend_problems(first, last, arrays, (*rule, begin + high), save, carried, (heads, points))

        cost = 4.0 * batch.n_inputs * batch.n_tokens * (batch.d_model + batch.d_key + 20.0)
        in_slices(advance, Work(len(batch), end - begin, cost), progress)
        return np.concatenate([heads, points], axis=-1)
