"""Losses of a signed margin, and of a next token."""

from marginlens.losses.margin import CorrelationLoss, Exponential, Logistic, Loss
from marginlens.losses.next_token import (
    CrossEntropy,
    LabelLoss,
    LogLoss,
    NextTokenLoss,
    SquaredLoss,
    SquaredProbability,
)

__all__ = [
    "CorrelationLoss",
    "CrossEntropy",
    "Exponential",
    "LabelLoss",
    "LogLoss",
    "Logistic",
    "Loss",
    "NextTokenLoss",
    "SquaredLoss",
    "SquaredProbability",
]
