"""Gradient weights of a loss that the compiled loop does not know, in NumPy: any `NextTokenLoss`, any head."""

from __future__ import annotations

import numpy as np

from marginlens.data.tokens import FloatArray
from marginlens.losses.next_token import NextTokenLoss, derivative_of, value_of
from marginlens.risk.next_token_heads import Head
from marginlens.risk.sequence_batch import SequenceBatch


def own_weights(batch: SequenceBatch, a: FloatArray, head: Head, loss: NextTokenLoss) -> tuple[FloatArray, float]:
    r"""Weights w (n_pairs,) and s with :math:`\nabla L = e^s \sum w_{xk} e_x e_k^\top`, for a batch of one dataset.

    The sums are those of the compiled weights: a token's score is what the loss's derivative makes of the head, and gaps are taken to the
    score of the largest logit. What the derivative itself cannot resolve is lost. nan where the loss is not finite.

    Args:
        a: (n_pairs,) logits.
    """
    reduced = batch.reduced
    sample, first = reduced.sample, reduced.offsets[:-1]
    pair = np.searchsorted(batch.keys, reduced.column[sample] * len(batch.joined.E) + reduced.tokens)
    logits = a[pair] + reduced.log_counts
    top = np.maximum.reduceat(logits, first)
    weights = np.exp(logits - top[sample])
    total = np.add.reduceat(weights, first)
    table = head.matrix().T  # (n_vocabulary, n_classes)
    outputs = np.add.reduceat((weights / total[sample])[:, None] * table[reduced.tokens], first, axis=0)
    if not np.isfinite(value_of(loss, outputs, reduced.labels)).all():
        return np.full_like(a, np.nan), 0.0
    slope = derivative_of(loss, outputs, reduced.labels)
    score = -np.einsum("ec,ec->e", slope[sample], table[reduced.tokens])
    is_top = np.flatnonzero(logits == top[sample])
    best = is_top[np.unique(sample[is_top], return_index=True)[1]]  # the first where several tie
    gap = score[best][sample] - score
    near = np.maximum.reduceat(np.where(gap != 0.0, logits, -np.inf), first)
    if not np.any(np.isfinite(near)):
        return np.zeros_like(a) if np.isfinite(score).all() else np.full_like(a, np.nan), 0.0
    safe = np.where(np.isfinite(near), near, top)
    with np.errstate(over="ignore"):
        ratio = np.where(gap != 0.0, np.exp(logits - safe[sample]), 0.0)
    shortfall = np.add.reduceat(ratio * gap, first) / total
    small = shortfall * np.exp(safe - top)
    omega = np.where(gap != 0.0, ratio * (gap - small[sample]), -weights * shortfall[sample])
    omega[best] = 0.0
    omega[best] = -np.add.reduceat(omega, first)
    scale = np.where(np.isfinite(near), safe - top - np.log(total) + np.log(reduced.share), -np.inf)
    largest = float(scale.max())
    w = np.zeros_like(a)
    np.add.at(w, pair, omega * np.exp(scale - largest)[sample])
    return w, largest
