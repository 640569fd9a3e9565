"""The bounds of the proofs of Theorem 5 and Lemma 13: head and attention trained together."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marginlens.data.tokens import TokenDataset
from marginlens.directions import as_scalar
from marginlens.errors import positive_number, reject
from marginlens.papers import implements, uses
from marginlens.risk.softmax import probabilities
from marginlens.status import Status
from marginlens.svm import relaxed_svm
from marginlens.theory.label_margin import (
    check_assumption_c,
    label_margin,
)
from marginlens.theory.optimality import largest_distance, logits_at, one_problem
from marginlens.typing import ArrayLike, FloatArray


class Quadrant(NamedTuple):
    """How firmly points select tokens α.

    Attributes:
        margin: (…) the smallest logit margin (k_α - k_t)·p over inputs and other tokens; inf where no input has two tokens.
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

    Lemma 12: where every :math:`s_{i\alpha_i}` exceeds ½ it holds, so along a path that selects α in the limit it holds from some R₀ on.

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
        selects_from: R̄₀ after Eq. (80), from which on inputs outside S keep a label margin of Γ; 0 where S holds all inputs.
        r_needed: the r beyond which the two bounds contradict each other at this R; inf where they never do.
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
            raise reject(name, "a number above 0 and no larger than 1", value)
    head = label_margin(one_problem(data), selected)
    relaxed = relaxed_svm(data, head.selected, head.support if support is None else support)
    tightened = relaxed_svm(data, head.selected, head.support if support is None else support, outside=epsilon)
    if head.margin == 0.0 or relaxed.status is not Status.OPTIMAL or tightened.status is not Status.OPTIMAL:
        raise reject(
            "selected", "tokens whose labels and keys can be separated", f"{head.selected.tolist()}, which cannot"
        )
    inside = np.zeros(data.n_inputs, dtype=bool)
    inside[head.support if support is None else np.asarray(support)] = True
    mixing = check_assumption_c(data, head.selected, inputs=inside)
    nu = float(mixing.numbers["proved_nu" if mixing.proved else "nu"]) if mixing.holds else 0.0
    T, n = data.n_tokens, data.n_inputs
    M = largest_distance(data.X, data.mask)
    wide, narrow = float(relaxed.margin), float(tightened.margin)
    other = -(1.0 - gamma) * wide * R - np.log(T)
    cost = nu * np.exp(other)
    spread = M * T * np.exp(-narrow * R)
    slack = float(np.min(head.slack[~inside], initial=np.inf))
    selects = 0.0 if inside.all() else max(np.log(T * M / slack) / (epsilon * narrow), 0.0) if slack > 0.0 else np.inf
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
        selects_from=float(selects),
        r_needed=float(np.log(2.0 * n) / (cost - spread)) if cost > spread else np.inf,
        nu=nu,
        proved=mixing.proved,
    )
