"""Paper C: the self-attention layer that predicts the next token, where its weights go, and the automaton it becomes."""

from marginlens.losses.next_token import (
    CrossEntropy,
    LabelLoss,
    LogLoss,
    NextTokenLoss,
    SquaredLoss,
    SquaredProbability,
)
from marginlens.nexttoken.automaton import Explanation, NextTokenAutomaton, Rival, SlowLimitWarning, TieBreak
from marginlens.nexttoken.chains import MarkovChain, TopicChange, topic_change
from marginlens.nexttoken.contexts import FinitePart, SupportSubspace, finite_part, support_subspace
from marginlens.nexttoken.correction import CyclicCorrection, cyclic_correction, limit_risk, local_correction
from marginlens.nexttoken.loss_check import LossCheck, check_loss
from marginlens.nexttoken.path_expansion import ExpansionKind, PathExpansion, expand_path
from marginlens.nexttoken.scores import HeldOutScores, PredictionScore, WindowNgram, score_held_out
from marginlens.risk.next_token_heads import HeadCheck, check_head

__all__ = [
    "CrossEntropy",
    "CyclicCorrection",
    "ExpansionKind",
    "Explanation",
    "FinitePart",
    "HeadCheck",
    "HeldOutScores",
    "LabelLoss",
    "LogLoss",
    "LossCheck",
    "MarkovChain",
    "NextTokenAutomaton",
    "NextTokenLoss",
    "PathExpansion",
    "PredictionScore",
    "Rival",
    "SlowLimitWarning",
    "SquaredLoss",
    "SquaredProbability",
    "SupportSubspace",
    "TieBreak",
    "TopicChange",
    "WindowNgram",
    "check_head",
    "check_loss",
    "cyclic_correction",
    "expand_path",
    "finite_part",
    "limit_risk",
    "local_correction",
    "score_held_out",
    "support_subspace",
    "topic_change",
]
