"""Predictions: which theorem applies to a training problem, condition by condition, and the direction that it gives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from marginlens.data.sequences import SequenceDataset
from marginlens.data.tokens import BoolArray, FloatArray, IntArray, TokenDataset, as_dataset
from marginlens.directions import unit
from marginlens.errors import InputError, reject, whole_number
from marginlens.losses.margin import Logistic, Loss, as_loss, rising_margin
from marginlens.optimizers import NormalizedGD
from marginlens.papers import implements
from marginlens.svm import SetSolution, Status, set_svm
from marginlens.theory.assumptions import (
    Check,
    Verdict,
    check_assumption_a,
    check_assumption_b,
    check_separable,
    check_step,
    check_strict_optimum,
)
from marginlens.theory.basin import BasinCone, apart, basin_cone
from marginlens.theory.directional import directional_margin
from marginlens.theory.joint import predict_joint_limit
from marginlens.theory.mixing import mixing_constants, optimal_sets
from marginlens.theory.next_token import predict_nexttoken_limit
from marginlens.theory.optimality import (
    TokenOptimality,
    depends_on_p,
    globally_optimal_direction,
    locally_optimal_directions,
    one_problem,
    power,
    token_optimality,
)

SET_LABEL = "G^mm"  # of a global minimum of ATT-SVM'
SAME_DIRECTION = 1e-9  # distance of unit vectors up to which two candidates are one
OBSERVED_IN = {
    "A Thm 2": "claim A-F1a",
    "A Thm 3": "claims A-F1b and A-F2",
}  # where normalised steps did what a theorem says of plain ones
OBSERVED_AT_LARGE = "claim A-F9"  # where normalised runs ended in the max-margin direction of what they selected


@dataclass(frozen=True, repr=False, eq=False)
class LimitPrediction:
    """The candidates for the limit direction of one problem, and the one that is certain, if any.

    Attributes:
        verdicts: one per theorem: A Thm 1 (regularisation path), A Thm 2 (global descent), A Thm 3 (local descent), and A Thm 8 (path to
            a set) where several tokens of an input share its highest score.
        selections: (n_candidates, n_inputs). directions: (n_candidates, d_key), unit. margins: (n_candidates,).
        labels: for each candidate "GMM" or "LMM" if it is in P^mm, "G^mm" if it is a global minimum of ATT-SVM' where optimal tokens tie.
        complete: whether the candidates hold all of P^mm; if not, listing them would have taken too long.
        direction: (d_key,) the limit of gradient descent if a theorem makes it certain, else None; `why` says which or why not.
        observed: (d_key,) the limit that a theorem makes certain for plain gradient descent where `step` is normalised: claims of the
            ledger saw such steps reach it, and nothing proves it. None elsewhere.
        path_direction: (d_key,) the limit of the regularisation path by Thm 1, or by Thm 8 where its set has one member; else None.
        set_solution: the solution of ATT-SVM' where optimal tokens tie, whose `points` the path converges to if Thm 8 applies; else None.
        basin: index of the candidate whose cone of Eqs (32) and (46) contains the start, else None. cone: that cone.
        dependent: (n_inputs,) the inputs whose output depends on p. The theorems are about these, and n counts them; what a
            selection says of another input is the first of its highest scores.
    """

    verdicts: tuple[Verdict, ...]
    selections: IntArray
    directions: FloatArray
    margins: FloatArray
    labels: tuple[str, ...]
    complete: bool
    direction: FloatArray | None
    observed: FloatArray | None
    path_direction: FloatArray | None
    set_solution: SetSolution | None
    why: str
    basin: int | None
    cone: BasinCone | None
    dependent: BoolArray

    def __repr__(self) -> str:
        certain = "certain" if self.direction is not None else "none certain"
        applying = ", ".join(verdict.citation for verdict in self.verdicts if verdict.applies) or "no theorem"
        return f"LimitPrediction({len(self.labels)} candidates, {certain}, {applying} applies)"

    def __str__(self) -> str:
        lines = [str(verdict) for verdict in self.verdicts]
        constant = np.flatnonzero(~self.dependent)
        if 0 < len(constant) < len(self.dependent):
            named = f"input {constant[0]} has" if len(constant) == 1 else f"inputs {constant.tolist()} have"
            lines.append(f"The theorems leave out what cannot depend on p: {named} one token, one key or one score.")
        listed = "all of P^mm" if self.complete else "P^mm is too large to list in full"
        lines.append(f"Candidates ({listed}):" if self.labels else f"Candidates ({listed}): none.")
        for label, selection, margin in list(zip(self.labels, self.selections, self.margins, strict=True))[:10]:
            lines.append(f"  {label} selects {selection.tolist()} with margin {margin:.4g}")
        if len(self.labels) > 10:
            lines.append(f"  and {len(self.labels) - 10} more")
        return "\n".join([*lines, self.why])


class Candidates(NamedTuple):
    """Directions that a limit may have: selections (n, n_inputs), directions (n, d_key), margins (n,), a label for each."""

    selections: IntArray
    directions: FloatArray
    margins: FloatArray
    labels: tuple[str, ...]


@implements("A", "Thm 1", "Thm 2", "Thm 3", "Thm 8")
def predict_limit(
    data: TokenDataset | SequenceDataset,
    v: Any = None,
    *,
    head: Any = None,
    loss: Any = None,
    start: Any = None,
    optimizer: Any = None,
    max_problems: int = 10_000,
) -> Any:
    r"""Which theorem applies to a problem, assumption by assumption, and the direction that p/‖p‖ converges to.

    .. math:: \lim_{R\to\infty} \frac{\bar p(R)}{R} = \frac{p^{mm\star}}{\|p^{mm\star}\|} \ \text{(Thm 1)}, \qquad
        \lim_{t\to\infty} \frac{p(t)}{\|p(t)\|} = \frac{p^{mm\star}}{\|p^{mm\star}\|} \ \text{(Thm 2, } n = 1), \qquad
        = \frac{p^{mm}(\alpha)}{\|p^{mm}(\alpha)\|} \ \text{(Thm 3)}

    Where several tokens of an input share the highest score, Theorem 8 takes the place of Theorem 1: the path converges to the global
    minima of `set_svm` with these sets, because Lemma 14 gives Assumption D. Inputs whose output does not depend on p (one token, one key
    or one score) are left out, and n counts the others.

    Theorem 3 is taken at `BasinCone.proven_radius`, where nothing of its proof is implicit. A start in the cone beyond the paper's radius
    only is reported as `basin`: expected, not certain. Without a start only Theorems 1, 2 and 8 can make a limit certain. Without a head
    the question is about training head and attention together: see `predict_joint_limit`, Theorems 5 and 6. On next-token data it is
    about W: see `predict_nexttoken_limit`, C Theorems 1 to 3.

    Args:
        data: one problem or a batch, or a `SequenceDataset`. v: head (d_model,) or (batch, d_model), or None for a head that is trained
            too; on sequences the head C (n_vocabulary, d_model), or None for C Eᵀ = I. head: another name for v.
        loss: any `Loss`, logistic by default; on sequences any `NextTokenLoss`, the log-loss by default.
        start: p(0) of shape (d_key,) or (batch, d_key). optimizer: `GradientDescent(eta)` to check η ≤ 1/L_p; any such step if left out. No
            theorem covers a `NormalizedGD`: `observed` and `why` then say what claims of the ledger saw such steps do.
        max_problems: hard-margin problems that listing the candidates may take, and as many for ATT-SVM'; beyond it only the GMM and the
            selection of the start are given.
    Returns:
        A `LimitPrediction`, a `JointPrediction` without a head or a `NextTokenPrediction` for sequences, `str` of which is a readable
        account; a list of them for a batch. Check it with `descend`.
    """
    whole_number(max_problems, "max_problems", at_least=1)
    if head is not None:
        if v is not None:
            raise reject("head", "left out where v is given, because it is the same", "both")
        v = head
    if isinstance(data, SequenceDataset):
        if start is not None:
            raise reject("start", "left out for sequences, because C Thm 3 holds from every start", "it")
        return predict_nexttoken_limit(data, head=v, loss=loss, optimizer=optimizer)
    loss = as_loss(Logistic() if loss is None else loss)
    if v is None:
        for name, value in (("start", start), ("optimizer", optimizer)):
            if value is not None:
                raise reject(name, "left out where v is, because Theorems 5 and 6 are about the joint path", "it")
        problems = as_dataset(data).as_batch()
        found = [predict_joint_limit(problems[j], loss=loss, max_problems=max_problems) for j in range(len(problems))]
        return found if data.is_batch else found[0]
    heads = as_dataset(data).head(v)
    points = None if start is None else data.point(start, "start")
    if not data.is_batch:
        return _predict(data, heads, loss, points, optimizer, max_problems)
    each = range(len(data))
    return [
        _predict(data[j], heads[j], loss, None if points is None else points[j], optimizer, max_problems) for j in each
    ]


def _predict(
    data: TokenDataset, v: FloatArray, loss: Loss, start: FloatArray | None, optimizer: Any, max_problems: int
) -> LimitPrediction:
    dependent = depends_on_p(one_problem(data), v)
    part = data.take_inputs(dependent) if dependent.any() else data
    gmm = globally_optimal_direction(part, v)
    loss_is_fine, separable, strict = (
        check_assumption_a(part, v, loss),
        check_separable(part, v),
        check_strict_optimum(part, v),
    )
    path = Verdict(
        "A Thm 1", (loss_is_fine, strict, separable), "the regularisation path converges to the GMM direction"
    )
    ending = (
        "and its direction converges to the GMM direction"
        if part.n_inputs == 1
        else f"but n = {part.n_inputs} leaves its direction open"
    )
    globally = Verdict(
        "A Thm 2",
        (loss_is_fine, check_assumption_b(part, v), separable),
        f"the norm of descent diverges from every start, {ending}",
    )
    start_selection, cone, inside = _around(data, part, v, loss, start)
    locally = Verdict(
        "A Thm 3", (loss_is_fine, *inside), "descent converges in direction to the LMM that its start selects"
    )
    to_set, set_solution = (
        (None, None) if strict or not dependent.any() else _path_to_set(part, v, loss_is_fine, loss, max_problems)
    )
    candidates, complete = _candidates(part, v, gmm, start_selection, max_problems)
    if set_solution is not None:
        candidates = _with_set(candidates, set_solution)
    step_check = None if optimizer is None else check_step(data, v, optimizer, loss)
    promise = _promise(globally, locally, gmm, start_selection, part.n_inputs)
    why_not = "" if promise is not None else _why_not(globally, locally, start, cone, part)
    basin = None
    if start_selection is not None and cone is not None and bool(cone.contains(start)):
        same = (candidates.selections == start_selection.selected).all(axis=-1)
        basin = next((int(k) for k in np.flatnonzero(same) if candidates.labels[k] != SET_LABEL), None)
    shown = tuple(
        verdict if step_check is None else replace(verdict, conditions=(*verdict.conditions, step_check))
        for verdict in (globally, locally)
    )
    path_points = set_solution.points if to_set is not None and to_set.applies and set_solution is not None else None
    path_direction = gmm.direction if path.applies else None
    if path_points is not None and len(path_points) == 1:
        path_direction = unit(path_points[0])
    allowed = step_check is None or bool(step_check)
    selections = np.repeat(data.optimal(v)[None], len(candidates.labels), axis=0)
    selections[:, dependent if dependent.any() else slice(None)] = candidates.selections
    return LimitPrediction(
        verdicts=(path, *shown) if to_set is None else (path, *shown, to_set),
        selections=selections,
        directions=candidates.directions,
        margins=candidates.margins,
        labels=candidates.labels,
        complete=complete,
        direction=promise.direction if promise is not None and allowed else None,
        observed=promise.direction if promise is not None and isinstance(optimizer, NormalizedGD) else None,
        path_direction=path_direction,
        set_solution=set_solution,
        why=_why(promise, optimizer, step_check, why_not, path_points),
        basin=basin,
        cone=cone,
        dependent=dependent,
    )


class Promise(NamedTuple):
    """What a theorem makes certain for plain gradient descent: its label, its limit, and both in words."""

    citation: str
    direction: FloatArray
    limit: str
    reason: str


def _promise(
    globally: Verdict, locally: Verdict, gmm: TokenOptimality, start_selection: TokenOptimality | None, n_inputs: int
) -> Promise | None:
    """The limit that Theorem 2 or 3 makes certain where the step is right, None where neither applies."""
    if globally.applies and n_inputs == 1:
        return Promise("A Thm 2", gmm.direction, "the GMM direction, from every start", "A Thm 2 with n = 1")
    if locally.applies and start_selection is not None:
        limit = f"the direction that selects {start_selection.selected.tolist()}"
        return Promise("A Thm 3", start_selection.direction, limit, "A Thm 3")
    return None


def _why(
    promise: Promise | None, optimizer: Any, step_check: Check | None, why_not: str, path_points: FloatArray | None
) -> str:
    """What is known of the limit, how surely, and what would make it surer."""
    normalised = isinstance(optimizer, NormalizedGD)
    if promise is None:
        sentences = [why_not]
        if normalised:
            sentences.append(
                "Steps are normalised besides, which no theorem covers. Observed, not proved: runs that saturate end in the max-margin "
                f"direction of the tokens that they select ({OBSERVED_AT_LARGE})."
            )
    elif step_check is None:
        sentences = [f"Certain for constant steps up to 1/L_p: {promise.limit}, by {promise.reason}."]
    elif step_check:
        sentences = [f"Certain: {promise.limit}, by {promise.reason}."]
    else:
        largest = power(-step_check.numbers["log_L_p"])
        if normalised:
            sentences = [
                f"Observed, not proved: {promise.limit}. {promise.reason} proves it for constant steps up to 1/L_p = {largest}; "
                f"normalised steps, which no theorem covers, went there in {OBSERVED_IN[promise.citation]}."
            ]
        else:
            sentences = [
                f"Not certain: {step_check.sentence}. Constant steps up to that have a certain limit: {promise.limit}, by {promise.reason}."
            ]
    if path_points is not None:
        n_points = len(path_points)
        where = "the one global minimum" if n_points == 1 else f"the {n_points} global minima"
        sentences.append(f"The regularisation path converges to {where} of ATT-SVM', by A Thm 8.")
    return " ".join(sentences)


def _path_to_set(
    data: TokenDataset, v: FloatArray, loss_is_fine: Check, loss: Loss, max_problems: int
) -> tuple[Verdict, SetSolution]:
    """Theorem 8 with the sets of tokens that share the highest score, and the solution of ATT-SVM' for them."""
    sets = optimal_sets(data, v)
    found = set_svm(data, sets, max_problems=max_problems)
    mixing = _check_linear_mixing(data, v, sets, loss_is_fine, loss)
    count = len(found.solutions)
    sentences: dict[Any, str] = {
        Status.OPTIMAL: f"some direction lets an optimal token of every input beat those that are not, with margin {found.margin:.4g} "
        f"at {count} global {'minimum' if count == 1 else 'minima'}",
        Status.INFEASIBLE: "no direction lets an optimal token of every input beat those that are not",
        Status.INACCURATE: "rounding decides whether a direction lets optimal tokens beat those that are not",
    }
    unfinished = f"the search for all global minima was not finished after max_problems = {max_problems} problems"
    sentence = sentences.get(found.status, unfinished)
    separable = Check(
        "separable sets", found.status is Status.OPTIMAL, sentence, {"margin": found.margin, "minima": float(count)}
    )
    conclusion = "the regularisation path, divided by ΞR, converges to the set of global minima of ATT-SVM'"
    return Verdict("A Thm 8", (loss_is_fine, mixing, separable), conclusion), found


def _check_linear_mixing(
    data: TokenDataset, v: FloatArray, sets: tuple[IntArray, ...], loss_is_fine: Check, loss: Loss
) -> Check:
    """Assumption D by Lemma 14, for the sets of tokens that share the highest score."""
    name = "A Assumption D"
    if not loss_is_fine:
        return Check(name, False, "A Lemma 14 gives it for losses that strictly decrease")
    try:
        constants = mixing_constants(data, v, sets, loss)
    except InputError:  # a chain of tokens each of which ties with the next only
        return Check(name, False, "rounding decides which tokens share the highest score of an input")
    shifted = int(np.sum(constants.shift != 0.0))
    after = f", after a shift of the scores of {shifted} of {data.n_inputs} inputs to positive ones" if shifted else ""
    sentence = (
        f"holds by A Lemma 14{after}: L - L⋆ lies between {power(constants.log_C_minus)} and {power(constants.log_C_plus)} times the "
        "largest probability of non-optimal tokens"
    )
    names = ("log_C_minus", "log_C_plus", "epsilon", "C")
    return Check(name, True, sentence, {one: getattr(constants, one) for one in names})


def _around(
    data: TokenDataset, part: TokenDataset, v: FloatArray, loss: Loss, start: FloatArray | None
) -> tuple[TokenOptimality | None, BasinCone | None, tuple[Check, ...]]:
    """The selection that the start makes of `part`, its cone in `data` if it is locally optimal, and Theorem 3's conditions on them.

    Every p in the cone of α selects α, so no other cone can contain the start.
    """
    if start is None or not np.any(start):
        reason = "no start was given" if start is None else "the start is zero and selects nothing"
        return None, None, (Check("start in a cone", False, f"{reason}, so no cone can contain it"),)
    at = directional_margin(part, start, v)
    if not at.unique:
        return None, None, (Check("locally optimal start", False, "the start selects no unique tokens"),)
    found = token_optimality(part, v, at.selected)
    if found.solution.status is Status.TRIVIAL:
        nothing = Check("locally optimal start", False, "no input has two tokens, so there is nothing to select")
        return found, None, (nothing,)
    local = bool(found.is_locally_optimal)
    verb = "are" if local else "are not"
    sentence = f"the tokens {at.selected.tolist()} that the start selects {verb} locally optimal, score gap {found.score_gap:.4g}"
    optimal = Check("locally optimal start", local, sentence, {"score_gap": float(found.score_gap)})
    low, high = _score_range(part, v)
    if not local or rising_margin(loss, low, high) is not None:  # no cone where the loss increases
        return found, None, (optimal,)
    selected = data.optimal(v)
    selected[depends_on_p(data, v)] = at.selected
    cone = basin_cone(data, v, selected, loss=loss)
    turn, norm = float(apart(start, cone.p)), float(np.linalg.norm(start))
    narrow = Check(
        "start in cone_μ",
        bool(cone.contains(start, 0.0)),
        f"1 - correlation with p^mm is {turn:.4g}, and μ = {cone.mu:.4g}",
        {"apart": turn, "mu": cone.mu},
    )
    radii = {"norm": norm, "radius": cone.radius, "proven_radius": cone.proven_radius}
    far = Check(
        "start beyond R",
        norm >= cone.proven_radius,
        f"the start's norm is {norm:.4g}; Eq. (46) asks for {cone.radius:.4g}, the full proof for {cone.proven_radius:.4g}",
        radii,
    )
    return found, cone, (optimal, narrow, far)


def _score_range(data: TokenDataset, v: FloatArray) -> tuple[float, float]:
    scores = data.scores(v)[data.mask]
    return float(scores.min()), float(scores.max())


def _candidates(
    data: TokenDataset, v: FloatArray, gmm: TokenOptimality, start_selection: TokenOptimality | None, max_problems: int
) -> tuple[Candidates, bool]:
    """The members of P^mm, and whether they are all there are."""
    try:
        found = locally_optimal_directions(data, v, max_problems=max_problems)
    except InputError:
        known = [gmm] if gmm.is_locally_optimal else []
        if start_selection is not None and start_selection.is_locally_optimal:
            known += [] if known and np.array_equal(start_selection.selected, gmm.selected) else [start_selection]
        selections = np.array([one.selected for one in known], dtype=np.int64).reshape(-1, data.n_inputs)
        directions = np.array([one.direction for one in known]).reshape(-1, data.d_key)
        margins = np.array([one.margin for one in known])
        return Candidates(
            selections, directions, margins, tuple(_label(one.is_globally_optimal) for one in known)
        ), False
    return Candidates(found.selections, found.directions, found.margins, tuple(map(_label, found.is_global))), True


def _with_set(candidates: Candidates, found: SetSolution) -> Candidates:
    """The global minima of ATT-SVM' before the members of P^mm that are not among them."""
    if not found.solutions or found.status is Status.TRIVIAL:
        return candidates
    directions = unit(found.points)
    apart_from_all = (
        np.linalg.norm(candidates.directions[:, None] - directions, axis=-1).min(axis=-1, initial=np.inf)
        > SAME_DIRECTION
    )
    return Candidates(
        np.concatenate([found.choices, candidates.selections[apart_from_all]]),
        np.concatenate([directions, candidates.directions[apart_from_all]]),
        np.concatenate([np.full(len(directions), found.margin), candidates.margins[apart_from_all]]),
        (SET_LABEL,) * len(directions) + tuple(np.array(candidates.labels, dtype=object)[apart_from_all]),
    )


def _label(is_global: Any) -> str:
    return "GMM" if is_global else "LMM"


def _why_not(
    globally: Verdict, locally: Verdict, start: FloatArray | None, cone: BasinCone | None, part: TokenDataset
) -> str:
    """One sentence on why no theorem on plain gradient descent makes its limit certain."""
    failed = next(check for check in locally.conditions if not check.holds)
    if failed.name == "start beyond R" and cone is not None and bool(cone.contains(start)):
        return "Expected, not certain: the start lies in the cone of Eqs (32) and (46), but below the norm that the full proof asks for."
    lacking = " and ".join(check.name for check in globally.conditions if not check.holds)
    if start is None:
        ending = "and without a start A Thm 3 cannot say which candidate descent reaches"
    else:
        ending = f"{'and A Thm 3 does not apply' if globally.applies else 'nor does A Thm 3'}: {failed.sentence}"
    if globally.applies:
        return f"Not certain: A Thm 2 leaves the direction open for n = {part.n_inputs}, {ending}."
    return f"Not certain: A Thm 2 does not apply ({lacking}), {ending}."
