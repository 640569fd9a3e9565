"""Head and attention trained together: A Theorems 5 and 6 on the joint path, X Theorem 3 on descent."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import exp, log, sqrt
from typing import Any, NamedTuple

import numpy as np

from marginlens.data.tokens import TokenDataset
from marginlens.losses.margin import Logistic, Loss, compiled_code, has_poles, slope_of
from marginlens.optimizers import GradientDescent, NormalizedGD
from marginlens.optimizers.gradient_descent import has_plain_steps
from marginlens.optimizers.protocol import Optimizer
from marginlens.papers import implements
from marginlens.risk import JointRisk
from marginlens.status import Status
from marginlens.svm import MarginSolution, att_svm, relaxed_svm
from marginlens.theory.bias_table import ON_BOTH, unknown_words
from marginlens.theory.checks import Check, TheoremVerdict
from marginlens.theory.intervals import Exact
from marginlens.theory.label_margin import (
    BestSelections,
    LabelMargin,
    MixingCheck,
    best_selections,
    check_assumption_c,
    label_margin,
)
from marginlens.theory.observations import claim_words, observed_by
from marginlens.theory.prediction import Prediction, Request, predictions
from marginlens.theory.unproved_steps import optimizer_words
from marginlens.typing import BoolArray, FloatArray, IntArray
from marginlens.words import Fact

SELECTED_RTOL = 1e-9  # logit margins per unit of ‖p‖, relative to the largest key difference, that count as positive
MAX_LOG = 700.0  # of numbers that a double holds
_MAX_CANDIDATES = 32  # selections with the same label margin that are looked at one by one


class JointDetails(NamedTuple):
    """The quantities behind the verdicts on training v and p together.

    Attributes:
        best: the selections with the largest label margin, the candidates for the tokens that are selected.
        selected: (n_inputs,) the candidate that the verdicts are about.
        support: (n_inputs,) its support set S.
        label_margin: Γ.
        p_mm, p_relax: the solutions of ATT-SVM and of Eq. (10) with S.
        v_direction, p_direction: the limits of v/‖v‖ and p/‖p‖ along the joint path, None if no theorem applies.
        growth: the ratio r/R above which the path with ‖v‖ ≤ r, ‖p‖ ≤ R goes to p^relax rather than p^mm; zero if they agree.
        head_radius: an r above which the path goes to p^mm when r stays fixed and only R grows; inf if none is known. It is
            proved if ν is (`MixingCheck.proved`), and otherwise computed with the smallest ν found.

    Theorem 6 leaves open how fast r must grow. At radii r and R an input outside S with margin Γ + σ weighs e^{-rσ} less than
    one in S, so its logit margin matters until rσ makes up for the difference. If only R grows, the path goes to p^mm when r is
    at least `head_radius`; at a small fixed r other tokens can have a lower risk, also under Theorem 5.
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
def predict_joint(risk: JointRisk, request: Request) -> list[Prediction]:
    r"""Find the theorem that covers training head and attention together, and the directions to which v and p converge.

    .. math:: (v_r, p_R) = \arg\min_{\|v\| \le r, \|p\| \le R} L(v, p): \quad
        \frac{v_r}{r} \to \frac{v^{mm}}{\|v^{mm}\|}, \qquad \frac{p_R}{R} \to \frac{p^{mm}}{\|p^{mm}\|}\ \text{(Thm 5)}
        \ \text{or}\ \frac{p^{relax}}{\|p^{relax}\|}\ \text{(Thm 6)}

    The candidates for α are the selections with the largest label margin. The condition of Theorem 6 that α is selected in the
    limit is replaced by one on the data that implies it: the shortest p that separates α on S selects it outside S as well,
    with room to spare. `check_polarisation` covers descent from a start.
    """
    data, start = risk.data.as_batch(), request.start
    starts: list[tuple[Any, Any]] = [(None, None)] * len(data)
    if start is not None:
        starts = [(v, p) for v, p in map(risk.split, risk.start(start))]
    found = [_best_prediction(data[j], risk.loss, request.max_problems) for j in range(len(data))]
    return [_with_descent(data[j], found[j], *starts[j], request.optimizer, risk.loss) for j in range(len(data))]


def _with_descent(
    data: TokenDataset,
    found: Prediction,
    v: FloatArray | None,
    p: FloatArray | None,
    optimizer: Optimizer | None,
    loss: Loss,
) -> Prediction:
    """Add to the prediction what X Theorem 3 says about descent from the start (v, p), if a start is given."""
    if v is not None and p is not None:
        verdict = check_polarisation(data, v, p, optimizer, loss)
        found = replace(found, verdicts=(*found.verdicts, verdict))
        if verdict.applies:
            exact = all(check.numbers.get("largest_deviation", 0.0) == 0.0 for check in verdict.conditions)
            case = "steps" if optimizer is not None else "any" if exact else "flow"
            certain = Fact("joint.certain", {"steps": repr(optimizer), "conclusion": verdict.conclusion, "case": case})
            return replace(found, reasons=(certain,), selected=np.argmax(data.scores(v), axis=-1))
    if optimizer is None:
        return found
    claims = observed_by(optimizer, ON_BOTH)
    said = Fact("joint.unknown", {"unknown": unknown_words(optimizer)})
    if claims:
        said = Fact("joint.observed", {"claims": claim_words(claims)})
    return replace(found, reasons=(*found.reasons, said))


def _best_prediction(data: TokenDataset, loss: Loss, max_problems: int) -> Prediction:
    """Return the prediction for the first of the best selections to which a theorem applies, else for the last one examined."""
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
    shared = _shared_conditions(loss, head, best, p_mm)
    strict = TheoremVerdict("A Thm 5", (*shared, check_assumption_c(data, selected)), Fact("conclusion.a_thm_5"))
    mixing = check_assumption_c(data, selected, inputs=head.support_or_all)
    relaxed = TheoremVerdict(
        "A Thm 6", (*shared, _selected_in_the_limit(head, p_relax), mixing), Fact("conclusion.a_thm_6")
    )
    growth = _growth(head, p_relax)
    nu = (strict if strict.applies else relaxed).conditions[-1]
    radius = fixed_head_radius(data, head, mixing_cost(nu)).radius if p_mm.status is Status.OPTIMAL else np.inf
    applies = strict if strict.applies else relaxed if relaxed.applies else None
    v_limit = None if applies is None else head.head.direction
    p_limit = None if applies is None else (p_mm if applies is strict else p_relax).direction
    support = head.support
    margins = {"margin": best.margin, "runner_up": best.runner_up, "count": len(best.selections)}
    notes = (
        Fact("note.label_margin", {**margins, "case": "default" if best.complete else "climbed"}),
        Fact("note.support", {"selected": str(selected.tolist()), "support": str(np.flatnonzero(support).tolist())}),
    )
    return Prediction(
        "JointRisk",
        (strict, relaxed),
        (_reason(strict, relaxed, growth, radius),),
        notes,
        path_direction=None if v_limit is None or p_limit is None else np.concatenate([v_limit, p_limit]),
        details=JointDetails(best, selected, support, head.margin, p_mm, p_relax, v_limit, p_limit, growth, radius),
    )


def _shared_conditions(
    loss: Loss, head: LabelMargin, best: BestSelections, p_mm: MarginSolution
) -> tuple[Check, Check, Check]:
    """Check the conditions that Theorems 5 and 6 share."""
    selected = str(head.selected.tolist())
    labels = {"margin": head.margin, "runner_up": best.runner_up, "selected": selected}
    decided = p_mm.status in (Status.OPTIMAL, Status.TRIVIAL, Status.INFEASIBLE)
    tokens = {"margin": float(p_mm.margin), "case": p_mm.status.name.lower()}
    return (
        Check("requirement.logistic_loss", compiled_code(loss) == Logistic.code, {"loss": type(loss).__name__}),
        Check("requirement.labels_separable", head.margin > 0.0, labels),
        Check("requirement.separable_tokens", p_mm.status is Status.OPTIMAL if decided else None, tokens),
    )


def _selected_in_the_limit(head: LabelMargin, p_relax: MarginSolution) -> Check:
    """Return whether p^relax selects α outside S too, with room to spare, which makes the path select it."""
    code = "requirement.selected_in_the_limit"
    if p_relax.status is not Status.OPTIMAL or p_relax.pairs is None:
        case = "free" if p_relax.status is Status.TRIVIAL else "infeasible"
        return Check(code, False, {"room": 0.0, "case": case})
    outside = ~head.support[p_relax.pairs[:, 0]]
    size = float(np.max(np.linalg.norm(p_relax.rows, axis=-1)))
    spare = float(np.min((p_relax.rows @ p_relax.direction)[outside], initial=np.inf))
    return Check(code, spare > SELECTED_RTOL * size, {"room": spare, "case": "default" if outside.any() else "alone"})


def _growth(head: LabelMargin, p_relax: MarginSolution) -> float:
    """Return the smallest r/R at which no input outside S holds the path back from p^relax."""
    if p_relax.status is not Status.OPTIMAL or p_relax.pairs is None:
        return 0.0
    inputs = p_relax.pairs[:, 0]
    missing = p_relax.margin - p_relax.rows @ p_relax.direction  # logit margin per unit below that of S
    wanting = ~head.support[inputs] & (missing > 0.0)
    return float(np.max(missing[wanting] / head.slack[inputs[wanting]], initial=0.0))


def _reason(strict: TheoremVerdict, relaxed: TheoremVerdict, growth: float, radius: float) -> Fact:
    """State what is known of the joint path, and how certain it is."""
    applies = strict if strict.applies else relaxed
    if not applies.applies:
        return Fact("reason.condition", {"condition": f"{applies.failed[0].sentence.rstrip('.')}."})
    sure = Fact("joint.sure", {"case": "default" if getattr(applies.conditions[-1], "proved", False) else "expected"})
    fixed = Fact("joint.fixed", {"radius": radius, "case": "default" if np.isfinite(radius) else "unknown"})
    case = "mm" if applies is strict else "relax_once" if growth > 0.0 else "relax"
    return Fact("joint.path", {"sure": sure, "growth": growth, "fixed": fixed, "case": case})


# ---- a head that stays bounded


class FixedHead(NamedTuple):
    """The radius of a fixed head, with the ν and κ that determine it."""

    radius: float
    nu: float
    alignment: float


def mixing_cost(mixing: MixingCheck) -> float:
    """Return ν of Assumption C: the proved one, or the smallest one found; zero if the assumption fails."""
    if not mixing.holds:
        return 0.0
    return float(mixing.numbers["proved_nu" if mixing.proved else "nu"])


def fixed_head_radius(data: TokenDataset, head: LabelMargin, nu: float) -> FixedHead:
    """Compute the r at which the head is known to score every α_i above the other tokens; `marginlens_papers.claims.a.joint`
    derives it.
    """
    away = np.take_along_axis(data.X, head.selected[:, None, None], axis=1) - data.X
    other = data.mask & (np.arange(data.n_tokens) != head.selected[:, None])
    if not other.any():
        return FixedHead(0.0, nu, 1.0)
    lengths, gaps = np.linalg.norm(away, axis=-1)[other], (data.y[:, None] * (away @ head.head.direction))[other]
    alignment = float(np.min(gaps / np.maximum(lengths, np.finfo(float).tiny)))
    if not (head.margin > 0.0 and nu > 0.0 and alignment > SELECTED_RTOL):
        return FixedHead(np.inf, nu, alignment)
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
    return FixedHead(high, nu, alignment)


def _most_mixed(x: float, n_inputs: int) -> float:
    r"""Compute :math:`x - \ell^{-1}(n \ell(x))` for the logistic loss; it tends to log n for large x."""
    small = float(np.exp(-x))
    return float(np.log(n_inputs)) if small < 1e-300 else x + float(np.log(np.expm1(n_inputs * np.log1p(small))))


# ---- descent on one input of orthogonal tokens


# Constants of the lemma on tokens and keys that are nearly orthogonal, a little above those of its proof.
DEFECT_OF_TOKENS = 8.0  # times defect and tokens: at most one
LARGEST_LEAD = 100.0  # times defect, tokens and largest lead: below the lead
COUPLING = 140.0  # times defect, tokens^1.5 and √(c/κ)
LAST_STEP = 9.0  # times defect, c and the longest step of the scores


@implements("X", "Thm 3")
def check_polarisation(
    data: TokenDataset, head: FloatArray, p: FloatArray, optimizer: Optimizer | None, loss: Loss
) -> TheoremVerdict:
    r"""Check whether head and attention, trained together, end at the token that scores highest at the start.

    .. math:: u = Y X v, \ a = K p: \qquad \dot u = g\, c\, \sigma(a), \quad
        \dot a = g\, \kappa\, \big(\mathrm{diag}\,\sigma - \sigma\sigma^\top\big) u, \qquad g = -\ell'(u^\top \sigma(a)) > 0

    One input, tokens with X Xᵀ = c I and keys with K Kᵀ = κ I. If token i has the highest score and no other token a larger
    logit at the start, its lead over every other token, in score and in logit, never shrinks, whatever the size of the steps,
    and its attention tends to one. With p = 0 the head alone determines the winner: the token with the highest score.
    `docs/proofs/polarisation.md` has the proof.

    All conditions are checked exactly on the given numbers. If inner products are off by a share of the squared length, as
    after rounding, the lead must exceed what such a defect can undo, by the lemma on the same page.

    Args:
        data: one problem.
        head, p: the start, (d_model,) and (d_key,).
        optimizer: None for the flow, or constant steps along the gradient of both together, plain or normalised.
    """
    one = Check("requirement.one_input", data.n_inputs == 1, {"inputs": data.n_inputs})
    tokens, keys = (_Gram.of(rows[0, : data.lengths[0]]) for rows in (data.X, data.K))
    orthogonal = tokens.check("requirement.orthogonal_tokens"), keys.check("requirement.orthogonal_keys")
    falls = compiled_code(loss) >= 0 and not has_poles(loss)
    conditions = [one, *orthogonal, Check("requirement.decreasing_loss", falls, {"loss": type(loss).__name__})]
    if optimizer is not None:
        name = {"optimizer": optimizer_words(optimizer)}
        conditions.append(Check("requirement.along_the_gradient", has_plain_steps(optimizer), name))
    leads = _leads(data, head, p, _Perturbation(tokens, keys, loss if falls else Logistic(), optimizer))
    conditions.append(leads)
    token = int(leads.numbers["token"]) if one else None
    conclusion = Fact("conclusion.x_thm_3", {"token": token, "case": "default" if token is None else "token"})
    return TheoremVerdict("X Thm 3", tuple(conditions), conclusion, of_descent=True)


class _Gram(NamedTuple):
    """The deviation of rows from being orthogonal and equally long, from exact inner products.

    Attributes:
        n: how many rows.
        log_size: the logarithm of the largest squared length; -inf if all rows are zero.
        defect: the largest inner product, or difference of a squared length from the largest, divided by the largest squared
            length; exactly zero if there is none.
    """

    n: int
    log_size: float
    defect: float

    @classmethod
    def of(cls, rows: FloatArray) -> _Gram:
        """Measure rows (n, d)."""
        exact = Exact.of(rows)
        products = [[int(entry) for entry in row] for row in (exact @ exact.T).whole.tolist()]
        size = max(row[t] for t, row in enumerate(products))
        if size == 0:
            return cls(len(rows), -np.inf, np.inf)
        off = max(abs(entry - size * (s == t)) for s, row in enumerate(products) for t, entry in enumerate(row))
        log_size = log(size) + 2 * exact.power * log(2.0)
        return cls(len(rows), log_size, max(off / size, np.finfo(float).tiny) if off else 0.0)

    @property
    def is_near(self) -> bool:
        """True if they are orthogonal, or so close to it that the lemma covers them."""
        return DEFECT_OF_TOKENS * self.defect * self.n <= 1.0

    def check(self, code: str) -> Check:
        """Check that they are close enough to orthogonal."""
        case = "default" if self.defect == 0.0 else "nearly"
        return Check(code, self.is_near, {"largest_deviation": self.defect, "case": case})


class _Perturbation(NamedTuple):
    """The deviation of tokens and keys from being orthogonal, and the steps affected by it."""

    tokens: _Gram
    keys: _Gram
    loss: Loss
    optimizer: Any

    def undoes(self, score: float, largest: float, lowest: float) -> float:
        """Compute the lead in score below which the lemma leaves the winner open, given the largest lead and the lowest score."""
        n, defect = self.tokens.n, max(self.tokens.defect, self.keys.defect)
        if defect == 0.0 or not (self.tokens.is_near and self.keys.is_near):
            return 0.0
        c = exp(min(self.tokens.log_size, MAX_LOG))
        coupling = exp(min(0.5 * (self.tokens.log_size - self.keys.log_size), MAX_LOG))
        longest = 0.0
        if isinstance(self.optimizer, NormalizedGD):
            longest = self.optimizer.size * sqrt(2.0 * n * c)
        elif isinstance(self.optimizer, GradientDescent):
            longest = (
                self.optimizer.size * c * exp(min(float(slope_of(self.loss, np.array(lowest - score)).log), MAX_LOG))
            )
        return defect * max(LARGEST_LEAD * n * largest, COUPLING * n**1.5 * coupling, LAST_STEP * longest)


def _exact_products(rows: FloatArray, vector: FloatArray) -> list[Fraction]:
    """Return the exact inner product of each row with a vector."""
    exact = Exact.of(rows) @ Exact.of(vector)
    return [int(whole) * Fraction(2) ** exact.power for [whole] in exact.whole.tolist()]


def _leads(data: TokenDataset, v: FloatArray, p: FloatArray, perturbation: _Perturbation) -> Check:
    """Return whether one token scores highest at the start, by more than a perturbation can undo, and none has a larger logit."""
    n, sign = int(data.lengths[0]), int(data.y[0])
    scores, logits = _exact_products(data.X[0, :n], sign * v), _exact_products(data.K[0, :n], p)
    best = max(range(n), key=lambda t: scores[t])
    others = [t for t in range(n) if t != best]
    by_score, by_logit = ([values[best] - values[t] for t in others] for values in (scores, logits))
    score, logit = (float(min(values, default=np.inf)) for values in (by_score, by_logit))
    undone = perturbation.undoes(score, float(max(by_score, default=0)), float(data.scores(v)[0, :n].min()))
    numbers = {"token": best, "score_lead": score, "logit_lead": logit, "undone": undone}
    holds: bool | None = min(by_score, default=1) > 0 and min(by_logit, default=0) >= 0
    if holds and score <= undone:
        holds = None
    return Check("requirement.one_token_leads", holds, numbers)
