"""What the papers claim: claims with their bounds, the ledger, the report, vision runs, and archived results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from marginlens_papers.report.ledger import ledger

__all__ = ["ledger"]


def __getattr__(name: str) -> Any:
    """Import the ledger when it is first used, since it imports every claim's packages."""
    if name != "ledger":
        raise AttributeError(f"module 'marginlens_papers' has no attribute {name!r}")
    from marginlens_papers.report.ledger import ledger

    return ledger
