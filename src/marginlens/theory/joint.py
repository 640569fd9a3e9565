"""Head and attention trained together: Theorems 5 and 6, and how large a fixed head must be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from marginlens.data.tokens import TokenDataset
from marginlens.dynamics.paths.joint import best_head, log_mean_loss
from marginlens.errors import reject, whole_number
from marginlens.losses.margin import Logistic, Loss, compiled_code
from marginlens.papers import implements
from marginlens.result import Result, drawn
from marginlens.result.drawing import draw_interval
from marginlens.result.notebook import Headline
from marginlens.risk import JointRisk
from marginlens.status import Status
from marginlens.svm import MarginSolution, att_svm, relaxed_svm
from marginlens.theory.assumptions import Check, TheoremVerdict
from marginlens.theory.implicit_bias import ON_BOTH, claim_words, observed_by, unknown_words
from marginlens.theory.label_margin import (
    BestSelections,
    LabelMargin,
    all_selections,
    best_selections,
    check_assumption_c,
    label_margin,
    margins_of_outputs,
)
from marginlens.theory.optimality import one_problem
from marginlens.theory.prediction import Prediction, predictions
from marginlens.typing import ArrayLike, Axes, BoolArray, FloatArray, IntArray

SELECTED_RTOL = 1e-9  # logit margins per unit of ‖p‖, relative to the largest key difference, that count as positive
_MAX_CANDIDATES = 32  # selections with the same label margin that are looked at one by one
_MAX_RIVALS = 8  # other selections whose risk is computed exactly along r
_N_HEAD_NORMS = 48  # values of r at which risks are compared before bisection


class JointDetails(NamedTuple):
    """What stands behind the verdicts on training v and p together.

    Attributes:
        best: the selections with the largest label margin, the candidates for the tokens that are selected.
        selected: (n_inputs,) the candidate that the verdicts are about. support: (n_inputs,) its support set S.
        label_margin: Γ. p_mm, p_relax: the solutions of ATT-SVM and of Eq. (10) with S.
        v_direction, p_direction: the limits of v/‖v‖ and p/‖p‖ along the joint path, None where no theorem applies.
        growth: the ratio r/R from which the path with ‖v‖ ≤ r, ‖p‖ ≤ R goes to p^relax rather than to p^mm; zero where they agree.
        head_radius: an r from which on the path goes to p^mm when r stays fixed and R grows alone; inf where none is known. It is proved
            where ν is (`MixingCheck.proved`), and computed with the smallest ν found elsewhere.

    Theorem 6 leaves open how fast r must grow. At radii r and R an input outside S with margin Γ + σ weighs e^{-rσ} less than one in S, so
    its logit margin matters until rσ makes up for the difference. With R growing alone the path goes to p^mm if r is at least
    `head_radius`; at a small fixed r other tokens can have the lower risk, under Theorem 5 as well.
    """

    best: BestSelections
    selected: IntArray
    support: BoolArray
    label_margin: float
    p_mm: MarginSolution
    p_relax: MarginSolution
    v_direction: FloatArray | None
    p_direction: FloatArray | None
    growth: float
    head_radius: float


@predictions.register
def predict_joint(risk: JointRisk, start: Any, optimizer: Any, max_problems: int) -> list[Prediction]:
    r"""Which theorem speaks about training head and attention together, and the directions that v and p converge to.

    .. math:: (v_r, p_R) = \arg\min_{\|v\| \le r, \|p\| \le R} L(v, p): \quad
        \frac{v_r}{r} \to \frac{v^{mm}}{\|v^{mm}\|}, \qquad \frac{p_R}{R} \to \frac{p^{mm}}{\|p^{mm}\|}\ \text{(Thm 5)}
        \ \text{or}\ \frac{p^{relax}}{\|p^{relax}\|}\ \text{(Thm 6)}

    The candidates for α are the selections with the largest label margin. The condition of Theorem 6 that α is selected in the limit is
    replaced by one on the data that implies it: the shortest p that separates α on S selects it outside S as well, with room to spare.
    """
    if start is not None:
        raise reject("start", "left out for a JointRisk, because Theorems 5 and 6 are about the joint path", "it")
    data = risk.data.as_batch()
    found = [_best_prediction(data[j], risk.loss, max_problems) for j in range(len(data))]
    if optimizer is None:
        return found
    said = f"{unknown_words(optimizer)} on v and p together: A Thms 5 and 6 are about the joint path"
    claims = observed_by(optimizer, ON_BOTH)
    if claims:
        said = f"no theorem here is about descent on v and p together, only about the joint path; such runs are in {claim_words(claims)}"
    return [replace(each, why=f"{each.why} {said[0].upper()}{said[1:]}.") for each in found]


def _best_prediction(data: TokenDataset, loss: Loss, max_problems: int) -> Prediction:
    """The prediction for the first of the best selections to which a theorem applies, else for the last one looked at."""
    best = best_selections(data, max_problems=max_problems)
    found = _about(data, best, best.selections[0], loss)
    for selected in best.selections[1:_MAX_CANDIDATES]:
        if found.path_direction is not None or best.margin == 0.0:
            break
        found = _about(data, best, selected, loss)
    return found


def _about(data: TokenDataset, best: BestSelections, selected: IntArray, loss: Loss) -> Prediction:
    head = label_margin(data, selected)
    p_mm, p_relax = att_svm(data, selected), relaxed_svm(data, selected, head.support)
    said = {
        Status.OPTIMAL: f"one direction selects them all, with margin {p_mm.margin:.4g}",
        Status.TRIVIAL: "no input has two tokens, so there is nothing to select",
    }.get(p_mm.status, "no direction selects them all")
    shared = (
        Check(
            "logistic loss",
            compiled_code(loss) == Logistic.code,
            f"the theorems are about the logistic loss; this is {type(loss).__name__}",
        ),
        Check(
            "labels separable",
            head.margin > 0.0,
            f"the tokens {selected.tolist()} have the label margin {head.margin:.4g}",
            {"margin": head.margin, "runner_up": best.runner_up},
        ),
        Check("separable tokens", p_mm.status is Status.OPTIMAL, said, {"margin": float(p_mm.margin)}),
    )
    strict = TheoremVerdict(
        "A Thm 5", (*shared, check_assumption_c(data, selected)), "p converges in direction to p^mm and v to v^mm"
    )
    mixing = check_assumption_c(data, selected, inputs=head.support_or_all)
    relaxed = TheoremVerdict(
        "A Thm 6",
        (*shared, _selected_in_the_limit(head, p_relax), mixing),
        "p converges in direction to p^relax and v to v^mm",
    )
    growth = _growth(head, p_relax)
    nu = (strict if strict.applies else relaxed).conditions[-1]
    radius = _fixed_head_radius(data, head, _nu(nu)).radius if p_mm.status is Status.OPTIMAL else np.inf
    applies = strict if strict.applies else relaxed if relaxed.applies else None
    v_limit = None if applies is None else head.head.direction
    p_limit = None if applies is None else (p_mm if applies is strict else p_relax).direction
    listed = "of all selections" if best.complete else "found by climbing; there are too many selections to try all"
    support = head.support
    return Prediction(
        "JointRisk",
        (strict, relaxed),
        _why(strict, relaxed, growth, radius),
        (
            f"Largest label margin ({listed}): {best.margin:.4g} by {len(best.selections)}, next {best.runner_up:.4g}.",
            f"Tokens {selected.tolist()}, support vectors {np.flatnonzero(support).tolist()}.",
        ),
        path_direction=None if v_limit is None or p_limit is None else np.concatenate([v_limit, p_limit]),
        details=JointDetails(best, selected, support, head.margin, p_mm, p_relax, v_limit, p_limit, growth, radius),
    )


def _selected_in_the_limit(head: LabelMargin, p_relax: MarginSolution) -> Check:
    """Whether p^relax selects α outside S too, with room to spare, which makes the path select it."""
    name = "selected in the limit"
    if p_relax.status is not Status.OPTIMAL or p_relax.pairs is None:
        free = p_relax.status is Status.TRIVIAL
        said = (
            "the support vectors have one token each, which leaves p open"
            if free
            else "no direction selects the tokens"
        )
        return Check(name, False, said, {"room": 0.0})
    outside = ~head.support[p_relax.pairs[:, 0]]
    size = float(np.max(np.linalg.norm(p_relax.rows, axis=-1)))
    spare = float(np.min((p_relax.rows @ p_relax.direction)[outside], initial=np.inf))
    holds = spare > SELECTED_RTOL * size
    if not outside.any():
        sentence = "every input with several tokens is a support vector"
    else:
        how = f"with a logit margin of {spare:.4g} per unit" if holds else "by no margin at all"
        sentence = f"p^relax selects the tokens outside the support set {how}"
    return Check(name, holds, sentence, {"room": spare})


def _growth(head: LabelMargin, p_relax: MarginSolution) -> float:
    """The smallest r/R at which no input outside S holds the path back from p^relax."""
    if p_relax.status is not Status.OPTIMAL or p_relax.pairs is None:
        return 0.0
    inputs = p_relax.pairs[:, 0]
    missing = p_relax.margin - p_relax.rows @ p_relax.direction  # logit margin per unit below that of S
    wanting = ~head.support[inputs] & (missing > 0.0)
    return float(np.max(missing[wanting] / head.slack[inputs[wanting]], initial=0.0))


def _why(strict: TheoremVerdict, relaxed: TheoremVerdict, growth: float, radius: float) -> str:
    """One sentence on what is known, and how surely."""
    applies = strict if strict.applies else relaxed
    if not applies.applies:
        return f"Not certain: {applies.failed[0].sentence}."
    proved = getattr(applies.conditions[-1], "proved", False)
    sure = "Certain" if proved else "Expected, as Assumption C is not proved,"
    fixed = (
        f"p^mm for every r ≥ {radius:.4g} that stays fixed while R grows"
        if np.isfinite(radius)
        else "where it goes at a fixed r while R grows is not known"
    )
    if applies is strict:
        return f"{sure} for the joint path: p^mm, by A Thm 5, as r and R grow; {fixed}."
    once = f" once r ≥ {growth:.4g} R" if growth > 0.0 else ""
    return f"{sure} for the joint path{once}: p^relax, by A Thm 6; {fixed}."


# ---- a head that stays bounded


@dataclass(frozen=True, repr=False, eq=False)
class HeadRadius(Result):
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

    @drawn
    def plot(self, ax: Axes) -> None:
        """Draw up to which limit on ‖v‖ another selection wins, and from which on this one does."""
        draw_interval(
            ax,
            [("another selection wins at", self.refuted), ("this one wins from", self.radius)],
            "limit r on ‖v‖",
            band=(self.refuted, self.radius),
        )
        ax.set_ylabel("between them nothing is known")

    def _headline(self) -> Headline:
        return Headline(
            f"selects {self.selected.tolist()}",
            f"for every fixed r from {self.radius:.4g} on{'' if self.proved else ', if the smallest ν found is right'}.",
        )


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
    found = _fixed_head_radius(data, head, _nu(mixing))
    if att_svm(data, head.selected).status is not Status.OPTIMAL:
        found = _FixedHead(np.inf, found.nu, found.alignment)
    refuted, rival = _last_rival(data, head, max_problems)
    return HeadRadius(head.selected, found.radius, mixing.proved, found.nu, found.alignment, refuted, rival)


class _FixedHead(NamedTuple):
    """The radius of a fixed head, with ν and κ, which it is made from."""

    radius: float
    nu: float
    alignment: float


def _nu(mixing: Any) -> float:
    """ν of Assumption C: the proved one, or the smallest one found; zero where the assumption fails."""
    if not mixing.holds:
        return 0.0
    return float(mixing.numbers["proved_nu" if mixing.proved else "nu"])


def _fixed_head_radius(data: TokenDataset, head: LabelMargin, nu: float) -> _FixedHead:
    """The r at which the head is known to score every α_i above the other tokens of its input."""
    away = np.take_along_axis(data.X, head.selected[:, None, None], axis=1) - data.X
    other = data.mask & (np.arange(data.n_tokens) != head.selected[:, None])
    if not other.any():
        return _FixedHead(0.0, nu, 1.0)
    lengths, gaps = np.linalg.norm(away, axis=-1)[other], (data.y[:, None] * (away @ head.head.direction))[other]
    alignment = float(np.min(gaps / np.maximum(lengths, np.finfo(float).tiny)))
    if not (head.margin > 0.0 and nu > 0.0 and alignment > SELECTED_RTOL):
        return _FixedHead(np.inf, nu, alignment)
    most = float(np.max(lengths))
    enough = head.margin * alignment**2 / (2.0 * (nu + most)) if np.isfinite(nu) else 0.5 * head.margin * alignment**2
    spread = nu if np.isfinite(nu) else 1.0  # no token to mix in on S: there q = 0 and only ν q = Γ - u/r counts
    low, high = 0.0, 1.0 / head.margin
    while _most_mixed(high * head.margin, data.n_inputs) / (high * spread) >= enough:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = 0.5 * (low + high)
        if _most_mixed(middle * head.margin, data.n_inputs) / (middle * spread) >= enough:
            low = middle
        else:
            high = middle
    return _FixedHead(high, nu, alignment)


def _most_mixed(x: float, n_inputs: int) -> float:
    r""":math:`x - \ell^{-1}(n \ell(x))` for the logistic loss: log n for large x."""
    small = float(np.exp(-x))
    return float(np.log(n_inputs)) if small < 1e-300 else x + float(np.log(np.expm1(n_inputs * np.log1p(small))))


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
