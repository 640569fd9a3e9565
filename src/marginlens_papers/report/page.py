"""The report as one HTML page that needs nothing else: no script, no network, no other file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from marginlens.cli._terminal import duration
from marginlens.lab import permalink, presets, write_lab
from marginlens.pages import data_address, render
from marginlens.papers import SOURCES
from marginlens.plotting.files import DOTS_PER_INCH
from marginlens_papers.claim import Bound, Effort, Verdict
from marginlens_papers.report.ledger import MARKS, BoundCheck, ClaimResult, Entry, Picture, resume_command, tally
from marginlens_papers.report.model_page import ModelSection

PAGE, LAB = "index.html", "lab.html"
_SCREEN_DOTS = 112  # a figure's inch on the screen: its letters then match the page's small print


def write_page(entries: Sequence[Entry], folder: Path) -> None:
    """Write the page of the entries that have a result into `folder`, with the figures found there inside it, and the lab beside it."""
    if shown_in_lab(entries):
        write_lab(folder / LAB)
    (folder / PAGE).write_text(page(entries, folder), encoding="utf-8")


def page(entries: Sequence[Entry], folder: Path) -> str:
    """The page's text."""
    results = [entry.result for entry in entries if entry.result is not None]
    verdicts = [result.verdict for result in results]
    latest = max(results, key=lambda result: result.finished, default=None)
    versions = latest.versions if latest else {}
    facts = [f"{duration(sum(result.seconds for result in results))} of computing"]
    if latest is not None:
        facts += [f"at {_sizes({result.effort for result in results})}", _moment(latest.finished)]
    unfinished = {
        resume_command(effort): ids
        for effort in Effort
        if (ids := [entry.id for entry in entries if entry.unfinished is effort])
    }
    cited = {label.split()[0] for entry in entries for label in entry.labels}
    filters: dict[str, Callable[..., Any]] = {
        "kind": lambda verdict: verdict.name.lower().replace("_", "-"),
        "anchor": lambda entry: entry.id.replace(" ", "-"),
        "duration": duration,
        "number": _number,
        "bound": _bound,
        "checked": _checked,
        "made": lambda result: _made(result, versions),
        "image": lambda picture: _image(picture, folder),
        "lab_links": lambda entry: lab_links(entry.id),
    }
    return render(
        "marginlens_papers.report",
        "page.html",
        filters,
        title=tally(verdicts) + ", incomplete" * bool(unfinished),
        marks=MARKS,
        counts={verdict: verdicts.count(verdict) for verdict in Verdict},
        facts=facts,
        unfinished=unfinished,
        entries=entries,
        model=ModelSection.of(folder),
        lab=LAB if shown_in_lab(entries) else "",
        papers=[paper for paper in SOURCES.values() if paper.key in cited],
        versions=versions,
    )


class LabLink(NamedTuple):
    """What a preset of the lab shows, and its address beside the report's page."""

    title: str
    address: str


def lab_links(claim_id: str) -> list[LabLink]:
    """The presets of the lab that show a claim's problems in the plane."""
    return [LabLink(preset.title, LAB + permalink(preset)) for preset in presets() if preset.claim == claim_id]


def shown_in_lab(entries: Sequence[Entry]) -> bool:
    """Whether the lab shows a problem of some entry with a result."""
    known = {preset.claim for preset in presets()}
    return any(entry.result is not None and entry.id in known for entry in entries)


class _Image(NamedTuple):
    address: str
    width: int


def _image(picture: Picture, folder: Path) -> _Image | None:
    """The figure inside an address, and its width on the screen; None where its file is missing."""
    try:
        image = (folder / picture.png).read_bytes()
    except FileNotFoundError:
        return None
    width = round(int.from_bytes(image[16:20], "big") * _SCREEN_DOTS / DOTS_PER_INCH)  # a PNG's header starts so
    return _Image(data_address(image, "image/png"), width)


def _made(result: ClaimResult, versions: Mapping[str, str]) -> str:
    """How long a result took and when it was made, with the versions that differ from the latest result's."""
    size = " at reduced sizes" if result.effort is Effort.QUICK else ""
    others = [f"{name} {value}" for name, value in result.versions.items() if versions.get(name) != value]
    return ", ".join([f"{duration(result.seconds)}{size}", _moment(result.finished), *others])


def _checked(check: BoundCheck) -> str:
    if check.as_stated:
        return "✓ as the paper states" if check.holds else "✗ not as the paper states"
    return "✓ holds" if check.holds else "✗ does not hold"


def _bound(bound: Bound) -> str:
    return str(bound).replace("-", "−").replace(" ", "\N{NO-BREAK SPACE}", 1)  # its sign stays with its number


def _moment(iso: str) -> str:
    moment = datetime.fromisoformat(iso)
    return f"{moment.day} {moment:%B %Y, %H:%M} UTC"


def _number(value: float) -> str:
    """A number with six significant digits and a true minus sign; "not found" when it is nan."""
    return "not found" if value != value else f"{value:.6g}".replace("-", "−")


def _sizes(efforts: set[Effort]) -> str:
    """At which sizes the claims were run."""
    if efforts == {Effort.PAPER}:
        return "the papers' own sizes"
    return (
        "reduced sizes (--quick)" if efforts == {Effort.QUICK} else "the papers' own sizes and reduced ones, as marked"
    )
