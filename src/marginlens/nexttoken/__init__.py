"""Paper C: the self-attention layer that predicts the next token, where its weights go, and the automaton it becomes."""

from marginlens.nexttoken.losses import CrossEntropy, LogLoss, NextTokenLoss, SquaredLoss, SquaredProbability

__all__ = ["CrossEntropy", "LogLoss", "NextTokenLoss", "SquaredLoss", "SquaredProbability"]
