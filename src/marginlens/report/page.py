"""The report as one HTML page that needs nothing else: no script, no network, no other file."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from importlib.resources import files
from pathlib import Path

from marginlens.experiments.claim import Effort, Verdict
from marginlens.papers import SOURCES
from marginlens.report.entry import Check, Entry, Picture, Result
from marginlens.report.figures import DOTS_PER_INCH
from marginlens.report.minilm import model_link, model_section
from marginlens.report.wording import MARKS, duration, number, resume_command, sizes, tally

PAGE = "index.html"
_SCREEN_DOTS = 112  # a figure's inch on the screen: its letters then match the page's small print


def write_page(entries: Sequence[Entry], folder: Path) -> None:
    """Write the page of the entries that have a result into `folder`, with the figures found there inside it."""
    (folder / PAGE).write_text(page(entries, folder), encoding="utf-8")


def page(entries: Sequence[Entry], folder: Path) -> str:
    """The page's text."""
    run = [(entry, entry.result) for entry in entries if entry.result is not None]
    unfinished = [entry for entry in entries if entry.unfinished is not None]
    results = [result for _, result in run]
    latest = max(results, key=lambda result: result.finished, default=None)
    versions = latest.versions if latest else {}
    style = files("marginlens.report").joinpath("page.css").read_text(encoding="utf-8")
    body = [
        _header(results, latest, unfinished),
        _overview(entries, model_link(folder)),
        *(_claim(entry, result, versions, folder) for entry, result in run),
        model_section(folder),
        _footer(entries, versions),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>marginlens: {escape(tally([result.verdict for result in results]))}{', incomplete' * bool(unfinished)}</title>\n"
        f"<style>\n{style}</style>\n</head>\n<body>\n<main>\n{''.join(body)}</main>\n</body>\n</html>\n"
    )


# ---- the summary


def _header(results: Sequence[Result], latest: Result | None, unfinished: Sequence[Entry]) -> str:
    verdicts = [result.verdict for result in results]
    counts = "".join(
        f'<li class="{_kind(verdict)}"><b>{verdicts.count(verdict)}</b> '
        f'<span><span aria-hidden="true">{MARKS[verdict]}</span> {verdict.value}</span></li>'
        for verdict in Verdict
    )
    shares = "".join(
        f'<span class="{_kind(verdict)}" style="flex:{verdicts.count(verdict)}"></span>'
        for verdict in Verdict
        if verdict in verdicts
    )
    facts = [f"{duration(sum(result.seconds for result in results))} of computing"]
    if latest is not None:
        facts += [f"at {sizes({result.effort for result in results})}", _moment(latest.finished)]
    return (
        '<header>\n<p class="brand">marginlens</p>\n'
        "<h1>What the papers say about attention, and what we measured</h1>\n"
        f'<ul class="counts">{counts}</ul>\n<div class="shares" aria-hidden="true">{shares}</div>\n'
        f'<p class="facts">{escape(" · ".join(facts))}</p>\n{_incomplete(unfinished)}</header>\n'
    )


def _incomplete(unfinished: Sequence[Entry]) -> str:
    """Which claims an interrupted run left unfinished, and how to run them; nothing where there is none."""
    if not unfinished:
        return ""
    by_effort = {effort: [entry.id for entry in unfinished if entry.unfinished is effort] for effort in Effort}
    missing = "; ".join(
        f"{escape(', '.join(ids))} (<code>{resume_command(effort)}</code> runs only what is missing)"
        for effort, ids in by_effort.items()
        if ids
    )
    return f'<p class="incomplete"><b>Incomplete.</b> A run was interrupted before it finished {missing}.</p>\n'


def _overview(entries: Sequence[Entry], below: str) -> str:
    rows = "".join(_ledger_row(entry) for entry in entries if entry.result or entry.unfinished)
    return (
        '<section class="overview">\n<h2>The ledger</h2>\n<div class="scroll"><table class="ledger">\n<thead><tr><th scope="col">Claim</th>'
        '<th scope="col">What it says</th><th scope="col">Verdict</th><th scope="col" class="number">Time</th></tr></thead>\n'
        f"<tbody>\n{rows}</tbody>\n</table></div>\n{below}</section>\n"
    )


def _ledger_row(entry: Entry) -> str:
    result = entry.result
    name = escape(entry.id) if result is None else f'<a href="#{_anchor(entry)}">{escape(entry.id)}</a>'
    verdict = "not run" if result is None else _badge(result.verdict)
    if result is not None and entry.unfinished is not None:
        verdict += "<small>of an earlier run</small>"
    return (
        f'<tr><th scope="row">{name}</th><td>{escape(entry.title)}<small>{escape(entry.label)}</small></td>'
        f'<td>{verdict}</td><td class="number">{"" if result is None else duration(result.seconds)}</td></tr>\n'
    )


# ---- one claim


def _claim(entry: Entry, result: Result, versions: Mapping[str, str], folder: Path) -> str:
    rows = [("Protocol", entry.protocol), ("The paper", entry.paper_value), ("Measured", result.measured)]
    if result.note:
        rows.append(("Note", result.note))
    facts = "".join(
        f'<dt>{name}</dt><dd class="{name.split()[-1].lower()}">{escape(text)}</dd>\n' for name, text in rows
    )
    size = " at reduced sizes" if result.effort is Effort.QUICK else ""
    others = [f"{name} {value}" for name, value in result.versions.items() if versions.get(name) != value]
    made = f"{duration(result.seconds)}{size}, {_moment(result.finished)}" + "".join(f", {one}" for one in others)
    return (
        f'<article id="{_anchor(entry)}">\n<header><p class="label"><span>{escape(entry.id)}</span> {escape(entry.label)}</p>'
        f"<h2>{escape(entry.title)}</h2>{_badge(result.verdict)}</header>\n"
        f'<p class="statement">{escape(entry.statement)}</p>\n<dl>\n{facts}</dl>\n'
        f"{_checks(result.checks)}{''.join(_figure(entry, picture, folder) for picture in result.pictures)}"
        f'<p class="again"><code>{escape(entry.command)}</code> <span>{escape(made)}</span></p>\n</article>\n'
    )


def _checks(checks: Sequence[Check]) -> str:
    if not checks:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{escape(check.name).replace("_", "_<wbr>")}</th><td class="number">{number(check.number)}</td>'
        f'<td class="number">{_bound(check)}</td>'
        f'<td class="{"holds" if check.holds else "fails"}">{_checked(check)}</td></tr>\n'
        for check in checks
    )
    return (
        '<div class="scroll"><table class="checks">\n<thead><tr><th scope="col">Number</th><th scope="col" class="number">Measured</th>'
        '<th scope="col" class="number">Must be</th><th scope="col">Verdict</th></tr></thead>\n'
        f"<tbody>\n{rows}</tbody>\n</table></div>\n"
    )


def _figure(entry: Entry, picture: Picture, folder: Path) -> str:
    name = picture.name.replace("_", " ")
    caption = f"<figcaption>{escape(name)} <code>{escape(picture.svg)}</code></figcaption>"
    try:
        image = (folder / picture.png).read_bytes()
    except FileNotFoundError:
        return f"<figure><p>The file {escape(picture.png)} is missing: run the claim again.</p>{caption}</figure>\n"
    width = round(int.from_bytes(image[16:20], "big") * _SCREEN_DOTS / DOTS_PER_INCH)  # a PNG's header starts so
    alternative = escape(f"{entry.id}, {entry.title}: {name}", quote=True)
    source = f"data:image/png;base64,{b64encode(image).decode('ascii')}"
    return f'<figure><img alt="{alternative}" width="{width}" src="{source}">{caption}</figure>\n'


# ---- the end


def _footer(entries: Sequence[Entry], versions: Mapping[str, str]) -> str:
    cited = {label.split()[0] for entry in entries for label in entry.labels}
    papers = "".join(
        f"<dt>{paper.key}</dt><dd>{escape(paper.authors)}: <cite>{escape(paper.title)}</cite>, {paper.year}</dd>\n"
        for paper in SOURCES.values()
        if paper.key in cited
    )
    made = "".join(f"<li>{escape(name)} {escape(version)}</li>" for name, version in versions.items())
    return (
        f"<footer>\n<h2>The papers</h2>\n<dl>\n{papers}</dl>\n<h2>Computed with</h2>\n<ul>{made}</ul>\n"
        "<p>The numbers of this page, and more, are in <code>ledger.json</code> beside it; its figures are in "
        "<code>figures/</code>, as PNG and SVG.</p>\n</footer>\n"
    )


# ---- small parts


def _badge(verdict: Verdict) -> str:
    return (
        f'<span class="badge {_kind(verdict)}"><span aria-hidden="true">{MARKS[verdict]}</span> {verdict.value}</span>'
    )


def _checked(check: Check) -> str:
    if check.as_stated:
        return "✓ as the paper states" if check.holds else "✗ not as the paper states"
    return "✓ holds" if check.holds else "✗ does not hold"


def _bound(check: Check) -> str:
    return escape(str(check.bound)).replace("-", "−").replace(" ", "&nbsp;", 1)  # its sign stays with its number


def _kind(verdict: Verdict) -> str:
    return verdict.name.lower().replace("_", "-")


def _anchor(entry: Entry) -> str:
    return escape(entry.id, quote=True).replace(" ", "-")


def _moment(iso: str) -> str:
    moment = datetime.fromisoformat(iso)
    return f"{moment.day} {moment:%B %Y, %H:%M} UTC"
