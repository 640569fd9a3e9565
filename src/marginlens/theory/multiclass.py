"""Paper F on linear classifiers: the margin that steepest descent, momentum and Adam converge to, condition by condition."""

from __future__ import annotations

from typing import Any

from marginlens.kinds import kind_of
from marginlens.optimizers import Adam, NormalizedGD, PowerDecay, SteepestDescent
from marginlens.papers import implements
from marginlens.risk import MulticlassRisk
from marginlens.status import Status
from marginlens.theory.assumptions import Check, TheoremVerdict
from marginlens.theory.implicit_bias import PROVED_BY_F, ImplicitBias, implicit_bias, norm_words, unknown_words
from marginlens.theory.prediction import Prediction, predictions

RATES = {
    "F Thm 1": "(log t + n)/√t",
    "F Thm 2": "(d log t + d n)/√t",
}  # of the gap to the best margin, up to constants


@predictions.register
def predict_classifier(risk: MulticlassRisk, start: Any, optimizer: Any, max_problems: int) -> list[Prediction]:
    """Which theorem of F covers the optimizer; no start matters to them."""
    name = "MulticlassRisk"
    bias = None if optimizer is None else implicit_bias(optimizer, risk)
    if bias is None:
        unknown = "Which margin a linear classifier attains depends on the optimizer: give optimizer=."
        return [Prediction(name, (), unknown if optimizer is None else f"Not certain: {unknown_words(optimizer)}.")]
    verdict = check_steepest_theorem(optimizer, bias)
    if verdict is None:
        return [Prediction(name, (), f"No theorem that is checked here covers {bias.optimizer}.", bias=bias)]
    if not verdict.applies:
        why = f"Not certain: {verdict.failed[0].sentence}."
        return [Prediction(name, (verdict,), why, bias=bias)]
    why = f"Certain: {verdict.conclusion}, by {verdict.citation}."
    direction = bias.direction if bias.solution is not None and bias.solution.is_unique else None
    return [Prediction(name, (verdict,), why, direction=direction, bias=bias)]


@implements("F", "Thm 1", "Thm 2")
def check_steepest_theorem(optimizer: Any, bias: ImplicitBias) -> TheoremVerdict | None:
    r"""Whether F's theorem on normalised steepest descent (Thm 1), or on the same with momentum (Thm 2), covers an optimizer.

    .. math:: W_{t+1} = W_t - \eta_t \arg\max_{\|\Delta\| \le 1} \langle m_t, \Delta\rangle,\ \eta_t \propto t^{-1/2}, \qquad
        \frac{\min_{i, c \ne y_i} (e_{y_i} - e_c)^\top W_t h_i}{\|W_t\|}
        \to \max_{\|W\| \le 1} \min_{i, c \ne y_i} (e_{y_i} - e_c)^\top W h_i

    Args:
        optimizer: normalised gradient descent or steepest descent. bias: of it on a `MulticlassRisk`, with the solved margin problem.
    Returns:
        The verdict; None for an optimizer of another kind, Adam among them, whose theorem is only cited.
    """
    if isinstance(optimizer, Adam) or not isinstance(optimizer, SteepestDescent | NormalizedGD) or bias.norm is None:
        return None
    momentum = getattr(optimizer, "momentum", 0.0)
    citation = "F Thm 2" if momentum > 0.0 else "F Thm 1"
    status = Status.INACCURATE if bias.solution is None else bias.solution.status
    words = {
        Status.OPTIMAL: "some W classifies every point with a margin",
        Status.INFEASIBLE: "no W classifies every point, which the certificate proves",
    }
    separable = Check(
        "separable points", status is Status.OPTIMAL, words.get(status, "whether some W classifies every point is open")
    )
    known = kind_of(bias.norm) in PROVED_BY_F
    norm = Check(
        "norm",
        known,
        f"the {norm_words(bias.norm)} is {'an' if known else 'no'} entrywise or Schatten norm",
    )
    size = optimizer.size
    decays = isinstance(size, PowerDecay) and size.power == 0.5
    steps = Check("step sizes", decays, f"η_t = {size!r} {'falls' if decays else 'does not fall'} like t^-1/2")
    plain = not getattr(optimizer, "nesterov", False)
    ahead = Check("momentum", plain, f"momentum is taken {'without' if plain else 'with'} Nesterov's look-ahead")
    conditions = (separable, norm, steps, ahead) if momentum > 0.0 else (separable, norm, steps)
    gap = f"with a gap of order {RATES[citation]}"
    return TheoremVerdict(
        citation, conditions, f"the margin of W in the {norm_words(bias.norm)} goes to the best, {gap}"
    )
