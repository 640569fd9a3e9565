"""Papers B and B': token embeddings trained together with attention."""

from marginlens.embeddings.bounds import first_step_errors, first_step_loss, first_step_norms
from marginlens.embeddings.directional import directional_slope
from marginlens.embeddings.flow import embedding_flow
from marginlens.embeddings.forward import Evaluation, evaluate, one_layer_outputs, two_layer_outputs
from marginlens.embeddings.initial import initial_concentration, initial_orthogonality
from marginlens.embeddings.one_layer import loss_and_gradients
from marginlens.embeddings.one_step import FirstStep, first_step, mean_signed_share
from marginlens.embeddings.parameters import Parameters, initial_parameters
from marginlens.embeddings.proved import ProvedBound
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
    "Evaluation",
    "FirstStep",
    "Parameters",
    "ProvedBound",
    "RankCorrelations",
    "SingleDecisiveToken",
    "TokenKind",
    "TokenStatistics",
    "TrainingRun",
    "TrainingSettings",
    "check_assumption_4",
    "directional_slope",
    "embedding_flow",
    "evaluate",
    "first_step",
    "first_step_errors",
    "first_step_loss",
    "first_step_norms",
    "initial_concentration",
    "initial_orthogonality",
    "initial_parameters",
    "loss_and_gradients",
    "mean_signed_share",
    "one_layer_outputs",
    "read_labelled",
    "token_statistics",
    "train_embeddings",
    "two_layer_outputs",
    "write_labelled",
]
