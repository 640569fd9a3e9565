"""Run claims and publish their report: the ledger, the figures and the page, in one move; an interrupted run publishes what it finished."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from marginlens.runtime.versions import versions
from marginlens.training.loop import deferred_interrupts
from marginlens_papers.claim import Claim, Effort, Progress, Silence, Verdict
from marginlens_papers.report.entry import Check, Entry, Picture, Result
from marginlens_papers.report.folder import Draft, draft
from marginlens_papers.report.ledger_file import FOLDER, read_ledger, write_ledger
from marginlens_papers.report.outcome import Outcome
from marginlens_papers.report.page import PAGE, write_page
from marginlens_papers.report.workers import outcomes


class Watcher(Protocol):
    """Who sees the claims run."""

    def begin(self, claim: Claim) -> Progress:
        """A claim starts; what comes back is told how far it is."""

    def finish(self, entry: Entry) -> None:
        """A claim has its result."""


class Nobody:
    """The watcher of a run that nobody watches."""

    def begin(self, claim: Claim) -> Progress:
        """Nobody asked."""
        return Silence()

    def finish(self, entry: Entry) -> None:
        """Nobody asked."""


@dataclass(frozen=True)
class Report:
    """A published report: where it is, every entry in it, the ids of those that this run computed, and what is said of its other page."""

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
        """The entries of this run that were not reproduced."""
        ran = [(entry, entry.result) for entry in self.entries if entry.id in self.ran]
        return tuple(entry for entry, result in ran if result and result.verdict is Verdict.NOT_REPRODUCED)

    @property
    def unfinished(self) -> tuple[Entry, ...]:
        """The entries that an interrupted run, this one or an earlier one, was asked for and did not finish."""
        return tuple(entry for entry in self.entries if entry.unfinished is not None)


class Interrupted(KeyboardInterrupt):
    """A run was interrupted after it had finished claims; `report` is the published report with them."""

    def __init__(self, report: Report) -> None:
        super().__init__(f"The claims finished so far are in {report.page}.")
        self.report = report


def reproduce(
    claims: Sequence[Claim],
    folder: str | os.PathLike[str] = FOLDER,
    *,
    effort: Effort = Effort.PAPER,
    keep: Sequence[Claim] = (),
    watcher: Watcher | None = None,
    workers: int = 1,
    beside: Callable[[Path, Effort], str] | None = None,
) -> Report:
    """Run `claims` and publish the report in `folder`.

    Args:
        claims: what to run.
        folder: where the report goes; an earlier report there is replaced in one move, once no more claims are to be run.
        effort: how much of each protocol to run.
        keep: claims, in the order of the page, whose last results are taken from the earlier report when they are not run now;
            what the earlier report says about any other claim is dropped.
        watcher: told when claims begin and end.
        workers: processes that compute claims side by side; 1 for this process alone.
        beside: writes another page into the folder it is given, which the report's own page then links, and returns a sentence on it.

    Returns:
        The report. A claim whose computation or drawing raises is in it as "not reproduced", with the error in its note.

    Raises:
        Interrupted: on an interruption after a claim had finished. The report is published with the finished claims; the others of
            `claims` are marked as unfinished and keep their earlier results. One before that leaves the earlier report as it was.
    """
    watching = watcher or Nobody()
    with draft(folder) as new:
        read_ledger(new.place)  # what is wrong with it is said before any computing
        finished: dict[str, Entry] = {}
        interruption: KeyboardInterrupt | None = None
        message = ""
        try:
            with closing(outcomes(claims, effort, watching.begin, workers)) as results:
                for claim, outcome in results:
                    finished[claim.id] = Entry.of(claim, _stored(claim, outcome, effort, new.folder))
                    watching.finish(finished[claim.id])
            message = "" if beside is None else beside(new.folder, effort)
        except KeyboardInterrupt as problem:
            if not finished:
                raise
            interruption = problem
            new.retain(_files(finished.values()))  # a figure or page that was being written is not whole
        report = Report(new.place, (), tuple(finished), message)
        try:
            with deferred_interrupts():
                report = replace(report, entries=_published(new, claims, finished, effort, keep))
        except KeyboardInterrupt as problem:
            if not report.entries:  # a second interruption stopped the writing: the earlier report is as it was
                raise
            interruption = problem
    if interruption is not None:
        raise Interrupted(report) from interruption
    return report


def _published(
    new: Draft, claims: Sequence[Claim], finished: dict[str, Entry], effort: Effort, keep: Sequence[Claim]
) -> tuple[Entry, ...]:
    """Put the report in its place, and return its entries: finished claims, those left unfinished, and those of the earlier report."""
    earlier = read_ledger(new.place)  # as it is now: another run may have published meanwhile
    results = {entry.id: entry.result for entry in earlier}
    unfinished = {
        claim.id: Entry.of(claim, results.get(claim.id), effort) for claim in claims if claim.id not in finished
    }
    known = {entry.id: entry for entry in earlier if entry.id in {claim.id for claim in keep}} | unfinished | finished
    order = dict.fromkeys(claim.id for claim in (*keep, *claims))
    entries = tuple(known[name] for name in order if name in known)
    new.carry_over(superseded=_files(earlier) - _files(entries))
    write_ledger(entries, new.folder)
    write_page(entries, new.folder)
    new.publish()
    return entries


def _stored(claim: Claim, outcome: Outcome, effort: Effort, folder: Path) -> Result:
    """The result, with its figures written into `folder`."""
    pictures = []
    for name, (dots, curves) in outcome.drawings.items():
        stem = "figures/" + re.sub(r"[^A-Za-z0-9_-]+", "-", f"{claim.id}-{name}")
        picture = Picture(name, f"{stem}.png", f"{stem}.svg")
        (folder / "figures").mkdir(exist_ok=True)
        (folder / picture.png).write_bytes(dots)
        (folder / picture.svg).write_bytes(curves)
        pictures.append(picture)
    return Result(
        verdict=outcome.verdict,
        measured=outcome.measured,
        note=outcome.note,
        seconds=round(outcome.seconds, 3),
        effort=effort,
        checks=tuple(
            Check(name, bound, outcome.numbers.get(name, math.nan), as_stated)
            for bounds, as_stated in ((claim.expected, False), (claim.as_stated, True))
            for name, bound in bounds.items()
        ),
        numbers=outcome.numbers,
        pictures=tuple(pictures),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions(),
    )


def _files(entries: Iterable[Entry]) -> set[str]:
    """Every figure file that the entries name."""
    pictures = [picture for entry in entries if entry.result for picture in entry.result.pictures]
    return {name for picture in pictures for name in (picture.png, picture.svg)}
