"""Losses of a signed margin, and of a next token."""

from marginlens.losses.margin import ArcsineLoss, CorrelationLoss, Exponential, Logistic, LogProbability, Loss
from marginlens.losses.next_token import (
    CrossEntropy,
    LabelLoss,
    LogLoss,
    NextTokenLoss,
    SquaredLoss,
    SquaredProbability,
)

__all__ = [
    "ArcsineLoss",
    "CorrelationLoss",
    "CrossEntropy",
    "Exponential",
    "LabelLoss",
    "LogLoss",
    "LogProbability",
    "Logistic",
    "Loss",
    "NextTokenLoss",
    "SquaredLoss",
    "SquaredProbability",
]
