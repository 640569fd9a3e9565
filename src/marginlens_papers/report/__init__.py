"""Run the claims and publish what came out: the ledger, its figures and one page to read."""

from marginlens_papers.report.entry import Check, Entry, Picture, Result
from marginlens_papers.report.ledger_file import ledger
from marginlens_papers.report.run import Interrupted, Report, reproduce

__all__ = ["Check", "Entry", "Interrupted", "Picture", "Report", "Result", "ledger", "reproduce"]
