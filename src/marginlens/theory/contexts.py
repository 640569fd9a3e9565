"""Paper G on one set of contexts, condition by condition: where a linear next-token decoder goes, and what its loss can reach."""

from __future__ import annotations

from typing import Any, NamedTuple

from marginlens.nexttoken.contexts import FinitePart, finite_part
from marginlens.optimizers import GradientDescent
from marginlens.papers import implements
from marginlens.risk import ContextRisk
from marginlens.status import Status
from marginlens.svm import ContextSolution, ntp_svm
from marginlens.theory.assumptions import Check, TheoremVerdict
from marginlens.theory.implicit_bias import is_known, optimizer_words, unknown_words
from marginlens.theory.prediction import Prediction, predictions


class ContextDetails(NamedTuple):
    """What stands behind the verdicts on a decoder: the NTP-SVM, whose `.x` is W^mm, and the finite part, whose `.x` is W*."""

    priority: ContextSolution
    finite: FinitePart


@predictions.register
@implements("G", "Prop 1", "Lemma 2", "Thm 1", "Thm 2")
def predict_decoder(risk: ContextRisk, start: Any, optimizer: Any, max_problems: int) -> list[Prediction]:
    r"""Which theorem of G speaks about training a decoder W on fixed contexts, and its direction and finite part.

    .. math:: \Big\langle \frac{W}{\|W\|}, \frac{W^{mm}}{\|W^{mm}\|} \Big\rangle \to 1, \qquad \Pi_{\mathcal F}(W) \to W^\star,
        \qquad \mathrm{CE}(W) \to \mathcal H

    Data that are separable but not compatible are outside the paper. Its argument for the finite part needs no more than that the
    cross-entropy is convex and comes near its infimum, which X G1 says: descent still brings the cross-entropy to that infimum, above the
    entropy, and the part in F to W*. The direction is then not proved.
    """
    priority, finite = ntp_svm(risk.data), finite_part(risk.data)
    compatible = Check(
        "G Def 1, compatible",
        finite.compatible,
        "some W gives all tokens that follow a context their log-odds"
        if finite.compatible
        else f"no W gives all tokens that follow a context their log-odds; the closest misses one by {finite.misfit:.3g}",
        {"misfit": finite.misfit},
    )
    separable = _check_separable(priority)
    steps = _check_steps(risk, optimizer)
    path = TheoremVerdict(
        "G Thm 1",
        (compatible, separable),
        "the regularisation path converges to the direction of W^mm, its part in F to W*, and the cross-entropy to the entropy",
    )
    descent = TheoremVerdict(
        "G Thm 2",
        (compatible, separable, *steps),
        "gradient descent from any start converges to the direction of W^mm, its part in F to W*, and the cross-entropy to the entropy",
    )
    finite_only = TheoremVerdict(
        "X G1",
        (separable, *steps),
        f"the cross-entropy falls to {finite.infimum:.6g}, and the part of W in F goes to W*; the direction of W is not proved",
        of_descent=True,
    )
    direction = priority.direction if separable else None
    note = (
        f"{risk.data.n_contexts} contexts, {risk.data.n_vocabulary} tokens; entropy {risk.data.entropy:.6g}, "
        f"infimum of the cross-entropy among tokens that follow {finite.infimum:.6g}."
    )
    return [
        Prediction(
            "ContextRisk",
            (path, descent) if finite.compatible else (path, descent, finite_only),
            _why(path, descent, finite_only, priority),
            (note,),
            direction=direction if descent.applies else None,
            path_direction=direction if path.applies else None,
            details=ContextDetails(priority, finite),
        )
    ]


def _check_separable(priority: ContextSolution) -> Check:
    said = {
        Status.OPTIMAL: f"NTP-SVM has a solution with margin {priority.margin:.4g}",
        Status.TRIVIAL: "every token follows every context, so that nothing is to be separated and W^mm = 0",
    }.get(priority.status, priority.describe().rstrip("."))
    return Check("G Def 2, separable", priority.status is Status.OPTIMAL, said)


def _check_steps(risk: ContextRisk, optimizer: Any) -> tuple[Check, ...]:
    """Constant steps below 2/L, under which the loss falls: all that the theorem asks of them."""
    if optimizer is None:
        return ()
    if not is_known(optimizer):
        return (Check("step size", False, unknown_words(optimizer)),)
    memory = getattr(optimizer, "momentum", 0.0) > 0.0 or getattr(optimizer, "weight_decay", 0.0) > 0.0
    if not isinstance(optimizer, GradientDescent) or callable(optimizer.size) or memory:
        said = f"the theorem is about constant steps of plain gradient descent, not about {optimizer_words(optimizer)}"
        return (Check("step size", False, said),)
    largest = 2.0 / risk.smoothness()
    said = f"η = {optimizer.size:.4g}, and steps below 2/L = {largest:.4g} lower the loss"
    return (Check("step size", optimizer.size < largest, said, {"largest_step": largest}),)


def _why(path: TheoremVerdict, descent: TheoremVerdict, finite: TheoremVerdict, priority: ContextSolution) -> str:
    if descent.applies:
        return f"Certain: W grows along W^mm, by {descent.citation}; its part in F tends to W*, and the cross-entropy to the entropy."
    if path.applies:
        return (
            f"Certain for the regularisation path, by {path.citation}; open for descent: {descent.failed[0].sentence}."
        )
    if finite.applies:
        return (
            f"Certain of the finite part: it goes to W*, by {finite.citation}, and the cross-entropy to its infimum above the entropy. "
            f"The direction is not proved: {descent.failed[0].sentence}."
        )
    if priority.status is Status.TRIVIAL:
        return "W does not diverge: every token follows every context, and the minimum is W* alone."
    return f"Not certain: {finite.failed[0].sentence}."
