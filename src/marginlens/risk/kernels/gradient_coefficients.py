"""The weights of the exact gradient, compiled: pairwise, and from logarithms where numbers would underflow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from marginlens.kernels.linalg import COMPILED
from marginlens.runtime.compilation import njit

_SMALLEST, _LARGEST = 1e-290, 1e140  # outside, weights are formed from logarithms
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
