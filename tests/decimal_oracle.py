"""Attention's gradient in 60-digit decimals with a huge exponent range: slow, independent, and nothing cancels or underflows."""

from decimal import Decimal, localcontext

import numpy as np

DIGITS, EXPONENTS = 60, 10**9
SLOPES = {
    "Logistic": lambda f: -1 / (1 + f.exp()),
    "Exponential": lambda f: -(-f).exp(),
    "CorrelationLoss": lambda f: Decimal(-1),
}


def gradient(data, v, p, loss_name):
    """(direction, log of the norm) of the risk's gradient at p for one problem.

    By the double sum over pairs of tokens, K'(diag(s) - ss')γ = Σ_{t<u} s_t s_u (γ_t - γ_u)(k_t - k_u): another formula than the library's.
    """
    with localcontext() as context:
        context.prec, context.Emin, context.Emax = DIGITS, -EXPONENTS, EXPONENTS
        point = [Decimal(float(x)) for x in p]
        total = [Decimal(0)] * data.d_key
        for i in range(data.n_inputs):
            tokens = range(int(data.lengths[i]))
            keys = [[Decimal(float(x)) for x in data.K[i, t]] for t in tokens]
            label = Decimal(float(data.y[i]))
            scores = [
                label * _dot([Decimal(float(x)) for x in data.X[i, t]], [Decimal(float(x)) for x in v]) for t in tokens
            ]
            logits = [_dot(key, point) for key in keys]
            weights = [(a - max(logits)).exp() for a in logits]
            s = [w / sum(weights) for w in weights]
            factor = SLOPES[loss_name](_dot(s, scores)) / data.n_inputs
            for t in tokens:
                for u in range(t):
                    pull = factor * s[t] * s[u] * (scores[t] - scores[u])
                    total = [x + pull * (a - b) for x, a, b in zip(total, keys[t], keys[u], strict=True)]
        norm = _dot(total, total).sqrt()
        if norm == 0:
            return np.zeros(data.d_key), -np.inf
        return np.array([float(x / norm) for x in total]), float(norm.ln())


def _dot(a, b):
    return sum((x * y for x, y in zip(a, b, strict=True)), Decimal(0))
