"""Theorems 1 to 3 of paper C on one dataset, condition by condition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from marginlens.data.sequences import SequenceDataset
from marginlens.errors import InputError
from marginlens.graphs import PriorityGraph, is_acyclic, priority_graphs, separated_tokens
from marginlens.kinds import kind_of
from marginlens.losses.next_token import LabelLoss, LogLoss, NextTokenLoss
from marginlens.nexttoken.correction import CyclicCorrection, cyclic_correction
from marginlens.nexttoken.loss_check import check_loss
from marginlens.norms import L2, Norm
from marginlens.optimizers import GradientDescent, NormalizedGD
from marginlens.risk import NextTokenRisk
from marginlens.risk.next_token_heads import HeadCheck, check_head
from marginlens.status import Status
from marginlens.svm import GraphSolution, MarginSolution, graph_svm
from marginlens.theory.assumptions import Check, TheoremVerdict
from marginlens.theory.implicit_bias import ImplicitBias, bias_on_sequences, check_plain_steps
from marginlens.theory.observations import claim_words
from marginlens.theory.prediction import EQ17_ONLY, Prediction, Request, predictions
from marginlens.theory.unproved_steps import optimizer_words
from marginlens.typing import FloatArray, IntArray

_N_STARTS = 8  # random starts in the search for another minimum along S_cyc


class NextTokenDetails(NamedTuple):
    """What stands behind the verdicts on W.

    Attributes:
        graphs: last token → `PriorityGraph`.
        priority: the Graph-SVM solution.
        mix: the cyclic correction.
        correction: (d_model, d_model) the limit of the part of W in S_cyc where a theorem gives one, else None.
        targets: (n_samples,) the token that W separates in each sequence: its label, or for a sequence that lacks it the one of
            `separated_tokens`; -1 for a sample that is left out.
    """

    graphs: Mapping[int, PriorityGraph]
    priority: GraphSolution
    mix: CyclicCorrection
    correction: FloatArray | None
    targets: IntArray


@predictions.register
def predict_next_tokens(risk: NextTokenRisk, request: Request) -> list[Prediction]:
    r"""Which theorem speaks about training W on next tokens, and the direction and the cyclic part that W converges to.

    .. math:: \frac{W}{\|W\|_F} \to \frac{W^{mm}}{\|W^{mm}\|_F}\ (2), \qquad \Pi_{\mathcal S_{cyc}}(W) \to W^{cyc}\ (3)

    Where no C gives C Eᵀ = I, none of the theorems applies as stated, and the same three follow with Eq. (17) in its place, which is all
    that their proofs use. Theorem 2 needs one condition that its text lacks: the risk over the cyclic subset must have one minimiser on
    S_cyc. The log-loss has it (Lemma 7); for other losses it is looked for from several starts, and the verdict says so.
    """
    if request.start is not None:
        raise InputError("start", "left out for a NextTokenRisk, because C Thm 3 holds from every start", "it")
    heads = risk.head if risk.is_batch and isinstance(risk.head, list | tuple) else [risk.head] * len(risk)
    return [
        _of_dataset(data, head, risk.loss, request.optimizer) for data, head in zip(risk.datasets, heads, strict=True)
    ]


def _of_dataset(data: SequenceDataset, head: Any, loss: NextTokenLoss, optimizer: Any) -> Prediction:
    scores = check_head(data, head)
    identity = scores.deviation == 0.0  # the scores of Assumption 4, whether or not a C has them
    used = data.realizable() if identity else data
    targets = separated_tokens(data, None if identity else head)
    graphs = priority_graphs(used, head=None if identity else head)
    priority = graph_svm(used.E, graphs)
    restarts = _N_STARTS if isinstance(loss, LabelLoss) and identity else 0
    mix = cyclic_correction(used, head=head, loss=loss, graphs=graphs, restarts=restarts)
    decreasing = check_loss(used, head, loss)
    slope, separable = Check("C Assumption 1", decreasing.holds, decreasing.sentence), _check_separable(priority)
    finite = Check("finite cyclic correction", mix.status.ok, mix.status.sentence.rstrip("."))
    unique = _check_unique(mix)
    acyclic = Check("acyclic data", is_acyclic(graphs), _acyclic_sentence(graphs))
    labels = Check("realizable labels", *_realizable(data, targets, identity, loss))
    log = Check(
        "log-loss", isinstance(loss, LogLoss), f"the theorem is about the log-loss; this is {type(loss).__name__}"
    )

    def verdicts(argmax: Check, identical: Check, remark: str) -> tuple[TheoremVerdict, TheoremVerdict, TheoremVerdict]:
        return (
            TheoremVerdict(
                f"C Thm 1{remark}",
                (acyclic, slope, labels, argmax, separable),
                "the regularisation path converges to the direction of W^mm",
            ),
            TheoremVerdict(
                f"C Thm 2{remark}",
                (slope, labels, identical, separable, finite, unique),
                "the regularisation path converges to the direction of W^mm, and its part in S_cyc to W^cyc",
            ),
            TheoremVerdict(
                f"C Thm 3{remark}",
                (log, labels, identical, separable, *_check_steps(used, optimizer, mix)),
                "gradient descent from any start converges to the direction of W^mm, and its part in S_cyc to W^cyc",
            ),
        )

    identical = _check_identity(used, scores)
    first, second, third = stated = verdicts(_check_argmax(scores), identical, "")
    every: tuple[TheoremVerdict, ...] = stated
    strict, tied = (sum(len(getattr(graph, kind)) for graph in graphs.values()) for kind in ("strict", "tied"))
    notes: tuple[str, ...] = (f"{len(graphs)} last tokens, {strict} strict pairs, {tied} tied pairs.",)
    if not scores.exists:
        said = "the label's output is taken as the attention on it, and the proofs use nothing else of C"
        by_17 = Check("C Eq. (17)", True, said)
        first, second, third = extended = verdicts(by_17, by_17, EQ17_ONLY)
        every = (*stated, *extended)
        notes = (*notes, f"As stated, none of C Thms 1 to 3 applies: {identical.sentence}.")
    direction = np.asarray(priority.x) * float(priority.margin) if separable else None

    def in_norm(norm: Norm) -> MarginSolution | None:
        try:
            return priority if kind_of(norm) is L2 else graph_svm(used.E, graphs, norm=norm)
        except InputError:  # a norm without a solver
            return None

    bias = None
    if optimizer is not None:
        bias = bias_on_sequences(optimizer, (used.d_model, used.d_model), in_norm, acyclic)
    return Prediction(
        "NextTokenRisk",
        every,
        _why(first, second, third, priority, optimizer, bias),
        notes,
        direction=direction if third.applies else None,
        path_direction=direction if first.applies or second.applies else None,
        details=NextTokenDetails(
            graphs, priority, mix, mix.x if finite and (second.applies or third.applies) else None, targets
        ),
        bias=bias,
    )


def _check_unique(mix: CyclicCorrection) -> Check:
    """The condition that C Thm 2's text lacks: its proof takes for granted that a minimising sequence on S_cyc converges."""
    name = "one minimiser on S_cyc (not in the text)"
    if mix.status is Status.TRIVIAL:
        return Check(name, True, "S_cyc is zero")
    said = mix.uniqueness.rstrip(".") or "it was not looked at"
    return Check(name, bool(mix.is_unique), said[0].lower() + said[1:])


def _check_identity(data: SequenceDataset, head: HeadCheck) -> Check:
    said = "C Eᵀ = I" if head.deviation == 0.0 else f"an entry of C Eᵀ - I is {head.deviation:.3g}"
    if not head.exists:
        said = f"no matrix C gives C Eᵀ = I: {data.n_vocabulary} embeddings in {data.d_model} dimensions are dependent"
    return Check("C Assumption 4", head.assumption_4, said, {"deviation": head.deviation})


def _check_argmax(head: HeadCheck) -> Check:
    gap = float(head.gap.min())
    if not head.exists:
        return Check("C Assumption 3", False, "the head is to be C Eᵀ = I, which no matrix C gives", {"gap": gap})
    said = f"the label's own token leads by at least {gap:.3g}"
    if not head.assumption_3:
        y = int(head.failing[0])
        said = f"for label {y} the head scores token {int(head.rival[y])} as high or higher, by {-gap:.3g}"
    return Check("C Assumption 3", head.assumption_3, said, {"gap": gap})


def _check_separable(priority: MarginSolution) -> Check:
    said = {
        Status.OPTIMAL: f"Graph-SVM has a solution with margin {float(priority.margin):.4g}",
        Status.TRIVIAL: "no pair is strict, so W^mm = 0 and has no direction",
    }.get(priority.status, priority.status.sentence.rstrip("."))
    return Check("Graph-SVM feasible, W^mm ≠ 0", priority.status is Status.OPTIMAL, said)


def _check_steps(data: SequenceDataset, optimizer: Any, mix: CyclicCorrection) -> tuple[Check, ...]:
    if isinstance(optimizer, NormalizedGD) and mix.status is not Status.TRIVIAL:
        said = "the theorem is about constant steps; normalised ones circle W^cyc at a distance of about one step"
        return (Check("step size", False, said),)
    return check_plain_steps(optimizer, "1/L", 1.0 / NextTokenRisk(data).smoothness())


def _acyclic_sentence(graphs: Mapping[int, PriorityGraph]) -> str:
    cyclic = [last for last, graph in graphs.items() if not graph.is_acyclic]
    if not cyclic:
        return "every component is a single token"
    largest = max((members for last in cyclic for members in graphs[last].components), key=len)
    return f"{len(cyclic)} of {len(graphs)} graphs have ties, such as tokens {largest[:5].tolist()} in one component"


def _realizable(data: SequenceDataset, targets: IntArray, identity: bool, loss: NextTokenLoss) -> tuple[bool, str]:
    """Whether C Assumption 2 holds, and what happens to the samples that break it."""
    lacking = data.unrealizable
    if not len(lacking):
        dropped = f"; {len(data.dropped)} samples without theirs were dropped" if len(data.dropped) else ""
        return True, f"every sequence holds its label{dropped}"
    named = f"{len(lacking)} of {len(data)} sequences lack theirs, such as sample {int(lacking[0])} (C Assumption 2)"
    if identity and isinstance(loss, LogLoss):
        said = ", and their log-loss is infinite at every W; what follows is about the others alone"
    elif identity and not isinstance(loss, LabelLoss):
        said = "; with C Eᵀ = I none of their tokens serves the label better, and the graphs leave them out"
    elif identity:
        said = "; with C Eᵀ = I their loss does not depend on W, and what follows is about the others alone"
    else:
        chosen = lacking[targets[lacking] >= 0]
        said = ", and the head prefers none of their tokens"
        if len(chosen):
            token, i = int(targets[chosen[0]]), int(chosen[0])
            said = f"; the token that the head prefers is separated in its place, {token} in sample {i}"
        said += f"; {len(lacking) - len(chosen)} are left out" if len(chosen) < len(lacking) else ""
    return False, named + said


def _why(
    first: TheoremVerdict,
    second: TheoremVerdict,
    third: TheoremVerdict,
    priority: MarginSolution,
    optimizer: Any,
    bias: ImplicitBias | None,
) -> str:
    if third.applies:
        return f"Certain: W grows along W^mm, by {third.citation}; its part in S_cyc tends to W^cyc."
    if priority.status is Status.TRIVIAL:
        chain = (
            ": the most likely chain of `MarkovChain.fit`, by X C1"
            if third.conditions[0] and third.conditions[2]
            else ""
        )
        return f"W does not diverge: nothing is strictly ranked, and the minimum is the cyclic correction alone{chain}."
    if first.applies or second.applies:
        plain = optimizer is None or isinstance(optimizer, GradientDescent)
        descent = "gradient descent" if plain else optimizer_words(optimizer)
        seen = ""
        if bias is not None and bias.observed and not bias.proved:
            seen = (
                f": not proved, but {claim_words(bias.observed)} measured that each optimizer goes to the Graph-SVM of its own norm if "
                "data are acyclic and its memory is short enough"
            )
        return f"Certain for the regularisation path, by {(first if first.applies else second).citation}; open for {descent}{seen}."
    return f"Not certain: {third.failed[0].sentence}. Descent may follow the pseudo-graphs of what it selects itself (C §6)."
