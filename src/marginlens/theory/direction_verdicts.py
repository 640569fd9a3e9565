"""Whether a local regularisation path can go to a given direction: Theorems 4 and 7, case by case, with the direction that beats it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from marginlens.data.tokens import BoolArray, FloatArray, IntArray, TokenDataset
from marginlens.directions import correlation, unit
from marginlens.dynamics.paths.cone import Cone
from marginlens.errors import reject, whole_number
from marginlens.losses.margin import Logistic, Loss, as_loss
from marginlens.papers import implements, uses
from marginlens.risk.attention import excess_risk
from marginlens.risk.softmax import centred_keys
from marginlens.svm import att_svm
from marginlens.theory.assumptions import Check, check_assumption_a, check_distinct_scores
from marginlens.theory.directional import DirectionalMargin, directional_margin, undercut_radius
from marginlens.theory.general_position import check_general_position
from marginlens.theory.optimality import token_optimality
from marginlens.theory.problem import log_slopes, one_problem, score_differences
from marginlens.theory.verdicts import Verdict

SAME_DIRECTION = 1e-9  # distance of unit vectors up to which a direction is a max-margin direction
_SOLVED = 1e-9  # residual of the pseudo-inverse's equations, relative, up to which they are solved
_HALVINGS = 200  # of the weight of a perturbation until the competitor is where it must be
_NORMS = 200  # norms at which the competitor's risk is looked at for its lowest


class DirectionCase(Enum):
    """Which case of Theorem 7's proof a direction belongs to."""

    P_MM = "It is a locally optimal max-margin direction, of which Theorem 7 says nothing."
    A1 = (
        "It selects one token per input, all its directional neighbours score lower, and its margin is not the largest."
    )
    A2 = "It selects one token per input, and a directional neighbour scores higher."
    B = "It selects several tokens of an input at once."


@dataclass(frozen=True, repr=False, eq=False)
class DirectionVerdict:
    r"""What Theorem 7 says about the local path in a cone around a unit direction q, in numbers.

    Attributes:
        cone: the cone, whose axis is q. case: a `DirectionCase`. verdict: the conditions of Theorem 7 and its conclusion.
        selected: (n_inputs,) the tokens α that q selects, the highest-scoring one where several tie.
        competitor: (d_key,) the unit direction of the proof that does better; None where q is in P^mm or none can be built.
        weight: how much of the perturbation it contains: ε of :math:`q + \epsilon \bar p^{mm}`, ε₀ of :math:`q + \epsilon_0 q^\perp`.
        competitor_from: the norm from which on the competitor does better. In cases A1 and B, L(R competitor) < L(p) for every p of norm
            R ≥ `competitor_from` with :math:`\|p/R - q\| \le \delta`; in case A2, L(R competitor) is below the risk of
            selecting α outright.
        delta: δ, how close to q the beaten directions are. norm_bound: no point of the path is both longer than this and within δ of q,
            so that p̄(R)/R cannot tend to q; inf where there is no competitor.
    """

    cone: Cone
    case: DirectionCase
    verdict: Verdict
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

    def __repr__(self) -> str:
        rest = f", beaten beyond {self.norm_bound:.4g} within {self.delta:.4g}" if self.competitor is not None else ""
        return f"DirectionVerdict(case {self.case.name}, selects {self.selected.tolist()}{rest})"

    def __str__(self) -> str:
        lines = [f"Case {self.case.name}: {self.case.value}", str(self.verdict)]
        if self.competitor is not None:
            than = (
                "selecting the tokens outright"
                if self.case is DirectionCase.A2
                else f"every point as long within {self.delta:.4g} of the direction"
            )
            lines.append(
                f"The direction {np.array2string(self.competitor, precision=4)} has a lower risk than {than} from norm "
                f"{self.competitor_from:.4g} on, so no path point longer than {self.norm_bound:.4g} is within {self.delta:.4g}."
            )
        elif not self.is_locally_optimal:
            lines.append(
                "The proof's competitor cannot be built here: the key differences that it inverts are dependent."
            )
        return "\n".join(lines)


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
    v: Any,
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
        data: one problem. v: head (d_model,). loss: any strictly decreasing `Loss`.
        cone: axis q, width ε and least norm R₀.
        max_problems: matrices that `check_general_position` looks at.
    Returns:
        A `DirectionVerdict`. Check it with `excess_risk` at the competitor and at points within δ of q, or with `regularization_path`.
    """
    data, loss = one_problem(data), as_loss(loss)
    whole_number(max_problems, "max_problems", at_least=1)
    if not isinstance(cone, Cone) or len(cone.axis) != data.d_key:
        got = f"an axis of length {len(cone.axis)}" if isinstance(cone, Cone) else type(cone).__name__
        raise reject("cone", f"a Cone with an axis of length {data.d_key}", got)
    at = directional_margin(data, cone.axis, v)
    tied = _tied(data, at)
    alpha = _highest(data, v, tied)
    case = _case(data, v, cone.axis, at, alpha)
    found = _NOTHING
    if case in (DirectionCase.A1, DirectionCase.B):
        made = (
            _towards_margin(data, alpha, cone)
            if case is DirectionCase.A1
            else _towards_best(data, v, alpha, tied, cone)
        )
        found = _NOTHING if made is None else _outmatched(data, v, loss, alpha, cone, made)
    elif case is DirectionCase.A2:
        made = _towards_higher(data, v, at, cone)
        found = _NOTHING if made is None else _undercut(data, v, loss, at, cone, made)
    outside = Check(
        "not in P^mm",
        case is not DirectionCase.P_MM,
        f"the direction belongs to case {case.name}: {case.value[0].lower()}{case.value[1:-1]}",
    )
    conditions = (
        check_assumption_a(data, v, loss),
        check_distinct_scores(data, v),
        check_general_position(data, max_problems=max_problems),
        outside,
    )
    verdict = Verdict("A Thm 7", conditions, "the local path does not converge to this direction")
    return DirectionVerdict(cone, case, verdict, alpha, *found)


Found = tuple[FloatArray | None, float, float, float, float]  # competitor, weight, competitor_from, delta, norm_bound
Made = tuple[FloatArray, float]  # competitor, weight
_NOTHING: Found = (None, 0.0, np.inf, 0.0, np.inf)


def _tied(data: TokenDataset, at: DirectionalMargin) -> BoolArray:
    """Tokens that q selects, (n_inputs, n_tokens): more than one of an input where they tie."""
    chosen = np.arange(data.n_tokens) == at.selected[:, None]
    return chosen if at.unique else chosen | at.neighbours


def _highest(data: TokenDataset, v: Any, tied: BoolArray) -> IntArray:
    """The highest-scoring one of the selected tokens, (n_inputs,)."""
    return np.argmax(np.where(tied, data.scores(v), -np.inf), axis=-1)


def _case(data: TokenDataset, v: Any, q: FloatArray, at: DirectionalMargin, alpha: IntArray) -> DirectionCase:
    if not at.unique:
        return DirectionCase.B
    if not at.neighbour_optimal:
        return DirectionCase.A2
    best = token_optimality(data, v, alpha)
    near = float(np.linalg.norm(np.asarray(best.direction) - q)) <= SAME_DIRECTION
    nothing_to_select = not np.isfinite(at.margin)
    return DirectionCase.P_MM if nothing_to_select or (near and best.is_locally_optimal) else DirectionCase.A1


def _away(data: TokenDataset, alpha: IntArray) -> tuple[FloatArray, BoolArray]:
    """Key differences k_α - k_t, (n_inputs, n_tokens, d_key), and which (i, t) are other tokens."""
    keys = centred_keys(data)
    other = data.mask & (np.arange(data.n_tokens) != alpha[:, None])
    return np.take_along_axis(keys, alpha[:, None, None], axis=1) - keys, other


def _longest(data: TokenDataset) -> float:
    """M, the longest difference of two keys of one input."""
    keys = centred_keys(data)
    apart = np.linalg.norm(keys[:, :, None] - keys[:, None], axis=-1)
    return float(np.max(np.where(data.mask[:, :, None] & data.mask[:, None], apart, 0.0)))


def _towards_margin(data: TokenDataset, alpha: IntArray, cone: Cone) -> Made:
    """q' = q + (ε/2) p̄^mm, normalised: inside the cone, because ⟨q, q'⟩ ≥ (1 - ε/2)/(1 + ε/2) ≥ 1 - ε."""
    weight = 0.5 * min(cone.mu, 1.0)
    return unit(cone.axis + weight * unit(att_svm(data, alpha).x)), weight


def _perturbed(cone: Cone, step: FloatArray, weight: float, accepts: Any) -> Made | None:
    """q + ε₀ step, normalised, with ε₀ halved from `weight` until it is in the cone and accepted."""
    for _ in range(_HALVINGS):
        direction = unit(cone.axis + weight * step)
        if float(correlation(direction, cone.axis)) >= 1.0 - cone.mu and accepts(direction):
            return direction, weight
        weight *= 0.5
    return None


def _inverted(rows: FloatArray, right: FloatArray) -> FloatArray | None:
    """D⁺ right, None where the equations D x = right have no solution."""
    step = np.linalg.pinv(rows) @ right
    return step if np.linalg.norm(rows @ step - right) <= _SOLVED * np.linalg.norm(right) else None


def _towards_higher(data: TokenDataset, v: Any, at: DirectionalMargin, cone: Cone) -> Made | None:
    """q + ε₀ D⁺1₊: the neighbours that score higher come nearer, the others stay, and the rest stays behind."""
    away, _ = _away(data, at.selected)
    difference, _ = score_differences(data, v, at.selected)
    higher = (difference < 0.0)[at.neighbours]
    step = _inverted(-away[at.neighbours], higher.astype(float))
    if step is None:
        return None
    reach = 1.0 + float(np.linalg.norm(step)) * _longest(data)
    front = at.neighbours & (difference < 0.0)

    def accepts(direction: FloatArray) -> bool:
        ahead = directional_margin(data, direction, v)
        return (
            bool(ahead.unique)
            and np.array_equal(ahead.selected, at.selected)
            and np.array_equal(ahead.neighbours, front)
        )

    return _perturbed(cone, step, 0.5 * min(float(at.margin), float(at.second_gap) / reach), accepts)


def _towards_best(data: TokenDataset, v: Any, alpha: IntArray, tied: BoolArray, cone: Cone) -> Made | None:
    """q + ε₀ D⁺1: of the tied tokens the highest-scoring one is selected, with the same margin to all others of them."""
    away, other = _away(data, alpha)
    step = _inverted(away[tied & other], np.ones(int(np.sum(tied & other))))
    if step is None:
        return None
    outside = float(np.min((away @ cone.axis)[other & ~tied], initial=np.inf))
    weight = 0.5 * min(outside / (1.0 + _longest(data) * float(np.linalg.norm(step))), 1.0)

    def accepts(direction: FloatArray) -> bool:
        ahead = directional_margin(data, direction, v)
        return bool(ahead.unique and ahead.neighbour_optimal) and np.array_equal(ahead.selected, alpha)

    return _perturbed(cone, step, weight, accepts)


def _outmatched(data: TokenDataset, v: Any, loss: Loss, alpha: IntArray, cone: Cone, made: Made) -> Found:
    """δ, and the norm from which on the competitor beats everything as long within δ of q: cases A1 and B."""
    competitor, weight = made
    away, other = _away(data, alpha)
    gaps, _ = score_differences(data, v, alpha)
    margins = np.where(other, away @ cone.axis, np.inf)
    low, longest = max(float(margins.min()), 0.0), _longest(data)  # zero in case B, where tokens tie
    nearest = other & (margins <= low + 1e-12 * longest)
    higher, lower = np.maximum(-gaps, 0.0), np.maximum(gaps, 0.0)
    behind = float(np.min(np.where(higher > 0.0, margins, np.inf))) - low  # δ^-
    ahead = float(np.min((away @ competitor)[other])) - low
    delta = min(0.5 * ahead, 0.25 * behind) / longest
    log_most, log_least = log_slopes(data, v, loss)
    with np.errstate(divide="ignore"):
        ratio = np.log(2.0 * data.n_tokens) + log_most - log_least - np.log(float(np.min(gaps[nearest])))
        first = (np.log(np.sum(higher)) + ratio) / (behind - 2.0 * longest * delta) if np.isfinite(behind) else 0.0
        second = (np.log(np.sum(lower)) + ratio) / (ahead - longest * delta)
    radius = max(float(first), float(second), cone.radius)
    return competitor, weight, radius, delta, radius


def _undercut(data: TokenDataset, v: Any, loss: Loss, at: DirectionalMargin, cone: Cone, made: Made) -> Found:
    """δ, the norm from which on q₀ has a lower risk than the tokens outright, and that which no path point within δ exceeds: case A2."""
    competitor, weight = made
    radius = max(float(undercut_radius(data, v, competitor, loss)), cone.radius)
    norms = radius * (1.0 + np.geomspace(1e-6, 1e2, _NORMS))
    many = data.repeat(len(norms))
    excess = excess_risk(
        many, v, norms[:, None] * competitor, loss, np.broadcast_to(at.selected, (len(norms), data.n_inputs))
    )
    lowest = int(np.argmax(np.where(excess.sign < 0.0, excess.log, -np.inf)))
    gaps, _ = score_differences(data, v, at.selected)
    higher = np.maximum(-gaps, 0.0)
    nearest, longest = float(np.min(np.where(higher > 0.0, at.margins, np.inf))), _longest(data)
    delta = 0.5 * float(at.margin) / longest
    log_most, _ = log_slopes(data, v, loss)
    depth = float(log_most) + float(np.log(np.sum(higher))) - np.log(data.n_inputs) - float(excess.log[lowest])
    return competitor, weight, radius, delta, max(depth / (nearest - longest * delta), float(norms[lowest]))
