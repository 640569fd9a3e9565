"""The next-token gradient in 60-digit decimals with a huge exponent range: slow, independent, and nothing cancels or underflows."""

from decimal import Decimal

import numpy as np

from decimal_oracle import decimals, dot, long_decimals

DIGITS = 60


def gradient(ds, W, H, loss_name):
    """(direction, log of the norm) of the risk's gradient at W with head scores H[y][x], each a Decimal.

    By the double sum over pairs of positions, X'(diag(s) - ss')γ = Σ_{t<u} s_t s_u (γ_t - γ_u)(x_t - x_u): not the library's formula.
    """
    with long_decimals(DIGITS):
        E = _decimals(ds.E)
        weights, d = _decimals(W), ds.d_model
        total = [[Decimal(0)] * d for _ in range(d)]
        for i in range(len(ds)):
            ids, y = ds[i]
            last = E[int(ds.last[i])]
            turned = [dot(row, last) for row in weights]
            logits = [dot(E[int(x)], turned) for x in ids]
            shares = [(a - max(logits)).exp() for a in logits]
            s = [one / sum(shares) for one in shares]
            outputs = [dot(s, [H[c][int(x)] for x in ids]) for c in range(len(H))]
            miss = dot(s, [1 - H[y][int(x)] for x in ids])  # 1 - ŷ_y, which sixty digits do not hold
            slope = _slope(loss_name, outputs, y, miss)
            scores = [sum((slope[c] * H[c][int(x)] for c in range(len(H))), Decimal(0)) for x in ids]
            for t in range(len(ids)):
                for u in range(t):
                    pull = s[t] * s[u] * (scores[t] - scores[u]) / len(ds)
                    for r in range(d):
                        apart = pull * (E[int(ids[t])][r] - E[int(ids[u])][r])
                        total[r] = [x + apart * z for x, z in zip(total[r], last, strict=True)]
        norm = sum((x * x for row in total for x in row), Decimal(0)).sqrt()
        return np.array([[float(x / norm) for x in row] for row in total]), float(norm.ln())


def identity_scores(n_vocabulary):
    """H of the head with C Eᵀ = I."""
    return [[Decimal(int(c == x)) for x in range(n_vocabulary)] for c in range(n_vocabulary)]


def scores_of(table):
    """H of a table of float64 scores."""
    return _decimals(table)


def _slope(name, outputs, y, miss):
    """∂ℓ/∂ŷ."""
    zero = [Decimal(0)] * len(outputs)
    if name == "LogLoss":
        return [*zero[:y], -1 / outputs[y], *zero[y + 1 :]]
    if name == "SquaredLoss":
        return [*zero[:y], -2 * miss, *zero[y + 1 :]]
    top = max(outputs)
    shares = [(one - top).exp() for one in outputs]
    pi = [one / sum(shares) for one in shares]
    factor = Decimal(1) if name == "CrossEntropy" else 2 * (1 - pi[y]) * pi[y]
    return [factor * (p - (c == y)) for c, p in enumerate(pi)]


def _decimals(table):
    return [decimals(row) for row in np.asarray(table)]
