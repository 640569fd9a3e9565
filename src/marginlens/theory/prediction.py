"""Predictions: the theorem that applies to a training problem, condition by condition, and the direction that it gives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np

from marginlens.data.tokens import TokenDataset
from marginlens.errors import InputError, whole_number
from marginlens.losses.margin import Logistic, Loss, as_loss
from marginlens.losses.next_token import NextTokenLoss
from marginlens.optimizers.protocol import Optimizer, as_optimizer
from marginlens.papers import implements
from marginlens.result import Displayed, Result, Tabular, axes_for, table
from marginlens.result.drawing import draw_bars, draw_checklist, draw_rays, draw_sentence
from marginlens.result.palette import GLOBAL, LOCAL
from marginlens.risk import FactorRisk, JointRisk, MatrixRisk, MulticlassRisk, SoftmaxRisk
from marginlens.risk.build import HeadLike, Problem, as_risk
from marginlens.risk.protocol import Risk, holds_batch
from marginlens.runtime.progress import ProgressCallback, as_progress
from marginlens.theory.bias_table import PROOF_A, PROOF_C, is_known, unknown_words
from marginlens.theory.certificate import Certificate
from marginlens.theory.checks import TheoremVerdict, condition_columns
from marginlens.theory.finite_minimum import MinimumCertificate
from marginlens.theory.implicit_bias import ImplicitBias, implicit_bias
from marginlens.theory.observations import claim_words
from marginlens.theory.outcome import Answer, Outcome
from marginlens.theory.steepest_certificate import SteepestCertificate
from marginlens.theory.unproved_steps import UnprovedSteps, as_theorems_see
from marginlens.typing import ArrayLike, Axes, FloatArray, IntArray
from marginlens.words import Fact, text

EQ17_ONLY = ", under Eq. (17) alone"  # added to a citation where a proof is read without the matrix C of C Assumption 4
SET_LABEL = "G^mm"  # of a global minimum of ATT-SVM'
_MAX_PRINTED = 10  # candidates


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
        labels: for each, "GMM" (best) or "LMM" (local) if it is in P^mm, "G^mm" if it is a global minimum of ATT-SVM' because
            optimal tokens tie.
        complete: whether they are all of P^mm; if not, listing all would have taken too long.

    `to_frame()` has one row per candidate: kind, selection, margin, direction.
    """

    _columns = table("", kind="labels", selection="selections", margin="margins", direction="directions")
    quantities = "{kinds:tally}, complete={complete}"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The labels in words: best, local, or best but tied."""
        return tuple(text("direction.kind", case=label) for label in self.labels)

    def __str__(self) -> str:
        case = "complete" if self.complete else "partial"
        lines = [text("candidates.some" if self.labels else "candidates.none", case=case)]
        rows = list(zip(self.kinds, self.selections.tolist(), self.margins.tolist(), strict=True))
        for kind, selected, margin in rows[:_MAX_PRINTED]:
            lines.append(f"  {text('candidates.row', kind=kind, selected=str(selected), margin=margin)}")
        if len(rows) > _MAX_PRINTED:
            lines.append(f"  {text('candidates.more', count=len(rows) - _MAX_PRINTED)}")
        return "\n".join(lines)


class Request(NamedTuple):
    """A question about the training of a risk.

    Attributes:
        start: x(0), as `descend` takes it, or None.

        optimizer: the optimizer as theorems see it, or None.

        max_problems: the most margin problems that listing candidates may take.

        prove: whether to follow the run.

        progress: a function progress(done, total), or None.
    """

    start: Any
    optimizer: Any
    max_problems: int
    prove: bool = True
    progress: ProgressCallback | None = None


@dataclass(frozen=True, repr=False, eq=False)
class Prediction(Result, Tabular):
    """The limit of training on one problem according to the theorems; `str` of it is a readable account.

    Attributes:
        problem: what was asked about, such as "AttentionRisk".
        verdicts: one per theorem, each with its conditions one by one.
        reasons: what is known of the limit, how certain it is, and what would make it more certain; `why` renders them.
        notes: remarks on the problem itself.
        direction: the limit of x/‖x‖ under gradient descent if a theorem makes it certain from norm `from_norm` on, else None.
        from_norm: zero if the theorem covers the start itself. If the run was followed, it is the norm of `outcome.point`: from
            there on `outcome.certificate` proves the limit, while it is computed that the run reaches that point.
        path_direction: the same for the regularisation path. For a `JointRisk` it holds v and p, each of unit norm, one after the other.
        selected: (n_inputs,) the tokens at which descent is certain to end, if a theorem names them but no direction; else None.
        observed: for normalised steps, the limit that a theorem makes certain for plain gradient descent: claims of the ledger
            saw such steps reach it, but nothing proves it. Otherwise None.
        candidates: the `Candidates` of a problem of p, else None.
        bias: the norm in which the optimizer maximises the margin, and who proved or observed it; None if no optimizer is given
            or nothing is known of it.
        details: the quantities behind the verdicts: `AttentionDetails`, `JointDetails`, `NextTokenDetails` or `EmbeddingDetails`.
        outcome: where training from the start ends, computed, with the certificate that proves it; None if nothing was computed.
        not_followed: why nothing was computed; None if there is an outcome.

    `to_frame()` has one row per condition of a theorem, and of the optimizer's bias: theorem, condition, holds, sentence.
    """

    problem: str
    verdicts: tuple[TheoremVerdict, ...]
    reasons: tuple[Fact, ...]
    notes: tuple[Fact, ...] = ()
    direction: FloatArray | None = None
    path_direction: FloatArray | None = None
    selected: IntArray | None = None
    observed: FloatArray | None = None
    candidates: Candidates | None = None
    details: Any = None
    bias: ImplicitBias | None = None
    outcome: Outcome | None = None
    from_norm: float = 0.0
    not_followed: Fact | None = None

    @property
    def why(self) -> str:
        """The reasons as sentences: what is known of the limit, how certain it is, and what would make it more certain."""
        return " ".join(map(str, self.reasons))

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, with the sentences of `reasons` as `why`, in types that `json.dumps` takes."""
        return {**super().to_dict(), "why": self.why}

    @property
    def certain(self) -> Fact | None:
        """The point from which the direction is certain, as a fact; None if it is not certain."""
        if self.direction is None:
            return None
        if self.from_norm > 0.0:
            return Fact("certainty.from_norm", {"norm": self.from_norm})
        return Fact("certainty.from_start")

    @property
    def certificate(self) -> Certificate | MinimumCertificate | SteepestCertificate | None:
        """The proof of the computed limit, None if there is none."""
        return None if self.outcome is None else self.outcome.certificate

    @property
    def answer(self) -> Answer:
        """The answer in three lines: which token wins, why, and whether that is proved; from the run if it was followed, else
        from theorems alone.
        """
        if self.outcome is not None:
            return self.outcome.answer
        applying = [verdict for verdict in self.verdicts if verdict.applies]
        if not applying:
            reason = {"reason": Fact(f"outcome.missing.{'condition' if self.verdicts else 'no_theorem'}")}
            because = (Fact("outcome.theorem.undecided"),)
            return Answer(Fact("outcome.theorem.unknown"), because, Fact("outcome.verdict.undecided", reason))
        in_part = [verdict for verdict in applying if verdict.of_descent]
        of_descent = self.direction is not None or bool(in_part)
        verdict = in_part[-1] if in_part else applying[-1] if of_descent else applying[0]
        names = [check.name for check in verdict.conditions]
        because = (Fact("outcome.theorem.because", {"count": len(names)}),)
        details = (
            Fact(
                "outcome.theorem.conditions", {"citation": verdict.citation, "conditions": names, "count": len(names)}
            ),
        )
        limit = {"conclusion": verdict.conclusion}
        if of_descent:
            return Answer(Fact("outcome.theorem.limit", limit), because, Fact("outcome.verdict.proved"), details)
        measured = () if self.bias is None or self.bias.proved else self.bias.observed
        seen = (Fact("outcome.theorem.measured", {"claims": claim_words(measured)}),) if measured else ()
        end = Fact("outcome.theorem.path", {**limit, "case": "measured" if measured else "default"})
        proof = Fact("outcome.verdict.in_part", {"reason": Fact("outcome.gap.path")})
        return Answer(end, because, proof, (*details, *seen))

    @property
    def x(self) -> FloatArray:
        """The certain limit of descent, else of the regularisation path; nan if neither is certain."""
        certain = self.path_direction if self.direction is None else self.direction
        return np.full(1, np.nan) if certain is None else certain

    def __repr__(self) -> str:
        applying = ", ".join(verdict.citation for verdict in self.verdicts if verdict.applies) or "no theorem"
        certain = "no certain direction" if self.certain is None else f"direction certain {self.certain}"
        count = "" if self.candidates is None else f"{len(self.candidates.labels)} candidates, "
        return f"Prediction({self.problem}: {count}{certain}, {applying} applies)"

    def __str__(self) -> str:
        shown = [verdict for verdict in self.verdicts if verdict.citation.endswith(EQ17_ONLY)] or self.verdicts
        listed = () if self.candidates is None else (str(self.candidates),)
        bias = () if self.bias is None or self.bias.proved in ((PROOF_A,), (PROOF_C,)) else (str(self.bias),)
        answer = (self.answer.in_full,) if self.verdicts or self.outcome else ()
        return "\n".join([*answer, *map(str, self.notes), *map(str, shown), *listed, self.why, *bias])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the directions that the limit may have: as rays if they have two coordinates, else their margins as bars;
        without candidates, the conditions of the theorems as a checklist. Returns the axes.
        """
        ax = axes_for(ax)
        if self.candidates is not None and self.candidates.labels:
            kinds, selections = self.candidates.kinds, self.candidates.selections.tolist()
            names = [f"{kind} {' '.join(map(str, row))}" for kind, row in zip(kinds, selections, strict=True)]
            colours = [LOCAL if label == "LMM" else GLOBAL for label in self.candidates.labels]
            if self.candidates.directions.shape[-1] == 2:
                draw_rays(ax, self.candidates.directions, names, colours)
            else:
                draw_bars(ax, names, self.candidates.margins, "margin", colours=colours, ylabel="selected tokens")
        elif self.verdicts:
            checks = [(verdict.citation, check) for verdict in self.verdicts for check in verdict.conditions]
            draw_checklist(ax, [(citation, check.name, bool(check)) for citation, check in checks])
        else:
            draw_sentence(ax, self.why)
        return ax

    def _columns(self) -> dict[str, Any]:
        of_bias = () if self.bias is None else (TheoremVerdict("bias", self.bias.conditions, Fact("")),)
        return condition_columns((*self.verdicts, *of_bias))


@implements("A", "Thm 1", "Thm 2", "Thm 3", "Thm 5", "Thm 6", "Thm 8")
@implements("C", "Thm 1", "Thm 2", "Thm 3", "Eq. (2)", "Eq. (3)")
@implements("X", "Thm 1", "Thm 3", "Thm 4")
def predict_limit(
    data: Problem,
    head: HeadLike | None = None,
    *,
    loss: Loss | NextTokenLoss | None = None,
    start: ArrayLike | None = None,
    optimizer: Optimizer | None = None,
    max_problems: int = 10_000,
    prove: bool = True,
    batch_size: int | None = None,
    progress: ProgressCallback | None = None,
) -> Prediction | Any:
    r"""Predict where training ends, why, and whether that is proved. `predict` is another name for this function.

    .. math:: \lim_{R\to\infty} \frac{\bar p(R)}{R} = \frac{p^{mm\star}}{\|p^{mm\star}\|} \ \text{(A Thm 1)}, \qquad
        \lim_{t\to\infty} \frac{p(t)}{\|p(t)\|} = \frac{p^{mm\star}}{\|p^{mm\star}\|} \ \text{(A Thm 2, } n = 1), \qquad
        = \frac{p^{mm}(\alpha)}{\|p^{mm}(\alpha)\|} \ \text{(A Thm 3)}

    It checks each theorem that may cover the problem, condition by condition. When p or W is trained, it also follows the run:
    `outcome` says which tokens win and why, and holds a proof if there is one (X Theorem 1 for the gradient flow and for plain or
    normalised steps, X Theorem 4 for steps that are steepest in another norm). The tokens of other steps are computed, not proved.

    *Tokens with a head* (`AttentionRisk`, and `MatrixRisk` through Lemma 1): A Theorems 1, 2 and 3 and, if several tokens of an
    input share the highest score, Theorem 8, by which the path converges to the global minima of `set_svm`. Inputs whose output
    does not depend on p are left out. Theorem 3 is checked at `BasinCone.proven_radius`; a start that is only beyond the paper's
    radius is reported as `details.basin`. *Tokens without a head* (`JointRisk`): A Theorems 5 and 6 on the joint path, and X
    Theorem 3 on descent for one input of orthogonal tokens. *Sequences* (`NextTokenRisk`): C Theorems 1 to 3. *Points with
    classes* (`MulticlassRisk`): F Theorems 1 and 2, for the given optimizer.

    Args:
        data: what is trained on: a `TokenDataset`, a `SequenceDataset` or a `ContextDataset`, with one problem or a batch; or any
            risk, such as `AttentionRisk(data, head).as_matrix(queries)` or one of your own.

        head: the head v that scores tokens, of shape (d_model,), or (batch, d_model) with one head for each problem. A torch
            module or function is a nonlinear head. If it is None, the head is trained together with attention. For sequences it is
            C of shape (n_vocabulary, d_model), and None means C Eᵀ = I. A risk already has its head: leave it out.

        loss: a decreasing function of the margin: `Logistic()` by default, `Exponential()`, `CorrelationLoss()` or your own. For
            sequences `LogLoss()`, the default, or another `NextTokenLoss`. A risk already has its loss: leave it out.

        start: where training begins: p of shape (d_key,), W of shape (d_key, d_query), or what else `descend` takes for this risk,
            with a batch axis first if each problem has a start of its own. By default the run is followed from zero, and no
            theorem about a given start can apply.

        optimizer: the steps, such as `NormalizedGD(1.0)` or `Adam(0.01)`. By default gradient flow is followed, which is the
            limit of small steps, and theorems on gradient descent are checked for any η ≤ 1/L. For other optimizers, `bias` names
            the norm in which the margin grows.

        max_problems: the most margin problems that listing the candidates may solve. Beyond it, only the best direction overall and
            the selection of the start are listed.

        prove: whether to follow the run and verify the proof. Without it, only the theorems are checked, and `outcome` is None.

        batch_size: the number of inputs in each step, all by default. It needs an optimizer. No theorem covers fewer; `bias` says
            what claim X-N7 observed.

        progress: a function that is called as `progress(done, total)` while runs are followed.

    Returns:
        A `Prediction`, or a list of them for a batch. `print` of it shows the answer and each condition. If no theorem covers the
        problem, its `why` says so.

    Examples:
        Two tokens have neighbours that score less, so where training starts decides which of them wins:

        >>> import marginlens as ml
        >>> data, v = ml.data.figure_1b()
        >>> prediction = ml.predict_limit(data, v, optimizer=ml.NormalizedGD(0.1))
        >>> prediction.outcome.selected.tolist(), prediction.outcome.proved
        ([0], True)
        >>> other = ml.predict_limit(data, v, start=[1.0, -1.0], optimizer=ml.NormalizedGD(0.1))
        >>> other.outcome.selected.tolist(), other.outcome.proved
        ([1], True)

        Sign descent maximises the margin in another norm:

        >>> ml.predict_limit(data, v, optimizer=ml.SignDescent(0.01)).bias.norm
        LInf()

    See Also:
        `descend` trains, to check a prediction. `att_svm` finds the direction of the largest margin for given tokens. `certify`
        proves a limit from one point. `implicit_bias` says only in which norm an optimizer maximises the margin.
        `locally_optimal_directions` lists all directions that may be a limit.
    """
    if isinstance(data, TokenDataset) and head is None and not data.is_scored:
        risk: Risk = JointRisk(data, Logistic() if loss is None else as_loss(loss))
    else:
        risk = as_risk(data, head, loss)
    whole_number(max_problems, "max_problems", at_least=1)
    given = None if optimizer is None else as_optimizer(optimizer)
    rule = None if given is None else as_theorems_see(given)
    if batch_size is not None:
        if given is None:
            raise InputError("batch_size", "None if no optimizer is given", f"{batch_size}")
        if batch_size < getattr(risk, "n_inputs", 0):
            rule = UnprovedSteps(given, batch_size)
    biases: list[ImplicitBias | None] = []
    if isinstance(risk, SoftmaxRisk | MatrixRisk | FactorRisk | MulticlassRisk) and given is not None:
        known = implicit_bias(given, risk, start=start, batch_size=batch_size)
        biases = known if isinstance(known, list) else [known]
    found = predictions(risk, Request(start, rule, max_problems, prove, as_progress(progress)))
    reason = Fact("not_followed.risk" if prove else "not_followed.not_asked")
    found = [each if each.outcome or each.not_followed else replace(each, not_followed=reason) for each in found]
    if biases:
        found = [replace(prediction, bias=bias) for prediction, bias in zip(found, biases, strict=True)]
    return found if holds_batch(risk) else found[0]


predict = predict_limit


@singledispatch
def predictions(risk: Risk, request: Request) -> list[Prediction]:
    """Make the predictions for each problem of a risk; by default, that no theorem is known for it."""
    return [without_theorem(risk, request.optimizer)] * (len(risk) if holds_batch(risk) else 1)


def without_theorem(risk: Risk, optimizer: Optimizer | None) -> Prediction:
    """Make the prediction for a risk that no theorem covers."""
    name, case = type(risk).__name__, "default"
    if isinstance(risk, SoftmaxRisk):
        case = "nonlinear" if callable(risk.head) else "offsets"
    elif isinstance(risk, MatrixRisk):
        case = "queries"
    elif isinstance(risk, FactorRisk):
        case = "factors"
    reasons = [Fact("reason.uncovered", {"risk": name, "can": Fact("reason.can_train"), "case": case})]
    if optimizer is not None and not is_known(optimizer):
        reasons.append(Fact("reason.unknown_too", {"unknown": unknown_words(optimizer)}))
    return Prediction(name, (), tuple(reasons))
