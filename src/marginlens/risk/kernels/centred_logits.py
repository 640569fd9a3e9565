"""Attention logits of a batch in one pass over its keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.kernels.linalg import SUMMING
from marginlens.runtime.compilation import njit


@njit(**SUMMING)
def centred_logits(first: int, last: int, keys: Any, lengths: Any, points: Any, out: Any) -> None:
    """Logits p · (k_t - mean key), (n_inputs, n_tokens) each, of problems first … last - 1; 0 where there is no token.

    Args:
        keys: (batch, n_inputs, n_tokens, d). points: (batch, d) p. out: (batch, n_inputs, n_tokens).
    """
    n, T, d = keys.shape[1], keys.shape[2], keys.shape[3]
    mean = np.empty(d)
    for b in range(first, last):
        for i in range(n):
            share = 1.0 / lengths[b, i]
            for k in range(d):
                mean[k] = 0.0
            for t in range(lengths[b, i]):
                for k in range(d):
                    mean[k] += keys[b, i, t, k] * share
            for t in range(T):
                total = 0.0
                if t < lengths[b, i]:
                    for k in range(d):
                        total += (keys[b, i, t, k] - mean[k]) * points[b, k]
                out[b, i, t] = total
