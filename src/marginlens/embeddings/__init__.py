"""Papers B and B': token embeddings trained together with attention."""

from typing import TYPE_CHECKING

from marginlens.embeddings.models import (
    Parameters,
    initial_parameters,
    loss_and_gradients,
)
from marginlens.embeddings.one_step import embedding_flow, first_step, mean_signed_share
from marginlens.embeddings.statistics import TokenKind, TokenStatistics, check_assumption_4, token_statistics
from marginlens.removed import no_attribute

__all__ = [
    "Parameters",
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

# Type checkers must refuse names that do not exist, so this is hidden from them.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise no_attribute(__name__, name)
