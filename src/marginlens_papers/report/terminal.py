"""The report in the terminal: one progress bar per running claim, one line per finished one, and the ledger as a table."""

from __future__ import annotations

from collections.abc import Iterable

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from marginlens.cli._terminal import Bar, Bars, duration
from marginlens.runtime.progress import ProgressCallback
from marginlens_papers.claim import Claim, Verdict
from marginlens_papers.report.formulas import plain
from marginlens_papers.report.ledger import MARKS, Entry
from marginlens_papers.report.run import Watcher

_COLOURS: dict[Verdict, str] = {
    Verdict.REPRODUCED: "green",
    Verdict.REPRODUCED_WITH_NOTE: "blue",
    Verdict.PARTLY_REPRODUCED: "magenta",
    Verdict.NOT_REPRODUCED: "bold red",
    Verdict.ASSUMPTION_NOT_MET: "yellow",
}
_WIDE = 110  # letters of a terminal from which on all columns of the ledger are shown
_MEASURED = 150  # letters of what was measured that the ledger shows on the terminal


class ClaimBars(Bars, Watcher):
    """A run of claims on a console; use it in a `with` block."""

    def __init__(self) -> None:
        super().__init__()
        self._running: dict[str, Bar] = {}

    def begin(self, claim: Claim) -> ProgressCallback:
        """Show the bar of a claim that starts."""
        self._running[claim.id] = self.bar(f"{claim.id}  {plain(claim.title)}")
        return self._running[claim.id]

    def finish(self, entry: Entry) -> None:
        """Replace the bar of a claim by its result."""
        self._running.pop(entry.id).remove()
        if entry.result is not None:
            time = duration(entry.result.seconds)
            self.console.print(
                f"{_verdict(entry)}  [bold]{escape(entry.id)}[/]  {escape(plain(entry.title))}  [dim]{time}[/]"
            )
            if entry.result.verdict in (Verdict.NOT_REPRODUCED, Verdict.PARTLY_REPRODUCED) and entry.result.note:
                self.console.print(f"   {escape(plain(entry.result.note))}")


def ledger_table(entries: Iterable[Entry], width: int = _WIDE) -> Table:
    """The ledger, one row per claim; on a narrow terminal without what the paper says and what was measured, which the page has."""
    table = Table(title="The ledger", title_justify="left", title_style="bold", show_lines=True)
    numbers = ("paper", "measured") if width >= _WIDE else ()
    for name in ("claim", "statement", *numbers, "verdict"):
        table.add_column(name, overflow="fold")
    table.add_column("time", justify="right", no_wrap=True)
    for entry in entries:
        measured = Text(_shortened(plain(entry.result.measured))) if entry.result else ""
        table.add_row(
            f"[bold]{escape(entry.id)}[/]\n[dim]{escape(entry.label)}{_package(entry)}[/]",
            Text(plain(entry.title)),
            *((Text(plain(entry.paper_value)), measured) if numbers else ()),
            _verdict(entry),
            duration(entry.result.seconds) if entry.result else "",
        )
    return table


def _package(entry: Entry) -> str:
    return f"\nfrom {escape(entry.package)}" if entry.package else ""


def _shortened(text: str) -> str:
    """The beginning of a long text, cut after a word; the page has all of it."""
    return text if len(text) <= _MEASURED else text[:_MEASURED].rsplit(" ", 1)[0].rstrip(",;:. ") + " …"


def _verdict(entry: Entry) -> str:
    if entry.result is None:
        return "[dim]not run[/]"
    verdict = entry.result.verdict
    earlier = "" if entry.unfinished is None else "\n[dim]of an earlier run[/]"
    return f"[{_COLOURS[verdict]}]{MARKS[verdict]} {verdict.value}[/]{earlier}"
