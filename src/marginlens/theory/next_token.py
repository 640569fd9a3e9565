"""Theorems 1 to 3 of paper C on one dataset, condition by condition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.data.sequences import SequenceDataset, as_sequences
from marginlens.data.tokens import FloatArray, IntArray
from marginlens.graphs import PriorityGraph, is_acyclic, priority_graphs, separated_tokens
from marginlens.losses.next_token import LabelLoss, LogLoss, NextTokenLoss, as_nexttoken_loss
from marginlens.nexttoken.correction import CyclicCorrection, cyclic_correction
from marginlens.nexttoken.loss_check import check_loss
from marginlens.optimizers import GradientDescent, as_optimizer
from marginlens.papers import implements
from marginlens.risk.next_token_heads import HeadCheck, check_head
from marginlens.risk.next_token_smoothness import nexttoken_smoothness
from marginlens.svm import GraphSolution, MarginSolution, Status, graph_svm
from marginlens.theory.assumptions import Check, Verdict


@dataclass(frozen=True, repr=False, eq=False)
class NextTokenPrediction:
    """What the theorems say about training W on one dataset.

    Attributes:
        verdicts: C Thm 1 and Thm 2 (regularisation path) and C Thm 3 (gradient descent). Where no C gives C Eᵀ = I, none of them applies
            as stated, and the same three follow with Eq. (17) in its place, which is all that their proofs use.
        graphs: last token → `PriorityGraph`. priority: the Graph-SVM solution. mix: the cyclic correction.
        direction: (d_model, d_model) the limit of W/‖W‖ under gradient descent if Thm 3 applies, else None.
        path_direction: the same for the regularisation path, by Thm 1 or Thm 2.
        correction: (d_model, d_model) the limit of the part of W in S_cyc where a theorem gives one, else None.
        why: one sentence.
        targets: (n_samples,) the token that W separates in each sequence: its label, or for a sequence that lacks it the one of
            `separated_tokens`; -1 for a sample that is left out.
    """

    verdicts: tuple[Verdict, ...]
    graphs: Mapping[int, PriorityGraph]
    priority: GraphSolution
    mix: CyclicCorrection
    direction: FloatArray | None
    path_direction: FloatArray | None
    correction: FloatArray | None
    why: str
    targets: IntArray

    def __repr__(self) -> str:
        applying = ", ".join(one.citation for one in self.verdicts if one.applies) or "no theorem"
        return f"NextTokenPrediction({len(self.graphs)} graphs, margin={float(self.priority.margin):.4g}, {applying} applies)"

    def __str__(self) -> str:
        strict, tied = (sum(len(pairs(graph)) for graph in self.graphs.values()) for pairs in (_strict, _tied))
        lines = [f"{len(self.graphs)} last tokens, {strict} strict pairs, {tied} tied pairs."]
        shown = [verdict for verdict in self.verdicts if verdict.citation.endswith(_UNDER_17)]
        if shown:
            said = next(check for check in self.verdicts[1].conditions if check.name == "C Assumption 4").sentence
            lines.append(f"As stated, none of C Thms 1 to 3 applies: {said}.")
        return "\n".join([*lines, *(str(verdict) for verdict in shown or self.verdicts), self.why])


_UNDER_17 = ", under Eq. (17) alone"
_STARTS = 8  # random starts in the search for another minimum along S_cyc


@implements("C", "Thm 1", "Thm 2", "Thm 3", "Eq. (2)", "Eq. (3)")
def predict_nexttoken_limit(
    ds: SequenceDataset, *, head: Any = None, loss: NextTokenLoss | None = None, optimizer: Any = None
) -> NextTokenPrediction:
    r"""Which theorem speaks about training W on next tokens, and the direction and the cyclic part that W converges to.

    .. math:: \frac{W}{\|W\|_F} \to \frac{W^{mm}}{\|W^{mm}\|_F}\ (2), \qquad \Pi_{\mathcal S_{cyc}}(W) \to W^{cyc}\ (3)

    Theorem 2 needs one condition that its text lacks: the risk over the cyclic subset must have one minimiser on S_cyc. The log-loss
    has it (Lemma 7); for other losses it is looked for from several starts, and the verdict says so.

    Args:
        head: C (n_vocabulary, d_model), or None for C Eᵀ = I. loss: the log-loss by default.
        optimizer: `GradientDescent(eta)` to check η ≤ 1/L; any such step if left out.
    Returns:
        A `NextTokenPrediction`, `str` of which is a readable account. Check it with `descend` and `nexttoken_path`.
    """
    found = check_head(as_sequences(ds), head)
    identity = found.deviation == 0.0  # the scores of Assumption 4, whether or not a C has them
    ds, every_sample = ds.realizable() if identity else ds, ds
    targets = separated_tokens(every_sample, None if identity else head)
    graphs = priority_graphs(ds, head=None if identity else head)
    loss = LogLoss() if loss is None else as_nexttoken_loss(loss)
    priority = graph_svm(ds.E, graphs)
    restarts = _STARTS if isinstance(loss, LabelLoss) and identity else 0
    mix = cyclic_correction(ds, head=head, loss=loss, graphs=graphs, restarts=restarts)
    seen = check_loss(ds, head, loss)
    slope, separable = Check("C Assumption 1", seen.holds, seen.sentence), _check_separable(priority)
    finite = Check(
        "finite cyclic correction",
        mix.status in (Status.FINITE, Status.TRIVIAL),
        f"{mix.status.value.rstrip('.')}",
    )
    unique = _check_unique(mix)
    acyclic = Check("acyclic data", is_acyclic(graphs), _acyclic_sentence(graphs))
    labels = Check("realizable labels", *_realizable(every_sample, targets, identity, loss))

    def verdicts(scores: tuple[Check, Check], remark: str) -> tuple[Verdict, Verdict, Verdict]:
        argmax, identical = scores
        return (
            Verdict(
                f"C Thm 1{remark}",
                (acyclic, slope, labels, argmax, separable),
                "the regularisation path converges to the direction of W^mm",
            ),
            Verdict(
                f"C Thm 2{remark}",
                (slope, labels, identical, separable, finite, unique),
                "the regularisation path converges to the direction of W^mm, and its part in S_cyc to W^cyc",
            ),
            Verdict(
                f"C Thm 3{remark}",
                (_check_log(loss), labels, identical, separable, *_check_step(ds, optimizer)),
                "gradient descent from any start converges to the direction of W^mm, and its part in S_cyc to W^cyc",
            ),
        )

    first, second, third = stated = verdicts((_check_argmax(found), _check_identity(ds, found)), "")
    every: tuple[Verdict, ...] = stated
    if not found.exists:
        scores = Check(
            "C Eq. (17)",
            True,
            "the label's output is taken as the attention on it, and the proofs use nothing else of C",
        )
        first, second, third = extended = verdicts((scores, scores), _UNDER_17)
        every = (*stated, *extended)
    direction = np.asarray(priority.x) * float(priority.margin) if separable else None
    on_path, by_descent = first.applies or second.applies, third.applies
    return NextTokenPrediction(
        verdicts=every,
        graphs=graphs,
        priority=priority,
        mix=mix,
        direction=direction if by_descent else None,
        path_direction=direction if on_path else None,
        correction=mix.x if finite and (second.applies or third.applies) else None,
        why=_why(first, second, third, priority),
        targets=targets,
    )


def _strict(graph: PriorityGraph) -> Any:
    return graph.strict


def _tied(graph: PriorityGraph) -> Any:
    return graph.tied


def _check_unique(mix: CyclicCorrection) -> Check:
    """The condition that C Thm 2's text lacks: its proof takes for granted that a minimising sequence on S_cyc converges."""
    name = "one minimiser on S_cyc (not in the text)"
    if mix.status is Status.TRIVIAL:
        return Check(name, True, "S_cyc is zero")
    said = mix.uniqueness.rstrip(".") or "it was not looked at"
    return Check(name, bool(mix.is_unique), said[0].lower() + said[1:])


def _check_log(loss: NextTokenLoss) -> Check:
    return Check(
        "log-loss", isinstance(loss, LogLoss), f"the theorem is about the log-loss; this is {type(loss).__name__}"
    )


def _check_identity(ds: SequenceDataset, head: HeadCheck) -> Check:
    said = "C Eᵀ = I" if head.deviation == 0.0 else f"an entry of C Eᵀ - I is {head.deviation:.3g}"
    if not head.exists:
        said = f"no matrix C gives C Eᵀ = I: {ds.n_vocabulary} embeddings in {ds.d_model} dimensions are dependent"
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
    }.get(priority.status, priority.status.value.rstrip("."))
    return Check("Graph-SVM feasible, W^mm ≠ 0", priority.status is Status.OPTIMAL, said)


def _check_step(ds: SequenceDataset, optimizer: Any) -> tuple[Check, ...]:
    if optimizer is None:
        return ()
    limit = 1.0 / nexttoken_smoothness(ds)
    rule = as_optimizer(optimizer)
    if not isinstance(rule, GradientDescent):
        said = "the theorem is about constant steps; normalised ones circle W^cyc at a distance of about one step"
        return (Check("step size", False, said),)
    return (Check("step size", rule.size <= limit, f"η = {rule.size:.4g} and 1/L = {limit:.4g}", {"limit": limit}),)


def _acyclic_sentence(graphs: Mapping[int, PriorityGraph]) -> str:
    cyclic = [last for last, graph in graphs.items() if not graph.is_acyclic]
    if not cyclic:
        return "every component is a single token"
    largest = max((members for last in cyclic for members in graphs[last].components), key=len)
    return f"{len(cyclic)} of {len(graphs)} graphs have ties, such as tokens {largest[:5].tolist()} in one component"


def _realizable(ds: SequenceDataset, targets: IntArray, identity: bool, loss: NextTokenLoss) -> tuple[bool, str]:
    """Whether C Assumption 2 holds, and what happens to the samples that break it."""
    lacking = ds.unrealizable
    if not len(lacking):
        dropped = f"; {len(ds.dropped)} samples without theirs were dropped" if len(ds.dropped) else ""
        return True, f"every sequence holds its label{dropped}"
    named = f"{len(lacking)} of {len(ds)} sequences lack theirs, such as sample {int(lacking[0])} (C Assumption 2)"
    if identity and isinstance(loss, LogLoss):
        return False, f"{named}, and their log-loss is infinite at every W; what follows is about the others alone"
    if identity and not isinstance(loss, LabelLoss):
        return (
            False,
            f"{named}; with C Eᵀ = I none of their tokens serves the label better, and the graphs leave them out",
        )
    if identity:
        return (
            False,
            f"{named}; with C Eᵀ = I their loss does not depend on W, and what follows is about the others alone",
        )
    chosen = lacking[targets[lacking] >= 0]
    left_out = f"; {len(lacking) - len(chosen)} are left out" if len(chosen) < len(lacking) else ""
    if not len(chosen):
        return False, f"{named}, and the head prefers none of their tokens{left_out}"
    i = int(chosen[0])
    return (
        False,
        f"{named}; the token that the head prefers is separated in its place, {int(targets[i])} in sample {i}{left_out}",
    )


def _why(first: Verdict, second: Verdict, third: Verdict, priority: MarginSolution) -> str:
    if third.applies:
        return f"Certain: W grows along W^mm, by {third.citation}; its part in S_cyc tends to W^cyc."
    if priority.status is Status.TRIVIAL:
        return "W does not diverge: nothing is strictly ranked, and the minimum is the cyclic correction alone."
    if first.applies or second.applies:
        return f"Certain for the regularisation path, by {(first if first.applies else second).citation}; open for gradient descent."
    failed = next(check for check in third.conditions if not check.holds)
    return f"Not certain: {failed.sentence}. Descent may follow the pseudo-graphs of what it selects itself (C §6)."
