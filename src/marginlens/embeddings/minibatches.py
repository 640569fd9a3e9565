"""Minibatches of sequences of different lengths, without padding: each sequence as its distinct tokens and how often they occur."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.data.labelled import LabelledSequences
from marginlens.data.tokens import IntArray
from marginlens.kernels.linalg import COMPILED
from marginlens.runtime.compilation import njit


@dataclass(frozen=True, repr=False)
class DistinctTokens:
    """Sequences as sets with multiplicities, which is all that attention without positions sees.

    `token` and `count` (n_pairs,) are the distinct tokens of all sequences, sample i at `offsets[i]:offsets[i + 1]`, in the order of
    their first occurrence; `y` (n_samples,) are labels of ±1. A softmax over positions is one over pairs with log `count` added to the
    logits.
    """

    token: Any
    count: Any
    offsets: IntArray
    y: Any
    n_vocabulary: int

    @property
    def lengths(self) -> IntArray:
        """(n_samples,) distinct tokens of each sequence."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        return f"DistinctTokens({len(self)} sequences, {len(self.token)} pairs, {self.n_vocabulary} tokens)"


def distinct_tokens(data: LabelledSequences) -> DistinctTokens:
    """The distinct tokens of every sequence and how often they occur in it, in one pass."""
    tokens = np.ascontiguousarray(data.tokens, dtype=np.int32)
    token, count = np.empty(len(tokens), dtype=np.int32), np.empty(len(tokens), dtype=np.int32)
    offsets = np.zeros(len(data) + 1, dtype=np.int64)
    n_pairs = _merge(tokens, data.offsets, np.full(data.n_vocabulary, -1), (token, count, offsets))
    y = data.y.astype(np.int8)
    return DistinctTokens(token[:n_pairs].copy(), count[:n_pairs].copy(), offsets, y, data.n_vocabulary)


@njit(**COMPILED)
def _merge(tokens: Any, offsets: Any, place: Any, out: Any) -> int:
    token, count, bounds = out
    pairs = 0
    for i in range(len(offsets) - 1):
        begin = pairs
        for k in range(offsets[i], offsets[i + 1]):
            s = tokens[k]
            if place[s] >= begin:
                count[place[s]] += 1
            else:
                place[s] = pairs
                token[pairs], count[pairs] = s, 1
                pairs += 1
        bounds[i + 1] = pairs
    return pairs


def batches_of(n_samples: int, batch: int) -> list[tuple[int, int]]:
    """First and last place, in the order of an epoch, of each of its minibatches; the last one may be smaller."""
    return [(first, min(first + batch, n_samples)) for first in range(0, n_samples, batch)]
