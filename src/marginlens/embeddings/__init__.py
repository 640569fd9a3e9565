"""Papers B and B': token embeddings trained together with attention."""

from marginlens.embeddings.statistics import (
    SingleDecisiveToken,
    TokenKind,
    TokenStatistics,
    check_assumption_4,
    token_statistics,
)

__all__ = ["SingleDecisiveToken", "TokenKind", "TokenStatistics", "check_assumption_4", "token_statistics"]
