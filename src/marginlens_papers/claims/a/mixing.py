"""Assumption D on sampled pairs, bounds on attention outside the optimal sets, and the distance to the set of minima."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy

from marginlens.arithmetic.directions import as_scalar, length, unit
from marginlens.data.random_tokens import as_generator
from marginlens.data.tokens import TokenDataset
from marginlens.errors import InputError, n_axes, positive_number, real_array, whole_number
from marginlens.losses.margin import Logistic, Loss, as_loss
from marginlens.papers import implements
from marginlens.risk.attention import AttentionRisk
from marginlens.status import Status
from marginlens.svm import att_svm
from marginlens.svm.sets import SetSolution, as_optimal_sets, set_svm
from marginlens.theory.assumptions import membership, optimal_sets
from marginlens.theory.optimality import (
    logits_at,
    one_problem,
)
from marginlens.theory.scored_tokens import SCORE_RTOL, ScoredTokens, all_tied
from marginlens.typing import ArrayLike, BoolArray, FloatArray, IntArray

_MAX_SET_PROBLEMS = 10_000  # convex problems spent on directions that suppress the other tokens
_N_SELECTIONS = 60  # other selections whose max-margin directions are sampled around
_MAX_SCALED = 100  # contradictions, the deepest first, that are scaled up to see whether they persist
_SHALLOWEST = 1e-3  # -log q_max below which p selects tokens outside the sets, and no scaling suppresses them
# -log q_max, over Δ, to which a contradiction is scaled: too deep for constant factors
_SCALED_DEPTHS = (1e4, 1e5, 1e6)


@implements("A", "Assumption D")
def log_nonoptimality(data: TokenDataset, p: ArrayLike, optimal_sets: Any) -> Any:
    r"""Logarithm of the largest probability that an input gives to tokens outside its optimal set, exact at any norm.

    .. math:: \log q^p_{\max} = \max_i \log \sum_{t \notin O_i} s^p_{it}, \qquad
        \log q_i = -\log\Big(1 + e^{\mathrm{LSE}_{O_i} - \mathrm{LSE}_{\bar O_i}}\Big)

    Args:
        data: one problem. p: (d_key,) or (n_points, d_key). optimal_sets: one list of token indices per input.
    Returns:
        A number, or (n_points,): -inf if every token of every input is optimal.
    """
    inside = membership(one_problem(data), as_optimal_sets(data, optimal_sets))
    at = logits_at(data, p)
    chosen = np.where(inside, at, -np.inf)
    rest = np.where(data.mask & ~inside, at, -np.inf)
    with np.errstate(divide="ignore"):
        lead = scipy.special.logsumexp(chosen, axis=-1) - scipy.special.logsumexp(rest, axis=-1)
    worst = np.max(-np.logaddexp(0.0, lead), axis=-1)
    return as_scalar(worst)


@implements("A", "Eq. (84)")
def nonoptimality_bounds(data: TokenDataset, p: ArrayLike, optimal_sets: Any) -> tuple[Any, Any]:
    r"""Bounds on the logarithm of the largest probability outside the optimal sets, from nothing but the logit margin.

    .. math:: -\max(m, 0) - \log T \le \log q^p_{\max} \le -m + \log T, \qquad
        m = \min_i \max_{\alpha \in O_i} \min_{\beta \notin O_i} (k_{i\alpha} - k_{i\beta})^\top p

    Along p^mm at norm R the margin is m = Ξ R, which are the two sides of Eq. (84); for a p whose margin is at most (1 - γ)Ξ R the lower
    bound is its first line.

    Args:
        data: one problem. p: (d_key,) or (n_points, d_key). optimal_sets: one list of token indices per input.
    Returns:
        The lower and the upper bound, numbers or (n_points,) each. `log_nonoptimality` lies between them.
    """
    inside = membership(one_problem(data), as_optimal_sets(data, optimal_sets))
    at = logits_at(data, p)
    lead = np.max(np.where(inside, at, -np.inf), axis=-1)
    rest = np.max(np.where(data.mask & ~inside, at, -np.inf), axis=-1)
    margin, size = np.min(lead - rest, axis=-1), float(np.log(data.n_tokens))
    return as_scalar(-np.maximum(margin, 0.0) - size), as_scalar(-margin + size)


class MixingPairs(NamedTuple):
    """What sampled pairs (p, p') say about Assumption D for one Δ.

    Attributes:
        delta: Δ. rho: the largest ρ <= 0 that no sampled pair contradicts; 0 if none contradicts any.
        depth: the smallest log q_max sampled, which ρ is to be compared with.
        holds: whether every contradiction found ends when its two points are scaled up, as it must if some ρ will do.
            It is evidence, not proof; for a linear head `mixing_constants` proves it.
        suppressible: whether some p lets q_max tend to zero, so that ATT-SVM' has a solution. If none does, the assumption says
            nothing below some ρ, and holds for that reason only.
        n_pairs: sampled pairs that the assumption speaks about at this ρ. All of them agree with it.
        counterexample: (2, d_key) a pair (p, p') of which p mixes in far less and yet has no lower risk: one that outlives scaling if there
            is one, else the one with the smallest log q_max of p; None if there is none.
        deeper: (n_depths,) log q_max of p at which the counter-example, scaled up, contradicts the assumption again; empty if it `holds`.
        points: (n_points, d_key) the sample. log_q, excess_order: (n_points,) log q_max and the rank of the risk, lowest first.
    """

    delta: float
    rho: float
    depth: float
    holds: bool
    suppressible: bool
    n_pairs: int
    counterexample: FloatArray | None
    deeper: FloatArray
    points: FloatArray
    log_q: FloatArray
    excess_order: IntArray

    def __bool__(self) -> bool:
        return self.holds


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

    Points lie in random directions, around the solutions of ATT-SVM' and around the max-margin directions of other selections, above all
    of the tokens that lower the risk most, with norms up to thousands of times what separates the tokens; all ordered pairs of them are
    compared, in logarithms. The assumption allows contradictions above some ρ, so each that is met is scaled up until log q_max is
    far below any ρ that constant factors could ask for: if one persists, no ρ will do.

    Args:
        data: one problem. head: vector (d_model,), or a callable ψ (needs torch). optimal_sets: one list of token indices per input.
        delta: Δ > 0. n_points: how many points to sample. rng: a `numpy.random.Generator`, or a whole number to seed one.
    Returns:
        A `MixingPairs`; check its counter-example with `log_nonoptimality` and `risk`.
    """
    sets = as_optimal_sets(one_problem(data), optimal_sets)
    slack = positive_number(delta, "delta")
    whole_number(n_points, "n_points", at_least=2)
    risks = _Risks(data, head, sets, as_loss(loss))
    generator = as_generator(rng)
    centres, suppressible = _centres(data, risks.token_margins, sets, generator)
    points = _sample(data, centres, n_points, generator)
    log_q, order = np.asarray(log_nonoptimality(data, points, sets)), risks.order(points)
    addressed = (log_q[:, None] <= (1.0 + slack) * log_q[None, :]) & np.isfinite(log_q)[:, None]  # (p, p')
    contradicts = addressed & (order[:, None] >= order[None, :])
    depth, deeper = float(np.min(log_q)), np.empty(0)
    if not contradicts.any():
        counts = int(addressed.sum())
        return MixingPairs(slack, 0.0, depth, True, suppressible, counts, None, deeper, points, log_q, order)
    deepest = np.argsort(np.where(contradicts.any(axis=1), log_q, np.inf), kind="stable")
    firsts = deepest[: min(_MAX_SCALED, int(contradicts.any(axis=1).sum()))]
    seconds = np.argmin(np.where(contradicts[firsts], order, len(order)), axis=1)
    pairs = np.stack([points[firsts], points[seconds]], axis=1)  # (n_pairs, 2, d_key)
    persists, depths = _scaled_up(data, sets, risks, pairs, slack)
    worst = int(np.argmax(persists))  # the deepest that persists, or the deepest
    if persists[worst]:
        deeper = depths[worst]
    rho = float(np.nextafter(log_q[firsts[0]], -np.inf))
    counts = int(np.sum(addressed & (log_q[:, None] <= rho)))
    return MixingPairs(
        slack, rho, depth, not persists.any(), suppressible, counts, pairs[worst], deeper, points, log_q, order
    )


def _scaled_up(
    data: TokenDataset, sets: tuple[IntArray, ...], risks: _Risks, pairs: FloatArray, delta: float
) -> tuple[BoolArray, FloatArray]:
    """Which pairs (n_pairs, 2, d_key) contradict the assumption at every depth they are scaled to, and these depths (n_pairs, n_depths)."""
    log_q = np.asarray(log_nonoptimality(data, pairs[:, 0], sets))
    persists, depths = log_q < -_SHALLOWEST, []
    for depth in _SCALED_DEPTHS:
        target = depth / min(1.0, delta)
        scaled = pairs * (target / np.maximum(-log_q, _SHALLOWEST))[:, None, None]
        first, second = (np.asarray(log_nonoptimality(data, scaled[:, k], sets)) for k in (0, 1))
        ranks = risks.order(scaled.reshape(-1, data.d_key)).reshape(-1, 2)
        addressed = (first <= -0.5 * target) & (first <= (1.0 + delta) * second)
        persists &= addressed & (ranks[:, 0] >= ranks[:, 1])
        depths.append(first)
    return persists, np.stack(depths, axis=1)


@implements("A", "Thm 8")
def distance_to_set(p: ArrayLike, solutions: SetSolution | FloatArray, radius: Any = None) -> Any:
    r"""How far a point of the regularisation path, scaled to the length of the solutions, is from the nearest of them.

    .. math:: \mathrm{dist}\Big(\frac{p}{\Xi R},\ \mathcal G^{mm}\Big), \quad \Xi = 1/\|p^{mm}\|

    Args:
        p: (d_key,) or (n_points, d_key). solutions: what `set_svm` returned, or an array (n_solutions, d_key).
        radius: R, a number or (n_points,); by default the norm of p.
    Returns:
        A number, or (n_points,); relative to the solutions' norm it is Ξ times that.
    """
    minima = solutions.points if isinstance(solutions, SetSolution) else solutions
    minima = real_array(minima, "solutions", ("n_solutions", "d_key"))
    if not len(minima):
        raise InputError("solutions", "at least one global minimum", "none", "The problem has no solution.")
    points = real_array(p, "p", (minima.shape[1],) if n_axes(p) == 1 else ("n_points", minima.shape[1]))
    norm = length(points)
    if radius is not None:
        norm = real_array(radius, "radius", points.shape[:-1] if n_axes(radius) else ())
    if np.any(norm <= 0.0):
        raise InputError("radius" if radius is not None else "p", "of positive length", f"{np.min(norm):g}")
    scaled = points / (norm / length(minima[0]))[..., None]
    return as_scalar(np.min(length(scaled[..., None, :] - minima), axis=-1))


def _centres(
    data: TokenDataset, token_margins: FloatArray, sets: tuple[IntArray, ...], generator: np.random.Generator
) -> tuple[FloatArray, bool]:
    """Vectors of margin one, (n_centres, d_key), and whether the sets can be separated.

    They are the solutions of ATT-SVM' and p^mm of other selections: of the tokens whose own margin is largest, of one such token and of
    random ones, in turn.
    """
    found = set_svm(data, sets, max_problems=_MAX_SET_PROBLEMS)
    suppressible = bool(found.solutions) and bool(np.isfinite(found.margin))
    size = SCORE_RTOL * np.max(np.abs(np.where(data.mask, token_margins, 0.0)), axis=-1, keepdims=True)
    best = data.mask & (token_margins >= np.max(token_margins, axis=-1, keepdims=True) - size)
    share = np.array([1.0, 0.5, 0.0] * (_N_SELECTIONS // 3))[:, None]  # how often an input selects a best token
    pools = [np.where(best, 1.0, 0.0), np.where(data.mask, 1.0, 0.0)]
    draws = [np.argmax(pool * generator.random((len(share), *pool.shape)), axis=-1) for pool in pools]
    selections = np.unique(np.where(generator.random(draws[0].shape) < share, *draws), axis=0)
    solved = att_svm(data.repeat(len(selections)), selections)
    usable = np.array([status is Status.OPTIMAL for status in solved.status])
    suppressing = found.points[: _N_SELECTIONS if suppressible else 0].reshape(-1, data.d_key)
    others = solved.x[usable]
    copies = max(1, len(others) // max(1, len(suppressing)))  # so that a sample takes each kind about equally often
    return np.concatenate([np.repeat(suppressing, copies, axis=0), others]), suppressible


def _sample(data: TokenDataset, centres: FloatArray, n_points: int, generator: np.random.Generator) -> FloatArray:
    """Points (n_points, d_key): centres and directions near them, and any direction, at norms over decades."""
    spread = np.max(np.linalg.norm(data.K - data.K[:, :1], axis=-1), where=data.mask, initial=0.0)
    norms = np.full((n_points, 1), 1.0 / spread if spread > 0.0 else 1.0)
    directions = unit(generator.standard_normal((n_points, data.d_key)))
    if len(centres):
        which = centres[generator.integers(len(centres), size=n_points)]
        blend = np.where(np.arange(n_points) % 4 == 1, 0.0, 10.0 ** generator.uniform(-2.0, 1.0, size=n_points))
        near = np.arange(n_points)[:, None] % 4 != 0
        directions = np.where(near, unit(unit(which) + blend[:, None] * directions), directions)
        norms = np.where(
            near, np.linalg.norm(which, axis=-1, keepdims=True), np.median(np.linalg.norm(centres, axis=-1))
        )
    return directions * norms * 10.0 ** generator.uniform(-1.0, 3.5, size=(n_points, 1))


class _Risks:
    """The risk of one problem, compared at any norm relative to selecting one token of each set outright."""

    def __init__(self, data: TokenDataset, head: Any, sets: tuple[IntArray, ...], loss: Loss) -> None:
        self.reference = np.array([members[0] for members in sets])
        if not callable(head):
            data, head = _with_exact_ties(data, head, sets), np.eye(data.d_key + 1)[-1]
        self.span = AttentionRisk(data, head, loss).in_key_span()
        self.token_margins = self.span.risk.token_margins()

    def order(self, points: FloatArray) -> IntArray:
        """Rank of the risk of each point (n_points, d_key), lowest first, equal risks sharing a rank."""
        reference = np.repeat(self.reference[None], len(points), axis=0)
        excess = self.span.risk.excess(points @ self.span.basis, reference)
        signed = excess.sign * np.where(excess.sign == 0.0, 0.0, excess.log)  # the logarithm of no excess is -inf
        _, rank = np.unique(np.stack([excess.sign, signed], axis=1), axis=0, return_inverse=True)
        return np.asarray(rank, dtype=np.int64).reshape(-1)


def _with_exact_ties(data: TokenDataset, v: Any, sets: tuple[IntArray, ...]) -> TokenDataset:
    """The same keys and scores under the head e_last, with scores made equal that tie with a set's or the highest up to rounding."""
    problem = ScoredTokens(data, v)
    scores, blur = problem.scores, problem.blur
    groups = [
        (membership(data, members), all_tied(scores, blur, membership(data, members)))
        for members in (sets, optimal_sets(data, v))
    ]
    for inside, tied in groups:
        shared = np.max(np.where(inside, scores, -np.inf), axis=-1, keepdims=True)
        scores = np.where(inside & tied[:, None], shared, scores)
    keys = [data.K[i, :n] for i, n in enumerate(data.lengths)]
    X = [np.column_stack([key, scores[i, : len(key)]]) for i, key in enumerate(keys)]
    return TokenDataset(X, np.ones(data.n_inputs), K=keys)
