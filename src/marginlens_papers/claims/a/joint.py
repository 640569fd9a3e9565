"""Head and attention trained together: the bounds of the proofs of Theorem 5 and Lemma 13, and how large a fixed head must be."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from marginlens.arithmetic.directions import as_scalar
from marginlens.data.tokens import TokenDataset
from marginlens.dynamics.paths.joint import best_head, log_mean_loss
from marginlens.errors import InputError, positive_number, whole_number
from marginlens.papers import implements, uses
from marginlens.risk.softmax import probabilities
from marginlens.status import Status
from marginlens.svm import MarginSolution, att_svm, relaxed_svm
from marginlens.theory.joint import SELECTED_RTOL, FixedHead, fixed_head_radius, mixing_cost
from marginlens.theory.label_margin import (
    LabelMargin,
    all_selections,
    check_assumption_c,
    label_margin,
    margins_of_outputs,
)
from marginlens.theory.optimality import largest_distance, logits_at, one_problem
from marginlens.typing import ArrayLike, FloatArray, IntArray


class Quadrant(NamedTuple):
    """How firmly points select tokens α.

    Attributes:
        margin: (…) the smallest logit margin (k_α - k_t)·p over inputs and other tokens; inf if no input has two tokens.
        share: (…) the smallest probability of a selected token.
    """

    margin: Any
    share: Any

    @property
    def holds(self) -> Any:
        """Eq. (77), (…): no other token has a larger logit."""
        return as_scalar(np.asarray(self.margin) >= 0.0)


@implements("A", "Lemma 12", "Eq. (77)")
def selection_quadrant(data: TokenDataset, p: ArrayLike, selected: ArrayLike) -> Quadrant:
    r"""Whether points lie in the quadrant of p that select given tokens.

    .. math:: \min_{t \ne \alpha_i} (k_{i\alpha_i} - k_{it})^\top p \ge 0 \quad \text{for all } i

    Lemma 12: if every :math:`s_{i\alpha_i}` exceeds ½, it holds; so along a path that selects α in the limit it holds from some R₀ on.

    Args:
        data: one problem. p: (d_key,) or (n_points, d_key), such as the points of a path. selected: α (n_inputs,).
    Returns:
        A `Quadrant`, whose fields have one entry per point.
    """
    alpha = one_problem(data).selection(selected)
    at = logits_at(data, p)
    chosen = np.broadcast_to(alpha[:, None], (*at.shape[:-1], 1))
    top = np.take_along_axis(at, chosen, axis=-1)
    other = data.mask & (np.arange(data.n_tokens) != alpha[:, None])
    margin = np.min(np.where(other, top - at, np.inf), axis=(-2, -1))
    share = np.min(np.take_along_axis(probabilities(at, data.mask), chosen, axis=-1)[..., 0], axis=-1)
    return Quadrant(as_scalar(margin), as_scalar(share))


class JointRiskBounds(NamedTuple):
    r"""What the proofs of Theorem 5 and Lemma 13 compare at radii r and R.

    Attributes:
        margin: Ξ, of the relaxed problem with the support set S. competitor_margin: Ξ_ε, of Eq. (78). competitor: (d_key,) p^{ε-relax}
            at norm R. head: (d_model,) v^mm at norm r.
        log_upper: logarithm of the bound (81) on the risk of (head, competitor), right for R ≥ `selects_from`.
        log_lower: logarithm of the bound (82) on the risk of every pair with ‖v‖ ≤ r, ‖p‖ ≤ R whose p selects α and has a margin of at most
            (1 - γ)Ξ R on S.
        log_q_competitor: the two bounds of (79b) on log q_max of the competitor on S. log_q_other: the lower bound (79a) for those pairs.
        selects_from: R̄₀ after Eq. (80), from which on inputs outside S keep a label margin of Γ; 0 if S holds all inputs.
        r_needed: the r beyond which the two bounds contradict each other at this R; inf if they never do.
        nu: ν of Assumption C over S. proved: whether it is proved.
    """

    margin: float
    competitor_margin: float
    competitor: FloatArray
    head: FloatArray
    log_upper: float
    log_lower: float
    log_q_competitor: tuple[float, float]
    log_q_other: float
    selects_from: float
    r_needed: float
    nu: float
    proved: bool

    @property
    def competitor_wins(self) -> bool:
        """Whether the competitor has the lower risk for certain, so that no such pair is the optimum."""
        return self.log_upper < self.log_lower


@implements("A", "Lemma 13")
@uses(
    "A",
    {
        "Eq. (71)": "Attention that the competitor gives to other tokens, at most T e^{-ΞR}: `log_q_competitor`.",
        "Eq. (72)": "Attention that a pair of smaller margin gives to other tokens, at least e^{-(1-γ)ΞR}/T: `log_q_other`.",
        "Eq. (73)": "Both in logarithms, for S = all inputs: `log_q_other` and `log_q_competitor`.",
        "Eq. (74)": "The competitor's risk from above, for S = all inputs: `log_upper`.",
        "Eq. (75)": "The risk of every pair of smaller margin from below, for S = all inputs: `log_lower`.",
        "Eq. (76)": "How near v_r must come to v^mm; `head_radius` bounds the same distance at a finite r.",
        "Eq. (79a)": "Attention to other tokens on S that a pair of smaller margin cannot avoid: `log_q_other`.",
        "Eq. (79b)": "Attention to other tokens on S along p^{ε-relax}: `log_q_competitor`.",
        "Eq. (80)": "Inputs outside S keep a label margin of Γ along p^{ε-relax}: `selects_from`.",
        "Eq. (81)": "The risk of (v^mm, p^{ε-relax}) from above: `log_upper`.",
        "Eq. (82)": "The risk of every pair of smaller margin from below: `log_lower`.",
    },
)
def joint_risk_bounds(
    data: TokenDataset,
    selected: ArrayLike,
    r: float,
    R: float,
    *,
    gamma: float,
    epsilon: float = 1.0,
    support: ArrayLike | None = None,
) -> JointRiskBounds:
    r"""Risks from above and from below whose contradiction proves Theorem 5 and Lemma 13.

    .. math:: \log L\Big(r\Gamma v^{mm}, R\,\Xi_\epsilon p^{\epsilon\text{-relax}}\Big) \le -r\Gamma + r M T e^{-\Xi_\epsilon R}, \qquad
        L(v, p) \ge \tfrac1n \min\Big(\tfrac12 e^{-r(\Gamma - \frac\nu T e^{-(1-\gamma)\Xi R})},\ \log 2\Big)

    The second holds for every p that selects α with a margin of at most (1 - γ)Ξ R on S. They contradict each other once
    :math:`r(\frac\nu T e^{-(1-\gamma)\Xi R} - MT e^{-\Xi_\epsilon R}) > \log 2n`, which for large R takes an r exponential in R; the paper
    leaves the right side out.

    Args:
        data: one problem. selected: α (n_inputs,). r, R: limits on ‖v‖ and ‖p‖.
        gamma: γ in (0, 1], how much smaller the margins are that are ruled out. epsilon: ε in (0, 1] of Eq. (78); 1 gives p^mm.
        support: S, as for `relaxed_svm`; by default the support set of the head on α. All inputs give Theorem 5.
    Returns:
        A `JointRiskBounds`. Check `log_upper` with `risk` at (head, competitor), and `log_lower` at pairs of smaller margin.
    """
    r, R = positive_number(r, "r"), positive_number(R, "R")
    for value, name in ((gamma, "gamma"), (epsilon, "epsilon")):
        if positive_number(value, name) > 1.0:
            raise InputError(name, "a number above 0 and no larger than 1", value)
    head = label_margin(one_problem(data), selected)
    chosen = head.support if support is None else np.asarray(support)
    relaxed, tightened = _relaxed_problems(data, head, chosen, epsilon)
    inside = np.zeros(data.n_inputs, dtype=bool)
    inside[chosen] = True
    mixing = check_assumption_c(data, head.selected, inputs=inside)
    nu = mixing_cost(mixing)
    T, n = data.n_tokens, data.n_inputs
    M = largest_distance(data.X, data.mask)
    wide, narrow = float(relaxed.margin), float(tightened.margin)
    other = -(1.0 - gamma) * wide * R - np.log(T)
    cost = nu * np.exp(other)
    spread = M * T * np.exp(-narrow * R)
    lower = min(-r * (head.margin - cost) - np.log(2.0), np.log(np.log(2.0))) - np.log(n)
    return JointRiskBounds(
        margin=wide,
        competitor_margin=narrow,
        competitor=R * tightened.direction,
        head=r * head.head.direction,
        log_upper=float(-r * head.margin + r * spread),
        log_lower=float(lower),
        log_q_competitor=(float(-narrow * R - np.log(T)), float(-narrow * R + np.log(T))),
        log_q_other=float(other),
        selects_from=_keeps_labels_from(head.slack[~inside], T * M, epsilon * narrow),
        r_needed=float(np.log(2.0 * n) / (cost - spread)) if cost > spread else np.inf,
        nu=nu,
        proved=mixing.proved,
    )


def _relaxed_problems(
    data: TokenDataset, head: LabelMargin, support: ArrayLike, epsilon: float
) -> tuple[MarginSolution, MarginSolution]:
    """The relaxed problem with support set S, and that of Eq. (78), whose inputs outside S have a margin of at least ε."""
    relaxed = relaxed_svm(data, head.selected, support)
    tightened = relaxed_svm(data, head.selected, support, outside=epsilon)
    if head.margin == 0.0 or relaxed.status is not Status.OPTIMAL or tightened.status is not Status.OPTIMAL:
        raise InputError(
            "selected", "tokens whose labels and keys can be separated", f"{head.selected.tolist()}, which cannot"
        )
    return relaxed, tightened


def _keeps_labels_from(slack: FloatArray, spread: float, margin: float) -> float:
    """R̄₀ after Eq. (80), for inputs outside S of this slack: T M e^(-R margin) is at most their slack from R̄₀ on."""
    if len(slack) == 0:
        return 0.0
    least = float(np.min(slack))
    return max(float(np.log(spread / least)) / margin, 0.0) if least > 0.0 else np.inf


# ---- how large a fixed head must be


_MAX_RIVALS = 8  # other selections whose risk is computed exactly along r
_N_HEAD_NORMS = 48  # values of r at which risks are compared before bisection


class HeadRadius(NamedTuple):
    r"""How large the limit r on ‖v‖ must be for the joint path to select α when r stays fixed and only R grows.

    Attributes:
        selected: (n_inputs,) the tokens α.
        radius: for every fixed r from here on, p_R/R → p^mm(α) as R → ∞; inf if no such r is known.
        proved: whether the ν that `radius` is computed from is proved; if not, `radius` is right only if the smallest ν found is.
        nu: ν of Assumption C over the support set. alignment: κ, the smallest cosine of v^mm with :math:`Y_i (x_{i\alpha_i} - x_{it})`.
        refuted: the largest r found at which another selection has the lower risk in the limit R → ∞, so that the path cannot go to
            p^mm(α) there; 0 if none was found. rival: (n_inputs,) that selection, or None.

    Between `refuted` and `radius` nothing is known: a mixture of tokens may have the lower risk there.
    """

    selected: IntArray
    radius: float
    proved: bool
    nu: float
    alignment: float
    refuted: float
    rival: IntArray | None


@implements("A", "Thm 5", "Thm 6")
def head_radius(data: TokenDataset, selected: ArrayLike, *, max_problems: int = 4096) -> HeadRadius:
    r"""The finite r from which the selection that Theorems 5 and 6 promise holds, and the r up to which another one wins.

    As R → ∞ with r fixed, the risk of a selection β tends to that of a plain logistic regression on its tokens,
    :math:`L_r(\beta) = \min_{\|v\| \le r} \frac1n \sum_i \ell(Y_i v^\top x_{i\beta_i})` with :math:`\ell(u) = \log(1 + e^{-u})`, and only
    for large r does the widest label margin decide. Let Γ and ν be the constants of Assumption C over the support set S, M the longest
    :math:`\|x_{i\alpha_i} - x_{it}\|` and κ the smallest cosine of v^mm with :math:`Y_i(x_{i\alpha_i} - x_{it})`. For any p some input of S
    has a margin of at most :math:`r(\Gamma - \nu q)`, q being the largest attention in S to other tokens, while α costs at most
    :math:`\ell(r\Gamma)`. Hence at the optimum, for all large R,

    .. math:: q \le \bar q(r) = \frac{r\Gamma - \ell^{-1}(n\,\ell(r\Gamma))}{r\nu}, \qquad
        \Big\| \frac vr - \frac{v^{mm}}{\|v^{mm}\|} \Big\|^2 \le \frac{2(\nu + M)}{\Gamma}\, \bar q(r),

    both of which fall with r. Once the second is below κ², every α_i has the highest score of its input under v, and the risk exceeds
    that of α by a multiple of the attention to other tokens, as in Theorem 1: p_R/R → p^mm. `radius` is that r.

    Args:
        data: one problem. selected: α (n_inputs,), such as `predict_limit(data).details.selected`.
        max_problems: selections up to which rivals are looked for.
    Returns:
        A `HeadRadius`. Check it with `path(JointRisk(data), (r, R))` at a fixed r and large R.
    """
    whole_number(max_problems, "max_problems", at_least=0)
    head = label_margin(one_problem(data), selected)
    mixing = check_assumption_c(data, head.selected, inputs=head.support_or_all)
    found = fixed_head_radius(data, head, mixing_cost(mixing))
    if att_svm(data, head.selected).status is not Status.OPTIMAL:
        found = FixedHead(np.inf, found.nu, found.alignment)
    refuted, rival = _last_rival(data, head, max_problems)
    return HeadRadius(head.selected, found.radius, mixing.proved, found.nu, found.alignment, refuted, rival)


def _last_rival(data: TokenDataset, head: LabelMargin, max_problems: int) -> tuple[float, IntArray | None]:
    """The largest r found at which another selection that some p makes has a lower limit risk, and that selection."""
    lengths = [int(length) for length in data.lengths]
    if head.margin == 0.0 or prod(lengths) > max_problems:
        return 0.0, None
    each = np.arange(data.n_inputs)
    every = all_selections(lengths)
    every = every[np.any(every != head.selected, axis=-1)]
    if len(every):
        every = every[att_svm(data.repeat(len(every)), every).status == Status.OPTIMAL]
    if not len(every):
        return 0.0, None
    rows = data.y[:, None] * data.X[each, every]  # (n_rivals, n_inputs, d_model)
    margins = margins_of_outputs(data, data.X[each, every])
    first, last = 1e-2 / head.margin, _certain_win(head.margin, float(margins.max()), data.n_inputs)
    norms = np.geomspace(first, max(last, 2.0 * first), _N_HEAD_NORMS)
    selected_rows = data.y[:, None] * data.X[each, head.selected]
    heights = _limit_risks(selected_rows, norms)
    mean = rows.mean(axis=1)
    ahead = mean / np.maximum(np.linalg.norm(mean, axis=-1, keepdims=True), np.finfo(float).tiny)
    at_mean = log_mean_loss(
        norms[:, None, None] * np.einsum("bid,bd->bi", rows, ahead)
    )  # (n_norms, n_rivals): no lower than L_r
    promising = np.argsort(np.min(at_mean - heights[:, None], axis=0), kind="stable")[: _MAX_RIVALS // 2]
    promising = np.unique(np.concatenate([promising, np.argsort(-margins, kind="stable")[: _MAX_RIVALS // 2]]))
    best: tuple[float, IntArray | None] = (0.0, None)
    for k in promising:
        wins = np.flatnonzero(_limit_risks(rows[k], norms) < heights - SELECTED_RTOL)
        if len(wins) == 0:
            continue
        low = float(norms[wins[-1]])
        high = float(norms[min(wins[-1] + 1, len(norms) - 1)])
        for _ in range(40 if high > low else 0):
            middle = np.array([0.5 * (low + high)])
            if _limit_risks(rows[k], middle)[0] < _limit_risks(selected_rows, middle)[0]:
                low = float(middle[0])
            else:
                high = float(middle[0])
        if low > best[0]:
            best = (low, every[k])
    return best


def _certain_win(margin: float, other: float, n_inputs: int) -> float:
    """An r beyond which the wider label margin has the lower risk whatever the other tokens are; capped if the two are nearly equal."""
    cap = 1e3 * (1.0 + np.log(n_inputs)) / margin
    r = 1.0 / margin
    while r < cap and log_mean_loss(np.array([r * other])) - np.log(n_inputs) <= log_mean_loss(np.array([r * margin])):
        r *= 2.0
    return min(r, cap)


def _limit_risks(rows: FloatArray, norms: FloatArray) -> FloatArray:
    """log L_r of signed tokens (n_inputs, d_model) at increasing r, (n_norms,)."""
    v, logs = rows.mean(axis=0), []
    for r in norms.tolist():
        v = best_head(rows, r, v)
        logs.append(float(log_mean_loss(rows @ v)))
    return np.array(logs)
