"""Risks beyond one head of attention: linear classifiers (paper F), next-token decoders (paper G), and match and copy (X M)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marginlens.kinds import defining_class
from marginlens.nexttoken.contexts import FinitePart, finite_part
from marginlens.optimizers import GradientDescent, NormalizedGD, PowerDecay, SteepestDescent
from marginlens.optimizers.protocol import Optimizer
from marginlens.papers import implements
from marginlens.risk import ContextRisk, MulticlassRisk
from marginlens.risk.copying import CopyRisk
from marginlens.status import Status
from marginlens.svm import ContextSolution, MarginSolution, att_svm, ntp_svm
from marginlens.theory.bias_table import PROVED_BY_F, norm_words, unknown_words
from marginlens.theory.checks import Check, TheoremVerdict
from marginlens.theory.implicit_bias import ImplicitBias, check_plain_steps, implicit_bias
from marginlens.theory.prediction import Prediction, Request, predictions
from marginlens.theory.unproved_steps import optimizer_words, redefines_steps
from marginlens.words import Fact

RATES = {
    "F Thm 1": "(log t + n)/√t",
    "F Thm 2": "(d log t + d n)/√t",
}  # of the gap to the best margin, up to constants
INDEPENDENT_RTOL = (
    1e-10  # smallest over largest singular value of an input's values, from which on they count as independent
)


# ---- linear classifiers


@predictions.register
def predict_classifier(risk: MulticlassRisk, request: Request) -> list[Prediction]:
    """Find the theorem of F that covers the optimizer; the theorems hold from every start."""
    name, optimizer = "MulticlassRisk", request.optimizer
    bias = None if optimizer is None else implicit_bias(optimizer, risk)
    if bias is None:
        if optimizer is None:
            return [Prediction(name, (), (Fact("classifier.no_optimizer"),))]
        return [Prediction(name, (), (Fact("reason.unknown_optimizer", {"unknown": unknown_words(optimizer)}),))]
    verdict = check_steepest_theorem(optimizer, bias)
    if verdict is None:
        return [Prediction(name, (), (Fact("classifier.uncovered", {"optimizer": bias.optimizer}),), bias=bias)]
    if not verdict.applies:
        reason = Fact("reason.condition", {"condition": verdict.failed[0]})
        return [Prediction(name, (verdict,), (reason,), bias=bias)]
    reason = Fact("classifier.certain", {"conclusion": verdict.conclusion, "citation": verdict.citation})
    direction = bias.direction if bias.solution is not None and bias.solution.is_unique else None
    return [Prediction(name, (verdict,), (reason,), direction=direction, bias=bias)]


@implements("F", "Thm 1", "Thm 2")
def check_steepest_theorem(optimizer: Optimizer | None, bias: ImplicitBias) -> TheoremVerdict | None:
    r"""Check whether F's theorem on normalised steepest descent (Thm 1), or on the same with momentum (Thm 2), covers an optimizer.

    .. math:: W_{t+1} = W_t - \eta_t \arg\max_{\|\Delta\| \le 1} \langle m_t, \Delta\rangle,\ \eta_t \propto t^{-1/2}, \qquad
        \frac{\min_{i, c \ne y_i} (e_{y_i} - e_c)^\top W_t h_i}{\|W_t\|}
        \to \max_{\|W\| \le 1} \min_{i, c \ne y_i} (e_{y_i} - e_c)^\top W h_i

    Args:
        optimizer: normalised gradient descent or steepest descent.
        bias: its bias on a `MulticlassRisk`, with the solved margin problem.

    Returns:
        The verdict; None for other kinds of optimizer, including Adam, whose theorem is only cited.
    """
    steepest_in = bias.norm if bias.norm is not None else getattr(optimizer, "norm", None)
    if not isinstance(optimizer, SteepestDescent | NormalizedGD) or redefines_steps(optimizer) or steepest_in is None:
        return None
    momentum = getattr(optimizer, "momentum", 0.0)
    citation = "F Thm 2" if momentum > 0.0 else "F Thm 1"
    status = Status.INACCURATE if bias.solution is None else bias.solution.status
    decided = status in (Status.OPTIMAL, Status.INFEASIBLE)
    separable = Check("requirement.separable_points", status is Status.OPTIMAL if decided else None)
    called = norm_words(steepest_in)
    norm = Check("requirement.proved_norm", defining_class(steepest_in) in PROVED_BY_F, {"norm": called})
    size = optimizer.size
    decays = isinstance(size, PowerDecay) and size.power == 0.5
    steps = Check("requirement.falling_steps", decays, {"size": repr(size)})
    ahead = Check("requirement.plain_momentum", not getattr(optimizer, "nesterov", False))
    conditions = (separable, norm, steps, ahead) if momentum > 0.0 else (separable, norm, steps)
    return TheoremVerdict(citation, conditions, Fact("conclusion.f", {"norm": called, "rate": RATES[citation]}))


# ---- next-token decoders


class ContextDetails(NamedTuple):
    """The quantities behind the verdicts on a decoder: the NTP-SVM, whose `.x` is W^mm, and the finite part, whose `.x` is W*."""

    priority: ContextSolution
    finite: FinitePart


@predictions.register
@implements("G", "Prop 1", "Lemma 2", "Thm 1", "Thm 2")
def predict_decoder(risk: ContextRisk, request: Request) -> list[Prediction]:
    r"""Find the theorem of G that covers training a decoder W on fixed contexts, and the limit of its direction and its finite part.

    .. math:: \Big\langle \frac{W}{\|W\|}, \frac{W^{mm}}{\|W^{mm}\|} \Big\rangle \to 1, \qquad \Pi_{\mathcal F}(W) \to W^\star,
        \qquad \mathrm{CE}(W) \to \mathcal H

    The paper does not cover data that are separable but not compatible. Its argument for the finite part only needs a convex
    cross-entropy that approaches its infimum, and X G1 states this: descent still brings the cross-entropy to that infimum,
    which is above the entropy, and the part in F to W*. The direction is then not proved.
    """
    priority, finite = ntp_svm(risk.data), finite_part(risk.data)
    compatible = Check("requirement.compatible", finite.compatible, {"misfit": finite.misfit})
    separable = _check_decodable(priority)
    # below 2/L the loss falls, which is all that the theorem asks of steps
    steps = check_plain_steps(request.optimizer, "2/L", 2.0 / risk.smoothness(), below=True)
    path = TheoremVerdict("G Thm 1", (compatible, separable), Fact("conclusion.g_thm_1"))
    descent = TheoremVerdict("G Thm 2", (compatible, separable, *steps), Fact("conclusion.g_thm_2"))
    infimum = Fact("conclusion.x_g1", {"infimum": finite.infimum})
    finite_only = TheoremVerdict("X G1", (separable, *steps), infimum, of_descent=True)
    direction = priority.direction if separable else None
    counts = {"contexts": risk.data.n_contexts, "tokens": risk.data.n_vocabulary}
    note = Fact("note.decoder", {**counts, "entropy": risk.data.entropy, "infimum": finite.infimum})
    return [
        Prediction(
            "ContextRisk",
            (path, descent) if finite.compatible else (path, descent, finite_only),
            (_reason_of_decoder(path, descent, finite_only, priority),),
            (note,),
            direction=direction if descent.applies else None,
            path_direction=direction if path.applies else None,
            details=ContextDetails(priority, finite),
        )
    ]


def _check_decodable(priority: ContextSolution) -> Check:
    trivial = priority.status is Status.TRIVIAL
    numbers = {"margin": float(priority.margin), "status": priority.describe()}
    holds = priority.status is Status.OPTIMAL
    return Check("requirement.decodable", holds, {**numbers, "case": "trivial" if trivial else "default"})


def _reason_of_decoder(
    path: TheoremVerdict, descent: TheoremVerdict, finite: TheoremVerdict, priority: ContextSolution
) -> Fact:
    """State what is known of W, and how certain it is."""
    if descent.applies:
        return Fact("decoder.certain", {"citation": descent.citation})
    condition = f"{descent.failed[0].sentence.rstrip('.')}."
    if path.applies:
        return Fact("decoder.path", {"citation": path.citation, "condition": condition})
    if finite.applies:
        return Fact("decoder.finite", {"citation": finite.citation, "condition": condition})
    if priority.status is Status.TRIVIAL:
        return Fact("decoder.trivial")
    return Fact("reason.condition", {"condition": f"{finite.failed[0].sentence.rstrip('.')}."})


# ---- match and copy


@predictions.register
@implements("X", "M")
def predict_copying(risk: CopyRisk, request: Request) -> list[Prediction]:
    r"""Predict whether attention learns to copy the value of the matching token, problem by problem.

    .. math:: \min_p \|p\| \quad \text{s.t.} \quad (k_{i m_i} - k_{it})^\top p \ge 1 \quad \text{for all } t \ne m_i

    If the values of an input, minus the one to copy, are linearly independent, the loss vanishes only where the matching token
    has all attention. If some direction separates the matching tokens, gradient descent whose loss vanishes diverges in norm,
    and its direction tends to that of the shortest such p. It is not known in advance whether the loss of a run vanishes.
    """
    problems: list[Any] = [risk[j] for j in range(len(risk))] if risk.is_batch else [risk]
    return [_of_copying(problem, request.optimizer) for problem in problems]


def _of_copying(risk: CopyRisk, optimizer: Optimizer | None) -> Prediction:
    solution = att_svm(risk.data, risk.match)
    known = [_check_matches(solution), _check_values(risk)]
    if optimizer is not None and (not isinstance(optimizer, GradientDescent) or redefines_steps(optimizer)):
        known.append(Check("requirement.plain_descent", False, {"optimizer": optimizer_words(optimizer)}))
    open_question = Check("requirement.vanishing_loss", None)
    verdict = TheoremVerdict("X M", (*known, open_question), Fact("conclusion.x_m"))
    if not all(known):
        failed = " ".join(check.sentence for check in known if not check)
        reason = Fact("copying.conditions", {"conditions": failed})
        return Prediction("CopyRisk", (verdict,), (reason,), details=solution)
    reason = Fact("copying.vanishing", {"condition": open_question, "margin": float(solution.margin)})
    return Prediction("CopyRisk", (verdict,), (reason,), observed=solution.direction, details=solution)


def _check_matches(solution: MarginSolution) -> Check:
    holds = solution.status is Status.OPTIMAL
    return Check("requirement.separable_matches", holds, {"margin": float(solution.margin)})


def _check_values(risk: CopyRisk) -> Check:
    """Return whether the values of each input, minus the one to copy, are linearly independent."""
    data, ratios = risk.data, []
    for i, match in enumerate(risk.match.tolist()):
        n = int(data.lengths[i])
        singular = np.linalg.svd(np.delete(data.X[i, :n], match, axis=0), compute_uv=False)
        full = n - 1 <= data.d_model
        ratios.append(
            float(singular[-1] / singular[0]) if full and n > 1 and singular[0] > 0.0 else float(full and n == 1)
        )
    least = min(ratios)
    return Check("requirement.independent_values", least > INDEPENDENT_RTOL, {"smallest_ratio": least})
