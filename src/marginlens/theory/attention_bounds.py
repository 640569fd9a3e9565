"""Bounds on sharpness and sensitivity of attention: the least entropy by the size of logits or weights, and the softmax's exact
sensitivity.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marginlens.errors import InputError, nonnegative_number, real_array, whole_number
from marginlens.papers import implements
from marginlens.typing import ArrayLike, FloatArray

ENUMERATED_TOKENS = 30  # whose subsets are all tried, half of them at a time
PROBABILITY_RTOL = 1e-9  # by which probabilities may miss a sum of one


@implements("X", "E1")
def entropy_floor(sigma: float, n_tokens: int) -> float:
    r"""Return the least entropy of attention whose logits, less their mean, have a Euclidean norm of at most σ.

    .. math:: \log(1 + (T-1) b) + \frac{\sigma \sqrt{T (T-1)}\, b}{1 + (T-1) b}, \qquad b = e^{-\sigma \sqrt{T/(T-1)}}

    It is attained by one logit ahead of all others, which are equal. Compare arXiv 2303.06296; the formula was checked here
    independently.

    Args:
        sigma: at least 0.

        n_tokens: T, at least 1.

    Examples:
        >>> import marginlens as ml
        >>> round(ml.theory.entropy_floor(2.0, 8), 4)
        1.5683
    """
    size, T = nonnegative_number(sigma, "sigma"), whole_number(n_tokens, "n_tokens", at_least=1)
    return 0.0 if T == 1 else float(_two_levels(size * np.sqrt(T / (T - 1.0)), np.array([1.0]), T)[0])


@implements("X", "E1")
def head_entropy_floor(W: ArrayLike, n_tokens: int, token_norm: float, query_norm: float | None = None) -> float:
    r"""Return the least entropy that a head can have on any input of T tokens of bounded length, from its weights alone.

    .. math:: \min_{\|x_t\| \le r,\ \|z\| \le q} H\big(\mathbb S(X W^\top z)\big)
        = \min_{1 \le k < T} H(k \text{ logits at } c,\ T - k \text{ at } -c), \quad c = r q \|W\|_2

    The bound is attained, by tokens at ±r along the image of the query. Rotary positions and biases are not
    covered; with a causal mask T is the number of visible tokens.

    Args:
        W: (d_query, d_model) the key-query matrix, scaled as its logits are.

        n_tokens: T, at least 1.

        token_norm: r, at least 0.

        query_norm: q, at least 0; r by default.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> round(ml.theory.head_entropy_floor(np.eye(3), 8, token_norm=1.0), 4)
        1.6114
    """
    matrix, T = real_array(W, "W", ("d_query", "d_model")), whole_number(n_tokens, "n_tokens", at_least=1)
    r = nonnegative_number(token_norm, "token_norm")
    q = r if query_norm is None else nonnegative_number(query_norm, "query_norm")
    gap = 2.0 * r * q * float(np.linalg.norm(matrix, 2))
    return 0.0 if T == 1 else float(np.min(_two_levels(gap, np.arange(1.0, T), T)))


def _two_levels(gap: float, ahead: FloatArray, n_tokens: int) -> FloatArray:
    """Return the entropy for each k in `ahead`, when k of T logits lead all others by `gap`."""
    odds = (n_tokens - ahead) / ahead * np.exp(-gap)  # of the others together
    return np.log(ahead) + np.log1p(odds) + gap * odds / (1.0 + odds)


class Sensitivity(NamedTuple):
    """Bounds on the sensitivity of a softmax: some change of the logits attains the lower one, and none exceeds the upper one."""

    lower: float
    upper: float


@implements("X", "E2")
def attention_sensitivity(p: ArrayLike) -> Sensitivity:
    r"""Return how far attention moves, in the ℓ1 norm, per unit change of the logits in the ℓ∞ norm: the norm of the softmax's derivative.

    .. math:: \|J\|_{\infty \to 1} = \max_{S} 4\, p(S) (1 - p(S)), \qquad J = \operatorname{diag}(p) - p p^\top

    The best S is the set of tokens whose attention is nearest to a half (see arXiv 2602.18849; checked here independently). The
    norm is one if some set has exactly half, and small if one token has nearly everything. The two bounds agree for up to 30
    tokens, and whenever one token has half or more. Otherwise the smallest tokens are added one by one, and a small gap between
    the bounds may remain.

    Args:
        p: (n_tokens,) attention probabilities.

    Examples:
        >>> import marginlens as ml
        >>> ml.theory.attention_sensitivity([0.5, 0.3, 0.2])
        Sensitivity(lower=1.0, upper=1.0)
    """
    shares = real_array(p, "p", ("n_tokens",))
    if shares.size == 0 or shares.min() < 0.0 or abs(float(shares.sum()) - 1.0) > PROBABILITY_RTOL:
        raise InputError(
            "p", "probabilities that sum to one", f"{shares.size} numbers with the sum {float(shares.sum()):g}"
        )
    ordered = np.sort(shares)[::-1]
    if ordered[0] >= 0.5:  # every other set is as far from a half, or farther
        rest = float(ordered[1:].sum())
        return Sensitivity(4.0 * rest * (1.0 - rest), 4.0 * rest * (1.0 - rest))
    large, small = ordered[:ENUMERATED_TOKENS], ordered[ENUMERATED_TOKENS:]
    half = len(large) // 2
    first, second = _sums(large[:half]), np.sort(_sums(large[half:]))
    near = np.clip(np.searchsorted(second, 0.5 - first), 1, len(second) - 1)
    totals = np.concatenate([first + second[near], first + second[near - 1]])
    distance = float(np.min(np.abs(totals - 0.5)))
    if not small.size:
        return Sensitivity(1.0 - 4.0 * distance**2, 1.0 - 4.0 * distance**2)
    below = np.max(totals[totals <= 0.5], initial=0.0)  # filled up from the smaller tokens, the largest first
    for share in small:
        below += share if below + share <= 0.5 else 0.0
    reached = min(distance, 0.5 - float(below))
    least = max(0.0, distance - float(small.sum()))  # if the small tokens could be cut at will
    return Sensitivity(1.0 - 4.0 * reached**2, 1.0 - 4.0 * least**2)


def _sums(shares: FloatArray) -> FloatArray:
    """Return the sums of all subsets, (2^n,)."""
    totals = np.zeros(1)
    for share in shares:
        totals = np.concatenate([totals, totals + share])
    return totals
