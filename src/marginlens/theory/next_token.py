"""Theorems 1 to 3 of paper C on one dataset, condition by condition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from marginlens.data.sequences import SequenceDataset
from marginlens.errors import InputError
from marginlens.graphs import PriorityGraph, priority_graphs, separated_tokens
from marginlens.kinds import defining_class
from marginlens.losses.next_token import LabelLoss, LogLoss, NextTokenLoss
from marginlens.nexttoken.correction import CyclicCorrection, cyclic_correction
from marginlens.nexttoken.loss_check import LossCheck, check_loss
from marginlens.norms import L2, Norm
from marginlens.optimizers import GradientDescent, NormalizedGD
from marginlens.optimizers.protocol import Optimizer
from marginlens.risk import NextTokenRisk
from marginlens.risk.next_token_heads import HeadCheck, check_head
from marginlens.status import Status
from marginlens.svm import GraphSolution, MarginSolution, graph_svm
from marginlens.theory.checks import Check, TheoremVerdict
from marginlens.theory.implicit_bias import ImplicitBias, bias_on_sequences, check_plain_steps
from marginlens.theory.observations import claim_words
from marginlens.theory.prediction import EQ17_ONLY, Prediction, Request, predictions
from marginlens.theory.unproved_steps import optimizer_words
from marginlens.typing import ArrayLike, FloatArray, IntArray
from marginlens.words import Fact

_N_STARTS = 8  # random starts in the search for another minimum along S_cyc
_MAX_TOKENS = 5  # of a component that are named


class NextTokenDetails(NamedTuple):
    """The quantities behind the verdicts on W.

    Attributes:
        graphs: last token → `PriorityGraph`.

        priority: the Graph-SVM solution.

        mix: the cyclic correction.

        correction: (d_model, d_model) the limit of the part of W in S_cyc if a theorem gives one, else None.

        targets: (n_samples,) the token that W separates in each sequence: its label or, if the sequence lacks it, the one of
            `separated_tokens`; -1 for a sample that is left out.
    """

    graphs: Mapping[int, PriorityGraph]
    priority: GraphSolution
    mix: CyclicCorrection
    correction: FloatArray | None
    targets: IntArray


@predictions.register
def predict_next_tokens(risk: NextTokenRisk, request: Request) -> list[Prediction]:
    r"""Find the theorem that covers training W on next tokens, and the direction and the cyclic part to which W converges.

    .. math:: \frac{W}{\|W\|_F} \to \frac{W^{mm}}{\|W^{mm}\|_F}\ (2), \qquad \Pi_{\mathcal S_{cyc}}(W) \to W^{cyc}\ (3)

    If no C gives C Eᵀ = I, none of the theorems applies as stated, but all three follow from Eq. (17) instead, which is all
    that their proofs use. Theorem 2 needs one condition that its text lacks: the risk over the cyclic subset must have a unique
    minimiser on S_cyc. For the log-loss this holds (Lemma 7); for other losses the minimiser is searched for from several
    starts, and the verdict says so.
    """
    if request.start is not None:
        raise InputError("start", "left out for a NextTokenRisk, because C Thm 3 holds from every start", "it")
    heads = risk.head if risk.is_batch and isinstance(risk.head, list | tuple) else [risk.head] * len(risk)
    return [
        _of_dataset(data, head, risk.loss, request.optimizer) for data, head in zip(risk.datasets, heads, strict=True)
    ]


class _Solved(NamedTuple):
    """The data that the theorems are about, and the solutions of its problems."""

    data: SequenceDataset
    given: SequenceDataset
    has_identity: bool
    loss: NextTokenLoss
    head: HeadCheck
    graphs: Mapping[int, PriorityGraph]
    priority: GraphSolution
    mix: CyclicCorrection
    targets: IntArray
    decreasing: LossCheck


def _of_dataset(
    data: SequenceDataset, head: ArrayLike | None, loss: NextTokenLoss, optimizer: Optimizer | None
) -> Prediction:
    """Make the prediction for one dataset."""
    solved = _solve(data, head, loss)
    stated = _verdicts(solved, optimizer)
    priority = solved.priority
    every, decisive = tuple(stated), stated
    notes = [_graph_note(solved.graphs)]
    if not solved.head.exists:
        decisive = _verdicts(solved, optimizer, EQ17_ONLY)
        every = (*stated, *decisive)
        notes.append(Fact("next_token.not_as_stated", {"reason": _check_identity(solved)}))
    first, second, third = decisive
    is_separable = priority.status is Status.OPTIMAL
    direction = np.asarray(priority.x) * float(priority.margin) if is_separable else None
    bias = None if optimizer is None else _bias(solved, optimizer)
    has_mix = solved.mix.status.ok and (second.applies or third.applies)
    correction = solved.mix.x if has_mix else None
    return Prediction(
        "NextTokenRisk",
        every,
        (_why(first, second, third, priority, optimizer, bias),),
        tuple(notes),
        direction=direction if third.applies else None,
        path_direction=direction if first.applies or second.applies else None,
        details=NextTokenDetails(solved.graphs, priority, solved.mix, correction, solved.targets),
        bias=bias,
    )


def _solve(data: SequenceDataset, head: ArrayLike | None, loss: NextTokenLoss) -> _Solved:
    """Build the graphs of a dataset and solve the problems on them."""
    scores = check_head(data, head)
    # The scores of Assumption 4, whether or not a C has them.
    has_identity = scores.deviation == 0.0
    used = data.realizable() if has_identity else data
    graphs = priority_graphs(used, head=None if has_identity else head)
    restarts = _N_STARTS if isinstance(loss, LabelLoss) and has_identity else 0
    return _Solved(
        data=used,
        given=data,
        has_identity=has_identity,
        loss=loss,
        head=scores,
        graphs=graphs,
        priority=graph_svm(used.E, graphs),
        mix=cyclic_correction(used, head=head, loss=loss, graphs=graphs, restarts=restarts),
        targets=separated_tokens(data, None if has_identity else head),
        decreasing=check_loss(used, head, loss),
    )


def _verdicts(solved: _Solved, optimizer: Optimizer | None, remark: str = "") -> tuple[Any, Any, Any]:
    """Check C Theorems 1 to 3 with their conditions; if C lacks the assumptions, under Eq. (17), with a remark."""
    slope = Check("next_token.loss", solved.decreasing.holds, {"reason": solved.decreasing.sentence})
    labels, separable, mix = _check_realizable(solved), _check_separable(solved.priority), solved.mix
    argmax, identity = _check_argmax(solved.head), _check_identity(solved)
    if remark:
        argmax = identity = Check("next_token.eq_17", True)
    is_log = isinstance(solved.loss, LogLoss)
    log = Check("next_token.log_loss", is_log, {"loss": type(solved.loss).__name__})
    finite = Check("next_token.finite_mix", mix.status.ok, {"status": mix.status.sentence.rstrip(".")})
    steps = _check_steps(solved.data, optimizer, mix)
    return (
        TheoremVerdict(
            f"C Thm 1{remark}",
            (_check_acyclic(solved.graphs), slope, labels, argmax, separable),
            Fact("next_token.path"),
        ),
        TheoremVerdict(
            f"C Thm 2{remark}",
            (slope, labels, identity, separable, finite, _check_unique(mix)),
            Fact("next_token.path_and_mix"),
        ),
        TheoremVerdict(f"C Thm 3{remark}", (log, labels, identity, separable, *steps), Fact("next_token.descent")),
    )


def _bias(solved: _Solved, optimizer: Optimizer) -> ImplicitBias | None:
    """Find the implicit bias of the optimizer, by the Graph-SVM in its norm."""

    def in_norm(norm: Norm) -> MarginSolution | None:
        try:
            return solved.priority if defining_class(norm) is L2 else graph_svm(solved.data.E, solved.graphs, norm=norm)
        except InputError:
            # No solver takes the norm.
            return None

    shape = (solved.data.d_model, solved.data.d_model)
    return bias_on_sequences(optimizer, shape, in_norm, _check_acyclic(solved.graphs))


def _graph_note(graphs: Mapping[int, PriorityGraph]) -> Fact:
    strict, tied = (sum(len(getattr(graph, kind)) for graph in graphs.values()) for kind in ("strict", "tied"))
    return Fact("next_token.graphs", {"n_graphs": len(graphs), "strict": strict, "tied": tied})


def _check_unique(mix: CyclicCorrection) -> Check:
    """Check the condition that the text of C Thm 2 lacks: its proof takes for granted that a minimising sequence on S_cyc converges."""
    if mix.status is Status.TRIVIAL:
        return Check("next_token.unique_mix", True, {"case": "trivial"})
    if not mix.uniqueness:
        return Check("next_token.unique_mix", bool(mix.is_unique), {"case": "not_examined"})
    reason = str(mix.uniqueness).rstrip(".")
    return Check("next_token.unique_mix", bool(mix.is_unique), {"reason": reason[0].lower() + reason[1:]})


def _check_identity(solved: _Solved) -> Check:
    head, data = solved.head, solved.data
    numbers = {"deviation": head.deviation, "n_vocabulary": data.n_vocabulary, "d_model": data.d_model}
    case = "none" if not head.exists else "exact" if head.deviation == 0.0 else "default"
    return Check("next_token.identity", head.assumption_4, {**numbers, "case": case})


def _check_argmax(head: HeadCheck) -> Check:
    gap = float(head.gap.min())
    if not head.exists:
        return Check("next_token.argmax", False, {"gap": gap, "case": "none"})
    if head.assumption_3:
        return Check("next_token.argmax", True, {"gap": gap})
    label = int(head.failing[0])
    return Check("next_token.argmax", False, {"gap": gap, "by": -gap, "label": label, "rival": int(head.rival[label])})


def _check_separable(priority: MarginSolution) -> Check:
    cases = {Status.TRIVIAL: "trivial"}
    numbers = {"margin": float(priority.margin), "status": priority.status.sentence.rstrip(".")}
    case = cases.get(priority.status, "default")
    return Check("next_token.separable", priority.status is Status.OPTIMAL, {**numbers, "case": case})


def _check_steps(data: SequenceDataset, optimizer: Optimizer | None, mix: CyclicCorrection) -> tuple[Check, ...]:
    if isinstance(optimizer, NormalizedGD) and mix.status is not Status.TRIVIAL:
        return (Check("step_size.circling", False),)
    return check_plain_steps(optimizer, "1/L", 1.0 / NextTokenRisk(data).smoothness())


def _check_acyclic(graphs: Mapping[int, PriorityGraph]) -> Check:
    cyclic = [last for last, graph in graphs.items() if not graph.is_acyclic]
    if not cyclic:
        return Check("next_token.acyclic", True)
    largest = max((members for last in cyclic for members in graphs[last].components), key=len)
    numbers = {"cyclic": len(cyclic), "n_graphs": len(graphs), "tokens": largest[:_MAX_TOKENS].tolist()}
    return Check("next_token.acyclic", False, numbers)


def _check_realizable(solved: _Solved) -> Check:
    """Check C Assumption 2, and say what happens to the samples that violate it."""
    data, lacking = solved.given, solved.given.unrealizable
    if not len(lacking):
        dropped = {"dropped": len(data.dropped), "case": "dropped"} if len(data.dropped) else {}
        return Check("next_token.realizable", True, dropped)
    numbers = {"lacking": len(lacking), "n_samples": len(data), "sample": int(lacking[0])}
    return Check("next_token.realizable", False, {**numbers, "consequence": _consequence(solved, lacking)})


def _consequence(solved: _Solved, lacking: IntArray) -> Fact:
    """State what happens to samples that lack their label."""
    if solved.has_identity:
        is_label_loss, is_log = isinstance(solved.loss, LabelLoss), isinstance(solved.loss, LogLoss)
        return Fact(
            "next_token.without_label", {"case": "log" if is_log else "constant" if is_label_loss else "no_token"}
        )
    replaced = lacking[solved.targets[lacking] >= 0]
    n_left_out = len(lacking) - len(replaced)
    if not len(replaced):
        return Fact("next_token.lacking_label", {"case": "no_preference", "left_out": n_left_out})
    first = int(replaced[0])
    numbers = {"token": int(solved.targets[first]), "sample": first, "left_out": n_left_out}
    return Fact("next_token.lacking_label", {**numbers, "case": "some_replaced" if n_left_out else "replaced"})


def _why(
    first: TheoremVerdict,
    second: TheoremVerdict,
    third: TheoremVerdict,
    priority: MarginSolution,
    optimizer: Optimizer | None,
    bias: ImplicitBias | None,
) -> Fact:
    """State what is known of the limit, and how certain it is."""
    if third.applies:
        return Fact("next_token.certain", {"citation": third.citation})
    if priority.status is Status.TRIVIAL:
        is_chain = bool(third.conditions[0]) and bool(third.conditions[2])
        return Fact("next_token.finite", {"case": "chain" if is_chain else "default"})
    if not (first.applies or second.applies):
        return Fact("next_token.uncertain", {"reason": third.failed[0]})
    if optimizer is None or isinstance(optimizer, GradientDescent):
        descent = Fact("optimizer.gradient_descent")
    else:
        descent = optimizer_words(optimizer)
    numbers = {"citation": (first if first.applies else second).citation, "descent": descent}
    if bias is not None and bias.observed and not bias.proved:
        return Fact("next_token.path_certain", {**numbers, "claims": claim_words(bias.observed), "case": "observed"})
    return Fact("next_token.path_certain", numbers)
