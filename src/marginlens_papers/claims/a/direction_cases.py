"""Which of two directions wins at large norm, and Theorem 7's cases: why the local path cannot go to a direction."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marginlens.arithmetic.directions import as_scalar, correlation, length, unit
from marginlens.data.tokens import TokenDataset, as_dataset
from marginlens.dynamics import Cone
from marginlens.errors import InputError
from marginlens.losses.margin import Logistic, Loss, as_loss
from marginlens.papers import implements, uses
from marginlens.risk import AttentionRisk
from marginlens.risk.softmax import centred_keys
from marginlens.status import Case
from marginlens.theory.assumptions import check_assumption_a
from marginlens.theory.checks import Check, TheoremVerdict
from marginlens.theory.optimality import (
    DIRECTION_RTOL,
    SAME_DIRECTION_ATOL,
    DirectionalMargin,
    as_direction,
    directional_margin,
    largest_distance,
    one_problem,
    token_optimality,
)
from marginlens.theory.scored_tokens import ScoredTokens
from marginlens.typing import ArrayLike, BoolArray, FloatArray, IntArray
from marginlens.words import Fact
from marginlens_papers.claims.a.general_position import check_distinct_scores, check_general_position

_INDEPENDENT_RTOL = 1e-9  # smallest singular value of unit rows up to which they may be dependent
_EQUATION_RTOL = 1e-9  # residual of the pseudo-inverse's equations up to which they are solved
_MAX_HALVINGS = 200  # of the weight of a perturbation until the competitor lies in the cone and selects as it must
_N_NORMS = 200  # norms at which the lowest of the competitor's risk is sought


class Dominance(NamedTuple):
    """Which of two directions has the lower risk at every large norm; for a batch every field is an array (batch,).

    Attributes:
        case: 1 or 2, the case of the lemma that decides, or 0 if it decides nothing, as when the selected tokens differ.
        p_wins: whether L(R p) < L(R q) for all R beyond `radius`; the reverse holds if it is false and `case` is not 0.
        radius: a norm beyond which that is proven; inf if `case` is 0.
        margin_p, margin_q: the margins of the two unit directions.
    """

    case: Any
    p_wins: Any
    radius: Any
    margin_p: Any
    margin_q: Any


@implements("A", "Lemma 8")
def dominance(data: TokenDataset, head: Any, p: ArrayLike, q: Any, loss: Loss = Logistic()) -> Dominance:  # noqa: B008
    r"""Which of two directions that select the same tokens has the lower risk at large norm, and from which norm on.

    Let q have the smaller margin, :math:`\Gamma_q < \Gamma_p`. Case 1: if q is neighbour-optimal, p wins. Case 2: if q has one
    directional neighbour and that scores above the selected token, q wins. Write g for :math:`\gamma_{i\alpha_i} - \gamma_{it}`, β for
    the nearest token of q, :math:`g^\pm` for its positive and negative parts, :math:`M_\pm` for the bounds of :math:`|\ell'|`. Since
    :math:`e^{-R\Gamma^{it}}/T \le s_{it} \le e^{-R\Gamma^{it}}`, p wins case 1 once

    .. math:: \frac{M_-}{T} g_\beta > M_+ \Big(\sum g_q^-\Big) e^{-R\delta^-_q} + M_+ \Big(\sum g_p^+\Big) e^{-R(\Gamma_p - \Gamma_q)}

    where :math:`\delta^-_q` is how much larger than Γ_q the margins of the higher-scoring tokens are. q wins case 2 once the same holds
    with :math:`|g_\beta|`, :math:`(\sum g_q^+) e^{-R\delta^+_q}` and :math:`\sum g_p^-` instead. `radius` is the norm at which each of
    the two terms on the right is half of the left. The first term is missing from the paper's case 1, which takes neighbour-optimality to
    bound every g from below although it is only about the neighbours; and case 1 requires nothing of p.

    Args:
        data: one problem or a batch. head: v (…, d_model). loss: any strictly decreasing `Loss`.
        p, q: (…, d_key), not zero; their unit vectors are compared. The lemma speaks of those that select the same unique tokens.
    Returns:
        A `Dominance`. Check it with `excess_risk(data, head, R * p, loss)`, which compares logarithms.
    """
    directions = [unit(as_direction(as_dataset(data), x, name)) for x, name in ((p, "p"), (q, "q"))]
    at = [directional_margin(data, x, head) for x in directions]
    same = np.all(at[0].selected == at[1].selected, axis=-1) & at[0].unique & at[1].unique
    margins = np.stack([np.asarray(side.margin) for side in at])
    p_wider = margins[0] > margins[1]
    narrow = _Side(*(np.where(_like(p_wider, b), b, a) for a, b in zip(_parts(at[0]), _parts(at[1]), strict=True)))
    problem = ScoredTokens(data, head, loss)
    difference, other = problem.differences(at[0].selected)
    nearest = np.argmin(narrow.margins.reshape(*p_wider.shape, -1), axis=-1)
    g_nearest = np.take_along_axis(difference.reshape(*p_wider.shape, -1), nearest[..., None], axis=-1)[..., 0]
    single_neighbour = np.sum(narrow.neighbours, axis=(-2, -1)) == 1
    with np.errstate(invalid="ignore"):
        gap = np.abs(margins[0] - margins[1])  # nan if no input has two tokens
    comparable = same & (gap > _margin_blur(at[0]) + _margin_blur(at[1])) & (g_nearest != 0.0)
    case = np.where(narrow.optimal, 1, np.where(single_neighbour & (g_nearest < 0.0), 2, 0))
    case = np.where(comparable, case, 0)
    # signs relative to the nearest token of the narrow direction: `against` weakens it there, `along` is what the wide one can gain
    signed = np.where(other, difference, 0.0) * _like(np.where(case == 2, -1.0, 1.0), difference)
    against, along = np.maximum(-signed, 0.0), np.maximum(signed, 0.0)
    log_most, log_least = problem.log_slopes
    with np.errstate(divide="ignore", invalid="ignore"):
        delay = np.min(np.where(against > 0.0, narrow.margins, np.inf), axis=(-2, -1)) - np.min(margins, axis=0)
        ratio = np.log(2.0 * data.n_tokens) + log_most - log_least - np.log(np.abs(g_nearest))
        first = (np.log(np.sum(against, axis=(-2, -1))) + ratio) / delay
        second = (np.log(np.sum(along, axis=(-2, -1))) + ratio) / gap
    radius = np.maximum(np.maximum(np.where(np.isfinite(delay), first, 0.0), second), 0.0)
    return Dominance(
        case=as_scalar(case),
        p_wins=as_scalar(np.where(case == 0, False, p_wider == (case == 1))),
        radius=as_scalar(np.where(case == 0, np.inf, radius)),
        margin_p=as_scalar(margins[0]),
        margin_q=as_scalar(margins[1]),
    )


@implements("A", "Lemma 9", "Eq. (69)", "Eq. (70)")
def undercut_radius(data: TokenDataset, head: Any, p: ArrayLike, loss: Loss = Logistic()) -> Any:  # noqa: B008
    r"""The norm from which on a direction has a lower risk than selecting its tokens outright, because its neighbours score higher.

    .. math:: L(R\, p) < L_\star = \frac1n \sum_i \ell(\gamma_{i\alpha_i}) \quad \text{once} \quad
        \frac{M_-}{T} \sum_{(i,t) \in \mathcal M_p} |g_{it}| > M_+ \Big(\sum g^+\Big) e^{-R\delta^+_p}

    for :math:`g = \gamma_{i\alpha_i} - \gamma_{it}`, negative on all directional neighbours :math:`\mathcal M_p`, and :math:`\delta^+_p`,
    by how much the margins of the lower-scoring tokens exceed that of p: at least the δ_p of Eq. (70), `DirectionalMargin.second_gap`.

    Args:
        data: one problem or a batch. head: v (…, d_model). p: (…, d_key), not zero; its unit vector is meant. loss: any decreasing `Loss`.
    Returns:
        The radius R̄ of the lemma, (…): zero if every other token scores higher, and inf if the lemma says nothing, because a
        neighbour scores lower or a token ties with a selected one. Check it with `excess_risk(data, head, R * p, loss)`.
    """
    direction = unit(as_direction(as_dataset(data), p, "p"))
    at = directional_margin(data, direction, head)
    problem = ScoredTokens(data, head, loss)
    difference, _ = problem.differences(at.selected)
    gain = np.sum(np.where(at.neighbours, np.maximum(-difference, 0.0), 0.0), axis=(-2, -1))
    applies = np.all(~at.neighbours | (difference < 0.0), axis=(-2, -1)) & at.unique & np.isfinite(at.margin)
    lower = np.maximum(difference, 0.0)
    log_most, log_least = problem.log_slopes
    with np.errstate(divide="ignore", invalid="ignore"):
        delay = np.min(np.where(lower > 0.0, at.margins, np.inf), axis=(-2, -1)) - at.margin
        needed = np.log(data.n_tokens) + log_most - log_least + np.log(np.sum(lower, axis=(-2, -1))) - np.log(gain)
        radius = np.maximum(np.where(np.isfinite(delay), needed / delay, 0.0), 0.0)
    return as_scalar(np.where(applies, radius, np.inf))


@implements("A", "Lemma 10")
def check_neighbour_count(data: TokenDataset, q: Any) -> Check:
    r"""Whether a direction has no more directional neighbours than there are dimensions, and independent ones.

    .. math:: |\mathcal M_q| \le d, \qquad \mathrm{rank}\,D = |\mathcal M_q|, \quad
        D \text{ with rows } k_{it} - k_{i\alpha_i},\ (i, t) \in \mathcal M_q

    This is so if keys are in general position (`check_general_position`), of which this is the part that Theorem 7's proof uses.

    Args:
        data: one problem. q: (d_key,), not zero.
    Returns:
        A `Check` with neighbours, dimensions and singular_value, the smallest one of D with unit rows.
    """
    at = directional_margin(one_problem(data), q)
    rows = (data.K - np.take_along_axis(data.K, at.selected[:, None, None], axis=1))[at.neighbours]
    count = len(rows)
    lengths = length(rows)[:, None]
    scaled = rows / np.where(lengths > 0.0, lengths, 1.0)
    smallest = float(np.min(np.linalg.svd(scaled, compute_uv=False))) if 0 < count <= data.d_key else 0.0
    if count == 0:
        smallest = np.inf
    holds = count <= data.d_key and smallest > _INDEPENDENT_RTOL
    case = "measured" if 0 < count <= data.d_key else "counted"
    numbers = {"neighbours": count, "dimensions": data.d_key, "singular_value": smallest, "case": case}
    return Check("claim.neighbour_count", holds, numbers)


class _Side(NamedTuple):
    """The parts of a `DirectionalMargin` that decide for the direction with the smaller margin."""

    margins: FloatArray
    neighbours: BoolArray
    optimal: BoolArray


def _parts(at: DirectionalMargin) -> tuple[FloatArray, BoolArray, Any]:
    return at.margins, at.neighbours, np.asarray(at.neighbour_optimal)


def _margin_blur(at: DirectionalMargin) -> FloatArray:
    """How far rounding blurs the smallest margin, (…); nan if no input has two tokens."""
    with np.errstate(invalid="ignore"):
        above = np.min(at.margins + at.blur, axis=(-2, -1)) - at.margin
        below = at.margin - np.min(at.margins - at.blur, axis=(-2, -1))
    return np.asarray(np.maximum(above, below))


def _like(flags: Any, array: Any) -> Any:
    """`flags` of shape (…) with trailing axes, so that they broadcast against `array`."""
    return np.reshape(flags, np.shape(flags) + (1,) * (np.ndim(array) - np.ndim(flags)))


class DirectionCase(Case):
    """Which case of Theorem 7's proof a direction belongs to; the value is the code of its sentence."""

    P_MM = "direction_case.p_mm"
    A1 = "direction_case.a1"
    A2 = "direction_case.a2"
    B = "direction_case.b"


class DirectionVerdict(NamedTuple):
    r"""What Theorem 7 says about the local path in a cone around a unit direction q, in numbers.

    Attributes:
        cone: the cone, whose axis is q. case: a `DirectionCase`. verdict: the conditions of Theorem 7 and its conclusion.
        selected: (n_inputs,) the tokens α that q selects, the highest-scoring one if several tie.
        competitor: (d_key,) the unit direction of the proof that does better; None if q is in P^mm or none can be built.
        weight: how much of the perturbation it contains: ε of :math:`q + \epsilon \bar p^{mm}`, ε₀ of :math:`q + \epsilon_0 q^\perp`.
        competitor_from: the norm from which on the competitor does better. In cases A1 and B, L(R competitor) < L(p) for every p of norm
            R ≥ `competitor_from` with :math:`\|p/R - q\| \le \delta`; in case A2, L(R competitor) is below the risk of
            selecting α outright.
        delta: δ, how close to q the beaten directions are. norm_bound: no point of the path is both longer than this and within δ of q,
            so that p̄(R)/R cannot tend to q; inf if there is no competitor.
    """

    cone: Cone
    case: DirectionCase
    verdict: TheoremVerdict
    selected: IntArray
    competitor: FloatArray | None
    weight: float
    competitor_from: float
    delta: float
    norm_bound: float

    @property
    def is_locally_optimal(self) -> bool:
        """Whether q is in P^mm."""
        return self.case is DirectionCase.P_MM


@implements("A", "Thm 4", "Thm 7", "Eq. (67)", "Eq. (68)")
@uses(
    "A",
    {
        "Eq. (62)": "Bounds attention from both sides by the exponential of the logit margin, in every radius of a verdict.",
        "Eq. (64)": "The competitor's risk over that of selecting the tokens outright, bounded from above by its terms.",
    },
)
def judge_direction(
    data: TokenDataset,
    head: Any,
    cone: Cone,
    loss: Loss = Logistic(),  # noqa: B008
    *,
    max_problems: int = 2000,
) -> DirectionVerdict:
    r"""Whether the local regularisation path in a cone can go to the cone's axis q; if not, what beats q, and from which norm on.

    .. math:: \bar p(R) = \arg\min_{p \in C_{\epsilon, R_0}(q),\ \|p\| \le R} L(p), \qquad q \notin \mathcal P^{mm} \Rightarrow
        \bar p(R)/R \not\to q

    In case A1 :math:`q' \propto q + \tfrac\epsilon2 \bar p^{mm}(\alpha)` has a larger margin. In case A2
    :math:`q_0 \propto q + \epsilon_0 D^\dagger 1_+`, with rows :math:`k_{it} - k_{i\alpha_i}` of D for the directional neighbours, brings
    the higher-scoring ones to the front, and Lemma 9 applies. In case B :math:`q_0 \propto q + \epsilon_0 D^\dagger 1`, with rows
    :math:`k_{i\alpha_i} - k_{i\theta}` for the tied tokens, selects the highest-scoring one. Let M be the longest key difference, g the
    score gaps :math:`\gamma_{i\alpha_i} - \gamma_{it}`, :math:`\Gamma_0` the margin of q (0 in case B), :math:`\Gamma_c` that of the
    competitor, and :math:`\Gamma_0 + \delta^-` the smallest margin of a higher-scoring token. In cases A1 and B every p of norm R
    within δ of q is beaten once

    .. math:: \frac{M_-}{T}\, g_{\min}\, e^{-R(\Gamma_0 + M\delta)} > M_+ \Big(\sum g^-\Big) e^{-R(\Gamma_0 + \delta^- - M\delta)}
        + M_+ \Big(\sum g^+\Big) e^{-R\Gamma_c}

    Args:
        data: one problem. head: v (d_model,). loss: any strictly decreasing `Loss`.
        cone: axis q, width ε and least norm R₀.
        max_problems: matrices that `check_general_position` examines.
    Returns:
        A `DirectionVerdict`. Check it with `AttentionRisk.excess` at the competitor and at points within δ of q, or with `path`.
    """
    data, loss = one_problem(data), as_loss(loss)
    if not isinstance(cone, Cone) or len(cone.axis) != data.d_key:
        got = f"an axis of length {len(cone.axis)}" if isinstance(cone, Cone) else type(cone).__name__
        raise InputError("cone", f"a Cone with an axis of length {data.d_key}", got)
    case, beaten = _Direction(data, data.head(head), loss, cone).judge()
    conditions = (
        check_assumption_a(data, head, loss),
        check_distinct_scores(data, head),
        check_general_position(data, max_problems=max_problems),
        Check("claim.not_in_p_mm", case is not DirectionCase.P_MM, {"why": Fact(case.value)}),
    )
    verdict = TheoremVerdict("A Thm 7", conditions, Fact("conclusion.thm_7"))
    return DirectionVerdict(cone, case, verdict, *beaten)


class _Beaten(NamedTuple):
    """The last fields of a `DirectionVerdict`."""

    selected: IntArray
    competitor: FloatArray | None = None
    weight: float = 0.0
    competitor_from: float = np.inf
    delta: float = 0.0
    norm_bound: float = np.inf


class _Direction:
    """A direction q, the axis of a cone, on one problem: what it selects, and the proof's competitor."""

    def __init__(self, data: TokenDataset, v: FloatArray, loss: Loss, cone: Cone) -> None:
        self.data, self.v, self.loss, self.cone = data, v, loss, cone
        self.at = directional_margin(data, cone.axis, v)
        chosen = np.arange(data.n_tokens) == self.at.selected[:, None]
        self.tied = chosen if self.at.unique else chosen | self.at.neighbours  # (n_inputs, n_tokens) what q selects
        self.alpha = np.argmax(np.where(self.tied, data.scores(v), -np.inf), axis=-1)  # the highest-scoring one of it
        keys = centred_keys(data)
        self.away = np.take_along_axis(keys, self.alpha[:, None, None], axis=1) - keys  # k_α - k_t
        self.problem = ScoredTokens(data, v, loss)
        self.gaps, self.other = self.problem.differences(self.alpha)  # γ_α - γ_t
        self.longest = largest_distance(keys, data.mask)  # M

    def judge(self) -> tuple[DirectionCase, _Beaten]:
        """The case of the proof, and what beats q; nothing if q is in P^mm or the key differences to invert are dependent."""
        if not self.at.unique:
            return DirectionCase.B, self._outmatched(self._towards_best())
        if not self.at.neighbour_optimal:
            return DirectionCase.A2, self._undercut(self._towards_higher())
        best = token_optimality(self.data, self.v, self.alpha)
        is_max_margin = float(np.linalg.norm(np.asarray(best.direction) - self.cone.axis)) <= SAME_DIRECTION_ATOL
        if not np.isfinite(self.at.margin) or (is_max_margin and best.is_locally_optimal):
            return DirectionCase.P_MM, _Beaten(self.alpha)
        # q' = q + (ε/2) p̄^mm, normalised: inside the cone, because ⟨q, q'⟩ ≥ (1 - ε/2)/(1 + ε/2) ≥ 1 - ε
        weight = 0.5 * min(self.cone.mu, 1.0)
        return DirectionCase.A1, self._outmatched((unit(self.cone.axis + weight * best.direction), weight))

    def _perturbed(self, step: FloatArray, weight: float, wanted: BoolArray | None) -> tuple[FloatArray, float] | None:
        """q + ε₀ step, normalised, with ε₀ halved from `weight` until it is in the cone and selects α.

        Its directional neighbours are then the `wanted` ones, or score lower if there are none.
        """
        for _ in range(_MAX_HALVINGS):
            direction = unit(self.cone.axis + weight * step)
            ahead = directional_margin(self.data, direction, self.v)
            right = ahead.neighbour_optimal if wanted is None else np.array_equal(ahead.neighbours, wanted)
            selects = bool(ahead.unique) and right and np.array_equal(ahead.selected, self.alpha)
            if selects and float(correlation(direction, self.cone.axis)) >= 1.0 - self.cone.mu:
                return direction, weight
            weight *= 0.5
        return None

    def _towards_higher(self) -> tuple[FloatArray, float] | None:
        """q + ε₀ D⁺1₊: the neighbours that score higher come nearer, the other neighbours stay, and all other tokens stay behind."""
        near, higher = self.at.neighbours, self.gaps < 0.0
        step = _solved(-self.away[near], higher[near].astype(float))
        if step is None:
            return None
        reach = 1.0 + float(np.linalg.norm(step)) * self.longest
        weight = 0.5 * min(float(self.at.margin), float(self.at.second_gap) / reach)
        return self._perturbed(step, weight, near & higher)

    def _towards_best(self) -> tuple[FloatArray, float] | None:
        """q + ε₀ D⁺1: of the tied tokens the highest-scoring one is selected, with the same margin to all others of them."""
        rivals = self.tied & self.other
        step = _solved(self.away[rivals], np.ones(int(rivals.sum())))
        if step is None:
            return None
        outside = float(np.min((self.away @ self.cone.axis)[self.other & ~self.tied], initial=np.inf))
        reach = 1.0 + self.longest * float(np.linalg.norm(step))
        return self._perturbed(step, 0.5 * min(outside / reach, 1.0), None)

    def _outmatched(self, made: tuple[FloatArray, float] | None) -> _Beaten:
        """δ, and the norm from which on the competitor beats everything as long within δ of q: cases A1 and B."""
        if made is None:
            return _Beaten(self.alpha)
        competitor, weight = made
        margins = np.where(self.other, self.away @ self.cone.axis, np.inf)
        low = max(float(margins.min()), 0.0)  # zero in case B, in which tokens tie
        nearest = self.other & (margins <= low + DIRECTION_RTOL * self.longest)
        higher, lower = np.maximum(-self.gaps, 0.0), np.maximum(self.gaps, 0.0)
        behind = float(np.min(np.where(higher > 0.0, margins, np.inf))) - low  # δ^-
        ahead = float(np.min((self.away @ competitor)[self.other])) - low
        delta = min(0.5 * ahead, 0.25 * behind) / self.longest
        log_most, log_least = self.problem.log_slopes
        with np.errstate(divide="ignore"):
            ratio = np.log(2.0 * self.data.n_tokens) + log_most - log_least - np.log(float(np.min(self.gaps[nearest])))
            first, second = np.log(np.sum(higher)) + ratio, np.log(np.sum(lower)) + ratio
        radius = max(float(second) / (ahead - self.longest * delta), self.cone.radius)
        if np.isfinite(behind):
            radius = max(radius, float(first) / (behind - 2.0 * self.longest * delta))
        return _Beaten(self.alpha, competitor, weight, radius, delta, radius)

    def _undercut(self, made: tuple[FloatArray, float] | None) -> _Beaten:
        """δ, the norm from which on q₀ has a lower risk than α outright, and the norm that no path point within δ exceeds: case A2."""
        if made is None:
            return _Beaten(self.alpha)
        competitor, weight = made
        radius = max(float(undercut_radius(self.data, self.v, competitor, self.loss)), self.cone.radius)
        norms = radius * (1.0 + np.geomspace(1e-6, 1e2, _N_NORMS))
        selected = np.broadcast_to(self.alpha, (len(norms), self.data.n_inputs))
        excess = AttentionRisk(self.data.repeat(len(norms)), self.v, self.loss).excess(
            norms[:, None] * competitor, selected
        )
        lowest = int(np.argmax(np.where(excess.sign < 0.0, excess.log, -np.inf)))
        higher = np.maximum(-self.gaps, 0.0)
        nearest = float(np.min(np.where(higher > 0.0, self.at.margins, np.inf)))
        delta = 0.5 * float(self.at.margin) / self.longest
        log_most, _ = self.problem.log_slopes
        depth = float(log_most + np.log(np.sum(higher) / self.data.n_inputs) - excess.log[lowest])
        bound = max(depth / (nearest - self.longest * delta), float(norms[lowest]))
        return _Beaten(self.alpha, competitor, weight, radius, delta, bound)


def _solved(rows: FloatArray, right: FloatArray) -> FloatArray | None:
    """D⁺ right, None if the equations D x = right have no solution."""
    step = np.linalg.pinv(rows) @ right
    return step if np.linalg.norm(rows @ step - right) <= _EQUATION_RTOL * np.linalg.norm(right) else None
