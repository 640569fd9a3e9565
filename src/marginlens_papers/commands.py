"""`marginlens reproduce` and `marginlens claims`: run the claims of the papers, and list them with their last results."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marginlens.cli.options import AsJson, Quiet
from marginlens.cli.output import Output
from marginlens.errors import InputError
from marginlens.words import text

if TYPE_CHECKING:
    from marginlens_papers.claim import Claim, Effort
    from marginlens_papers.report import Report

_EXIT_NOT_REPRODUCED = 1
_WORKERS = 4  # processes that compute claims side by side, at most
_REPORT = Path("report")
_CLAIM = re.compile(r'^    "([A-Z]-\w+)": "', re.MULTILINE)


def claim_ids(incomplete: str) -> list[str]:
    """The claims whose ids begin with this, also those of installed packages; after a comma another one.

    They are read from the catalogue as text: importing it would take seconds.
    """
    from marginlens.runtime.packs import CLAIMS, pack_names

    before, comma, last = incomplete.rpartition(",")
    catalogue = Path(__file__).with_name("claims") / "catalogue.py"
    known = [*_CLAIM.findall(catalogue.read_text(encoding="utf-8")), *pack_names(CLAIMS)]
    return [f"{before}{comma}{name}" for name in known if name.lower().startswith(last.lower())]


def reproduce(
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID",
            help="Claim to run; repeat it or separate ids by commas for several.",
            autocompletion=claim_ids,
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Reduced sizes: a few seconds per claim.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Run the claims that an interrupted run left unfinished, at its sizes.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", "--output", metavar="FOLDER", help="Folder of the report.")] = _REPORT,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run the papers' claims and write the report.

    Print a line for each claim that ends. The report exists after the first claim and grows with the others. With --only and
    --resume, the other claims keep the results that it already holds. Claims draw their random numbers from seeds of their own,
    so every run gives the same numbers.

    Exit codes: 0 done, 1 a claim failed unexpectedly, 2 an argument, option or file cannot be used, 130 interrupted.

    \b
    Examples:
      marginlens reproduce --quick
      marginlens reproduce --only A-F9,C-T2 --out my-report
      marginlens reproduce --resume
      marginlens reproduce --quick --quiet && echo nothing new fails
    """
    output = Output(as_json, quiet)
    try:
        published = _published(only, quick, resume, out, quiet)
    except KeyboardInterrupt as interruption:
        raise KeyboardInterrupt(str(interruption) or text("report.run.untouched")) from None
    from marginlens_papers.report.page import found_sentence

    tally, page = found_sentence(published.entries), _shown(published.page)
    answer = {"claims": [entry.to_dict() for entry in published.entries], "tally": tally}
    answer |= {"ran": list(published.ran), "failed": [entry.id for entry in published.failures], "report": page}
    output.show(answer, [tally, text("cli.written", path=page), *([published.beside] if published.beside else [])])
    if missing := [entry.id for entry in published.unfinished]:
        typer.echo(text("report.run.incomplete", claims=_listed(missing)), err=True)
    if published.failures:
        raise typer.Exit(_EXIT_NOT_REPRODUCED)


def _published(only: list[str] | None, quick: bool, resume: bool, out: Path, quiet: bool) -> Report:
    """Run the claims that are asked for, and write their report."""
    from marginlens.runtime.threads import n_threads
    from marginlens_papers import report
    from marginlens_papers.claim import Effort
    from marginlens_papers.claims import catalogue
    from marginlens_papers.report.model_page import write_model_page
    from marginlens_papers.report.terminal import ClaimBars

    effort = Effort.QUICK if quick else Effort.PAPER
    chosen = catalogue.chosen([name for group in only or () for name in group.split(",")]) if only else None
    if resume:
        chosen = _unfinished(out, effort, only)
    entries = report.ledger(out)
    whole = chosen is None or (resume and all(entry.result or entry.unfinished for entry in entries))
    if not resume and (missing := [entry.id for entry in entries if entry.unfinished]):
        typer.echo(text("report.run.earlier_unfinished", claims=_listed(missing)), err=True)
    with ClaimBars(quiet=quiet) as bars:

        def model_page(folder: Path, size: Effort) -> str:
            return write_model_page(folder, size, bars.bar("A real model"))

        try:
            return report.reproduce(
                catalogue.known_claims() if chosen is None else chosen,
                out,
                effort=effort,
                retained=() if chosen is None else catalogue.known_claims(),
                watcher=bars,
                workers=min(n_threads(), _WORKERS),
                beside=model_page if whole else None,
            )
        except report.Interrupted as interruption:
            raise KeyboardInterrupt(_after_interruption(interruption.report, effort, out)) from None


def claims(
    folder: Annotated[Path, typer.Option("--report", metavar="FOLDER", help="Report to take results from.")] = _REPORT,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """List every claim with its last result.

    \b
    Examples:
      marginlens claims
      marginlens claims --report my-report --json
    """
    from rich.console import Console

    from marginlens_papers import report
    from marginlens_papers.report.terminal import ledger_line

    if folder.exists() and not folder.is_dir():
        raise InputError("folder", "a folder with a report", f"the file {str(folder)!r}")
    entries = report.ledger(folder)
    if as_json:
        Output(as_json).show([entry.to_dict() for entry in entries])
        return
    screen = Console(highlight=False, quiet=quiet)
    for entry in entries:
        screen.print(ledger_line(entry), soft_wrap=True)
    if not any(entry.result for entry in entries):
        place = "" if folder == _REPORT else f" --out {shlex.quote(str(folder))}"
        command = f"marginlens reproduce{place}"
        typer.echo(text("report.run.no_report", folder=str(folder), command=command), err=True)
    for effort in sorted({entry.unfinished for entry in entries if entry.unfinished}, key=lambda item: item.name):
        missing = [entry.id for entry in entries if entry.unfinished is effort]
        unfinished = text("report.run.unfinished", claims=_listed(missing), command=_resuming(effort, folder))
        typer.echo(unfinished, err=True)


COMMANDS = (reproduce, claims)  # of the package, for the command line of the library


def _unfinished(out: Path, effort: Effort, only: list[str] | None) -> tuple[Claim, ...]:
    """The claims that an interrupted run of this effort left unfinished in the report at `out`."""
    from marginlens_papers import report
    from marginlens_papers.claims import catalogue

    if only:
        raise InputError("resume", "given without --only", "both", "Leave one of them out.")
    efforts = {entry.id: entry.unfinished for entry in report.ledger(out)}
    found = tuple(claim for claim in catalogue.known_claims() if efforts[claim.id] is effort)
    if not found:
        other = next((other for other in efforts.values() if other), None)
        got = f"{str(out)!r}, which has none" if other is None else f"another size in {str(out)!r}"
        remedy = "" if other is None else text("report.run.resume_other", command=_resuming(other, out))
        raise InputError("resume", "given after an interrupted run that had finished a claim", got, remedy)
    return found


def _after_interruption(published: Report, effort: Effort, out: Path) -> str:
    """What an interrupted run leaves behind."""
    n_finished, n_missing = len(published.ran), sum(entry.unfinished is effort for entry in published.entries)
    if not n_missing:
        return text("report.run.all_finished", count=n_finished, page=_shown(published.page))
    numbers = {"count": n_finished, "total": n_finished + n_missing}
    return text("report.run.some_finished", **numbers, page=_shown(published.page), command=_resuming(effort, out))


def _resuming(effort: Effort, out: Path) -> str:
    """The command that runs what an interrupted run of this effort left unfinished."""
    from marginlens_papers.report.ledger import resume_command

    return resume_command(effort) + ("" if out == _REPORT else f" --out {shlex.quote(str(out))}")


def _listed(ids: list[str], most: int = 8) -> list[str]:
    """The ids, of which only the first few are named if there are many."""
    rest = len(ids) - most + 2
    return ids if len(ids) <= most else [*ids[: most - 2], text("report.run.more_claims", count=rest)]


def _shown(path: Path) -> str:
    """The path relative to the current folder if it is inside it."""
    current = Path.cwd()
    return str(path.relative_to(current) if path.is_relative_to(current) else path)
