"""Papers B and B': token embeddings trained together with attention."""

from marginlens.embeddings.first_step import (
    FirstStep,
    ProvedBound,
    directional_slope,
    embedding_flow,
    first_step,
    first_step_errors,
    first_step_loss,
    first_step_norms,
    initial_concentration,
    initial_orthogonality,
    mean_signed_share,
)
from marginlens.embeddings.models import (
    Evaluation,
    Parameters,
    evaluate,
    initial_parameters,
    loss_and_gradients,
    one_layer_outputs,
    two_layer_outputs,
)
from marginlens.embeddings.sequence_file import read_labelled, write_labelled
from marginlens.embeddings.statistics import (
    SingleDecisiveToken,
    TokenKind,
    TokenStatistics,
    check_assumption_4,
    token_statistics,
)
from marginlens.embeddings.train import (
    Ending,
    EpochRecord,
    RankCorrelations,
    TrainingRun,
    TrainingSettings,
    train_embeddings,
)

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
