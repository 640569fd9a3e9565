"""Predictions: which theorem applies to a training problem, condition by condition, and the direction that it gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np

from marginlens.arithmetic.directions import length, unit
from marginlens.data.tokens import TokenDataset
from marginlens.errors import InputError, whole_number
from marginlens.losses.margin import Logistic, Loss, rising_margin
from marginlens.optimizers import GradientDescent, NormalizedGD
from marginlens.optimizers.protocol import as_optimizer
from marginlens.papers import implements
from marginlens.result import Displayed, Result, Tabular, axes_for, table
from marginlens.result.drawing import draw_bars, draw_checklist, draw_rays, draw_sentence
from marginlens.result.palette import GLOBAL, LOCAL
from marginlens.risk import AttentionRisk, FactorRisk, JointRisk, MatrixRisk, MulticlassRisk, matrix_from_vector
from marginlens.risk.build import as_risk
from marginlens.risk.protocol import starting_points
from marginlens.status import Status
from marginlens.svm import SetSolution, set_svm
from marginlens.theory.assumptions import (
    Check,
    TheoremVerdict,
    check_assumption_a,
    check_assumption_b,
    check_separable,
    check_step,
    check_strict_optimum,
    condition_columns,
    mixing_constants,
    optimal_sets,
)
from marginlens.theory.attraction import WORDS
from marginlens.theory.basin import BasinCone, basin_cone
from marginlens.theory.certificate import Certificate
from marginlens.theory.finite_minimum import MinimumCertificate
from marginlens.theory.implicit_bias import (
    BY_A,
    BY_C,
    ON_P,
    ImplicitBias,
    claim_words,
    implicit_bias,
    is_known,
    observed_by,
    unknown_words,
)
from marginlens.theory.optimality import (
    SAME_DIRECTION_ATOL,
    TokenOptimality,
    depends_on_p,
    directional_margin,
    globally_optimal_direction,
    locally_optimal_directions,
    power_text,
    rounding_decides,
    sharp_differences,
    token_optimality,
)
from marginlens.theory.outcome import Answer, Outcome, outcomes, why_not_followed
from marginlens.theory.unproved_steps import UnprovedSteps, as_theorems_see
from marginlens.typing import Axes, BoolArray, FloatArray, IntArray

EQ17_ONLY = ", under Eq. (17) alone"  # added to a citation where a proof is read without the matrix C of C Assumption 4
_SET_LABEL = "G^mm"  # of a global minimum of ATT-SVM'
_MAX_PRINTED = 10  # candidates
_LEFT_OUT = "rounding decides whether the output of input {input} depends on p: its scores differ by less than errors of double precision"


class _Directions(NamedTuple):
    selections: IntArray
    directions: FloatArray
    margins: FloatArray
    labels: tuple[str, ...]
    complete: bool


class Candidates(Displayed, Tabular, _Directions):
    """Directions that a limit may have.

    Attributes:
        selections: (n_candidates, n_inputs).
        directions: (n_candidates, d_key), unit.
        margins: (n_candidates,).
        labels: for each "GMM" or "LMM" if it is in P^mm, "G^mm" if it is a global minimum of ATT-SVM' where optimal tokens tie.
        complete: whether they hold all of P^mm; if not, listing them would have taken too long.

    `to_frame()` has one row per candidate: kind, selection, margin, direction.
    """

    _columns = table("", kind="labels", selection="selections", margin="margins", direction="directions")
    quantities = "{labels:tally}, complete={complete}"

    @property
    def _listed(self) -> str:
        return "all of P^mm" if self.complete else "P^mm is too large to list in full"

    def __str__(self) -> str:
        lines = [f"Candidates ({self._listed}):" if self.labels else f"Candidates ({self._listed}): none."]
        for label, selection, margin in list(zip(self.labels, self.selections, self.margins, strict=True))[
            :_MAX_PRINTED
        ]:
            lines.append(f"  {label} selects {selection.tolist()} with margin {margin:.4g}")
        if len(self.labels) > _MAX_PRINTED:
            lines.append(f"  and {len(self.labels) - _MAX_PRINTED} more")
        return "\n".join(lines)


@dataclass(frozen=True, repr=False, eq=False)
class Prediction(Result, Tabular):
    """What the theorems say about the limit of training on one problem; `str` of it is a readable account.

    Attributes:
        problem: what was asked about, such as "AttentionRisk".
        verdicts: one per theorem, each with its conditions one by one.
        why: what is known of the limit, how surely, and what would make it surer.
        notes: lines on the problem itself.
        direction: the limit of x/‖x‖ under gradient descent where a theorem makes it certain from norm `from_norm` on, else None.
        from_norm: zero where the theorem speaks of the start itself. Where the run was followed it is the norm of `outcome.point`, from
            which on `outcome.certificate` proves the limit; that the run comes to that point is computed.
        path_direction: the same for the regularisation path. On a `JointRisk` v and p of unit norm each, one after the other.
        selected: (n_inputs,) the tokens at which descent is certain to end where a theorem names them and no direction; else None.
        observed: the limit that a theorem makes certain for plain gradient descent where steps are normalised: claims of the ledger saw
            such steps reach it, and nothing proves it. None elsewhere.
        candidates: the `Candidates` of a problem of p, else None.
        bias: in which norm the optimizer has the largest margin, and who proves or saw it; None where no optimizer is given or nothing is
            known of it.
        details: the quantities behind the verdicts: `AttentionDetails`, `JointDetails`, `NextTokenDetails` or `EmbeddingDetails`.
        outcome: where training from the start ends, computed, with the certificate that proves it; None where nothing was computed.
        not_followed: why nothing was computed, in a sentence; empty where there is an outcome.

    `to_frame()` has one row per condition of a theorem, and of the optimizer's bias: theorem, condition, holds, sentence.
    """

    problem: str
    verdicts: tuple[TheoremVerdict, ...]
    why: str
    notes: tuple[str, ...] = ()
    direction: FloatArray | None = None
    path_direction: FloatArray | None = None
    selected: IntArray | None = None
    observed: FloatArray | None = None
    candidates: Candidates | None = None
    details: Any = None
    bias: ImplicitBias | None = None
    outcome: Outcome | None = None
    from_norm: float = 0.0
    not_followed: str = ""

    @property
    def certain(self) -> str:
        """Since when the direction is certain, in words: "from the start", or from a norm on; empty where it is not."""
        if self.direction is None:
            return ""
        return f"from norm {self.from_norm:.4g} on" if self.from_norm > 0.0 else "from the start"

    @property
    def certificate(self) -> Certificate | MinimumCertificate | None:
        """The proof of the limit that was computed, None where there is none."""
        return None if self.outcome is None else self.outcome.certificate

    @property
    def answer(self) -> Answer:
        """Where training ends, because of what, and whether that is proved: of the run that was followed, else by the theorems alone."""
        if self.outcome is not None:
            return self.outcome.answer
        applying = [verdict for verdict in self.verdicts if verdict.applies]
        missing = self.why.removeprefix("Not certain: ").rstrip(".")
        if not applying:
            return Answer("not known", "nothing is decided", f"no: {missing}")
        in_part = [verdict for verdict in applying if verdict.of_descent]
        of_descent = self.direction is not None or bool(in_part)
        verdict = in_part[-1] if in_part else applying[-1] if of_descent else applying[0]
        because = (
            f"every condition of {verdict.citation} holds ({', '.join(check.name for check in verdict.conditions)})"
        )
        if of_descent:
            return Answer(
                f"the limit of {verdict.citation}: {verdict.conclusion}", because, f"yes, by {verdict.citation}"
            )
        failed = [check.sentence.rstrip(".") for other in self.verdicts for check in other.failed][-1:]
        without = failed[0] if failed else "no theorem speaks of it"
        path = f"yes for the regularisation path, by {verdict.citation}"
        limit = (
            verdict.conclusion if "path" in verdict.conclusion else f"on the regularisation path {verdict.conclusion}"
        )
        measured = () if self.bias is None or self.bias.proved else self.bias.observed
        of_descent_itself = (
            f"measured by {claim_words(measured)}, not proved of descent" if measured else "not known of descent"
        )
        return Answer(f"{of_descent_itself}; {limit}", because, f"{path}; no for descent: {without}")

    @property
    def x(self) -> FloatArray:
        """The limit that is certain, of descent or else of the regularisation path; nan where none is."""
        certain = self.path_direction if self.direction is None else self.direction
        return np.full(1, np.nan) if certain is None else certain

    def __repr__(self) -> str:
        applying = ", ".join(verdict.citation for verdict in self.verdicts if verdict.applies) or "no theorem"
        certain = f"direction certain {self.certain}" if self.certain else "no direction certain for descent"
        count = "" if self.candidates is None else f"{len(self.candidates.labels)} candidates, "
        return f"Prediction({self.problem}: {count}{certain}, {applying} applies)"

    def __str__(self) -> str:
        shown = [verdict for verdict in self.verdicts if verdict.citation.endswith(EQ17_ONLY)] or self.verdicts
        listed = () if self.candidates is None else (str(self.candidates),)
        bias = () if self.bias is None or self.bias.proved in ((BY_A,), (BY_C,)) else (str(self.bias),)
        answer = (str(self.answer),) if self.verdicts or self.outcome else ()
        return "\n".join([*answer, *self.notes, *map(str, shown), *listed, self.why, *bias])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the directions that the limit may have: rays if they have two coordinates, else their margins as bars; without
        candidates the conditions of the theorems as a checklist. Returns the axes.
        """
        ax = axes_for(ax)
        if self.candidates is not None and self.candidates.labels:
            labels, selections = self.candidates.labels, self.candidates.selections.tolist()
            names = [f"{label} {' '.join(map(str, row))}" for label, row in zip(labels, selections, strict=True)]
            colours = [LOCAL if label == "LMM" else GLOBAL for label in labels]
            if self.candidates.directions.shape[-1] == 2:
                draw_rays(ax, self.candidates.directions, names, colours)
            else:
                draw_bars(ax, names, self.candidates.margins, "margin", colours=colours, ylabel="selected tokens")
        elif self.verdicts:
            checks = [(verdict.citation, check) for verdict in self.verdicts for check in verdict.conditions]
            draw_checklist(ax, [(citation, check.name, check.holds) for citation, check in checks])
        else:
            draw_sentence(ax, "No theorem speaks of this problem.")
        return ax

    def _columns(self) -> dict[str, Any]:
        of_bias = () if self.bias is None else (TheoremVerdict("bias", self.bias.conditions, ""),)
        return condition_columns((*self.verdicts, *of_bias))


@implements("A", "Thm 1", "Thm 2", "Thm 3", "Thm 5", "Thm 6", "Thm 8")
@implements("C", "Thm 1", "Thm 2", "Thm 3", "Eq. (2)", "Eq. (3)")
@implements("X", "Thm 1", "Thm 3")
def predict(
    risk: Any,
    *,
    start: Any = None,
    optimizer: Any = None,
    max_problems: int = 10_000,
    prove: bool = True,
    batch_size: int | None = None,
) -> Prediction | Any:
    r"""Which theorem applies to a training problem, condition by condition, and the direction that the weights converge to.

    .. math:: \lim_{R\to\infty} \frac{\bar p(R)}{R} = \frac{p^{mm\star}}{\|p^{mm\star}\|} \ \text{(A Thm 1)}, \qquad
        \lim_{t\to\infty} \frac{p(t)}{\|p(t)\|} = \frac{p^{mm\star}}{\|p^{mm\star}\|} \ \text{(A Thm 2, } n = 1), \qquad
        = \frac{p^{mm}(\alpha)}{\|p^{mm}(\alpha)\|} \ \text{(A Thm 3)}

    *`AttentionRisk`*: A Theorems 1, 2, 3 and, where several tokens of an input share the highest score, 8, by which the path converges to
    the global minima of `set_svm` with these sets, because Lemma 14 gives Assumption D. Inputs whose output does not depend on p (one
    token, one key or one score) are left out, and n counts the others. Theorem 3 is taken at `BasinCone.proven_radius`, where nothing of
    its proof is implicit; a start in the cone beyond the paper's radius only is reported as `details.basin`: expected, not certain.
    Without a start only Theorems 1, 2 and 8 can make a limit certain. `MatrixRisk`: the same through Lemma 1.
    *`JointRisk`*: A Theorems 5 and 6, about the joint path; X Theorem 3 about descent, on one input of orthogonal tokens.
    *`NextTokenRisk`*: C Theorems 1 to 3.
    *`MulticlassRisk`*: F Theorems 1 and 2, for the optimizer that is given.
    With an optimizer of the library `bias` says which norm's margin its runs on p, W or the factors of W head for (`implicit_bias`).

    On p and W the run itself is followed, too: the gradient flow, or normalised or plain steps, until X Theorem 1 gives the limit from the
    point reached on. `outcome` says where it ends, because of what, and hands over the proof, a `Certificate`, once its `verify()` has
    confirmed it. That the run comes to this point is computed.

    Args:
        risk: any risk, of one problem or a batch.
        start: x(0), as `descend` takes it; the run is followed from zero if left out.
        optimizer: `GradientDescent(eta)` to check η ≤ 1/L; any such step if left out. No theorem of A and C covers others: for
            `NormalizedGD` `observed` and `why` say what claims of the ledger saw such steps do, for all of them `bias` does.
        max_problems: hard-margin problems that listing the candidates may take, and as many for ATT-SVM'; beyond it only the GMM and the
            selection of the start are given. On a `JointRisk`, selections that are tried one by one for the largest label margin.
        prove: whether to follow the run until its limit is proved, and to verify the proof; each takes a tenth of a second on a few dozen
            tokens. Without it the answer is what the theorems say of the start alone.
        batch_size: inputs of each step, all of them by default. No theorem here is about fewer; `bias` says what is known (claim X-N7).
    Returns:
        A `Prediction`, or a list of them for a batch; for a risk that no theorem speaks of, one whose `why` says so.
    """
    risk = as_risk(risk)
    whole_number(max_problems, "max_problems", at_least=1)
    given = None if optimizer is None else as_optimizer(optimizer)
    rule = as_theorems_see(given)
    if batch_size is not None and given is None:
        raise InputError("batch_size", "None where no optimizer is given", f"{batch_size}")
    if batch_size is not None and batch_size < getattr(risk, "n_inputs", 0):
        rule = UnprovedSteps(given, batch_size)
    found = predictions(risk, start, rule, max_problems)
    if isinstance(risk, AttentionRisk | MatrixRisk | FactorRisk | MulticlassRisk) and given is not None:
        biases = implicit_bias(given, risk, start=start, batch_size=batch_size)
        found = [
            replace(prediction, bias=bias)
            for prediction, bias in zip(found, biases if isinstance(biases, list) else [biases], strict=True)
        ]
    if prove and isinstance(risk, AttentionRisk | MatrixRisk) and _of_vector(risk).is_linear:
        found = _computed(risk, found, start, rule)
    else:
        reason = WORDS["not followed"]["risk" if prove else "not asked"]
        found = [_not_followed(prediction, reason) for prediction in found]
    return found if getattr(risk, "is_batch", False) else found[0]


@implements("A", "Thm 1", "Thm 2", "Thm 3", "Thm 5", "Thm 6", "Thm 8")
@implements("C", "Thm 1", "Thm 2", "Thm 3", "Eq. (2)", "Eq. (3)")
def predict_limit(
    data: Any,
    head: Any = None,
    *,
    loss: Any = None,
    start: Any = None,
    optimizer: Any = None,
    max_problems: int = 10_000,
    prove: bool = True,
) -> Prediction | Any:
    """`predict` for a dataset: which theorem applies to it, condition by condition, and the direction that it gives.

    Args:
        data: a `TokenDataset`, one problem or a batch; a `SequenceDataset`, or a list of them; or a risk.
        head: v (d_model,) or (batch, d_model), None where it is trained too (A Theorems 5 and 6); on sequences C (n_vocabulary, d_model),
            or None for C Eᵀ = I.
        loss: logistic by default; on sequences the log-loss.
        start, optimizer, max_problems, prove: as for `predict`.
    Returns:
        A `Prediction`, or a list of them for a batch.
    """
    joint = isinstance(data, TokenDataset) and head is None
    risk = JointRisk(data, Logistic() if loss is None else loss) if joint else as_risk(data, head, loss)
    return predict(risk, start=start, optimizer=optimizer, max_problems=max_problems, prove=prove)


@singledispatch
def predictions(risk: Any, start: Any, optimizer: Any, max_problems: int) -> list[Prediction]:
    """The predictions for each problem of a risk: by default that no theorem is known for it."""
    return [_without_theorem(risk, optimizer)] * (len(risk) if getattr(risk, "is_batch", False) else 1)


def _computed(
    risk: AttentionRisk | MatrixRisk, found: list[Prediction], start: Any, optimizer: Any
) -> list[Prediction]:
    """The predictions with what following the runs gave, and with the limits that it proves."""
    of_p, begin, rule, as_x = _as_vector(risk, start, optimizer)
    reason = why_not_followed(of_p, rule)
    if reason:
        said = [_not_followed(prediction, reason) for prediction in found]
        return [replace(prediction, notes=(*prediction.notes, prediction.not_followed)) for prediction in said]
    answers, begun = [], "from zero" if start is None else "from this start"
    for prediction, outcome in zip(found, outcomes(of_p, begin, rule), strict=True):
        proof, direction, answer = outcome.certificate, outcome.direction, replace(prediction, outcome=outcome)
        if outcome.constant:
            answer = replace(answer, why=WORDS["why"]["constant"])
        if outcome.proved and isinstance(proof, Certificate) and direction is not None and prediction.direction is None:
            why = WORDS["why"]["from a point"].format(
                norm=f"{outcome.norm:.4g}",
                moving=proof.steps_words,
                selected=outcome.selected.tolist(),
                way=f"the flow {begun} leads" if rule is None else f"{int(outcome.way):,} steps {begun} lead",
            )
            answer = replace(answer, direction=as_x(direction), from_norm=outcome.norm, why=why)
        answers.append(answer)
    return answers


def _not_followed(prediction: Prediction, reason: str) -> Prediction:
    return replace(prediction, not_followed=WORDS["why"]["not followed"].format(reason=reason))


def _of_vector(risk: AttentionRisk | MatrixRisk) -> AttentionRisk:
    """The risk of p that a risk is, or goes through."""
    return risk if isinstance(risk, AttentionRisk) else risk.of_p


def _as_vector(
    risk: AttentionRisk | MatrixRisk, start: Any, optimizer: Any
) -> tuple[AttentionRisk, Any, Any, Callable[[FloatArray], FloatArray]]:
    """The risk of a vector whose steps are those of the risk, its start and optimizer, and how to turn its directions back.

    A query for each input makes keys u_i ⊗ x of the tokens x; one query for all leaves p = Wᵀu to be followed (A Lemma 1).
    """
    if isinstance(risk, AttentionRisk):
        return risk, start, optimizer, lambda direction: direction
    if risk.shares_query:
        size = float(length(risk.query))
        begin = None if start is None else risk.vector(start)
        return risk.of_p, begin, _on_p(optimizer, size), lambda p: size * matrix_from_vector(p, risk.query)
    data = risk.of_p.data
    keys = risk.query[..., :, None, :, None] * data.X[..., :, :, None, :]
    wide = data.with_keys(keys.reshape(*data.X.shape[:-1], -1))
    begin = None if start is None else np.reshape(start, (*np.shape(start)[:-2], -1))
    return AttentionRisk(wide, risk.of_p.head, risk.of_p.loss), begin, optimizer, lambda x: x.reshape(risk.shape)


def _on_p(optimizer: Any, size: float) -> Any:
    """The steps of p = Wᵀu, ‖u‖ = size, that steps of W make."""
    if not isinstance(optimizer, GradientDescent | NormalizedGD):
        return optimizer
    return replace(optimizer, size=optimizer.size * size * (size if isinstance(optimizer, GradientDescent) else 1.0))


def _without_theorem(risk: Any, optimizer: Any) -> Prediction:
    name = type(risk).__name__
    what = f"{name} with a nonlinear head" if isinstance(risk, AttentionRisk) else name
    what = f"{name} with a query for each input" if isinstance(risk, MatrixRisk) else what
    can = "descend(risk) trains on it, and least_distance(*risk.margin_rows(selected)) gives the max-margin direction of what a run selects"
    why = f"No theorem is known for {what}: {can}."
    if isinstance(risk, MatrixRisk | FactorRisk):
        why = f"No theorem that is checked here is about {what}; D (arXiv 2308.16898) is, under conditions of its own: {can}."
    if optimizer is not None and not is_known(optimizer):
        why = f"{why} And {unknown_words(optimizer)}."
    return Prediction(name, (), why)


# ---- paper A, one head


class AttentionDetails(NamedTuple):
    """What stands behind the verdicts on p.

    Attributes:
        dependent: (n_inputs,) the inputs whose output depends on p. The theorems are about these, and n counts them; what a
            selection says of another input is the first of its highest scores.
        set_solution: the solution of ATT-SVM' where optimal tokens tie, whose `points` the path converges to if Thm 8 applies; else None.
        basin: index of the candidate whose cone of Eqs (32) and (46) contains the start, else None.
        cone: that cone.
    """

    dependent: BoolArray
    set_solution: SetSolution | None
    basin: int | None
    cone: BasinCone | None


@predictions.register
def predict_attention(risk: AttentionRisk, start: Any, optimizer: Any, max_problems: int) -> list[Prediction]:
    """Which theorem speaks about training p, problem by problem."""
    if not risk.is_linear:
        return [_without_theorem(risk, optimizer)] * len(risk)
    data = risk.data.as_batch()
    heads = data.head(risk.head)
    starts = [None] * len(data) if start is None else starting_points(risk, start)
    return [_of_p(data[j], heads[j], risk.loss, starts[j], optimizer, max_problems) for j in range(len(data))]


@predictions.register
def predict_matrix(risk: MatrixRisk, start: Any, optimizer: Any, max_problems: int) -> list[Prediction]:
    """Lemma 1: Wᵀu takes the steps of p, those of `matching_optimizer`, and W/‖W‖_F tends to the matrix of p's limit."""
    if not risk.shares_query:
        return [_without_theorem(risk, optimizer)] * len(risk)
    of_p, begin, rule, as_matrix = _as_vector(risk, start, optimizer)
    note = "By A Lemma 1 W follows p = Wᵀu, of which the theorems and the candidates speak."

    def of_matrix(found: Prediction) -> Prediction:
        limits = (found.direction, found.path_direction, found.observed)
        direction, path, seen = (None if limit is None else as_matrix(limit) for limit in limits)
        changed = replace(found, direction=direction, path_direction=path, observed=seen)
        return replace(changed, problem="MatrixRisk", notes=(note, *found.notes))

    return [of_matrix(found) for found in predictions(of_p, begin, rule, max_problems)]


def _of_p(
    data: TokenDataset, v: FloatArray, loss: Loss, start: FloatArray | None, optimizer: Any, max_problems: int
) -> Prediction:
    dependent = depends_on_p(data, v)
    part = data.take_inputs(dependent) if dependent.any() else data
    gmm = globally_optimal_direction(part, v)
    slopes, separable, strict = (
        check_assumption_a(part, v, loss),
        check_separable(part, v),
        check_strict_optimum(part, v),
    )
    near = np.flatnonzero(rounding_decides(data, v))
    left_out = tuple(Check("inputs left out", False, _LEFT_OUT.format(input=i)) for i in near[:1])
    path = TheoremVerdict(
        "A Thm 1", (*left_out, slopes, strict, separable), "the regularisation path converges to the GMM direction"
    )
    n = part.n_inputs
    ending = "and its direction converges to the GMM direction" if n == 1 else f"but n = {n} leaves its direction open"
    globally = TheoremVerdict(
        "A Thm 2",
        (*left_out, slopes, check_assumption_b(part, v), separable),
        f"the norm of descent diverges from every start, {ending}",
    )
    at_start, cone, inside = _around(data, part, v, loss, start)
    locally = TheoremVerdict(
        "A Thm 3", (*left_out, slopes, *inside), "descent converges in direction to the LMM that its start selects"
    )
    to_set, set_solution = None, None
    if dependent.any() and not strict:
        to_set, set_solution = _path_to_set(part, v, slopes, loss, max_problems)
        to_set = replace(to_set, conditions=(*left_out, *to_set.conditions))
    candidates = _with_set(_candidates(part, v, gmm, at_start, max_problems), set_solution)
    step = None if optimizer is None else check_step(data, v, optimizer, loss)
    promise = _promise(globally, locally, gmm, at_start, n)
    why_not = "" if promise is not None else _why_not(globally, locally, start, cone, n)
    why_not = f"Not certain: {left_out[0].sentence}." if left_out else why_not
    basin = None
    if at_start is not None and cone is not None and bool(cone.contains(start)):
        same = (candidates.selections == at_start.selected).all(axis=-1)
        basin = next((int(k) for k in np.flatnonzero(same) if candidates.labels[k] != _SET_LABEL), None)
    by_descent = tuple(
        verdict if step is None else replace(verdict, conditions=(*verdict.conditions, step))
        for verdict in (globally, locally)
    )
    minima = set_solution.points if to_set is not None and to_set.applies and set_solution is not None else None
    path_direction = gmm.direction if path.applies else None
    if minima is not None and len(minima) == 1:
        path_direction = unit(minima[0])
    selections = np.repeat(data.optimal(v)[None], len(candidates.labels), axis=0)
    selections[:, dependent if dependent.any() else slice(None)] = candidates.selections
    constant = np.flatnonzero(~dependent)
    notes: tuple[str, ...] = ()
    if 0 < len(constant) < len(dependent):
        named = f"input {constant[0]} has" if len(constant) == 1 else f"inputs {constant.tolist()} have"
        notes = (f"The theorems leave out what cannot depend on p: {named} one token, one key or one score.",)
    normalised = isinstance(optimizer, NormalizedGD)
    return Prediction(
        "AttentionRisk",
        (path, *by_descent) if to_set is None else (path, *by_descent, to_set),
        _why(promise, optimizer, step, why_not, minima),
        notes,
        direction=promise.direction if promise is not None and (step is None or step) else None,
        path_direction=path_direction,
        observed=promise.direction if promise is not None and normalised else None,
        candidates=candidates._replace(selections=selections),
        details=AttentionDetails(dependent, set_solution, basin, cone),
    )


class _Promise(NamedTuple):
    """What a theorem makes certain for plain gradient descent: its label, its limit, and both in words."""

    citation: str
    direction: FloatArray
    limit: str
    reason: str


def _promise(
    globally: TheoremVerdict,
    locally: TheoremVerdict,
    gmm: TokenOptimality,
    at_start: TokenOptimality | None,
    n_inputs: int,
) -> _Promise | None:
    """The limit that Theorem 2 or 3 makes certain where the step is right, None where neither applies."""
    if globally.applies and n_inputs == 1:
        return _Promise("A Thm 2", gmm.direction, "the GMM direction, from every start", "A Thm 2 with n = 1")
    if locally.applies and at_start is not None:
        limit = f"the direction that selects {at_start.selected.tolist()}"
        return _Promise("A Thm 3", at_start.direction, limit, "A Thm 3")
    return None


def _why(promise: _Promise | None, optimizer: Any, step: Check | None, why_not: str, minima: FloatArray | None) -> str:
    """What is known of the limit, how surely, and what would make it surer."""
    normalised = isinstance(optimizer, NormalizedGD)
    if optimizer is not None and not is_known(optimizer):
        sentences = [f"Not certain: {unknown_words(optimizer)}."]
    elif promise is None:
        sentences = [why_not]
        if normalised:
            sentences.append(
                "Steps are normalised besides, which no theorem covers. Observed, not proved: runs that saturate end in the max-margin "
                f"direction of the tokens that they select ({claim_words(observed_by(optimizer, ON_P))})."
            )
    elif step is None:
        sentences = [f"Certain for constant steps up to 1/L_p: {promise.limit}, by {promise.reason}."]
    elif step:
        sentences = [f"Certain: {promise.limit}, by {promise.reason}."]
    elif normalised:
        sentences = [
            f"Observed, not proved: {promise.limit}. {promise.reason} proves it for constant steps up to 1/L_p = "
            f"{power_text(-step.numbers['log_L_p'])}; normalised steps, which no theorem covers, went there in "
            f"{claim_words(observed_by(optimizer, ON_P, promise.citation))}."
        ]
    else:
        largest = (
            "that" if isinstance(optimizer, GradientDescent) else f"1/L_p = {power_text(-step.numbers['log_L_p'])}"
        )
        sentences = [
            f"Not certain: {step.sentence}. Constant steps of plain gradient descent up to {largest} have a certain limit: "
            f"{promise.limit}, by {promise.reason}."
        ]
    if minima is not None:
        where = "the one global minimum" if len(minima) == 1 else f"the {len(minima)} global minima"
        sentences.append(f"The regularisation path converges to {where} of ATT-SVM', by A Thm 8.")
    return " ".join(sentences)


def _why_not(
    globally: TheoremVerdict, locally: TheoremVerdict, start: FloatArray | None, cone: BasinCone | None, n: int
) -> str:
    """One sentence on why no theorem on plain gradient descent makes its limit certain."""
    failed = locally.failed[0]
    if failed.name == "start beyond R" and cone is not None and bool(cone.contains(start)):
        return "Expected, not certain: the start lies in the cone of Eqs (32) and (46), but below the norm that the full proof asks for."
    if start is None:
        ending = "and without a start A Thm 3 cannot say which candidate descent reaches"
    else:
        ending = f"{'and A Thm 3 does not apply' if globally.applies else 'nor does A Thm 3'}: {failed.sentence}"
    if globally.applies:
        return f"Not certain: A Thm 2 leaves the direction open for n = {n}, {ending}."
    lacking = " and ".join(check.name for check in globally.failed)
    return f"Not certain: A Thm 2 does not apply ({lacking}), {ending}."


def _path_to_set(
    data: TokenDataset, v: FloatArray, slopes: Check, loss: Loss, max_problems: int
) -> tuple[TheoremVerdict, SetSolution]:
    """Theorem 8 with the sets of tokens that share the highest score, and the solution of ATT-SVM' for them."""
    sets = optimal_sets(data, v)
    found = set_svm(data, sets, max_problems=max_problems)
    count = len(found.solutions)
    sentence = {
        Status.OPTIMAL: f"some direction lets an optimal token of every input beat those that are not, with margin {found.margin:.4g} "
        f"at {count} global {'minimum' if count == 1 else 'minima'}",
        Status.INFEASIBLE: "no direction lets an optimal token of every input beat those that are not",
        Status.INACCURATE: "rounding decides whether a direction lets optimal tokens beat those that are not",
    }.get(
        found.status, f"the search for all global minima was not finished after max_problems = {max_problems} problems"
    )
    numbers = {"margin": found.margin, "minima": float(count)}
    separable = Check("separable sets", found.status is Status.OPTIMAL, sentence, numbers)
    conclusion = "the regularisation path, divided by ΞR, converges to the set of global minima of ATT-SVM'"
    return TheoremVerdict(
        "A Thm 8", (slopes, _check_linear_mixing(data, v, sets, slopes, loss), separable), conclusion
    ), found


def _check_linear_mixing(
    data: TokenDataset, v: FloatArray, sets: tuple[IntArray, ...], slopes: Check, loss: Loss
) -> Check:
    """Assumption D by Lemma 14, for the sets of tokens that share the highest score."""
    name = "A Assumption D"
    if not slopes:
        return Check(name, False, "A Lemma 14 gives it for losses that strictly decrease")
    undecided = Check(name, False, "rounding decides which tokens share the highest score of an input")
    if sharp_differences(data, v, data.optimal(v))[1].any():
        return undecided
    try:
        constants = mixing_constants(data, v, sets, loss)
    except InputError:  # a chain of tokens each of which ties with the next only
        return undecided
    shifted = int(np.sum(constants.shift != 0.0))
    after = f", after a shift of the scores of {shifted} of {data.n_inputs} inputs to positive ones" if shifted else ""
    sentence = (
        f"holds by A Lemma 14{after}: L - L⋆ lies between {power_text(constants.log_C_minus)} and {power_text(constants.log_C_plus)} "
        "times the largest probability of non-optimal tokens"
    )
    return Check(
        name, True, sentence, {key: getattr(constants, key) for key in ("log_C_minus", "log_C_plus", "epsilon", "C")}
    )


def _around(
    data: TokenDataset, part: TokenDataset, v: FloatArray, loss: Loss, start: FloatArray | None
) -> tuple[TokenOptimality | None, BasinCone | None, tuple[Check, ...]]:
    """The selection that the start makes of `part`, its cone in `data` if it is locally optimal, and Theorem 3's conditions on them.

    Every p in the cone of α selects α, so no other cone can contain the start.
    """
    if start is None or not np.any(start):
        reason = "no start was given" if start is None else "the start is zero and selects nothing"
        return None, None, (Check("start in a cone", False, f"{reason}, so no cone can contain it"),)
    name, at = "locally optimal start", directional_margin(part, start, v)
    if not at.unique:
        return None, None, (Check(name, False, "the start selects no unique tokens"),)
    found = token_optimality(part, v, at.selected)
    if found.solution.status is Status.TRIVIAL:
        return found, None, (Check(name, False, "no input has two tokens, so there is nothing to select"),)
    local = bool(found.is_locally_optimal)
    verb = "are" if local else "are not"
    sentence = f"the tokens {at.selected.tolist()} that the start selects {verb} locally optimal, score gap {found.score_gap:.4g}"
    optimal = Check(name, local, sentence, {"score_gap": float(found.score_gap)})
    scores = part.scores(v)[part.mask]
    if (
        not local or rising_margin(loss, float(scores.min()), float(scores.max())) is not None
    ):  # no cone where the loss increases
        return found, None, (optimal,)
    selected = data.optimal(v)
    selected[depends_on_p(data, v)] = at.selected
    cone = basin_cone(data, v, selected, loss=loss)
    deviation, norm = 0.5 * float(np.sum((unit(start) - unit(cone.p)) ** 2)), float(np.linalg.norm(start))
    narrow = Check(
        "start in cone_μ",
        bool(cone.contains(start, 0.0)),
        f"1 - correlation with p^mm is {deviation:.4g}, and μ = {cone.mu:.4g}",
        {"one_minus_cosine": deviation, "mu": cone.mu},
    )
    far = Check(
        "start beyond R",
        norm >= cone.proven_radius,
        f"the start's norm is {norm:.4g}; Eq. (46) asks for {cone.radius:.4g}, the full proof for {cone.proven_radius:.4g}",
        {"norm": norm, "radius": cone.radius, "proven_radius": cone.proven_radius},
    )
    return found, cone, (optimal, narrow, far)


def _candidates(
    data: TokenDataset, v: FloatArray, gmm: TokenOptimality, at_start: TokenOptimality | None, max_problems: int
) -> Candidates:
    """The members of P^mm, or those that are known without listing them all."""
    try:
        found = locally_optimal_directions(data, v, max_problems=max_problems)
    except InputError:
        known = [gmm] if gmm.is_locally_optimal else []
        if at_start is not None and at_start.is_locally_optimal:
            known += [] if known and np.array_equal(at_start.selected, gmm.selected) else [at_start]
        return Candidates(
            np.array([each.selected for each in known], dtype=np.int64).reshape(-1, data.n_inputs),
            np.array([each.direction for each in known]).reshape(-1, data.d_key),
            np.array([each.margin for each in known]),
            tuple("GMM" if each.is_globally_optimal else "LMM" for each in known),
            complete=False,
        )
    labels = tuple("GMM" if is_global else "LMM" for is_global in found.is_global)
    return Candidates(found.selections, found.directions, found.margins, labels, complete=True)


def _with_set(candidates: Candidates, found: SetSolution | None) -> Candidates:
    """The global minima of ATT-SVM' before the members of P^mm that are not among them."""
    if found is None or not found.solutions or found.status is Status.TRIVIAL:
        return candidates
    directions = unit(found.points)
    distances = np.linalg.norm(candidates.directions[:, None] - directions, axis=-1)
    distinct = distances.min(axis=-1, initial=np.inf) > SAME_DIRECTION_ATOL
    return Candidates(
        np.concatenate([found.choices, candidates.selections[distinct]]),
        np.concatenate([directions, candidates.directions[distinct]]),
        np.concatenate([np.full(len(directions), found.margin), candidates.margins[distinct]]),
        (_SET_LABEL,) * len(directions) + tuple(np.array(candidates.labels, dtype=object)[distinct]),
        candidates.complete,
    )
