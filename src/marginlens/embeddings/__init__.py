"""Papers B and B': token embeddings trained together with attention."""

from marginlens.embeddings.models import (
    Parameters,
    initial_parameters,
    loss_and_gradients,
    one_layer_outputs,
    two_layer_outputs,
)
from marginlens.embeddings.one_step import (
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
from marginlens.embeddings.statistics import (
    SingleDecisiveToken,
    TokenKind,
    TokenStatistics,
    check_assumption_4,
    token_statistics,
)

__all__ = [
    "FirstStep",
    "Parameters",
    "ProvedBound",
    "SingleDecisiveToken",
    "TokenKind",
    "TokenStatistics",
    "check_assumption_4",
    "directional_slope",
    "embedding_flow",
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
    "token_statistics",
    "two_layer_outputs",
]
