"""Where head and attention will go when both are trained: Theorem 5, Theorem 6 or neither, assumption by assumption."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marginlens.data.tokens import BoolArray, FloatArray, IntArray, TokenDataset
from marginlens.losses import Logistic, Loss, as_loss
from marginlens.papers import implements
from marginlens.svm import MarginSolution, Status, att_svm, relaxed_svm
from marginlens.theory.assumptions import Check
from marginlens.theory.label_margin import (
    BestSelections,
    LabelMargin,
    MixingCheck,
    best_selections,
    check_assumption_c,
    label_margin,
)
from marginlens.theory.problem import one_problem
from marginlens.theory.verdicts import Verdict

SELECTED = 1e-9  # logit margins per unit of ‖p‖, relative to the largest key difference, that count as positive
_MOST_CANDIDATES = 32  # selections with the same label margin that are looked at one by one


@dataclass(frozen=True, repr=False, eq=False)
class JointPrediction:
    """What the theorems say about training v and p together on one problem.

    Attributes:
        verdicts: A Thm 5 and A Thm 6 for the selection that the prediction is about.
        best: the selections with the largest label margin, the candidates for the tokens that are selected.
        selected: (n_inputs,) the candidate that the verdicts are about. support: (n_inputs,) its support set S.
        label_margin: Γ. p_mm, p_relax: the solutions of ATT-SVM and of Eq. (10) with S.
        v_direction, p_direction: the limits of v/‖v‖ and p/‖p‖ along the joint path, None where no theorem applies; `why` says which.
        growth: the ratio r/R from which the path with ‖v‖ ≤ r, ‖p‖ ≤ R goes to p^relax rather than to p^mm; zero where they agree.

    Theorem 6 leaves open how fast r must grow. At radii r and R an input outside S with margin Γ + σ weighs e^{-rσ} less than one in S, so
    its logit margin matters until rσ makes up for the difference: with R growing alone the path goes to p^mm.
    """

    verdicts: tuple[Verdict, ...]
    best: BestSelections
    selected: IntArray
    support: BoolArray
    label_margin: float
    p_mm: MarginSolution
    p_relax: MarginSolution
    v_direction: FloatArray | None
    p_direction: FloatArray | None
    growth: float
    why: str

    def __repr__(self) -> str:
        applying = ", ".join(one.citation for one in self.verdicts if one.applies) or "no theorem"
        return f"JointPrediction(selects {self.selected.tolist()}, support {np.flatnonzero(self.support).tolist()}, {applying} applies)"

    def __str__(self) -> str:
        listed = (
            "of all selections" if self.best.complete else "found by climbing; there are too many selections to try all"
        )
        head = (
            f"Largest label margin ({listed}): {self.best.margin:.4g} by {len(self.best.selections)}, next {self.best.runner_up:.4g}.\n"
            f"Tokens {self.selected.tolist()}, support vectors {np.flatnonzero(self.support).tolist()}."
        )
        return "\n".join([head, *(str(verdict) for verdict in self.verdicts), self.why])


@implements("A", "Thm 5", "Thm 6")
def predict_joint_limit(
    data: TokenDataset,
    *,
    loss: Loss = Logistic(),  # noqa: B008
    limit: int = 10_000,
) -> JointPrediction:
    r"""Which theorem speaks about training head and attention together, and the directions that v and p converge to.

    .. math:: (v_r, p_R) = \arg\min_{\|v\| \le r, \|p\| \le R} L(v, p): \quad
        \frac{v_r}{r} \to \frac{v^{mm}}{\|v^{mm}\|}, \qquad \frac{p_R}{R} \to \frac{p^{mm}}{\|p^{mm}\|}\ \text{(Thm 5)}
        \ \text{or}\ \frac{p^{relax}}{\|p^{relax}\|}\ \text{(Thm 6)}

    The candidates for α are the selections with the largest label margin. The condition of Theorem 6 that α is selected in the limit is
    replaced by one on the data that implies it: the shortest p that separates α on S selects it outside S as well, with room to spare.

    Args:
        data: one problem. loss: the theorems are about the logistic loss.
        limit: selections that may be tried one by one for the largest label margin.
    Returns:
        A `JointPrediction`, `str` of which is a readable account. Check it with `descend_joint` and `joint_path`.
    """
    loss = as_loss(loss)
    best = best_selections(one_problem(data), limit=limit)
    found = _about(data, best, best.selections[0], loss)
    for selected in best.selections[1:_MOST_CANDIDATES]:
        if found.p_direction is not None or best.margin == 0.0:
            break
        found = _about(data, best, selected, loss)
    return found


def _about(data: TokenDataset, best: BestSelections, selected: IntArray, loss: Loss) -> JointPrediction:
    head = label_margin(data, selected)
    p_mm, p_relax = att_svm(data, selected), relaxed_svm(data, selected, head.support)
    logistic = Check(
        "logistic loss",
        isinstance(loss, Logistic),
        f"the theorems are about the logistic loss; this is {type(loss).__name__}",
    )
    labels = Check(
        "labels separable",
        head.margin > 0.0,
        f"the tokens {selected.tolist()} have the label margin {head.margin:.4g}",
        {"margin": head.margin, "runner_up": best.runner_up},
    )
    said = {
        Status.OPTIMAL: f"one direction selects them all, with margin {p_mm.margin:.4g}",
        Status.TRIVIAL: "no input has two tokens, so there is nothing to select",
    }.get(p_mm.status, "no direction selects them all")
    feasible = Check("separable tokens", p_mm.status is Status.OPTIMAL, said, {"margin": float(p_mm.margin)})
    start = (logistic, labels, feasible)
    strict = Verdict(
        "A Thm 5", (*start, check_assumption_c(data, selected)), "p converges in direction to p^mm and v to v^mm"
    )
    over = head.support if head.support.any() else np.ones(data.n_inputs, dtype=bool)
    relaxed = Verdict(
        "A Thm 6",
        (*start, _selected_in_the_limit(data, head, p_relax), check_assumption_c(data, selected, inputs=over)),
        "p converges in direction to p^relax and v to v^mm",
    )
    growth = _growth(head, p_relax)
    applies = strict if strict.applies else relaxed if relaxed.applies else None
    goal = None if applies is None else (p_mm if applies is strict else p_relax).direction
    return JointPrediction(
        verdicts=(strict, relaxed),
        best=best,
        selected=selected,
        support=head.support,
        label_margin=head.margin,
        p_mm=p_mm,
        p_relax=p_relax,
        v_direction=None if applies is None else head.head.direction,
        p_direction=goal,
        growth=growth,
        why=_why(strict, relaxed, growth),
    )


def _selected_in_the_limit(data: TokenDataset, head: LabelMargin, p_relax: MarginSolution) -> Check:
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
    room = float(np.min((p_relax.rows @ p_relax.direction)[outside], initial=np.inf))
    holds = room > SELECTED * size
    if not outside.any():
        sentence = "every input with several tokens is a support vector"
    else:
        spare = f"with a logit margin of {room:.4g} per unit" if holds else "by no margin at all"
        sentence = f"p^relax selects the tokens outside the support set {spare}"
    return Check(name, holds, sentence, {"room": room})


def _growth(head: LabelMargin, p_relax: MarginSolution) -> float:
    """The smallest r/R at which no input outside S holds the path back from p^relax."""
    if p_relax.status is not Status.OPTIMAL or p_relax.pairs is None:
        return 0.0
    inputs = p_relax.pairs[:, 0]
    missing = p_relax.margin - p_relax.rows @ p_relax.direction  # logit margin per unit below that of S
    wanting = ~head.support[inputs] & (missing > 0.0)
    return float(np.max(missing[wanting] / head.slack[inputs[wanting]], initial=0.0))


def _why(strict: Verdict, relaxed: Verdict, growth: float) -> str:
    """One sentence on what is known, and how surely."""
    applies = strict if strict.applies else relaxed
    if not applies.applies:
        failed = next(check for check in applies.conditions if not check.holds)
        return f"Not certain: {failed.sentence}."
    mixing = applies.conditions[-1]
    sure = (
        "Certain" if isinstance(mixing, MixingCheck) and mixing.proved else "Expected, as Assumption C is not proved,"
    )
    if applies is strict:
        return f"{sure} for the joint path: p^mm, by A Thm 5."
    alone = "" if growth == 0.0 else f" once r ≥ {growth:.4g} R"
    other = "" if growth == 0.0 else "; R growing alone leads to p^mm"
    return f"{sure} for the joint path{alone}: p^relax, by A Thm 6{other}."
