"""Paper C: the self-attention layer that predicts the next token, the limit of its weights, and the automaton that it becomes."""

from typing import TYPE_CHECKING

from marginlens.losses.next_token import (
    CrossEntropy,
    LabelLoss,
    LogLoss,
    NextTokenLoss,
    SquaredLoss,
    SquaredProbability,
)
from marginlens.nexttoken.automaton import Explanation, NextTokenAutomaton, SlowLimitWarning, TieBreak
from marginlens.nexttoken.chains import MarkovChain, topic_change
from marginlens.nexttoken.contexts import FinitePart, finite_part, support_subspace
from marginlens.nexttoken.correction import CyclicCorrection, cyclic_correction, limit_risk, local_correction
from marginlens.nexttoken.loss_check import check_loss
from marginlens.nexttoken.path_expansion import expand_path
from marginlens.nexttoken.scores import WindowNgram, score_held_out
from marginlens.removed import no_attribute
from marginlens.risk.next_token_heads import check_head

__all__ = [
    "CrossEntropy",
    "CyclicCorrection",
    "Explanation",
    "FinitePart",
    "LabelLoss",
    "LogLoss",
    "MarkovChain",
    "NextTokenAutomaton",
    "NextTokenLoss",
    "SlowLimitWarning",
    "SquaredLoss",
    "SquaredProbability",
    "TieBreak",
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

# Type checkers must refuse names that do not exist, so this is hidden from them.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise no_attribute(__name__, name)
