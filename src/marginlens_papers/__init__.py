"""What the papers claim: claims with their bounds, the ledger, the report, vision runs, and archived results."""

from marginlens_papers.report import ledger

__all__ = ["ledger"]
