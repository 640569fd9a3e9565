"""Papers B and B': token embeddings trained together with attention."""

from marginlens.embeddings.models import (
    Parameters,
    initial_parameters,
    loss_and_gradients,
)
from marginlens.embeddings.one_step import (
    FirstStep,
    embedding_flow,
    first_step,
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
    "SingleDecisiveToken",
    "TokenKind",
    "TokenStatistics",
    "check_assumption_4",
    "embedding_flow",
    "first_step",
    "initial_parameters",
    "loss_and_gradients",
    "mean_signed_share",
    "token_statistics",
]
