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

RAN_ALL, STATIONARY, NON_FINITE = 0, 1, 2
_JIT: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
_JIT_SUMS: dict[str, Any] = {
    **_JIT,
    "fastmath": {"contract", "reassoc"},
}  # sums of products in any order, so that they vectorise
_SMALLEST, _LARGEST = 1e-290, 1e140  # outside, weights are formed from logarithms
_SQUARABLE = 1e-140  # below, weights are scaled up so that their squares do not underflow
_RESYNC = 64  # steps after which accumulated logits are computed afresh


@njit(**_JIT)
def _log_slope(code: int, margin: float) -> float:
    """log|ℓ'(margin)| for the losses that carry a code."""
    if code == 0:
        return -margin - math.log1p(math.exp(-margin)) if margin > 0.0 else -math.log1p(math.exp(margin))
    return -margin if code == 1 else 0.0


@njit(**_JIT)
def _slope(code: int, margin: float) -> float:
    """|ℓ'(margin)|; may underflow or overflow, which the caller notices."""
    if code == 0:
        return 1.0 / (1.0 + math.exp(margin))
    return math.exp(-margin) if code == 1 else 1.0


@njit(**_JIT)
def _largest(a: Any, base: int, length: int) -> int:
    """Offset of the largest of a[base], …, a[base + length - 1], the first where several tie."""
    best = 0
    for t in range(1, length):
        if a[base + t] > a[base + best]:
            best = t
    return best


@njit(**_JIT)
def pair_weights(a: Any, scores: Any, lengths: Any, code: int, w: Any) -> float:
    """Weights w with ∇L = e^s/n Σ w_it k_it, written into `w`; returns s (0 unless they had to be formed from logarithms).

    For each input with α the largest logit: w_t = |ℓ'| s_t (gap_t - δ) for t ≠ α, where gap_t = γ_α - γ_t and δ = Σ s_t gap_t, and w_α
    balances the others. No probability near one is ever subtracted from one.
    """
    n, T = scores.shape
    biggest = 0.0
    for i in range(n):
        base, length = i * T, lengths[i]
        best = _largest(a, base, length)
        top, top_score = a[base + best], scores[i, best]
        rest, delta = 0.0, 0.0
        for t in range(length):
            if t != best:
                e = math.exp(a[base + t] - top)
                w[base + t] = e
                rest += e
                delta += e * (top_score - scores[i, t])
        share = 1.0 / (1.0 + rest)
        delta *= share
        factor = share * _slope(code, top_score - delta)
        total = 0.0
        for t in range(length):
            if t != best:
                x = w[base + t] * (factor * (top_score - scores[i, t] - delta))
                w[base + t] = x
                total += x
                if not abs(x) <= biggest:
                    biggest = abs(x)
        w[base + best] = -total
        for t in range(length, T):
            w[base + t] = 0.0
    if _SMALLEST < biggest < _LARGEST:
        if biggest > _SQUARABLE:
            return 0.0
        for k in range(n * T):
            w[k] /= biggest
        return math.log(biggest)
    return _log_weights(a, scores, lengths, code, w)


@njit(**_JIT)
def _log_weights(a: Any, scores: Any, lengths: Any, code: int, w: Any) -> float:
    """The same weights relative to the largest, from logarithms; returns the logarithm of the largest."""
    n, T = scores.shape
    logs, signs = np.full(n * T, -np.inf), np.zeros(n * T)
    largest = -np.inf
    for i in range(n):
        base, length = i * T, lengths[i]
        best = _largest(a, base, length)
        top, top_score = a[base + best], scores[i, best]
        rest, nearest = 0.0, -np.inf  # nearest: the largest log-probability ratio among tokens with another score
        for t in range(length):
            if t != best:
                rest += math.exp(a[base + t] - top)
                if scores[i, t] != top_score:
                    nearest = max(nearest, a[base + t] - top)
        if nearest == -np.inf:
            continue
        delta = 0.0  # δ e^-nearest
        for t in range(length):
            if t != best and scores[i, t] != top_score:
                delta += math.exp(a[base + t] - top - nearest) * (top_score - scores[i, t])
        delta /= 1.0 + rest
        small = delta * math.exp(nearest)
        offset = _log_slope(code, top_score - small) - math.log1p(rest)
        for t in range(length):
            if t != best:
                gap = top_score - scores[i, t]
                value, shift = (gap - small, 0.0) if gap != 0.0 else (-delta, nearest)
                if value != 0.0:
                    signs[base + t] = math.copysign(1.0, value)
                    logs[base + t] = a[base + t] - top + offset + math.log(abs(value)) + shift
                    largest = max(largest, logs[base + t])
    for i in range(n):
        base, total = i * T, 0.0
        for t in range(T):
            x = signs[base + t] * math.exp(logs[base + t] - largest) if signs[base + t] != 0.0 else 0.0
            w[base + t] = x
            total += x
        w[base + _largest(a, base, lengths[i])] = -total
    return largest


@njit(**_JIT_SUMS)
def _times(matrix: Any, x: Any, out: Any) -> None:
    """out = matrix x, four rows at a time so that each load of x serves four sums."""
    rows, columns = matrix.shape
    k = 0
    while k + 4 <= rows:
        s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
        for j in range(columns):
            y = x[j]
            s0 += matrix[k, j] * y
            s1 += matrix[k + 1, j] * y
            s2 += matrix[k + 2, j] * y
            s3 += matrix[k + 3, j] * y
        out[k], out[k + 1], out[k + 2], out[k + 3] = s0, s1, s2, s3
        k += 4
    while k < rows:
        out[k] = _dot(matrix[k], x)
        k += 1


@njit(**_JIT_SUMS)
def _dot(x: Any, y: Any) -> float:
    total = 0.0
    for k in range(x.shape[0]):
        total += x[k] * y[k]
    return total


@njit(**_JIT)
def _norm(x: Any) -> float:
    """‖x‖ without overflow or underflow."""
    scale = 0.0
    for k in range(x.shape[0]):
        scale = max(scale, abs(x[k]))
    if scale == 0.0 or not math.isfinite(scale):
        return scale
    return scale * math.sqrt(_dot(x / scale, x / scale))


@njit(**_JIT_SUMS)
def _dot_and_size(x: Any, y: Any) -> tuple[float, float]:
    """Σ x y and Σ |x y|; their ratio shows how much cancelled."""
    total, size = 0.0, 0.0
    for k in range(x.shape[0]):
        total += x[k] * y[k]
        size += abs(x[k] * y[k])
    return total, size


@njit(**_JIT_SUMS)
def _finite(x: Any) -> bool:
    total = 0.0
    for k in range(x.shape[0]):
        total += x[k] * 0.0  # nan as soon as one entry is not finite
    return total == 0.0


@njit(**_JIT)
def _centred(keys: Any, lengths: Any) -> Any:
    """Keys (m, d) less the mean key of their input, which changes no softmax and no gradient but keeps the Gram matrix accurate."""
    n, T, d = keys.shape
    rows = np.zeros((n * T, d))
    for i in range(n):
        mean = np.zeros(d)
        for t in range(lengths[i]):
            for k in range(d):
                mean[k] += keys[i, t, k] / lengths[i]
        for t in range(lengths[i]):
            for k in range(d):
                rows[i * T + t, k] = keys[i, t, k] - mean[k]
    return rows


@njit(**_JIT)
def _descend_one(rows: Any, scores: Any, lengths: Any, start: Any, rule: Any, save: Any, out: Any) -> Any:
    """Descend one problem; the state is p when d is small, else p's coefficients over the rows. Returns how it ended and its logits."""
    normalized, eta, code, n_steps = rule
    m, d = rows.shape
    in_keys = 2 * d <= m
    columns = np.ascontiguousarray(rows.T)  # (d, m)
    first = np.zeros(m)
    _times(rows, start, first)
    if in_keys:
        spread, state, origin = rows, start.copy(), np.zeros(m)  # logits = origin + spread state
    else:
        spread, state, origin = np.dot(rows, columns), np.zeros(m), first.copy()
    a, w, h, gradient = first, np.zeros(m), np.zeros(m), np.zeros(d)
    a_next, state_next = np.empty(m), np.empty(state.shape[0])
    reason, taken, saved = RAN_ALL if _finite(a) else NON_FINITE, 0, 0
    for step in range(n_steps + 1 if reason == RAN_ALL else 0):
        while saved < save.shape[0] and save[saved] == step:
            _write(columns, start, state, in_keys, out[saved])
            saved += 1
        if step == n_steps:
            break
        log_scale = pair_weights(a, scores, lengths, code, w)
        if in_keys:
            _times(columns, w, gradient)
            _times(rows, gradient, h)
            direction, square, size = gradient, _dot(gradient, gradient), 0.0
        else:
            _times(spread, w, h)
            direction = w
            square, size = _dot_and_size(w, h)
        if normalized:
            if square > 1e-6 * size and 1e-280 < square < 1e280:
                norm = math.sqrt(square)
            else:  # the Gram matrix has cancelled
                _times(columns, w, gradient)
                norm = _norm(gradient)
            if norm == 0.0:
                reason = STATIONARY
                break
            move = eta / norm
        else:
            move = eta * math.exp(log_scale) / scores.shape[0]
        for k in range(state.shape[0]):
            state_next[k] = state[k] - move * direction[k]
        if (step + 1) % _RESYNC == 0:
            _times(spread, state_next, a_next)
            for k in range(m):
                a_next[k] += origin[k]
        else:
            for k in range(m):
                a_next[k] = a[k] - move * h[k]
        if not (_finite(a_next) and _finite(state_next)):
            reason = NON_FINITE
            break
        a, a_next = a_next, a
        state, state_next = state_next, state
        taken = step + 1
    for k in range(saved, save.shape[0]):
        _write(columns, start, state, in_keys, out[k])
    return reason, taken, a


@njit(**_JIT)
def _write(columns: Any, start: Any, state: Any, in_keys: bool, out: Any) -> None:
    """p of a state, written into `out` (d,)."""
    if in_keys:
        out[:] = state
        return
    _times(columns, state, out)
    for k in range(out.shape[0]):
        out[k] += start[k]


@njit(**_JIT)
def descend_problems(
    first: int, last: int, keys: Any, scores: Any, lengths: Any, start: Any, rule: Any, save: Any, results: Any
) -> None:
    """Run problems first…last.

    Args:
        keys: (batch, n_inputs, n_tokens, d), or (1, …) for one problem shared by all starts; scores and lengths likewise.
        start: (batch, d).
        rule: (normalized, step size, loss code, number of steps).
        save: increasing steps after which p is kept.
        results: arrays to fill: p at the kept steps (batch, n_saved, d), reason for stopping and steps taken (batch, 2), and the logits
            at the end (batch, n_inputs·n_tokens).
    """
    points, ends, logits = results
    for b in range(first, last):
        j = b % keys.shape[0]
        rows = _centred(keys[j], lengths[j])
        ends[b, 0], ends[b, 1], logits[b] = _descend_one(rows, scores[j], lengths[j], start[b], rule, save, points[b])
