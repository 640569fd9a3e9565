"""Descent by the textbook gradient, kept to measure what cancellation does to the papers' figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from marginlens.data import TokenDataset
from marginlens.typing import FloatArray


def textbook_iterates(
    data: TokenDataset,
    v: FloatArray,
    start: FloatArray,
    step: float,
    n_steps: int,
    precision: Any,
    epsilon: float = 0.0,
) -> Iterator[FloatArray]:
    r"""Iterates p(0) … p(n_steps) of normalised descent with the gradient Kᵀ(diag(s) - s sᵀ)γ in the given precision.

    .. math:: p(t+1) = p(t) - \eta\, \frac{\nabla L(p(t))}{\|\nabla L(p(t))\| + \epsilon}

    Logistic loss; this is what a framework's autograd amounts to. Once the softmax saturates, γ - Σ s γ is rounding noise. With ε = 0 the
    steps follow it; with an ε above the noise they shrink with the gradient instead, and the run stalls.

    Args:
        data: a batch whose inputs all have the same length. v: heads. start: (batch, d_key). precision: a NumPy float type.
        epsilon: added to the gradient's norm, as the notebooks beside paper A do (1e-9 or 1e-12).
    """
    K, gamma = data.K.astype(precision), data.scores(v).astype(precision)
    flat = K.reshape(len(data), -1, data.d_key)
    p, size, unity, n = start.astype(precision), precision(step), precision(1.0), precision(data.n_inputs)
    yield p.astype(np.float64)
    for _ in range(n_steps):
        logits = (flat @ p[..., None]).reshape(gamma.shape)
        s = np.exp(logits - logits.max(axis=-1, keepdims=True))
        s /= s.sum(axis=-1, keepdims=True)
        output = (s * gamma).sum(axis=-1, keepdims=True)
        weights = (s * (gamma - output) / (unity + np.exp(output)) / n).reshape(len(data), 1, -1)
        gradient = -(weights @ flat)[:, 0]
        length = np.sqrt(np.sum(gradient * gradient, axis=-1, keepdims=True)) + precision(epsilon)
        p = p - size * gradient / np.where(length > 0.0, length, unity)
        yield p.astype(np.float64)
