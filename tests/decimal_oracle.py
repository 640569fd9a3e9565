"""Attention's gradient in 80-digit decimals with a huge exponent range: slow, independent, and nothing cancels or underflows."""

from contextlib import contextmanager
from decimal import Decimal, localcontext

import numpy as np

DIGITS, EXPONENTS = 80, 10**9
SLOPES = {
    "Logistic": lambda f: -1 / (1 + f.exp()),
    "Exponential": lambda f: -(-f).exp(),
    "CorrelationLoss": lambda f: Decimal(-1),
}


@contextmanager
def long_decimals(digits=DIGITS):
    """Decimals of this many digits, of any size."""
    with localcontext() as context:
        context.prec, context.Emin, context.Emax = digits, -EXPONENTS, EXPONENTS
        yield context


def gradient(data, v, p, loss_name):
    """(direction, log of the norm) of the risk's gradient at p for one problem."""
    with long_decimals():
        parts = gradients_by_input(data, v, np.broadcast_to(p, (data.n_inputs, data.d_key)), loss_name)
        total = [sum(column, Decimal(0)) for column in zip(*parts, strict=True)]
        norm = dot(total, total).sqrt()
        if norm == 0:
            return np.zeros(data.d_key), -np.inf
        return np.array([float(x / norm) for x in total]), float(norm.ln())


def matrix_gradient(data, v, W, queries, loss_name):
    """(entries divided by the norm, log of the norm, g_i as lists of decimals) of the gradient in W, with a query for each input."""
    with long_decimals():
        columns = [decimals(column) for column in np.transpose(W)]
        points = [[dot(column, decimals(query)) for column in columns] for query in queries]
        parts = gradients_by_input(data, v, points, loss_name)
        entries = [
            [
                sum((Decimal(float(z[a])) * g[b] for z, g in zip(queries, parts, strict=True)), Decimal(0))
                for b in range(data.d_key)
            ]
            for a in range(queries.shape[1])
        ]
        norm = sum((x * x for row in entries for x in row), Decimal(0)).sqrt()
        return np.array([[float(x / norm) for x in row] for row in entries]), float(norm.ln()), parts


def gradients_by_input(data, v, points, loss_name):
    """What each input adds to the gradient where its weights are `points[i]`, as lists of decimals of the context in force.

    By the double sum over pairs of tokens, K'(diag(s) - ss')γ = Σ_{t<u} s_t s_u (γ_t - γ_u)(k_t - k_u): another formula than the library's.
    """
    parts = []
    for i in range(data.n_inputs):
        tokens = range(int(data.lengths[i]))
        keys = [decimals(data.K[i, t]) for t in tokens]
        label = Decimal(float(data.y[i]))
        scores = [label * dot(decimals(data.X[i, t]), decimals(v)) for t in tokens]
        s = attention(data, i, points[i])
        factor = SLOPES[loss_name](dot(s, scores)) / data.n_inputs
        total = [Decimal(0)] * data.d_key
        for t in tokens:
            for u in range(t):
                pull = factor * s[t] * s[u] * (scores[t] - scores[u])
                total = [x + pull * (a - b) for x, a, b in zip(total, keys[t], keys[u], strict=True)]
        parts.append(total)
    return parts


def attention(data, i, p):
    """The softmax of one input at p, as decimals of the context in force."""
    given = zip(data.K[i], decimals(data.offsets[i]), strict=True)
    logits = [dot(decimals(key), decimals(p)) + offset for key, offset in given][: int(data.lengths[i])]
    weights = [(a - max(logits)).exp() for a in logits]
    return [w / sum(weights) for w in weights]


def decimals(values):
    """Numbers as decimals that equal them; decimals as they are."""
    return [x if isinstance(x, Decimal) else Decimal(float(x)) for x in values]


def dot(a, b):
    return sum((x * y for x, y in zip(a, b, strict=True)), Decimal(0))
