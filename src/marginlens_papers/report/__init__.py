"""Run the claims and publish what came out: the ledger, its figures and one page to read."""

from marginlens_papers.report.ledger import BoundCheck, ClaimResult, Entry, Ledger, Picture, ledger
from marginlens_papers.report.run import Interrupted, Report, Watcher, reproduce

__all__ = [
    "BoundCheck",
    "ClaimResult",
    "Entry",
    "Interrupted",
    "Ledger",
    "Picture",
    "Report",
    "Watcher",
    "ledger",
    "reproduce",
]
