"""Descent by the textbook gradient, kept to measure what cancellation does to the papers' figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import marginlens as ml
from marginlens.typing import FloatArray


def textbook_iterates(
    data: ml.TokenDataset,
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
        epsilon: added to the gradient's norm, as the notebooks of paper A do (1e-9 or 1e-12).
    """
    K = np.moveaxis(
        data.K.astype(precision), 0, -1
    )  # problems come last, so that sums over tokens are sums of long rows
    gamma = np.moveaxis(data.scores(v).astype(precision), 0, -1)
    flat = np.ascontiguousarray(K.reshape(-1, *K.shape[2:]))  # (n_inputs n_tokens, d_key, batch)
    p, size, unity, n = start.T.astype(precision), precision(step), precision(1.0), precision(data.n_inputs)
    yield p.T.astype(np.float64)
    for _ in range(n_steps):
        logits = np.einsum("kdb,db->kb", flat, p).reshape(gamma.shape)
        s = np.exp(logits - logits.max(axis=1, keepdims=True))
        s /= s.sum(axis=1, keepdims=True)
        output = (s * gamma).sum(axis=1, keepdims=True)
        weights = s * (gamma - output) / (unity + np.exp(output)) / n
        gradient = -np.einsum("kb,kdb->db", weights.reshape(len(flat), -1), flat)
        length = np.sqrt(np.sum(gradient * gradient, axis=0)) + precision(epsilon)
        p = p - size * gradient / np.where(length > 0.0, length, unity)
        yield p.T.astype(np.float64)
