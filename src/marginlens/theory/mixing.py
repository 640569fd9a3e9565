"""Several optimal tokens per input: whether mixing in the others always hurts, and how far a path is from the set it must reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logsumexp

from marginlens.data.generators import as_generator
from marginlens.data.tokens import BoolArray, FloatArray, IntArray, TokenDataset
from marginlens.directions import unit
from marginlens.dynamics.attention import logits
from marginlens.dynamics.landscape import Landscape
from marginlens.errors import n_axes, positive_number, real_array, reject, whole_number
from marginlens.losses import Logistic, Loss, as_loss, from_log
from marginlens.papers import implements
from marginlens.svm.sets import SetSolution, as_optimal_sets, set_svm
from marginlens.theory.problem import all_tied, log_slopes, one_problem, score_blur, score_differences

_SEARCH = 10_000  # convex problems spent on directions that suppress the other tokens
_SHALLOW = 0.5  # contradictions deeper than this share of the sampled depth speak against the assumption


@implements("A", "Def 1")
def optimal_sets(data: TokenDataset, v: Any) -> tuple[IntArray, ...]:
    r"""The tokens that share the highest score of each input, up to rounding.

    .. math:: O_i = \Big\{ t : \gamma_{it} = \max_\tau \gamma_{i\tau} \Big\}

    Args:
        data: one problem. v: head (d_model,).
    Returns:
        One sorted array of token indices per input, as `set_svm`, `check_mixing` and `mixing_constants` take them.
    """
    difference, other = score_differences(one_problem(data), v, data.optimal(v))
    return tuple(np.flatnonzero(tied) for tied in data.mask & ~(other & (difference != 0.0)))


@implements("A", "Assumption D")
def log_nonoptimality(data: TokenDataset, p: Any, optimal_sets: Any) -> Any:
    r"""Logarithm of the largest probability that an input gives to tokens outside its optimal set, exact at any norm.

    .. math:: \log q^p_{\max} = \max_i \log \sum_{t \notin O_i} s^p_{it}, \qquad
        \log q_i = -\log\Big(1 + e^{\mathrm{LSE}_{O_i} - \mathrm{LSE}_{\bar O_i}}\Big)

    Args:
        data: one problem. p: (d_key,) or (n_points, d_key). optimal_sets: one list of token indices per input.
    Returns:
        A number, or (n_points,): -inf where every token of every input is optimal.
    """
    inside = _membership(one_problem(data), as_optimal_sets(data, optimal_sets))
    points = real_array(p, "p", (data.d_key,) if n_axes(p) == 1 else ("n_points", data.d_key))
    at = logits(data.repeat(len(points)), points) if points.ndim == 2 else logits(data, points)
    chosen = np.where(inside, at, -np.inf)
    rest = np.where(data.mask & ~inside, at, -np.inf)
    with np.errstate(divide="ignore"):
        lead = logsumexp(chosen, axis=-1) - logsumexp(rest, axis=-1)
    worst = np.max(-np.logaddexp(0.0, lead), axis=-1)
    return float(worst) if points.ndim == 1 else worst


@dataclass(frozen=True)
class MixingConstants:
    r"""The constants of Lemma 14 on one problem with a linear head.

    Attributes:
        nu: (n_inputs,) the score ν_i that the optimal tokens share. epsilon, C: the constants of Eq. (85), after the shift.
        shift: (n_inputs,) what was added to all scores of an input so that ν_i is positive: zero where it is already.
        log_C_plus, log_C_minus: logarithms of the constants in :math:`C_- q_{\max} \le L(p) - L_\star \le C_+ q_{\max}`, for every p.
    """

    nu: FloatArray
    shift: FloatArray
    epsilon: float
    C: float
    log_C_plus: float
    log_C_minus: float

    @property
    def C_plus(self) -> float:
        """C₊, 0.0 where it underflows."""
        return from_log(self.log_C_plus)

    @property
    def C_minus(self) -> float:
        """C₋, 0.0 where it underflows."""
        return from_log(self.log_C_minus)

    @property
    def theta(self) -> float:
        """Θ = C₊/C₋, at least 1."""
        return from_log(self.log_C_plus - self.log_C_minus)

    def rho(self, delta: float) -> float:
        r""":math:`\rho(\Delta) = -2 (1 + 1/\Delta) \log\Theta`, with which Assumption D holds."""
        return -2.0 * (1.0 + 1.0 / positive_number(delta, "delta")) * (self.log_C_plus - self.log_C_minus)


@implements("A", "Lemma 14", "Eq. (85)")
def mixing_constants(data: TokenDataset, v: Any, optimal_sets: Any, loss: Loss = Logistic()) -> MixingConstants:  # noqa: B008
    r"""Why a linear head satisfies Assumption D: the excess risk is the probability of non-optimal tokens up to constant factors.

    .. math:: \epsilon = \min_{i,\ t \notin O_i} \Big(1 - \frac{\gamma_{it}}{\nu_i}\Big), \quad
        C = \max_{i,\ t \notin O_i} (-\gamma_{it})_+, \quad C_+ = B (C + \max_i \nu_i), \quad C_- = \frac{A\,\epsilon}{n} \min_i \nu_i

    with A and B the smallest and the largest slope of the loss on the interval from the lowest to the highest score; the paper takes
    them on [-M, M], M being the largest absolute score, which no margin needs. Inputs whose tokens are all optimal are left out of the
    maxima and minima, because none of their probability is lost.

    The lemma asks for ν_i > 0. Where ν_i is not positive, the scores of that input are shifted until the lowest is zero: its loss becomes
    :math:`u \mapsto \ell(u - \text{shift}_i)`, which decreases with the same slopes at the same tokens, and nothing else in the proof
    uses that all inputs share one loss.

    Args:
        data: one problem. v: head (d_model,). optimal_sets: sets whose tokens share one score above the others of the input.
    Returns:
        A `MixingConstants`; check it with `excess_risk` and `log_nonoptimality` at any p.
    """
    sets = as_optimal_sets(one_problem(data), optimal_sets)
    nu, outside = _shared_scores(data, v, sets)
    log_largest, log_smallest = log_slopes(data, v, as_loss(loss))
    mixes = outside.any(axis=-1)
    if not mixes.any():
        return MixingConstants(nu, np.zeros_like(nu), 1.0, 0.0, 0.0, 0.0)
    scores = np.where(outside, data.scores(v), np.inf)
    positive = nu > np.max(np.where(outside, 0.0, score_blur(data, v)), axis=-1)
    shift = np.where(mixes & ~positive, -np.min(scores, axis=-1), 0.0)
    best, others = (nu + shift)[mixes], (scores + shift[:, None])[mixes]
    C = max(0.0, -float(np.min(others)))
    epsilon = float(np.min(np.where(outside[mixes], 1.0 - others / best[:, None], np.inf)))
    log_C_plus = float(log_largest + np.log(C + best.max()))
    log_C_minus = float(log_smallest + np.log(epsilon * best.min() / data.n_inputs))
    return MixingConstants(nu, shift, epsilon, C, log_C_plus, log_C_minus)


@dataclass(frozen=True, repr=False, eq=False)
class MixingPairs:
    """What sampled pairs (p, p') say about Assumption D for one Δ.

    Attributes:
        delta: Δ. rho: the largest ρ <= 0 that no sampled pair contradicts; 0 where none contradicts any.
        depth: the smallest log q_max sampled, which ρ is to be compared with.
        holds: whether contradictions end in the upper half of the sampled depth. It is evidence, not proof.
        n_pairs: sampled pairs that the assumption speaks about at this ρ. All of them agree with it.
        counterexample: (2, d_key) the pair (p, p') with the smallest log q_max of p among those where p mixes in far less and yet has
            no lower risk; None where there is none.
        points: (n_points, d_key) the sample. log_q, excess_order: (n_points,) log q_max and the rank of the risk, lowest first.
    """

    delta: float
    rho: float
    depth: float
    holds: bool
    n_pairs: int
    counterexample: FloatArray | None
    points: FloatArray
    log_q: FloatArray
    excess_order: IntArray

    def __bool__(self) -> bool:
        return self.holds

    def __repr__(self) -> str:
        verdict = "holds" if self.holds else "fails"
        return (
            f"MixingPairs(A Assumption D {verdict} with delta={self.delta:g}, rho={self.rho:.4g}, "
            f"{self.n_pairs} pairs down to log q = {self.depth:.4g})"
        )


@implements("A", "Assumption D")
def check_mixing(
    data: TokenDataset,
    head: Any,
    optimal_sets: Any,
    loss: Loss = Logistic(),  # noqa: B008
    *,
    delta: float = 0.1,
    n_points: int = 600,
    rng: Any = 0,
) -> MixingPairs:
    r"""Whether p with exponentially less probability on non-optimal tokens always has the lower risk, on sampled pairs.

    .. math:: \log q^p_{\max} \le \min\big((1 + \Delta) \log q^{p'}_{\max},\ \rho\big) \implies L(p) < L(p')

    Points lie in random directions and around the solutions of ATT-SVM', with norms up to hundreds of times what separates
    the tokens; all ordered pairs of them are compared, in logarithms.

    Args:
        data: one problem. head: vector (d_model,), or a callable ψ (needs torch). optimal_sets: one list of token indices per input.
        delta: Δ > 0. n_points: how many points to sample. rng: a `numpy.random.Generator`, or a whole number to seed one.
    Returns:
        A `MixingPairs`; check its counter-example with `log_nonoptimality` and `risk`.
    """
    sets = as_optimal_sets(one_problem(data), optimal_sets)
    slack = positive_number(delta, "delta")
    whole_number(n_points, "n_points", at_least=2)
    points = _sample(data, sets, n_points, as_generator(rng))
    log_q = np.asarray(log_nonoptimality(data, points, sets))
    order = _risk_order(data, head, sets, as_loss(loss), points)
    addressed = log_q[:, None] <= (1.0 + slack) * log_q[None, :]  # (p, p')
    addressed &= np.isfinite(log_q)[:, None]
    contradicts = addressed & (order[:, None] >= order[None, :])
    depth = float(np.min(log_q))
    if not contradicts.any():
        return MixingPairs(slack, 0.0, depth, True, int(addressed.sum()), None, points, log_q, order)
    worst = int(np.argmin(np.where(contradicts.any(axis=1), log_q, np.inf)))
    other = int(np.argmin(np.where(contradicts[worst], order, len(order))))
    rho = float(np.nextafter(log_q[worst], -np.inf))
    left = int(np.sum(addressed & (log_q[:, None] <= rho)))
    return MixingPairs(slack, rho, depth, rho > _SHALLOW * depth, left, points[[worst, other]], points, log_q, order)


@implements("A", "Thm 8")
def distance_to_set(p: Any, solutions: SetSolution | Sequence[Any] | FloatArray, radius: Any = None) -> Any:
    r"""How far a point of the regularisation path, scaled to the length of the solutions, is from the nearest of them.

    .. math:: \mathrm{dist}\Big(\frac{p}{\Xi R},\ \mathcal G^{mm}\Big), \quad \Xi = 1/\|p^{mm}\|

    Args:
        p: (d_key,) or (n_points, d_key). solutions: what `set_svm` returned, its `.solutions`, or an array (n_solutions, d_key).
        radius: R, a number or (n_points,); by default the norm of p.
    Returns:
        A number, or (n_points,); relative to the solutions' norm it is Ξ times that.
    """
    given = solutions.points if isinstance(solutions, SetSolution) else solutions
    if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray) or getattr(given, "ndim", 1) == 0:
        raise reject("solutions", "a SetSolution, its solutions or an array of them", repr(solutions))
    listed = [getattr(one, "x", one) for one in given]
    if not listed:
        raise reject("solutions", "at least one global minimum", "none", "The problem has no solution.")
    minima = real_array(listed, "solutions", ("n_solutions", "d_key"))
    points = real_array(p, "p", (minima.shape[1],) if n_axes(p) == 1 else ("n_points", minima.shape[1]))
    norm = (
        np.linalg.norm(points, axis=-1)
        if radius is None
        else real_array(radius, "radius", points.shape[:-1] if n_axes(radius) else ())
    )
    if np.any(norm <= 0.0):
        raise reject("radius" if radius is not None else "p", "of positive length", f"{np.min(norm):g}")
    scaled = points / (norm / np.linalg.norm(minima[0]))[..., None]
    distance = np.min(np.linalg.norm(scaled[..., None, :] - minima, axis=-1), axis=-1)
    return float(distance) if points.ndim == 1 else distance


def _membership(data: TokenDataset, sets: tuple[IntArray, ...]) -> BoolArray:
    """Which tokens are optimal, (n_inputs, n_tokens)."""
    return np.array([np.isin(np.arange(data.n_tokens), one) for one in sets])


def _shared_scores(data: TokenDataset, v: Any, sets: tuple[IntArray, ...]) -> tuple[FloatArray, BoolArray]:
    """ν (n_inputs,) and the tokens outside the sets; refused where a set does not share a score above the others."""
    scores, inside, blur = data.scores(v), _membership(data, sets), score_blur(data, v)
    outside = data.mask & ~inside
    nu = np.max(np.where(inside, scores, -np.inf), axis=-1)
    next_best = np.max(np.where(outside, scores, -np.inf), axis=-1)
    lowest_inside = np.min(np.where(inside, scores - blur, np.inf), axis=-1)
    wrong = ~all_tied(scores, blur, inside) | (
        np.max(np.where(outside, scores + blur, -np.inf), axis=-1) >= lowest_inside
    )
    if wrong.any():
        i = int(np.argmax(wrong))
        expected = "tokens that share one score, above those of the other tokens"
        got = f"scores {np.round(scores[i][inside[i]], 4).tolist()} inside and up to {next_best[i]:.4g} outside"
        raise reject(f"optimal_sets[{i}]", expected, got)
    return nu, outside


def _sample(
    data: TokenDataset, sets: tuple[IntArray, ...], n_points: int, generator: np.random.Generator
) -> FloatArray:
    """Points (n_points, d_key): directions near those that suppress the other tokens, and any direction, at norms over decades."""
    spread = np.max(np.linalg.norm(data.K - data.K[:, :1], axis=-1), where=data.mask, initial=0.0)
    length = 1.0 / spread if spread > 0.0 else 1.0
    directions = unit(generator.standard_normal((n_points, data.d_key)))
    found = set_svm(data, sets, limit=_SEARCH)
    if found.solutions and np.isfinite(found.margin):
        length = 1.0 / found.margin
        centre = unit(found.points)[generator.integers(len(found.points), size=n_points)]
        blend = 10.0 ** generator.uniform(-2.0, 1.0, size=(n_points, 1))
        near = np.arange(n_points)[:, None] % 4 != 0
        directions = np.where(near, unit(centre + blend * directions), directions)
    return directions * length * 10.0 ** generator.uniform(-1.0, 2.5, size=(n_points, 1))


def _risk_order(data: TokenDataset, head: Any, sets: tuple[IntArray, ...], loss: Loss, points: FloatArray) -> IntArray:
    """Rank of the risk of each point (n_points, d_key), lowest first, equal risks sharing a rank."""
    alpha = np.array([one[0] for one in sets])
    if not callable(head):
        data, head = _with_exact_ties(data, head, sets), np.eye(data.d_key + 1)[-1]
    landscape = Landscape(data, head, loss)
    excess = landscape.excess(points @ landscape.basis, np.repeat(alpha[None], len(points), axis=0))
    signed = excess.sign * np.where(excess.sign == 0.0, 0.0, excess.log)  # the logarithm of no excess is -inf
    _, rank = np.unique(np.stack([excess.sign, signed], axis=1), axis=0, return_inverse=True)
    return np.asarray(rank, dtype=np.int64).reshape(-1)


def _with_exact_ties(data: TokenDataset, v: Any, sets: tuple[IntArray, ...]) -> TokenDataset:
    """The same keys and scores under the head e_last, where scores of a set that differ by rounding alone are equal."""
    scores = data.scores(v)
    tied = all_tied(scores, score_blur(data, v), _membership(data, sets))
    X = []
    for i, one in enumerate(sets):
        gamma = scores[i, : data.lengths[i]].copy()
        gamma[one] = np.where(tied[i], gamma[one].max(), gamma[one])
        X.append(np.column_stack([data.K[i, : data.lengths[i]], gamma]))
    return TokenDataset(X, np.ones(data.n_inputs), K=[x[:, :-1] for x in X])
