"""How far random initial embeddings are from orthogonal to each other and from unit length."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.stats import chi2, norm

from marginlens.data.tokens import FloatArray
from marginlens.embeddings.parameters import Parameters, as_parameters
from marginlens.embeddings.proved import ProvedBound, log_of_pairs
from marginlens.errors import real_array
from marginlens.papers import implements

_TAIL = 1e-12  # of the law of ‖p‖² that is counted as a failure instead of being integrated
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(200)
_WIDEST = 2**40  # where the search for a width ends; the chances have long had their limits there


@implements("B", "Eq. (14)")
def initial_concentration(start: Parameters, delta: Any) -> tuple[ProvedBound, ProvedBound]:
    r"""The largest inner product and the largest norm of initial embeddings, beside what holds with probability 1 - δ.

    .. math:: \max\{|E_s^\top v|, |E_s^\top p|, |p^\top v|\} \le \frac{1}{\sqrt d} \sqrt{2 \log\frac{|\mathcal S|^2}{\delta}},\quad
        \max\{\|E_s\|, \|p\|\} \le 2

    The paper names no width for it, but it needs one: at d = 1 every twentieth norm exceeds 2. `log10_width_needed` is the d
    from which the chances of all 2|S| + 1 products and |S| + 1 norms to fail add up to at most δ; it is infinite where they never do,
    as for |S| = 1 and δ = ½, where the statement is false at any width.

    Args:
        start: E (n_vocabulary, d_model) and p with entries N(0, 1/d), v of unit norm, as `initial_parameters` draws them; every row of E
            counts as a token that occurs.
        delta: δ, the probability that may be missed.
    Returns:
        The bound on inner products and the bound on norms.
    """
    E, p, v = _arrays(start)
    size, d = E.shape
    products = max(float(np.abs(E @ v).max()), float(np.abs(E @ p).max()), abs(float(p @ v)))
    norms = max(float(np.sqrt(np.einsum("sd,sd->s", E, E).max())), float(np.linalg.norm(p)))
    bound = math.sqrt(log_of_pairs(size, delta) / d)
    needed = _log10_width(size, float(delta), 0)
    return (
        ProvedBound("B Eq. (14), inner products", products, bound, d, needed),
        ProvedBound("B Eq. (14), norms", norms, 2.0, d, needed),
    )


@implements("B'", "Eq. (22)")
def initial_orthogonality(start: Parameters, delta: Any) -> tuple[ProvedBound, ProvedBound]:
    r"""What the earlier version asks of initial embeddings besides Eq. (14), and the proof of Lemma 21 uses.

    .. math:: \max_{s \ne s'} |E_s^\top E_{s'}| \le \frac{1}{\sqrt d} \sqrt{2 \log\frac{|\mathcal S|^2}{\delta}},\quad
        \max_s \frac{1}{\|E_s\|} \le 2

    Args:
        start, delta: as `initial_concentration` takes them.
    Returns:
        The bound on inner products of two tokens (0 where there is one token) and the bound on reciprocal norms; `log10_width_needed`
        is the d from which the chances of all parts of B' Eq. (22) to fail, those of Eq. (14) included, add up to at most δ.
    """
    E, _, _ = _arrays(start)
    size, d = E.shape
    gram = E @ E.T
    lengths = np.sqrt(np.diag(gram))
    np.fill_diagonal(gram, 0.0)
    bound = math.sqrt(log_of_pairs(size, delta) / d)
    needed = _log10_width(size, float(delta), 1)
    with np.errstate(divide="ignore"):
        shortest = float(np.max(1.0 / lengths))
    return (
        ProvedBound("B' Eq. (22), pairs of tokens", float(np.abs(gram).max()), bound, d, needed),
        ProvedBound("B' Eq. (22), reciprocal norms", shortest, 2.0, d, needed),
    )


@lru_cache(maxsize=1024)
def _log10_width(size: int, delta: float, earlier: int) -> float:
    """log10 of the least d at which the chances to fail add up to at most δ; inf where they never do."""
    if not _chance(size, delta, earlier, _WIDEST) <= delta:
        return math.inf
    low, high = 0, 1
    while _chance(size, delta, earlier, high) > delta:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _chance(size, delta, earlier, middle) <= delta else (middle, high)
    return math.log10(high)


def _chance(size: int, delta: float, earlier: int, d: int) -> float:
    """The sum of the chances of all products and norms of Eq. (14) to exceed their bounds, and of B' Eq. (22)'s if `earlier`."""
    t = math.sqrt(log_of_pairs(size, delta))

    low, high = (float(chi2.ppf(tail, d)) for tail in (_TAIL, 1.0 - _TAIL))
    squares = 0.5 * (high + low) + 0.5 * (high - low) * _NODES
    law = (
        0.5 * (high - low) * _WEIGHTS * chi2.pdf(squares, d)
    )  # of d‖p‖²; given ‖p‖, E_s·p is normal with deviation ‖p‖/√d
    of_two = float(law @ (2.0 * norm.sf(t / np.sqrt(squares / d)))) + 2.0 * _TAIL
    total = (size + 1) * (2.0 * float(norm.sf(t)) + float(chi2.sf(4.0 * d, d))) + size * of_two
    if earlier:
        total += 0.5 * size * (size - 1) * of_two + size * float(chi2.cdf(0.25 * d, d))
    return float(total)


def _arrays(start: Parameters) -> tuple[FloatArray, FloatArray, FloatArray]:
    E = real_array(as_parameters(start, "start").E, "start.E", ("n_vocabulary", "d_model"))
    shape = (E.shape[1],)
    return E, real_array(start.p, "start.p", shape), real_array(start.v, "start.v", shape)
