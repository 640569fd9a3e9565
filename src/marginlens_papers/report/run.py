"""Run claims, in this process or several, and publish their report, which is there after the first one and grows with the others."""

from __future__ import annotations

import math
import multiprocessing
import os
import queue
import re
import signal
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from marginlens.errors import require
from marginlens.runtime.interrupts import deferred_interrupts, interrupts_blocked
from marginlens.runtime.progress import ProgressCallback
from marginlens.runtime.threads import n_threads
from marginlens.runtime.versions import versions
from marginlens.words import text
from marginlens_papers.claim import Claim, Effort, FigureText, Progress, Verdict, Words
from marginlens_papers.report.folder import Draft, draft
from marginlens_papers.report.ledger import FOLDER, BoundCheck, ClaimResult, Entry, Picture, read_ledger, write_ledger
from marginlens_papers.report.page import PAGE, write_page

_POLL_SECONDS = 0.1  # between two checks of the messages of the processes
_PUBLISH_SECONDS = 20.0  # between two states of a growing report, at least


class Watcher:
    """Follows a run of claims; this one shows nothing."""

    def begin(self, claim: Claim) -> ProgressCallback:
        """A claim starts; what comes back is called with how far it is."""
        return lambda done, total: None

    def finish(self, entry: Entry) -> None:
        """A claim has its result."""


@dataclass(frozen=True)
class Report:
    """A published report: its folder, all its entries, the ids of those that this run computed, and a sentence on its other page."""

    folder: Path
    entries: tuple[Entry, ...]
    ran: tuple[str, ...]
    beside: str = ""

    @property
    def page(self) -> Path:
        """The page to open."""
        return self.folder / PAGE

    @property
    def failures(self) -> tuple[Entry, ...]:
        """The entries of this run that were not reproduced, without those whose claim declares this."""
        ran = [(entry, entry.result) for entry in self.entries if entry.id in self.ran]
        failed = Verdict.DOES_NOT_HOLD
        return tuple(entry for entry, result in ran if result and result.verdict is failed and not result.known)

    @property
    def unfinished(self) -> tuple[Entry, ...]:
        """The entries that an interrupted run, this one or an earlier one, was asked for and did not finish."""
        return tuple(entry for entry in self.entries if entry.unfinished is not None)


class Interrupted(KeyboardInterrupt):
    """A run was interrupted after it had finished claims; `report` is the published report with them."""

    def __init__(self, report: Report) -> None:
        super().__init__(text("report.run.finished_so_far", page=str(report.page)))
        self.report = report


def reproduce(
    claims: Sequence[Claim],
    folder: str | os.PathLike[str] = FOLDER,
    *,
    effort: Effort = Effort.PAPER,
    retained: Sequence[Claim] = (),
    watcher: Watcher | None = None,
    workers: int = 1,
    beside: Callable[[Path, Effort], str] | None = None,
) -> Report:
    """Run `claims` and publish the report in `folder`.

    Args:
        claims: what to run.
        folder: where the report goes. It is published when the first claim has ended, every so often after that, and at the end, each
            time in one move; claims that have not ended yet are marked as unfinished and keep the results of an earlier report.
        effort: how much of each protocol to run.
        retained: claims, in the order of the page, whose last results are taken from the earlier report when they are not run now;
            what the earlier report says about any other claim is dropped.
        watcher: sees claims begin and end.
        workers: processes that compute claims at the same time; with 1, only this process computes.
        beside: writes another page into the folder it is given, which the report's own page then links, and returns a sentence on it.

    Returns:
        The report. A claim whose computation or drawing raises is in it as "does not hold", with the error in its note.

    Raises:
        Interrupted: on an interruption after a claim had finished. The report is published with the finished claims; the others of
            `claims` are marked as unfinished. One before that leaves the earlier report as it was.
    """
    for package in ("matplotlib", "latex2mathml"):
        require(package, "report", "The report")
    watching = watcher or Watcher()
    with draft(folder) as new:
        read_ledger(new.place)  # refuses a broken ledger before anything is computed
        growing = _GrowingReport(new, claims, retained, effort)
        interruption: KeyboardInterrupt | None = None
        message = ""
        try:
            with closing(outcomes(claims, effort, watching.begin, workers)) as results:
                for claim, outcome in results:
                    watching.finish(growing.add(claim, outcome))
                    growing.publish_every_so_often()
            message = "" if beside is None else beside(new.folder, effort)
        except KeyboardInterrupt as problem:
            if not growing.finished:
                raise
            interruption = problem
            new.retain(_files(growing.finished.values()))  # a figure or page that was being written is not whole
        report = Report(new.place, (), tuple(growing.finished), message)
        try:
            with deferred_interrupts():
                report = replace(report, entries=growing.publish())
        except KeyboardInterrupt as problem:
            if not report.entries:  # a second interruption stopped the writing: the earlier report is as it was
                raise
            interruption = problem
    if interruption is not None:
        raise Interrupted(report) from interruption
    return report


class _GrowingReport:
    """A report that is written into a draft, and published with the claims that have ended so far.

    Args:
        new: the draft. claims: what the run was asked for. retained: claims whose earlier results are kept. effort: of the run.
    """

    def __init__(self, new: Draft, claims: Sequence[Claim], retained: Sequence[Claim], effort: Effort) -> None:
        self.new, self.claims, self.retained, self.effort = new, claims, retained, effort
        self.finished: dict[str, Entry] = {}
        self.published = -math.inf  # when, in seconds of the monotonic clock

    def add(self, claim: Claim, outcome: Outcome) -> Entry:
        """Enter the outcome of a claim, and write its figures into the draft."""
        entry = Entry.of(claim, _stored(claim, outcome, self.effort, self.new.folder))
        self.finished[claim.id] = entry
        return entry

    def publish_every_so_often(self) -> None:
        """Publish the report unless that was done a moment ago, or no claim is left."""
        if len(self.finished) < len(self.claims) and time.monotonic() - self.published > _PUBLISH_SECONDS:
            with deferred_interrupts():
                self.publish()
            self.published = time.monotonic()

    def publish(self) -> tuple[Entry, ...]:
        """Put the report in its place, and return its entries: finished claims, unfinished ones, and those of the earlier report."""
        earlier = read_ledger(self.new.place)  # as it is now: another run may have published meanwhile
        results = {entry.id: entry.result for entry in earlier}
        retained = {claim.id for claim in self.retained}
        known = {entry.id: entry for entry in earlier if entry.id in retained}
        for claim in self.claims:
            known[claim.id] = self.finished.get(claim.id) or Entry.of(claim, results.get(claim.id), self.effort)
        order = dict.fromkeys(claim.id for claim in (*self.retained, *self.claims))
        entries = tuple(known[name] for name in order if name in known)
        self.new.carry_over(superseded=_files(earlier) - _files(entries))
        write_ledger(entries, self.new.folder)
        write_page(entries, self.new.folder, self.new.place)
        self.new.publish()
        return entries


def _stored(claim: Claim, outcome: Outcome, effort: Effort, folder: Path) -> ClaimResult:
    """The result, with its figures written into `folder`."""
    pictures: list[Picture] = []
    for name, (suffix, shown, printed) in outcome.drawings.items():
        stem = "figures/" + re.sub(r"[^A-Za-z0-9_-]+", "-", f"{claim.id}-{name}")
        text = claim.figures.get(name, FigureText("", ""))
        small = "" if pictures else f"{stem}-small.png"
        picture = Picture(name, f"{stem}{suffix}", f"{stem}.pdf", text.caption, text.alt, text.brightness_speaks, small)
        (folder / "figures").mkdir(exist_ok=True)
        if small:
            (folder / small).write_bytes(outcome.thumbnail)
        (folder / picture.file).write_bytes(shown)
        (folder / picture.pdf).write_bytes(printed)
        pictures.append(picture)
    return ClaimResult(
        verdict=outcome.verdict,
        measured=outcome.measured,
        note=outcome.note,
        seconds=round(outcome.seconds, 3),
        effort=effort,
        checks=tuple(
            BoundCheck(
                name,
                bound,
                outcome.numbers.get(name, math.nan),
                as_stated,
                words.sentence,
                words.unit,
                claim.paper_numbers.get(name, ""),
            )
            for bounds, as_stated in ((claim.expected, False), (claim.as_stated, True))
            for name, bound in bounds.items()
            for words in (claim.words.get(name, Words("")),)
        ),
        numbers=outcome.numbers,
        pictures=tuple(pictures),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions(),
        known=outcome.verdict is claim.known and not outcome.stopped,
        archived=outcome.archived,
        note_kind=claim.note_kind,
    )


def _files(entries: Iterable[Entry]) -> set[str]:
    """Every figure file that the entries name."""
    pictures = [picture for entry in entries if entry.result for picture in entry.result.pictures]
    return {name for picture in pictures for name in (picture.file, picture.pdf, picture.small) if name}


# ---- one claim


@dataclass(frozen=True)
class Outcome:
    """What running one claim gave, before anything is written.

    `drawings` are, by the name of a figure, its file for the page behind the suffix of that, and a PDF; `thumbnail` is a PNG.
    `archived` names the numbers that were not computed in the run, and `stopped` says that an error ended it.
    """

    verdict: Verdict
    measured: str
    note: str
    numbers: dict[str, float]
    drawings: dict[str, tuple[str, bytes, bytes]]
    thumbnail: bytes
    seconds: float
    archived: tuple[str, ...] = ()
    stopped: bool = False


def run_claim(claim: Claim, effort: Effort, report: ProgressCallback) -> Outcome:
    """Compute, judge and draw; an error in any of them is a verdict, an interruption is not."""
    start = time.perf_counter()
    measured, note, stopped = text("claim.run.no_number"), "", ""
    archived: tuple[str, ...] = ()
    numbers: dict[str, float] = {}
    drawings: dict[str, tuple[str, bytes, bytes]] = {}
    small = b""
    try:
        finding = claim.compute(effort, Progress(report))
        measured, note, archived = finding.measured, finding.note, tuple(finding.archived)
        numbers = {name: float(number) for name, number in finding.numbers.items()}
        verdict = claim.judge(finding)
        from marginlens.plotting.files import page_and_print
        from marginlens_papers.report.thumbnail import thumbnail

        figures = claim.draw(finding)
        drawings = {name: page_and_print(figure) for name, figure in figures.items()}
        small = thumbnail(next(iter(figures.values()))) if figures else b""
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        message = (" ".join(str(error).split()) or "no message").rstrip(".")
        numbers_of: dict[str, Any] = {"error": type(error).__name__, "message": message}
        if frames:
            numbers_of |= {"file": Path(frames[-1].filename).name, "line": frames[-1].lineno, "case": "at"}
        stopped = text("claim.run.stopped", **numbers_of)
        verdict, note = Verdict.DOES_NOT_HOLD, f"{note} {stopped}".strip()
    seconds = time.perf_counter() - start
    return Outcome(verdict, measured, note, numbers, drawings, small, seconds, archived, bool(stopped))


# ---- several claims, in several processes


def outcomes(
    claims: Sequence[Claim], effort: Effort, begin: Callable[[Claim], ProgressCallback], workers: int
) -> Generator[tuple[Claim, Outcome], None, None]:
    """Run claims and yield each with its outcome as it finishes.

    Args:
        begin: called when a claim starts; what comes back is called with how far it is.
        workers: processes that compute at the same time. Claims with attributes besides those of their class run in this process, one
            after the other, and so do all claims if there is one worker or one claim.
    """
    sent = [claim for claim in claims if not vars(claim)] if workers > 1 else []
    if len(sent) > 1:
        yield from _in_processes(sent, effort, begin, min(workers, len(sent)))
    else:
        sent = []
    for claim in claims:
        if all(claim is not other for other in sent):
            yield claim, run_claim(claim, effort, begin(claim))


def _in_processes(
    claims: list[Claim], effort: Effort, begin: Callable[[Claim], ProgressCallback], workers: int
) -> Iterator[tuple[Claim, Outcome]]:
    context = multiprocessing.get_context("spawn")
    messages = context.Queue()
    reports: dict[str, ProgressCallback] = {}
    by_id = {claim.id: claim for claim in claims}
    others = set(multiprocessing.active_children())
    initial = (messages, max(1, n_threads() // workers))
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_prepare_process, initargs=initial)
    try:
        with interrupts_blocked():  # the processes start in it
            waiting = {pool.submit(_run_in_process, claim, effort): claim for claim in _longest_first(claims)}
        while waiting:
            done, _ = wait(waiting, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
            _deliver(messages, by_id, reports, begin)
            for future in done:
                claim = waiting.pop(future)
                if claim.id not in reports:  # it finished before it was seen to begin
                    reports[claim.id] = begin(claim)
                try:
                    outcome = future.result()
                except BrokenProcessPool:  # its process was killed from outside
                    outcome = run_claim(claim, effort, reports[claim.id])
                reports[claim.id] = lambda done, total: None  # a late message may arrive when the bar is gone
                yield claim, outcome
    finally:
        for child in set(multiprocessing.active_children()) - others:  # idle, unless this is an interruption
            child.kill()
        pool.shutdown(wait=False, cancel_futures=True)


def _longest_first(claims: Sequence[Claim]) -> list[Claim]:
    """The claims in the order in which they begin: a short one, so that the report is there soon, and then those that take longest, so that
    no process is left with a long one at the end.
    """
    first = min(claims, key=lambda claim: claim.seconds)
    others = [claim for claim in claims if claim is not first]
    return [first, *sorted(others, key=lambda claim: -claim.seconds)]


def _deliver(
    messages: Any,
    by_id: dict[str, Claim],
    reports: dict[str, ProgressCallback],
    begin: Callable[[Claim], ProgressCallback],
) -> None:
    """Call the reports of the claims with the progress that the processes have sent."""
    while True:
        try:
            claim_id, done, total = messages.get_nowait()
        except queue.Empty:
            return
        if claim_id not in reports:
            reports[claim_id] = begin(by_id[claim_id])
        reports[claim_id](done, total)


_messages: Any = None  # of a process, to the one that started it


def _prepare_process(messages: Any, threads: int) -> None:
    """Prepare a new process: interruptions are left to the one that started it, and it uses its share of the processors."""
    global _messages
    _messages = messages
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["MARGINLENS_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(threads)
    threadpool_limits(threads)


def _run_in_process(claim: Claim, effort: Effort) -> Outcome:
    _messages.put((claim.id, 0, 0))
    return run_claim(claim, effort, lambda done, total: _messages.put((claim.id, done, total)))
