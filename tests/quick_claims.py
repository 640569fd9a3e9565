"""Claims at quick effort, each computed once in a session of tests, by whichever of its processes asks first."""

import os
import pickle
import sys
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from filelock import FileLock

import marginlens as ml
from marginlens.dynamics import descend
from marginlens_papers.claim import Claim, Effort, Finding, Progress
from marginlens_papers.claims.catalogue import claim
from tolerances import HANGING

FOLDER = "MARGINLENS_QUICK_CLAIMS"  # the variable that names the folder of a session's outcomes; conftest.py sets it


class QuickRun(NamedTuple):
    """A claim, what it found, how far it said it was, as (done, total), and the optimizers that it gave to `descend`."""

    claim: Claim
    finding: Finding
    reported: list[tuple[int, int]]
    optimizers: list[Any]


@cache
def quick_run(claim_id: str) -> QuickRun:
    """The claim of this id at quick effort; nobody may change what comes back.

    The process that computes it holds the lock of the claim's folder, so that another one waits and reads the outcome.
    """
    folder = Path(os.environ[FOLDER]) / claim_id
    folder.mkdir(exist_ok=True)
    outcome = folder / "outcome.pickle"
    with FileLock(folder / "lock", timeout=HANGING):
        if not outcome.is_file():
            outcome.write_bytes(pickle.dumps(_computed(claim(claim_id))))
    return QuickRun(claim(claim_id), *pickle.loads(outcome.read_bytes()))


def _computed(named: Claim) -> tuple[Finding, list[tuple[int, int]], list[Any]]:
    """What a claim finds, what it reports and the optimizers that it runs."""
    reported: list[tuple[int, int]] = []
    optimizers: list[Any] = []

    def noting(*args: Any, **options: Any) -> Any:
        optimizers.append(options.get("optimizer"))
        return descend(*args, **options)

    with ExitStack() as patches:
        of_papers = [module for name, module in sys.modules.items() if name.startswith("marginlens_papers")]
        for module in (ml, *of_papers):
            if hasattr(module, "descend"):
                patches.enter_context(patch.object(module, "descend", noting))
        finding = named.compute(Effort.QUICK, Progress(lambda *call: reported.append(call)))
    return finding, reported, optimizers
