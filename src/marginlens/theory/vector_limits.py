"""Training p, or W through p: A Theorems 1, 2, 3 and 8 on one problem, condition by condition, and the run that is followed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from marginlens.arithmetic.directions import length, unit
from marginlens.errors import InputError
from marginlens.losses.margin import rising_margin
from marginlens.optimizers import GradientDescent, NormalizedGD
from marginlens.optimizers.gradient_descent import has_plain_steps
from marginlens.optimizers.protocol import Optimizer
from marginlens.risk import AttentionRisk, MatrixRisk, SoftmaxRisk, matrix_from_vector
from marginlens.risk.protocol import starting_points
from marginlens.status import Status
from marginlens.svm import SetSolution, set_svm
from marginlens.theory.assumptions import (
    assumption_a,
    assumption_b,
    mixing_constants_of,
    optimal_sets_of,
    separable_optimum,
    step_size,
    strict_optimum,
)
from marginlens.theory.attraction import moving_fact
from marginlens.theory.basin import BasinCone, basin_of
from marginlens.theory.bias_table import ON_P, is_known, unknown_words
from marginlens.theory.certificate import Certificate
from marginlens.theory.checks import Check, TheoremVerdict
from marginlens.theory.observations import claim_words, observed_by
from marginlens.theory.optimality import (
    SAME_DIRECTION_ATOL,
    TokenOptimality,
    directional_margin,
    local_optima_of,
    optimality_of,
)
from marginlens.theory.outcome import Outcome, outcomes, why_not_followed
from marginlens.theory.prediction import SET_LABEL, Candidates, Prediction, Request, predictions, without_theorem
from marginlens.theory.scored_tokens import ScoredTokens
from marginlens.theory.steepest_certificate import SteepestCertificate
from marginlens.theory.steepest_runs import Runs, outcomes_of
from marginlens.theory.unproved_steps import UnprovedSteps, optimizer_words
from marginlens.typing import BoolArray, FloatArray, IntArray
from marginlens.words import Fact


class AttentionDetails(NamedTuple):
    """The quantities behind the verdicts on p.

    Attributes:
        dependent: (n_inputs,) the inputs whose output depends on p. The theorems are about these, and n counts them. For any
            other input, a selection has the first token with the highest score.

        set_solution: the solution of ATT-SVM' if optimal tokens tie, else None; the path converges to its `points` if Thm 8 applies.

        basin: index of the candidate whose cone of Eqs (32) and (46) contains the start, else None.

        cone: that cone.
    """

    dependent: BoolArray
    set_solution: SetSolution | None
    basin: int | None
    cone: BasinCone | None


@predictions.register
def predict_attention(risk: SoftmaxRisk, request: Request) -> list[Prediction]:
    """Predict where training p ends, problem by problem."""
    if not risk.is_linear:
        return [without_theorem(risk, request.optimizer)] * len(risk)
    problem = ScoredTokens.of_risk(risk).as_batch()
    starts = starting_points(risk, request.start)
    given = [None] * len(problem) if request.start is None else starts
    if risk.data.has_offsets:  # the theorems of paper A are about logits without them
        found = [without_theorem(risk, request.optimizer)] * len(problem)
    else:
        found = [predict_vector(one, start, request) for one, start in zip(problem, given, strict=True)]
    return _followed(found, problem, _runs(risk, starts), request)


@predictions.register
def predict_matrix(risk: MatrixRisk, request: Request) -> list[Prediction]:
    """Predict where training W ends, problem by problem.

    By Lemma 1, Wᵀu takes the steps of p under plain and normalised descent, and W/‖W‖_F tends to the matrix of p's limit. If
    queries differ between inputs, or for other steps, runs are followed on the keys u_i ⊗ x of the tokens x; no theorem checked
    here covers them.
    """
    if not risk.of_p.is_linear:
        return [without_theorem(risk, request.optimizer)] * len(risk)
    moves_as_p = risk.shares_query and _moves_as_p(request.optimizer)
    found = [without_theorem(risk, request.optimizer)] * len(risk)
    if risk.shares_query:
        size = float(length(risk.query))
        of_p = request._replace(
            start=None if request.start is None else risk.vector(request.start),
            optimizer=_on_p(request.optimizer, size),
            prove=request.prove and moves_as_p,
        )

        def as_matrix(p: FloatArray) -> FloatArray:
            return size * matrix_from_vector(p, risk.query)

        found = [_of_matrix(each, as_matrix) for each in predict_attention(risk.of_p, of_p)]
    if moves_as_p:
        return found
    runs = _runs(risk, starting_points(risk, request.start))
    wide = ScoredTokens.of_risk(_wide(risk)).as_batch()
    return _followed(found, wide, runs, request, lambda x: x.reshape(risk.shape))


def _of_matrix(found: Prediction, as_matrix: Callable[[FloatArray], FloatArray]) -> Prediction:
    """Convert a prediction of p = Wᵀu to a prediction of W."""
    limits = (found.direction, found.path_direction, found.observed)
    direction, path, seen = (None if limit is None else as_matrix(limit) for limit in limits)
    changed = replace(found, direction=direction, path_direction=path, observed=seen)
    return replace(changed, problem="MatrixRisk", notes=(Fact("note.of_matrix"), *found.notes))


def _wide(risk: MatrixRisk) -> SoftmaxRisk:
    """Make the risk of W as a vector, with keys u_i ⊗ k of the keys k."""
    data = risk.of_p.data
    query = np.broadcast_to(risk.query, (*data.y.shape, risk.query.shape[-1]))
    keys = query[..., :, None, :, None] * data.K[..., :, :, None, :]
    return AttentionRisk(data.with_keys(keys.reshape(*data.K.shape[:-1], -1)), risk.of_p.head, risk.of_p.loss)


def _moves_as_p(optimizer: Optimizer | None) -> bool:
    """Return whether steps of W are steps of p = Wᵀu that a plain optimizer of p takes."""
    return optimizer is None or isinstance(optimizer, GradientDescent | NormalizedGD)


def _on_p(optimizer: Optimizer | None, size: float) -> Any:
    """Return the steps of p = Wᵀu that steps of W imply, where ‖u‖ = size."""
    if not isinstance(optimizer, GradientDescent | NormalizedGD):
        return optimizer
    return replace(optimizer, size=optimizer.size * size * (size if isinstance(optimizer, GradientDescent) else 1.0))


# ---- the run that is followed


def _runs(risk: SoftmaxRisk | MatrixRisk, starts: FloatArray) -> Runs:
    """Return the runs of a risk, one for each problem."""
    return Runs([risk[j] for j in range(len(risk))] if risk.is_batch else [risk], starts)


def _followed(
    found: list[Prediction],
    problem: ScoredTokens,
    runs: Runs,
    request: Request,
    as_x: Callable[[FloatArray], FloatArray] = lambda direction: direction,
) -> list[Prediction]:
    """Add to the predictions the end of the run from each start, and the limits that its proof makes certain."""
    if not request.prove:
        return found
    optimizer = request.optimizer
    reason = why_not_followed(problem, optimizer)
    if problem.data.has_offsets and optimizer is not None and not has_plain_steps(optimizer):
        reason = Fact("not_followed.offsets", {"optimizer": optimizer_words(optimizer)})
    if isinstance(optimizer, UnprovedSteps) and optimizer.batch_size is not None:
        reason = Fact("not_followed.batches", {"optimizer": optimizer_words(optimizer)})
    if reason is not None:
        return [replace(each, not_followed=reason, notes=(*each.notes, reason)) for each in found]
    if optimizer is None or has_plain_steps(optimizer):
        ends = outcomes(problem, runs.starts.reshape(len(problem), -1), optimizer, request.progress)
    else:
        ends = outcomes_of(problem, runs, optimizer, request.progress)
    return [_with_outcome(prediction, end, request, as_x) for prediction, end in zip(found, ends, strict=True)]


def _with_outcome(
    prediction: Prediction, outcome: Outcome, request: Request, as_x: Callable[[FloatArray], FloatArray]
) -> Prediction:
    """Add the end of the run to a prediction, and what its proof makes certain."""
    answer = replace(prediction, outcome=outcome)
    if outcome.constant:
        return replace(answer, reasons=(Fact("reason.constant"),))
    if not outcome.proved or prediction.direction is not None:
        return answer
    if isinstance(outcome.certificate, Certificate) and outcome.direction is not None:
        reasons = (_from_a_point(outcome, request),)
        return replace(answer, direction=as_x(outcome.direction), from_norm=outcome.norm, reasons=reasons)
    if isinstance(outcome.certificate, SteepestCertificate):
        numbers = {"norm": outcome.norm, "selected": str(outcome.selected.tolist()), "steps": outcome.n_steps}
        return replace(answer, selected=outcome.selected, reasons=(Fact("reason.tokens_from_a_point", numbers),))
    return answer


def _from_a_point(outcome: Outcome, request: Request) -> Fact:
    """State that the limit is certain from the point to which the run was followed."""
    kind = "flow" if request.optimizer is None else "steps"
    return Fact(
        "reason.from_a_point",
        {
            "norm": outcome.norm,
            "moving": moving_fact(request.optimizer),
            "selected": str(outcome.selected.tolist()),
            "steps": outcome.n_steps,
            "case": kind if request.start is None else f"{kind}_from_start",
        },
    )


# ---- the theorems of paper A on one problem


class _Start(NamedTuple):
    """The start of a run, its selection among the inputs whose output depends on p, and its cone if that is locally optimal."""

    point: FloatArray | None
    optimality: TokenOptimality | None = None
    cone: BasinCone | None = None

    @property
    def is_in_cone(self) -> bool:
        """True if the cone of Eqs (32) and (46) contains the start."""
        return self.cone is not None and self.point is not None and bool(self.cone.contains(self.point))


class _Verdicts(NamedTuple):
    """The theorems on one problem: 1 on the path, 2 and 3 on constant steps of suitable size, 8 on the path if tokens tie."""

    path: TheoremVerdict
    globally: TheoremVerdict
    locally: TheoremVerdict
    to_set: TheoremVerdict | None
    n_inputs: int

    @property
    def left_out(self) -> Check | None:
        """Return the condition that fails if rounding decides whether an input counts."""
        first = self.path.conditions[0]
        return first if first.code == "condition.inputs_left_out" else None

    def listed(self, step: Check | None) -> tuple[TheoremVerdict, ...]:
        """List all of them, Theorems 2 and 3 with the condition on the steps."""
        steps = () if step is None else (step,)
        descent = [replace(each, conditions=(*each.conditions, *steps)) for each in (self.globally, self.locally)]
        return (self.path, *descent) if self.to_set is None else (self.path, *descent, self.to_set)


def predict_vector(problem: ScoredTokens, start: FloatArray | None, request: Request) -> Prediction:
    """Predict the limit of training p on one problem by A Theorems 1, 2, 3 and 8.

    Args:
        problem: one problem.

        start: p(0) (d_key,), None if it is not given.

        request: what is asked.
    """
    part, optimizer = problem.part, request.optimizer
    candidates = _candidates(part, request.max_problems)
    at_start, inside = _around(problem, start)
    verdicts, set_solution = _verdicts(problem, inside, request.max_problems)
    if candidates is None:
        candidates = _without_listing(part, at_start.optimality)
    candidates = _with_set(candidates, set_solution)
    step = None if optimizer is None else step_size(problem, optimizer)
    gmm = optimality_of(part, part.optimal)
    promise = _promise(verdicts, gmm, at_start.optimality)
    minima = set_solution.points if verdicts.to_set is not None and verdicts.to_set.applies and set_solution else None
    path_direction = gmm.direction if verdicts.path.applies else None
    if minima is not None and len(minima) == 1:
        path_direction = unit(minima[0])
    basin = None
    if at_start.optimality is not None and at_start.is_in_cone:
        same = (candidates.selections == at_start.optimality.selected).all(axis=-1)
        basin = next((int(k) for k in np.flatnonzero(same) if candidates.labels[k] != SET_LABEL), None)
    why_not = None if promise is not None else _why_not(verdicts, at_start)
    return Prediction(
        "AttentionRisk",
        verdicts.listed(step),
        _reasons(promise, optimizer, step, why_not, minima),
        _notes(problem),
        direction=promise.direction if promise is not None and (step is None or step) else None,
        path_direction=path_direction,
        observed=promise.direction if promise is not None and isinstance(optimizer, NormalizedGD) else None,
        candidates=candidates._replace(selections=_of_all_inputs(problem, candidates.selections)),
        details=AttentionDetails(problem.dependent, set_solution, basin, at_start.cone),
    )


def _verdicts(
    problem: ScoredTokens, inside: Sequence[Check], max_problems: int
) -> tuple[_Verdicts, SetSolution | None]:
    """Check the theorems on one problem; also return the solution of ATT-SVM' if optimal tokens tie. `inside` has Theorem 3's
    conditions on the start.
    """
    part, n = problem.part, problem.part.data.n_inputs
    slopes, separable, strict = assumption_a(part), separable_optimum(part), strict_optimum(part)
    near = np.flatnonzero(problem.undecided)
    left_out = tuple(Check("condition.inputs_left_out", None, {"input": int(i)}) for i in near[:1])
    path = TheoremVerdict("A Thm 1", (*left_out, slopes, strict, separable), Fact("conclusion.a_thm_1"))
    globally = TheoremVerdict(
        "A Thm 2",
        (*left_out, slopes, assumption_b(part), separable),
        Fact("conclusion.a_thm_2", {"n": n, "case": "default" if n == 1 else "several"}),
    )
    locally = TheoremVerdict("A Thm 3", (*left_out, slopes, *inside), Fact("conclusion.a_thm_3"))
    to_set, set_solution = None, None
    if problem.dependent.any() and not strict:
        to_set, set_solution = _path_to_set(part, slopes, max_problems)
        to_set = replace(to_set, conditions=(*left_out, *to_set.conditions))
    return _Verdicts(path, globally, locally, to_set, n), set_solution


def _of_all_inputs(problem: ScoredTokens, selections: IntArray) -> IntArray:
    """Complete selections of the inputs that depend on p by the token with the highest score of every other input."""
    every = np.repeat(problem.optimal[None], len(selections), axis=0)
    every[:, problem.dependent if problem.dependent.any() else slice(None)] = selections
    return every


def _notes(problem: ScoredTokens) -> tuple[Fact, ...]:
    """State which inputs the theorems leave out."""
    constant = np.flatnonzero(~problem.dependent)
    if not 0 < len(constant) < len(problem.dependent):
        return ()
    inputs = [f"input {i}" for i in constant]
    return (Fact("note.left_out", {"inputs": inputs, "count": len(inputs)}),)


class _Promise(NamedTuple):
    """The limit that a theorem makes certain for plain gradient descent, with its description and the theorem's label and case."""

    citation: str
    reason: str
    direction: FloatArray
    limit: Fact


def _promise(verdicts: _Verdicts, gmm: TokenOptimality, at_start: TokenOptimality | None) -> _Promise | None:
    """Return the limit that Theorem 2 or 3 makes certain for steps of the right size, None if neither applies."""
    if verdicts.globally.applies and verdicts.n_inputs == 1:
        return _Promise("A Thm 2", "A Thm 2 with n = 1", gmm.direction, Fact("limit.gmm"))
    if verdicts.locally.applies and at_start is not None:
        limit = Fact("limit.selected", {"selected": str(at_start.selected.tolist())})
        return _Promise("A Thm 3", "A Thm 3", at_start.direction, limit)
    return None


def _reasons(
    promise: _Promise | None,
    optimizer: Optimizer | None,
    step: Check | None,
    why_not: Fact | None,
    minima: FloatArray | None,
) -> tuple[Fact, ...]:
    """State what is known of the limit, how certain it is, and what would make it more certain."""
    reasons = []
    if optimizer is not None and not is_known(optimizer):
        reasons.append(Fact("reason.unknown_optimizer", {"unknown": unknown_words(optimizer)}))
    elif promise is None and why_not is not None:
        reasons.append(why_not)
        if isinstance(optimizer, NormalizedGD):
            reasons.append(Fact("reason.normalised", {"claims": claim_words(observed_by(optimizer, ON_P))}))
    elif promise is not None:
        reasons.append(_promised(promise, optimizer, step))
    if minima is not None:
        case = "one" if len(minima) == 1 else "default"
        reasons.append(Fact("reason.minima", {"minima": len(minima), "case": case}))
    return tuple(reasons)


def _promised(promise: _Promise, optimizer: Optimizer | None, step: Check | None) -> Fact:
    """State what the promise of a theorem means for the steps taken."""
    numbers: dict[str, Any] = {"limit": promise.limit, "citation": promise.reason}
    if step is None or step:
        return Fact("reason.certain", {**numbers, "case": "up_to" if step is None else "default"})
    numbers["log_largest_step"] = step.numbers["log_largest_step"]
    if isinstance(optimizer, NormalizedGD):
        claims = claim_words(observed_by(optimizer, ON_P, promise.citation))
        return Fact("reason.observed", {**numbers, "claims": claims})
    return Fact("reason.steps", {**numbers, "condition": step})


def _why_not(verdicts: _Verdicts, start: _Start) -> Fact:
    """State why no theorem on plain gradient descent makes its limit certain."""
    if verdicts.left_out is not None:
        return Fact("reason.condition", {"condition": verdicts.left_out})
    globally, failed = verdicts.globally, verdicts.locally.failed[0]
    if failed.code == "condition.start_beyond_radius" and start.is_in_cone:
        return Fact("reason.cone")
    numbers = {"n": verdicts.n_inputs, "lacking": [check.name for check in globally.failed], "condition": failed}
    case = "open" if globally.applies else "neither"
    return Fact("reason.no_theorem", {**numbers, "case": case if start.point is None else f"{case}_from_start"})


def _path_to_set(problem: ScoredTokens, slopes: Check, max_problems: int) -> tuple[TheoremVerdict, SetSolution]:
    """Check Theorem 8 with the sets of tokens that share the highest score, and solve ATT-SVM' for them."""
    sets = optimal_sets_of(problem)
    found = set_svm(problem.data, sets, max_problems=max_problems)
    count = len(found.solutions)
    undecided = found.status not in (Status.OPTIMAL, Status.INFEASIBLE, Status.TRIVIAL)
    case = {Status.OPTIMAL: "several" if count > 1 else "optimal", Status.INACCURATE: "default"}.get(found.status)
    numbers = {"margin": found.margin, "minima": count, "case": case or found.status.name.lower()}
    separable = Check("condition.separable_sets", None if undecided else found.status is Status.OPTIMAL, numbers)
    mixing = _check_linear_mixing(problem, sets, slopes)
    return TheoremVerdict("A Thm 8", (slopes, mixing, separable), Fact("conclusion.a_thm_8")), found


def _check_linear_mixing(problem: ScoredTokens, sets: tuple[IntArray, ...], slopes: Check) -> Check:
    """Check Assumption D by Lemma 14, for the sets of tokens that share the highest score."""
    if not slopes:
        return Check("condition.assumption_d", False)
    if problem.sharp_differences(problem.optimal)[1].any():
        return Check("condition.assumption_d", None)
    try:
        constants = mixing_constants_of(problem, sets)
    except InputError:
        # A chain of tokens each of which ties with the next only.
        return Check("condition.assumption_d", None)
    shifted = int(np.sum(constants.shift != 0.0))
    counts = {"shifted": shifted, "inputs": problem.data.n_inputs, "case": "shifted" if shifted else "default"}
    numbers = {key: getattr(constants, key) for key in ("log_C_minus", "log_C_plus", "epsilon", "C")}
    return Check("condition.assumption_d", True, {**numbers, **counts})


def _around(problem: ScoredTokens, start: FloatArray | None) -> tuple[_Start, tuple[Check, ...]]:
    """Find the start's selection among the inputs that depend on p, its cone if that is locally optimal, and Theorem 3's
    conditions on both.

    Every p in the cone of α selects α, so no other cone can contain the start.
    """
    if start is None or not np.any(start):
        case = "absent" if start is None else "default"
        return _Start(start), (Check("condition.start_in_a_cone", False, {"case": case}),)
    part, at = problem.part, directional_margin(problem.part.data, start)
    if not at.unique:
        return _Start(start), (Check("condition.locally_optimal_start", False, {"case": "tie"}),)
    found = optimality_of(part, at.selected)
    if found.solution.status is Status.TRIVIAL:
        return _Start(start, found), (Check("condition.locally_optimal_start", False, {"case": "trivial"}),)
    local, gap = bool(found.is_locally_optimal), float(found.score_gap)
    case = "level" if gap == 0.0 else "alone" if gap == np.inf else "default"
    numbers = {"score_gap": gap, "deficit": -gap, "case": case}
    optimal = Check("condition.locally_optimal_start", local, numbers)
    # There is no cone if the loss rises.
    if not local or rising_margin(part.loss, *part.score_ranges[0]) is not None:
        return _Start(start, found), (optimal,)
    cone = basin_of(problem, _of_all_inputs(problem, at.selected[None])[0])
    deviation, norm = 0.5 * float(np.sum((unit(start) - unit(cone.p)) ** 2)), float(np.linalg.norm(start))
    angles = {"angle": _degrees(deviation), "largest_angle": _degrees(cone.mu)}
    narrow = Check(
        "condition.start_in_cone",
        bool(cone.contains(start, 0.0)),
        {"one_minus_cosine": deviation, "mu": cone.mu, **angles},
    )
    far = Check(
        "condition.start_beyond_radius",
        norm >= cone.proven_radius,
        {"norm": norm, "radius": cone.radius, "proven_radius": cone.proven_radius},
    )
    return _Start(start, found, cone), (optimal, narrow, far)


def _degrees(deviation: float) -> float:
    """Compute the angle whose cosine is one minus a deviation, without cancellation."""
    return float(np.degrees(2.0 * np.arcsin(np.sqrt(min(deviation, 2.0) / 2.0))))


def _candidates(problem: ScoredTokens, max_problems: int) -> Candidates | None:
    """List the members of P^mm; None if that takes too many problems."""
    try:
        found = local_optima_of(problem, max_problems)
    except InputError:
        return None
    labels = tuple("GMM" if is_global else "LMM" for is_global in found.is_global)
    return Candidates(found.selections, found.directions, found.margins, labels, complete=True)


def _without_listing(problem: ScoredTokens, at_start: TokenOptimality | None) -> Candidates:
    """Return the members of P^mm that are known without listing all of them: the GMM and the start's selection."""
    gmm = optimality_of(problem, problem.optimal)
    known = [gmm] if gmm.is_locally_optimal else []
    if at_start is not None and at_start.is_locally_optimal:
        known += [] if known and np.array_equal(at_start.selected, gmm.selected) else [at_start]
    return Candidates(
        np.array([each.selected for each in known], dtype=np.int64).reshape(-1, problem.data.n_inputs),
        np.array([each.direction for each in known]).reshape(-1, problem.data.d_key),
        np.array([each.margin for each in known]),
        tuple("GMM" if each.is_globally_optimal else "LMM" for each in known),
        complete=False,
    )


def _with_set(candidates: Candidates, found: SetSolution | None) -> Candidates:
    """Put the global minima of ATT-SVM' before the members of P^mm that are not among them."""
    if found is None or not found.solutions or found.status is Status.TRIVIAL:
        return candidates
    directions = unit(found.points)
    distances = np.linalg.norm(candidates.directions[:, None] - directions, axis=-1)
    distinct = distances.min(axis=-1, initial=np.inf) > SAME_DIRECTION_ATOL
    return Candidates(
        np.concatenate([found.choices, candidates.selections[distinct]]),
        np.concatenate([directions, candidates.directions[distinct]]),
        np.concatenate([np.full(len(directions), found.margin), candidates.margins[distinct]]),
        (SET_LABEL,) * len(directions) + tuple(np.array(candidates.labels, dtype=object)[distinct]),
        candidates.complete,
    )
