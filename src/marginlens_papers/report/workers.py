"""Claims side by side: a few processes compute, and tell the one that watches how far they are."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from marginlens.runtime.threads import n_threads
from marginlens_papers.claim import Claim, Effort, Progress, Silence
from marginlens_papers.report.outcome import Outcome, run_claim

_OFTEN = 0.1  # seconds between two looks at what the processes tell
Begin = Callable[[Claim], Progress]


def outcomes(
    claims: Sequence[Claim], effort: Effort, begin: Begin, workers: int
) -> Generator[tuple[Claim, Outcome], None, None]:
    """Run claims and yield each with its outcome as it finishes.

    Args:
        begin: called when a claim starts; what comes back is told how far it is.
        workers: processes that compute side by side. Only claims made from a module can be sent to one; the others, and all of them
            where there is one worker or one claim, run here one after the other.
    """
    sent = [claim for claim in claims if claim.module] if workers > 1 else []
    if len(sent) > 1:
        yield from _side_by_side(sent, effort, begin, min(workers, len(sent)))
    else:
        sent = []
    for claim in claims:
        if all(claim is not other for other in sent):
            yield claim, run_claim(claim, effort, begin(claim))


def _side_by_side(claims: list[Claim], effort: Effort, begin: Begin, workers: int) -> Iterator[tuple[Claim, Outcome]]:
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    bars: dict[str, Progress] = {}
    by_id = {claim.id: claim for claim in claims}
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        workers, mp_context=context, initializer=_prepare, initargs=(told, max(1, n_threads() // workers))
    )
    try:
        with _interrupts_blocked():  # the processes start in it
            waiting = {pool.submit(_compute, claim.module, effort): claim for claim in claims}
        while waiting:
            done, _ = wait(waiting, timeout=_OFTEN, return_when=FIRST_COMPLETED)
            _pass_on(told, by_id, bars, begin)
            for one in done:
                claim = waiting.pop(one)
                if claim.id not in bars:  # it finished before it was seen to begin
                    bars[claim.id] = begin(claim)
                try:
                    outcome = one.result()
                except BrokenProcessPool:  # its process was killed from outside
                    outcome = run_claim(claim, effort, bars[claim.id])
                bars[claim.id] = Silence()  # what a process told may arrive after its result, when the bar is gone
                yield claim, outcome
    finally:
        for child in set(multiprocessing.active_children()) - others:  # idle, unless this is an interruption
            child.kill()
        pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Deliver Ctrl-C at the end of the block, and never to a process that starts in it.

    A new process inherits which signals are blocked. A terminal sends Ctrl-C to every process of its group; one that is still importing
    would print a traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _pass_on(told: Any, by_id: dict[str, Claim], bars: dict[str, Progress], begin: Begin) -> None:
    """Pass everything that the processes have told on to the bars."""
    while True:
        try:
            claim_id, what, number = told.get_nowait()
        except queue.Empty:
            return
        if claim_id not in bars:
            bars[claim_id] = begin(by_id[claim_id])
        if what == "expect":
            bars[claim_id].expect(number)
        elif what == "advance":
            bars[claim_id].advance(number)


# ---- in the processes

_told: Any = None


class _Told(Progress):
    """Progress that goes to the process that watches."""

    def __init__(self, claim_id: str) -> None:
        super().__init__()
        self._id = claim_id

    def expect(self, total: int) -> None:
        """Say how many units of work there are."""
        _told.put((self._id, "expect", total))

    def advance(self, units: int = 1) -> None:
        """Say that this many more units are done."""
        _told.put((self._id, "advance", units))


def _prepare(told: Any, threads: int) -> None:
    """Let a new process leave interruptions to the one that watches, and take its share of the processors."""
    global _told
    _told = told
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["MARGINLENS_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(threads)
    threadpool_limits(threads)


def _compute(module: str, effort: Effort) -> Outcome:
    """Run the claim that a module defines."""
    claim = Claim.of(import_module(module))
    _told.put((claim.id, "begin", 0))
    return run_claim(claim, effort, _Told(claim.id))
