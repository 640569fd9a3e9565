"""What running one claim gives: its verdict, its numbers and its drawings, whatever happens on the way."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from marginlens.plotting.files import png, svg
from marginlens_papers.claim import Claim, Effort, Progress, Verdict


@dataclass(frozen=True)
class Outcome:
    """What running one claim gave, before anything is written."""

    verdict: Verdict
    measured: str
    note: str
    numbers: dict[str, float]
    drawings: dict[str, tuple[bytes, bytes]]
    seconds: float


def run_claim(claim: Claim, effort: Effort, progress: Progress) -> Outcome:
    """Compute, judge and draw; an error in any of them is a verdict, an interruption is not."""
    start = time.perf_counter()
    measured, note = "Nothing: the run stopped before it had a number.", ""
    numbers: dict[str, float] = {}
    drawings: dict[str, tuple[bytes, bytes]] = {}
    try:
        finding = claim.compute(effort, progress)
        measured, note = finding.measured, finding.note
        numbers = {name: float(number) for name, number in finding.numbers.items()}
        verdict = claim.judge(finding)
        drawings = {name: (png(figure), svg(figure)) for name, figure in claim.draw(finding).items()}
    except Exception as error:
        verdict, note = Verdict.NOT_REPRODUCED, f"{note} {_sentence(error)}".strip()
    return Outcome(verdict, measured, note, numbers, drawings, time.perf_counter() - start)


def _sentence(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    what = " ".join(str(error).split()) or "no message"
    return f"The run stopped with {type(error).__name__}{where}: {what.rstrip('.')}."
