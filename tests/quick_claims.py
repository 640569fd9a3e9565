"""Claims at quick effort, each computed once in a process."""

from functools import cache
from typing import NamedTuple

from marginlens_papers.claim import Claim, Effort, Finding, Progress
from marginlens_papers.claims.catalogue import claim


class QuickRun(NamedTuple):
    """A claim, what it found, and how far it said it was, as (done, total)."""

    claim: Claim
    finding: Finding
    reported: list[tuple[int, int]]


@cache
def quick_run(claim_id: str) -> QuickRun:
    """The claim of this id at quick effort; nobody may change what comes back."""
    reported: list[tuple[int, int]] = []
    named = claim(claim_id)
    return QuickRun(named, named.compute(Effort.QUICK, Progress(lambda *call: reported.append(call))), reported)
