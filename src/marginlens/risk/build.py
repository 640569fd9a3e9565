"""Risks from a dataset and a head, or from a risk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from marginlens.data.contexts import ContextDataset
from marginlens.data.sequences import SequenceDataset
from marginlens.data.tokens import TokenDataset
from marginlens.errors import InputError
from marginlens.losses.margin import Logistic, Loss, as_loss
from marginlens.losses.next_token import LogLoss, NextTokenLoss, as_nexttoken_loss
from marginlens.risk.attention import AttentionRisk
from marginlens.risk.cross_entropy import ContextRisk
from marginlens.risk.next_token import NextTokenRisk
from marginlens.risk.protocol import Risk
from marginlens.typing import ArrayLike

Problem = Risk | TokenDataset | ContextDataset | SequenceDataset | Sequence[SequenceDataset]
HeadLike = ArrayLike | Callable[..., object] | Sequence[ArrayLike | None]


def as_risk(problem: object, head: HeadLike | None = None, loss: Loss | NextTokenLoss | None = None) -> Any:
    """Return `problem` if it is a risk, otherwise the risk of a dataset with this head and loss.

    Args:
        problem: a risk, a `TokenDataset`, a `ContextDataset`, a `SequenceDataset`, or a list of sequence datasets.

        head: the head of a token dataset, which needs one unless its scores were given; or of a sequence dataset, for which None
            stands for C Eᵀ = I.

        loss: the loss; by default `Logistic()` for tokens and `LogLoss()` for sequences.
    """
    if isinstance(problem, TokenDataset):
        head = problem.own_head if head is None else head
        if head is None:
            raise InputError(
                "head",
                "given with a TokenDataset",
                "None",
                "Train head and attention together with ml.JointRisk(data).",
            )
        return AttentionRisk(problem, head, Logistic() if loss is None else as_loss(loss))
    if isinstance(problem, SequenceDataset | list | tuple):
        return NextTokenRisk(problem, head, LogLoss() if loss is None else as_nexttoken_loss(loss))
    if isinstance(problem, ContextDataset):
        problem = ContextRisk(problem)
    if isinstance(problem, type) or not isinstance(problem, Risk):
        expected = "a TokenDataset, a ContextDataset, a SequenceDataset or a list of them, or a risk such as ml.AttentionRisk(data, head)"
        raise InputError(
            "problem",
            expected,
            type(problem).__name__ if not isinstance(problem, type) else f"the class {problem.__name__}",
        )
    for name, value in (("head", head), ("loss", loss)):
        if value is not None:
            raise InputError(name, "left out where a risk is given, which has its own", repr(value))
    return problem
