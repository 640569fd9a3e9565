"""What the lemmas of paper B promise for initial embeddings and the first step, compared with what holds."""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import scipy

from marginlens.embeddings.models import Parameters, as_parameters
from marginlens.embeddings.one_step import FirstStep, as_first_step, log_of_pairs
from marginlens.papers import implements, uses
from marginlens.typing import FloatArray, IntArray

SMALLEST_WIDTH = 256  # that every lemma about the first step asks for
_TAIL = 1e-12  # of the law of ‖p‖² that is counted as a failure instead of being integrated
_WIDEST = 2**40  # where the search for a width ends; the chances have long had their limits there


class ProvedBound(NamedTuple):
    """Both sides of an inequality `value <= bound` that a statement promises with probability 1 - δ.

    `width` is d and `log10_width_needed` the decimal logarithm of the d that the statement asks for, 0 if it asks for none and
    infinite if none is enough.
    """

    citation: str
    value: float
    bound: float
    width: int
    log10_width_needed: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether the inequality is true here."""
        return self.value <= self.bound

    @property
    def promised(self) -> bool:
        """Whether d is as large as the statement asks for."""
        return math.log10(self.width) >= self.log10_width_needed

    @property
    def looseness(self) -> float:
        """The bound over the value, inf if the value is zero."""
        return self.bound / self.value if self.value else math.inf


def log10_width(n_vocabulary: int, delta: Any, rate: float | None = None) -> float:
    r"""log10 of the width that the lemmas ask for; with a rate η₀ also :math:`(88\eta_0^2 + 111\eta_0 + 2)^8`, as Eq. (10) does."""
    needed = max(math.log10(SMALLEST_WIDTH), 2.0 * math.log10(log_of_pairs(n_vocabulary, delta)))
    return needed if rate is None else max(needed, 8.0 * math.log10(88.0 * rate * rate + 111.0 * rate + 2.0))


@implements("B", "Lemma 2", "Eq. (6)")
def first_step_errors(step: FirstStep, delta: Any) -> ProvedBound:
    r"""The largest error of the first step, and its bound.

    .. math:: \max\{\max_s \|err_s\|, \|err_p\|\} \le 11\, \eta_0\, d^{-1/4}, \quad
        d \ge \max\Big\{256, \Big(2\log\frac{|\mathcal S|^2}{\delta}\Big)^2\Big\}

    Here and below 𝒮 holds the tokens that occur in the sequences; rows of E that no sequence uses do not count.
    """
    d = len(as_first_step(step).error_p)
    needed = log10_width(len(_occurring(step)), delta)
    return ProvedBound("B Eq. (6)", float(step.errors.max()), _error_bound(step), d, needed)


@implements("B", "Lemma 11")
@uses("B", {"Eq. (16)": "The bound on ‖p¹‖, the second of the two that come back."})
def first_step_norms(step: FirstStep, delta: Any) -> tuple[ProvedBound, ProvedBound]:
    r"""The largest norm of an embedding after the first step, the norm of p, and their bounds.

    .. math:: \max_s \|E^1_s\| \le 2 (1 + 2\eta_0), \quad \|p^1\| \le 2 + 11\, \eta_0\, d^{-1/4}
    """
    p = as_first_step(step).after.p
    E = step.after.E[_occurring(step)]
    needed = log10_width(len(E), delta)
    largest = float(np.sqrt(np.einsum("sd,sd->s", E, E).max()))
    return (
        ProvedBound("B Lemma 11, embeddings", largest, 2.0 * (1.0 + 2.0 * step.rate), len(p), needed),
        ProvedBound("B Lemma 11, p", float(np.linalg.norm(p)), 2.0 + _error_bound(step), len(p), needed),
    )


@implements("B", "Lemma 12")
@uses("B", {"Eq. (17)": "The bound on the loss after the step."})
def first_step_loss(step: FirstStep, delta: Any) -> ProvedBound:
    r"""The loss after the first step, and its bound.

    .. math:: L(E^1, p^1) \le \hat{\mathbb E} \log\Big(1 + \exp\Big(-\frac1T \sum_t \frac{\eta_0}{2} y \alpha_{x_t}
        + \frac{1}{22 \eta_0}\Big)\Big), \quad d \ge (88\eta_0^2 + 111\eta_0 + 2)^8

    The width it asks for can be met only for small η₀, where 1/(22 η₀) makes the bound large.
    """
    data = as_first_step(step).data
    mean = np.add.reduceat(step.alpha[data.tokens], data.offsets[:-1]) / data.lengths
    exponent = -0.5 * step.rate * data.y * mean + 1.0 / (22.0 * step.rate)
    needed = log10_width(len(_occurring(step)), delta, step.rate)
    bound = float(np.mean(np.logaddexp(0.0, exponent)))
    return ProvedBound("B Lemma 12", step.loss_after, bound, len(step.error_p), needed)


def _occurring(step: FirstStep) -> IntArray:
    """𝒮, the ids that occur in the sequences."""
    return np.unique(step.data.tokens)


def _error_bound(step: FirstStep) -> float:
    return float(11.0 * step.rate * len(step.error_p) ** -0.25)


@implements("B", "Eq. (14)")
def initial_concentration(start: Parameters, delta: Any) -> tuple[ProvedBound, ProvedBound]:
    r"""The largest inner product and the largest norm of initial embeddings, and what bounds them with probability 1 - δ.

    .. math:: \max\{|E_s^\top v|, |E_s^\top p|, |p^\top v|\} \le \frac{1}{\sqrt d} \sqrt{2 \log\frac{|\mathcal S|^2}{\delta}},\quad
        \max\{\|E_s\|, \|p\|\} \le 2

    The paper names no width for it, but it needs one: at d = 1 every twentieth norm exceeds 2. `log10_width_needed` is the d
    from which the chances of all 2|S| + 1 products and |S| + 1 norms to fail add up to at most δ; it is infinite if they never do,
    as for |S| = 1 and δ = ½, where the statement is false at any width.

    Args:
        start: E (n_vocabulary, d_model) and p with entries N(0, 1/d), v of unit norm, as `initial_parameters` draws them; every row of E
            counts as a token that occurs.
        delta: δ, the probability that may be missed.
    Returns:
        The bound on inner products and the bound on norms.
    """
    E, p, v = vars(as_parameters(start, "start")).values()
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
    r"""The conditions on initial embeddings that the earlier version has besides Eq. (14), and that the proof of Lemma 21 uses.

    .. math:: \max_{s \ne s'} |E_s^\top E_{s'}| \le \frac{1}{\sqrt d} \sqrt{2 \log\frac{|\mathcal S|^2}{\delta}},\quad
        \max_s \frac{1}{\|E_s\|} \le 2

    Args:
        start, delta: as `initial_concentration` takes them.
    Returns:
        The bound on inner products of two tokens (0 if there is one token) and the bound on reciprocal norms; `log10_width_needed`
        is the d from which the chances of all parts of B' Eq. (22) to fail, those of Eq. (14) included, add up to at most δ.
    """
    E = as_parameters(start, "start").E
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
    """log10 of the least d at which the chances to fail add up to at most δ; inf if they never do."""
    if not _chance(size, delta, earlier, _WIDEST) <= delta:
        return math.inf
    low, high = 0, 1
    while _chance(size, delta, earlier, high) > delta:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _chance(size, delta, earlier, middle) <= delta else (middle, high)
    return math.log10(high)


@cache
def _quadrature() -> tuple[FloatArray, FloatArray]:
    """Nodes and weights of Gauss and Legendre's rule on [-1, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    return nodes, weights


def _chance(size: int, delta: float, earlier: int, d: int) -> float:
    """The sum of the chances of all products and norms of Eq. (14) to exceed their bounds, and of B' Eq. (22)'s if `earlier`."""
    t = math.sqrt(log_of_pairs(size, delta))

    low, high = (float(scipy.stats.chi2.ppf(tail, d)) for tail in (_TAIL, 1.0 - _TAIL))
    nodes, weights = _quadrature()
    squares = 0.5 * (high + low) + 0.5 * (high - low) * nodes
    # of d‖p‖²; given ‖p‖, E_s·p is normal with deviation ‖p‖/√d
    law = 0.5 * (high - low) * weights * scipy.stats.chi2.pdf(squares, d)
    of_two = float(law @ (2.0 * scipy.stats.norm.sf(t / np.sqrt(squares / d)))) + 2.0 * _TAIL
    total = (size + 1) * (2.0 * float(scipy.stats.norm.sf(t)) + float(scipy.stats.chi2.sf(4.0 * d, d))) + size * of_two
    if earlier:
        total += 0.5 * size * (size - 1) * of_two + size * float(scipy.stats.chi2.cdf(0.25 * d, d))
    return float(total)
