"""The compiled loop: gradient descent on p for one problem at a time, exact at any norm, cost per step independent of d.

Three facts carry it. Gradients are formed pairwise, so nothing cancels when the softmax saturates. Weights that would underflow are
formed from logarithms relative to the largest. And p moves in the span of the keys, so the state is either p itself (when d is small)
or its coefficients over the n·T keys with the Gram matrix standing in for the keys.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from marginlens.dynamics.sums import COMPILED, centred, dot, dot_and_size, finite, largest, norm, times
from marginlens.dynamics.weights import pair_weights

RAN_ALL, STATIONARY, NON_FINITE, TIED = 0, 1, 2, 3
_RESYNC = 64  # steps after which accumulated logits are computed afresh
_EXTREME = 1e60  # keys beyond, or whose inverses are, are rescaled, so that no product of two keys and a weight leaves the range


@njit(**COMPILED)
def _descend_one(rows: Any, scores: Any, lengths: Any, start: Any, rule: Any, save: Any, out: Any) -> Any:
    """Descend one problem; the state is p when d is small, else p's coefficients over the rows. Returns how it ended and its logits."""
    normalized, eta, code, n_steps = rule
    m, d = rows.shape
    in_keys = 2 * d <= m
    columns = np.ascontiguousarray(rows.T)  # (d, m)
    first = np.zeros(m)
    times(rows, start, first)
    if in_keys:
        spread, state, origin = rows, start.copy(), np.zeros(m)  # logits = origin + spread state
    else:
        spread, state, origin = np.dot(rows, columns), np.zeros(m), first.copy()
    a, w, h, gradient = first, np.zeros(m), np.zeros(m), np.zeros(d)
    a_next, state_next = np.empty(m), np.empty(state.shape[0])
    reason, taken, saved = RAN_ALL if finite(a) else NON_FINITE, 0, 0
    for step in range(n_steps + 1 if reason == RAN_ALL else 0):
        while saved < save.shape[0] and save[saved] == step:
            _write(columns, start, state, in_keys, out[saved])
            saved += 1
        if step == n_steps:
            break
        log_scale = pair_weights(a, scores, lengths, code, w)
        if in_keys:
            times(columns, w, gradient)
            times(rows, gradient, h)
            direction, square, size = gradient, dot(gradient, gradient), 0.0
        else:
            times(spread, w, h)
            direction = w
            square, size = dot_and_size(w, h)
        if normalized:
            if square > 1e-6 * size and 1e-280 < square < 1e280:
                reach = math.sqrt(square)
            else:  # the Gram matrix has cancelled
                times(columns, w, gradient)
                reach = norm(gradient)
            if reach == 0.0:
                reason = STATIONARY
                break
            move = eta / reach
        else:
            move = eta * math.exp(log_scale) / scores.shape[0]
        for k in range(state.shape[0]):
            state_next[k] = state[k] - move * direction[k]
        if (step + 1) % _RESYNC == 0:
            times(spread, state_next, a_next)
            for k in range(m):
                a_next[k] += origin[k]
        else:
            for k in range(m):
                a_next[k] = a[k] - move * h[k]
        if not (finite(a_next) and finite(state_next)):
            reason = NON_FINITE
            break
        a, a_next = a_next, a
        state, state_next = state_next, state
        taken = step + 1
    for k in range(saved, save.shape[0]):
        _write(columns, start, state, in_keys, out[k])
    return reason, taken, a


@njit(**COMPILED)
def _write(columns: Any, start: Any, state: Any, in_keys: bool, out: Any) -> None:
    """p of a state, written into `out` (d,)."""
    if in_keys:
        out[:] = state
        return
    times(columns, state, out)
    for k in range(out.shape[0]):
        out[k] += start[k]


@njit(**COMPILED)
def descend_problems(first: int, last: int, problems: Any, start: Any, rule: Any, save: Any, results: Any) -> None:
    """Run problems first…last.

    Args:
        problems: keys (batch, n_inputs, n_tokens, d), scores and lengths; or (1, …) of each for one problem shared by all starts.
        start: (batch, d).
        rule: (normalized, step size, loss code, number of steps).
        save: increasing steps after which p is kept.
        results: arrays to fill: p at the kept steps (batch, n_saved, d), reason for stopping and steps taken (batch, 2), and the logits
            at the end (batch, n_inputs·n_tokens).
    """
    keys, scores, lengths = problems
    points, ends, logits = results
    for b in range(first, last):
        j = b % keys.shape[0]
        rows = centred(keys[j], lengths[j])
        normalized, eta, code, n_steps = rule
        unit = _key_unit(rows, start[b], eta) if normalized else 1.0
        if unit == 1.0:
            ends[b, 0], ends[b, 1], logits[b] = _descend_one(
                rows, scores[j], lengths[j], start[b], rule, save, points[b]
            )
            continue
        scaled = (normalized, eta * unit, code, n_steps)  # of normalised descent on unit p, with keys in units
        ends[b, 0], ends[b, 1], logits[b] = _descend_one(
            rows / unit, scores[j], lengths[j], start[b] * unit, scaled, save, points[b]
        )
        points[b] /= unit


@njit(**COMPILED)
def _key_unit(rows: Any, start: Any, eta: float) -> float:
    """The power of two next to the largest entry of extreme keys; 1 for others, and where scaling would round start or step."""
    size = largest(rows)
    if size == 0.0 or not math.isfinite(size) or 1.0 / _EXTREME < size < _EXTREME:
        return 1.0
    unit = 2.0 ** min(max(math.floor(math.log2(size)), -1022), 1022)
    exact = eta * unit / unit == eta
    for k in range(start.shape[0]):
        exact = exact and start[k] * unit / unit == start[k]
    return unit if exact else 1.0
