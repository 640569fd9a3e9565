"""Head and attention trained together on one input of orthogonal tokens: the token of the highest score at the start wins (X Thm 3)."""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.data.tokens import TokenDataset
from marginlens.losses.margin import Loss, compiled_code
from marginlens.optimizers import GradientDescent, NormalizedGD
from marginlens.papers import implements
from marginlens.theory.assumptions import Check, TheoremVerdict
from marginlens.theory.implicit_bias import optimizer_words
from marginlens.typing import FloatArray

ORTHOGONAL_RTOL = (
    1e-12  # inner products and differences of squared lengths, over the largest squared length, that count as rounding
)


@implements("X", "Thm 3")
def check_polarisation(
    data: TokenDataset, head: FloatArray, p: FloatArray, optimizer: Any, loss: Loss
) -> TheoremVerdict:
    r"""Whether the token that scores highest at the start is where head and attention, trained together, end.

    .. math:: u = Y X v, \ a = K p: \qquad \dot u = g\, c\, \sigma(a), \quad
        \dot a = g\, \kappa\, \big(\mathrm{diag}\,\sigma - \sigma\sigma^\top\big) u, \qquad g = -\ell'(u^\top \sigma(a)) > 0

    One input, tokens with X Xᵀ = c I and keys with K Kᵀ = κ I. If token i has the highest score and no other token a larger logit at the
    start, its lead over every other token, in score and in logit, never shrinks, whatever the size of the steps, and its attention tends to
    one. With p = 0 the winner can be read off the head: it is the token of the highest score. `docs/proofs/polarisation.md` has the proof.

    Args:
        data: one problem. head, p: (d_model,) and (d_key,) the start.
        optimizer: None for the flow, or constant steps along the gradient of both together, plain or normalised.
    """
    one = Check("one input", data.n_inputs == 1, f"there {_counted(data.n_inputs)}")
    conditions = [
        one,
        _orthogonal("tokens", data.X[0, : data.lengths[0]]),
        _orthogonal("keys", data.K[0, : data.lengths[0]]),
    ]
    falls = compiled_code(loss) >= 0
    said = "decreases" if falls else "is not one of the library's, which decrease,"
    conditions.append(Check("decreasing loss", falls, f"the loss {type(loss).__name__} {said} everywhere"))
    if optimizer is not None:
        along = isinstance(optimizer, GradientDescent | NormalizedGD) and not callable(optimizer.size)
        steps = "are" if along else "are not"
        conditions.append(
            Check(
                "steps",
                along,
                f"steps of {optimizer_words(optimizer)} {steps} a constant times the gradient of head and attention",
            )
        )
    conditions.append(_leads(data, head, p))
    token = int(np.argmax(data.scores(head)[0])) if one else None
    which = (
        "the token of the highest score at the start"
        if token is None
        else f"token {token}, which scores highest at the start"
    )
    return TheoremVerdict("X Thm 3", tuple(conditions), f"attention tends to one at {which}", of_descent=True)


def _counted(n_inputs: int) -> str:
    return "is one input" if n_inputs == 1 else f"are {n_inputs} inputs, whose heads and attention are trained together"


def _orthogonal(name: str, rows: FloatArray) -> Check:
    """Whether the rows are orthogonal and equally long."""
    gram = rows @ rows.T
    size = float(np.max(np.abs(gram), initial=0.0))
    off = float(np.max(np.abs(gram - size * np.eye(len(rows))), initial=0.0)) / max(size, np.finfo(float).tiny)
    holds = size > 0.0 and off <= ORTHOGONAL_RTOL
    sentence = f"the {name} of the first input are {'' if holds else 'not '}orthogonal and equally long"
    return Check(f"orthogonal {name}", holds, sentence, {"largest_deviation": off})


def _leads(data: TokenDataset, v: FloatArray, p: FloatArray) -> Check:
    """Whether one token scores highest at the start, and none has a larger logit."""
    name = "one token leads at the start"
    n = int(data.lengths[0])
    scores, logits = data.scores(v)[0, :n], data.K[0, :n] @ p
    best = int(np.argmax(scores))
    others = np.arange(n) != best
    score, logit = (float(np.min((values[best] - values)[others], initial=np.inf)) for values in (scores, logits))
    sentence = f"token {best} leads by {score:.4g} in score and by {logit:.4g} in logit"
    return Check(name, score > 0.0 and logit >= 0.0, sentence, {"score_lead": score, "logit_lead": logit})
