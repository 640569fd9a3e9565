"""Claims at quick effort, each computed once in a process."""

import sys
from contextlib import ExitStack
from functools import cache
from typing import Any, NamedTuple
from unittest.mock import patch

from marginlens.dynamics import descend
from marginlens_papers.claim import Claim, Effort, Finding, Progress
from marginlens_papers.claims.catalogue import claim


class QuickRun(NamedTuple):
    """A claim, what it found, how far it said it was, as (done, total), and the optimizers that it gave to `descend`."""

    claim: Claim
    finding: Finding
    reported: list[tuple[int, int]]
    optimizers: list[Any]


@cache
def quick_run(claim_id: str) -> QuickRun:
    """The claim of this id at quick effort; nobody may change what comes back."""
    reported: list[tuple[int, int]] = []
    named = claim(claim_id)
    optimizers: list[Any] = []

    def noting(*args: Any, **options: Any) -> Any:
        optimizers.append(options.get("optimizer"))
        return descend(*args, **options)

    with ExitStack() as patches:
        for name, module in list(sys.modules.items()):
            if name.startswith("marginlens_papers") and hasattr(module, "descend"):
                patches.enter_context(patch.object(module, "descend", noting))
        finding = named.compute(Effort.QUICK, Progress(lambda *call: reported.append(call)))
    return QuickRun(named, finding, reported, optimizers)
