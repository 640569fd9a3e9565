"""The report's page: a tile for every claim, which opens to its numbers; figures, lab and other pages are in the same folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from marginlens.lab import permalink, presets, write_lab
from marginlens.pages import render
from marginlens.papers import SOURCES, Paper
from marginlens.words import text, texts, title
from marginlens_papers.claim import Effort, NoteKind, Verdict
from marginlens_papers.claims import catalogue
from marginlens_papers.report.formulas import plain, rendered
from marginlens_papers.report.ledger import MARKS, ClaimResult, Entry, Picture, resume_command, summary, verdict_groups
from marginlens_papers.report.model_page import ModelSection
from marginlens_papers.report.numbers import shown_bound, shown_number
from marginlens_papers.report.thumbnail import SIZE

PAGE, LAB = "index.html", "lab.html"
_SCREEN_DOTS_PER_POINT = 100 / 72  # a figure's letters then match the page's small print


def write_page(entries: Sequence[Entry], folder: Path, place: Path | None = None) -> None:
    """Write the page of the entries that have a result into `folder`, whose figures it shows, and write the lab next to it.

    `place` is the folder's path after publication, if that differs from its path now: a site around it is then linked.
    """
    if shown_in_lab(entries):
        write_lab(folder / LAB)
    (folder / PAGE).write_text(page(entries, folder, place), encoding="utf-8")


def page(entries: Sequence[Entry], folder: Path, place: Path | None = None) -> str:
    """The page's text."""
    results = [entry.result for entry in entries if entry.result is not None]
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
    filters: dict[str, Callable[..., Any]] = {
        "kind": lambda verdict: verdict.value.replace("_", "-"),
        "reason": _reason,
        "anchor": lambda entry: entry.id.replace(" ", "-"),
        "rendered": rendered,
        "number": shown_number,
        "bound": shown_bound,
        "sentence": lambda check: rendered(check.sentence) if check.sentence else check.name.replace("_", " "),
        "checked": lambda check: text(_CHECKED[check.as_stated, check.holds]),
        "in_two": in_two,
        "measured": _measured,
        "made": lambda result: _made(result, versions),
        "image": lambda picture: _image(picture, folder),
        "alt": _alt,
        "caption": _caption,
        "lab_links": lambda entry: lab_links(entry.id),
    }
    return render(
        "marginlens_papers.report",
        "page.html",
        filters,
        title=found_sentence(entries).removesuffix(".") + ", incomplete" * bool(unfinished),
        found=found_sentence(entries),
        marks=MARKS,
        groups=verdict_groups(entries),
        facts=facts,
        n_known=len(catalogue.OWN_IDS),
        n_missing=len(set(catalogue.OWN_IDS) - {entry.id for entry in entries if entry.result}),
        unfinished=unfinished,
        parts=wall_parts(entries),
        tile=_Image(*SIZE),
        model=ModelSection.of(folder),
        lab=LAB if shown_in_lab(entries) else "",
        site=_site_links(place or folder),
        papers=papers(entries),
        keys=list(dict.fromkeys(entry.paper for entry in entries if entry.result or entry.unfinished)),
        versions=versions,
    )


class Part(NamedTuple):
    """A part of the wall: claims whose verdicts are of one kind, in the order of the papers."""

    name: str
    entries: list[Entry]

    @property
    def title(self) -> str:
        """The heading."""
        return title(f"report.part.{self.name}")


_PARTS = {
    Verdict.DOES_NOT_HOLD: "failing",
    Verdict.HOLDS_IN_PART: "partly",
    Verdict.ASSUMPTION_NOT_MET: "untested",
}
_ORDER = ("failing", "partly", "untested", "holding", "not_run")  # what surprises comes first


def wall_parts(entries: Sequence[Entry]) -> list[Part]:
    """The parts of the wall that have a claim; claims that no run was asked for are in none."""
    parts: dict[str, list[Entry]] = {name: [] for name in _ORDER}
    for entry in entries:
        if entry.result:
            parts[_PARTS.get(entry.result.verdict, "holding")].append(entry)
        elif entry.unfinished:
            parts["not_run"].append(entry)
    return [Part(name, part) for name, part in parts.items() if part]


def found_sentence(entries: Sequence[Entry]) -> str:
    """How many claims hold, hold in part and do not hold."""
    counts = {part.name: len(part.entries) for part in wall_parts(entries) if part.name != "not_run"}
    tallies = [text(f"report.part.{name}", count=count) for name, count in counts.items()]
    return text("report.found", ran=sum(counts.values()), parts=tallies)


class PaperSummary(NamedTuple):
    """A paper of the report: what it is, and which of its claims hold."""

    key: str
    title: str
    authors: str
    year: int
    about: str
    summary: str


def papers(entries: Sequence[Entry]) -> list[PaperSummary]:
    """The papers whose claims the entries are, in the order of the bibliography, then those that installed packages bring."""
    found = []
    for paper in dict.fromkeys((*SOURCES.values(), *(entry.source for entry in entries if entry.source))):
        own = [entry for entry in entries if entry.result and _paper(entry) == paper]
        if own:
            code, words = f"report.about.{paper.key.lower()}", f"{summary(own)}."
            about = text(code) if code in texts() else ""
            found.append(PaperSummary(paper.key, paper.title, ", ".join(paper.authors), paper.year, about, words))
    return found


def _paper(entry: Entry) -> Paper | None:
    return entry.source or SOURCES.get(entry.paper)


class Link(NamedTuple):
    """What an address shows, and the address, relative to the report's page."""

    title: str
    address: str


def lab_links(claim_id: str) -> list[Link]:
    """The presets of the lab that show a claim's problems in the plane."""
    return [Link(preset.title, LAB + permalink(preset)) for preset in presets() if preset.claim == claim_id]


def shown_in_lab(entries: Sequence[Entry]) -> bool:
    """Whether the lab shows a problem of some entry with a result."""
    known = {preset.claim for preset in presets()}
    return any(entry.result is not None and entry.id in known for entry in entries)


def _site_links(place: Path) -> list[Link]:
    """The home page of the site that the report lies in, if it does: a folder with Sphinx's list of objects."""
    above = place.resolve().parent
    is_site = (above / "objects.inv").is_file() and (above / "index.html").is_file()
    return [Link("marginlens: the documentation", "../index.html")] if is_site else []


# ---- words


class Folded(NamedTuple):
    """The beginning of a text, and what stands behind it."""

    short: str
    details: str


_ABBREVIATIONS = ("Eq", "Eqs", "Fig", "Figs", "App", "Thm", "cf", "e.g", "i.e")
# letters of what was measured that stand open at least; fewer are not folded away
_MEASURED_SHORT, _MEASURED_REST = (200, 120)


def in_two(note: str, at_least: int = 0) -> Folded:
    """A text as its first sentence, or as many as have so many letters, which the page shows, and what stands behind it."""
    for end in re.finditer(r"\.\s+(?=\S)", note):
        if end.start() >= at_least and not note[: end.start()].endswith(_ABBREVIATIONS):
            return Folded(note[: end.start() + 1], note[end.end() :])
    return Folded(note, "")


def _measured(text: str) -> Folded:
    """What was measured, in two parts if it is long."""
    folded = in_two(text, _MEASURED_SHORT)
    return folded if len(folded.details) >= _MEASURED_REST else Folded(text, "")


def _reason(result: ClaimResult) -> str:
    """Why a claim does not hold as stated, or holds with caveats: the first sentence of its note; nothing if the note is a mere remark."""
    mere = result.verdict is Verdict.HOLDS_BY_OUR_OWN_BOUNDS and result.note_kind is NoteKind.REMARK
    return "" if mere or result.verdict is Verdict.HOLDS_AS_STATED else in_two(result.note).short


def _alt(picture: Picture, entry: Entry) -> str:
    """What is seen in a figure; of a claim that does not say it, which figure it is."""
    return plain(picture.alt or f"{entry.id}, {entry.title}: {picture.name.replace('_', ' ')}")


def _caption(picture: Picture) -> Markup:
    return rendered(picture.caption or picture.name.replace("_", " "))


_CHECKED = {  # by (as_stated, holds)
    (False, True): "claim.check.holds",
    (False, False): "claim.check.fails",
    (True, True): "claim.check.as_stated",
    (True, False): "claim.check.not_as_stated",
}


class _Image(NamedTuple):
    width: int
    height: int


def _image(picture: Picture, folder: Path) -> _Image | None:
    """The size of a figure on the screen in pixels; None if its file is missing or no drawing."""
    path = folder / picture.file
    try:
        sides = _png_points(path) if path.suffix == ".png" else _svg_points(path)
    except (OSError, UnicodeDecodeError):  # Pillow's error is an OSError too
        return None
    return _Image(*(round(side * _SCREEN_DOTS_PER_POINT) for side in sides)) if sides else None


def _svg_points(path: Path) -> list[float]:
    with path.open(encoding="utf-8") as file:
        head = file.read(2000)
    sides = re.search(r'<svg (?=[^>]*\bwidth="([\d.]+)pt")(?=[^>]*\bheight="([\d.]+)pt")', head)
    return [float(side) for side in sides.groups()] if sides else []


def _png_points(path: Path) -> list[float]:
    from PIL import Image

    with Image.open(path) as picture:
        dots = picture.info.get("dpi", ())
        return [72.0 * pixels / per_inch for pixels, per_inch in zip(picture.size, dots, strict=False)]


def _made(result: ClaimResult, versions: Mapping[str, str]) -> str:
    """How long a result took and when it was made, with the versions that differ from the latest result's."""
    size = " at reduced sizes" if result.effort is Effort.QUICK else ""
    others = [f"{name} {value}" for name, value in result.versions.items() if versions.get(name) != value]
    return ", ".join([f"{duration(result.seconds)}{size}", _moment(result.finished), *others])


def duration(seconds: float) -> str:
    """A time in words: 0.4 s, 12 s, 3 min 4 s, 1 h 2 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _moment(iso: str) -> str:
    moment = datetime.fromisoformat(iso)
    return f"{moment.day} {moment:%B %Y, %H:%M} UTC"


def _sizes(efforts: set[Effort]) -> str:
    """At which sizes the claims were run."""
    name = "both" if len(efforts) > 1 else next(iter(efforts)).value
    return text(f"report.sizes.{name}")
