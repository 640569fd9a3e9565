"""How fast the loss falls along a direction of p, as a sum over pairs of tokens that cannot cancel."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit

from marginlens.data.labelled import as_labelled
from marginlens.embeddings.minibatches import distinct_tokens
from marginlens.embeddings.parameters import Parameters, as_parameters
from marginlens.errors import real_array, reject
from marginlens.papers import implements


@implements("B", "Lemma 8")
def directional_slope(model: Parameters, direction: Any, sequences: Any, y: Any = None) -> float:
    r"""How fast the loss of the one-layer model falls when p moves along a direction.

    .. math:: -\hat p^\top \nabla_p L(E, p) = \hat{\mathbb E}\Big[ g(X, y) \sum_{i<j} (\hat a_i - \hat a_j)\, q_i q_j\,
        (\gamma_i - \gamma_j) \Big],\quad \hat a_i = E_{x_i}^\top \hat p,\ \gamma_i = y E_{x_i}^\top v,\ g = \frac{1}{1 + e^{y f(X)}}

    Differences stand where a softmax that has saturated would make means of them cancel. Positions of the same token are one term.

    Args:
        model: E (n_vocabulary, d_model), p and v (d_model,). direction: p̂ (d_model,), of any norm.
        sequences, y: labelled sequences, or token-id lists and their labels.
    Returns:
        The slope; `-direction @ loss_and_gradients(E, p, v, sequences)[1].p` is the same number up to rounding.
    """
    data = as_labelled(sequences, y)
    table = real_array(as_parameters(model, "model").E, "model.E", ("n_vocabulary", "d_model"))
    if len(table) < data.n_vocabulary:
        raise reject("model.E", f"at least {data.n_vocabulary} rows, one for each token", f"{len(table)} rows")
    shape = (table.shape[1],)
    named = {"model.p": model.p, "model.v": model.v, "direction": direction}
    a, b, moved = (table @ real_array(one, name, shape) for name, one in named.items())
    pairs, total = distinct_tokens(data), 0.0
    for i in range(len(pairs)):
        here = slice(pairs.offsets[i], pairs.offsets[i + 1])
        token = pairs.token[here]
        weight = pairs.count[here] * np.exp(a[token] - a[token].max())
        q = weight / weight.sum()
        spread = (moved[token][:, None] - moved[token]) * (b[token][:, None] - b[token])
        label = float(pairs.y[i])
        total += label * float(expit(-label * (q @ b[token]))) * 0.5 * float(q @ spread @ q)
    return total / len(pairs)
