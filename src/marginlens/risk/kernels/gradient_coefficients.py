"""The weights of the exact gradient, compiled: pairwise, and from logarithms where numbers would underflow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from marginlens.kernels.blocks import CLOSED, n_places, place
from marginlens.kernels.exponential import exp, exp_of_nonpositive
from marginlens.kernels.lanes import (
    N_LANES,
    lane_max,
    lane_sum,
    larger,
    load,
    modulus,
    offset,
    smaller,
    spread,
    store,
    where_greater,
)
from marginlens.kernels.linalg import COMPILED
from marginlens.runtime.compilation import njit

_SMALLEST, _LARGEST = 1e-290, 1e140  # outside, weights are formed from logarithms
_SATURATED = -100.0  # logits of all other tokens this far behind do not count in the softmax's denominator
ROOM_PER_LANE = 7  # numbers that `block_weights` needs for each lane that holds an input
_SQUARABLE = 1e-140  # below, weights are scaled up so that their squares do not underflow


@njit(**COMPILED)
def log_slope(code: int, margin: float) -> float:
    """log|ℓ'(margin)| for the losses that carry a code."""
    if code == 0:
        return -margin - math.log1p(math.exp(-margin)) if margin > 0.0 else -math.log1p(math.exp(margin))
    return -margin if code == 1 else 0.0


@njit(**COMPILED)
def slope(code: int, margin: float) -> float:
    """|ℓ'(margin)|; may underflow or overflow, which the caller notices."""
    if code == 0:
        return 1.0 / (1.0 + math.exp(margin))
    return math.exp(-margin) if code == 1 else 1.0


@njit(**COMPILED)
def largest_of(a: Any, base: int, length: int) -> int:
    """Offset of the largest of a[base], …, a[base + length - 1], the first where several tie."""
    best = 0
    for t in range(1, length):
        if a[base + t] > a[base + best]:
            best = t
    return best


@njit(**COMPILED)
def pair_weights(a: Any, scores: Any, lengths: Any, code: int, w: Any) -> float:
    """Weights w with ∇L = e^s/n Σ w_it k_it, written into `w`; returns s (0 unless they had to be formed from logarithms).

    For each input with α the largest logit: w_t = |ℓ'| s_t (gap_t - δ) for t ≠ α, where gap_t = γ_α - γ_t and δ = Σ s_t gap_t, and w_α
    balances the others. No probability near one is ever subtracted from one.
    """
    n, T = scores.shape
    biggest = 0.0
    for i in range(n):
        base, length = i * T, lengths[i]
        best = largest_of(a, base, length)
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
        factor = share * slope(code, top_score - delta)
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


@njit(**COMPILED)
def _log_weights(a: Any, scores: Any, lengths: Any, code: int, w: Any) -> float:
    """The same weights relative to the largest, from logarithms; returns the logarithm of the largest."""
    n, T = scores.shape
    logs, signs = np.full(n * T, -np.inf), np.zeros(n * T)
    largest = -np.inf
    for i in range(n):
        base, length = i * T, lengths[i]
        best = largest_of(a, base, length)
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
        offset = log_slope(code, top_score - small) - math.log1p(rest)
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
        w[base + largest_of(a, base, lengths[i])] = -total
    return largest


# ---- four inputs at a time, in the order of `marginlens.kernels.blocks`


@njit(**COMPILED)
def block_weights(a: Any, scores: Any, n_inputs: int, n_tokens: int, code: int, room: Any, w: Any) -> float:
    """`pair_weights` of logits, scores and weights in the order of places, four inputs at a time.

    Where every softmax is saturated, e^(a_t - a_α) is formed relative to the largest of them all, t ≠ α, so that nothing underflows.

    Args:
        a, scores, w: pointers to numbers in the order of places.
        room: pointer to `ROOM_PER_LANE` numbers for each lane that holds an input: rows of largest logits (later δ), their scores and
            their tokens, shares s_α, margins, and from former calls, or nan, margins and |ℓ'| at them.
    """
    width = -(-n_inputs // N_LANES) * N_LANES
    nearest = spread(CLOSED)
    for slot in range(0, width, N_LANES):
        base = slot * n_tokens
        top, top_score, second, best = load(a, base), load(scores, base), spread(CLOSED), spread(0.0)
        for t in range(1, n_tokens):
            k = base + N_LANES * t
            x = load(a, k)
            second = larger(second, smaller(x, top))
            top_score = where_greater(x, top, load(scores, k), top_score)
            best = where_greater(x, top, float(t), best)
            top = larger(x, top)
        store(room, slot, top)
        store(room, width + slot, top_score)
        store(room, 2 * width + slot, best)
        nearest = larger(nearest, second - top)
    shift = lane_max(nearest)
    saturated = 0.5 * CLOSED < shift < _SATURATED  # some input has two tokens
    shift = shift if saturated else 0.0
    _exponentials(a, width, n_tokens, room, shift, w)
    if saturated:
        size = _saturated_weights(scores, width, n_tokens, code, room, w)
    else:
        size = _direct_weights(scores, width, n_tokens, code, room, w)
    if _SQUARABLE < size < _LARGEST:
        return shift
    return _rescaled_weights(a, scores, n_inputs, n_tokens, code, size, shift, w)


@njit(**COMPILED)
def _exponentials(a: Any, width: int, n_tokens: int, room: Any, shift: float, w: Any) -> None:
    """w = e^(a_t - top - shift), at most 1; a pass of its own, since its constants fill the registers."""
    for slot in range(0, width, N_LANES):
        base = slot * n_tokens
        reference = load(room, slot) + shift
        for k in range(base, base + N_LANES * n_tokens, N_LANES):
            store(w, k, exp_of_nonpositive(smaller(load(a, k) - reference, 0.0)))


@njit(**COMPILED)
def _direct_weights(scores: Any, width: int, n_tokens: int, code: int, room: Any, w: Any) -> float:
    """The weights as they are, that of α as -|ℓ'| s_α δ; returns the sum of their moduli."""
    for slot in range(0, width, N_LANES):
        base = slot * n_tokens
        top_score = load(room, width + slot)
        mass, delta = spread(0.0), spread(0.0)
        for k in range(base, base + N_LANES * n_tokens, N_LANES):
            e = load(w, k)
            mass += e
            delta += e * (top_score - load(scores, k))
        share = 1.0 / mass
        delta *= share
        store(room, slot, delta)
        store(room, 3 * width + slot, share)
        store(room, 4 * width + slot, top_score - delta)
    _update_slopes(code, width, offset(room, 4 * width), room)
    size = spread(0.0)
    for slot in range(0, width, N_LANES):
        base = slot * n_tokens
        delta, top_score = load(room, slot), load(room, width + slot)
        factor = load(room, 3 * width + slot) * load(room, 6 * width + slot)
        for k in range(base, base + N_LANES * n_tokens, N_LANES):
            x = load(w, k) * (factor * ((top_score - load(scores, k)) - delta))
            store(w, k, x)
            size += modulus(x)
    return lane_sum(size)


@njit(**COMPILED)
def _saturated_weights(scores: Any, width: int, n_tokens: int, code: int, room: Any, w: Any) -> float:
    """The weights times e^-shift where δ is beyond rounding of scores, that of α as minus the others'; returns the sum of the others'."""
    _update_slopes(code, width, offset(room, width), room)
    size = spread(0.0)
    for slot in range(0, width, N_LANES):
        base = slot * n_tokens
        top_score, factor, total = load(room, width + slot), load(room, 6 * width + slot), spread(0.0)
        for k in range(base, base + N_LANES * n_tokens, N_LANES):
            x = load(w, k) * (factor * (top_score - load(scores, k)))  # zero for α
            store(w, k, x)
            total += x
            size += modulus(x)
        store(room, slot, 0.0 - total)
        for lane in range(N_LANES):
            w[base + N_LANES * int(room[2 * width + slot + lane]) + lane] = room[slot + lane]
    return lane_sum(size)


@njit(**COMPILED)
def _update_slopes(code: int, width: int, margins: Any, room: Any) -> None:
    """|ℓ'| at the margins, in the last row of `room`; margins of a saturated softmax do not change from call to call."""
    change = spread(0.0)
    for slot in range(0, width, N_LANES):
        change += modulus(load(margins, slot) - load(room, 5 * width + slot))
    if lane_sum(change) == 0.0:
        return
    for slot in range(0, width, N_LANES):
        x, slopes = load(margins, slot), spread(1.0)
        store(room, 5 * width + slot, x)
        if code == 0:
            slopes = 1.0 / (1.0 + exp(x))
        elif code == 1:
            slopes = exp(0.0 - x)
        store(room, 6 * width + slot, slopes)


@njit(**COMPILED)
def _rescaled_weights(
    a: Any, scores: Any, n_inputs: int, n_tokens: int, code: int, size: float, shift: float, w: Any
) -> float:
    """Weights whose sizes add up to one where they add up to little, from logarithms where they are out of range."""
    if _SMALLEST < size < _LARGEST:
        for k in range(n_places(n_inputs, n_tokens)):
            w[k] /= size
        return shift + math.log(size)
    return _block_log_weights(a, scores, n_inputs, n_tokens, code, w)


@njit(**COMPILED)
def _block_log_weights(a: Any, scores: Any, n_inputs: int, n_tokens: int, code: int, w: Any) -> float:
    """The same weights from logarithms."""
    logits, scored, weights = (
        np.empty(n_inputs * n_tokens),
        np.empty((n_inputs, n_tokens)),
        np.empty(n_inputs * n_tokens),
    )
    lengths = np.full(n_inputs, n_tokens)
    for i in range(n_inputs):
        for t in range(n_tokens):
            k = place(i, t, n_tokens)
            logits[i * n_tokens + t], scored[i, t] = a[k], scores[k]
            if a[k] == CLOSED:
                lengths[i] = min(lengths[i], t)
    log_scale = _log_weights(logits, scored, lengths, code, weights)
    for k in range(n_places(n_inputs, n_tokens)):
        w[k] = 0.0
    for i in range(n_inputs):
        for t in range(n_tokens):
            w[place(i, t, n_tokens)] = weights[i * n_tokens + t]
    return log_scale
