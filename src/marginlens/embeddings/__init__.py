"""Papers B and B': token embeddings trained together with attention."""

from marginlens.embeddings.one_layer import loss_and_gradients
from marginlens.embeddings.parameters import Parameters, initial_parameters
from marginlens.embeddings.results import Ending, EpochRecord, RankCorrelations, TrainingRun
from marginlens.embeddings.sequence_file import read_labelled, write_labelled
from marginlens.embeddings.settings import TrainingSettings
from marginlens.embeddings.statistics import (
    SingleDecisiveToken,
    TokenKind,
    TokenStatistics,
    check_assumption_4,
    token_statistics,
)
from marginlens.embeddings.training import train_embeddings

__all__ = [
    "Ending",
    "EpochRecord",
    "Parameters",
    "RankCorrelations",
    "SingleDecisiveToken",
    "TokenKind",
    "TokenStatistics",
    "TrainingRun",
    "TrainingSettings",
    "check_assumption_4",
    "initial_parameters",
    "loss_and_gradients",
    "read_labelled",
    "token_statistics",
    "train_embeddings",
    "write_labelled",
]
