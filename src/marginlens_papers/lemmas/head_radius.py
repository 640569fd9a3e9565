"""How large a fixed head must be for the joint path to select the tokens that Theorems 5 and 6 promise."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from marginlens.data.tokens import TokenDataset
from marginlens.dynamics.paths.joint import best_head, log_mean_loss
from marginlens.errors import whole_number
from marginlens.papers import implements
from marginlens.status import Status
from marginlens.svm import att_svm
from marginlens.theory.joint import SELECTED_RTOL, FixedHead, fixed_head_radius, mixing_cost
from marginlens.theory.label_margin import (
    LabelMargin,
    all_selections,
    check_assumption_c,
    label_margin,
    margins_of_outputs,
)
from marginlens.theory.optimality import one_problem
from marginlens.typing import ArrayLike, FloatArray, IntArray

_MAX_RIVALS = 8  # other selections whose risk is computed exactly along r
_N_HEAD_NORMS = 48  # values of r at which risks are compared before bisection


class HeadRadius(NamedTuple):
    r"""How large the limit r on ‖v‖ must be for the joint path to select α when r stays fixed and R grows alone.

    Attributes:
        selected: (n_inputs,) the tokens α.
        radius: for every fixed r from here on, p_R/R → p^mm(α) as R → ∞; inf where no such r is known.
        proved: whether the ν that `radius` is computed from is proved; if not, `radius` is right only if the smallest ν found is.
        nu: ν of Assumption C over the support set. alignment: κ, the smallest cosine of v^mm with :math:`Y_i (x_{i\alpha_i} - x_{it})`.
        refuted: the largest r found at which another selection has the lower risk in the limit R → ∞, so that the path cannot go to
            p^mm(α) there; 0 where none was found. rival: (n_inputs,) that selection, or None.

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
    """An r beyond which the wider label margin has the lower risk whatever the other tokens are; capped where the two are nearly equal."""
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
