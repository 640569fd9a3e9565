"""The report in the terminal: one progress bar per running claim, and one line per claim of the ledger."""

from __future__ import annotations

from rich.markup import escape

from marginlens.cli.output import Bar, Bars
from marginlens.runtime.progress import ProgressCallback
from marginlens_papers.claim import Claim, Verdict
from marginlens_papers.report.formulas import plain
from marginlens_papers.report.ledger import MARKS, Entry
from marginlens_papers.report.page import duration, in_two
from marginlens_papers.report.run import Watcher

_COLOURS: dict[Verdict, str] = {
    Verdict.HOLDS_AS_STATED: "green",
    Verdict.HOLDS_BY_OUR_OWN_BOUNDS: "cyan",
    Verdict.HOLDS_WITH_CAVEATS: "blue",
    Verdict.HOLDS_IN_PART: "magenta",
    Verdict.DOES_NOT_HOLD: "bold red",
    Verdict.ASSUMPTION_NOT_MET: "yellow",
}
_WIDTH = max(len(verdict.title) for verdict in Verdict)


class ClaimBars(Bars, Watcher):
    """A run of claims on a console; use it in a `with` block."""

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self._running: dict[str, Bar] = {}

    def begin(self, claim: Claim) -> ProgressCallback:
        """Show the bar of a claim that starts."""
        self._running[claim.id] = self.bar(f"{claim.id}  {plain(claim.title)}")
        return self._running[claim.id]

    def finish(self, entry: Entry) -> None:
        """Replace the bar of a claim by its result, with the first sentence of its note if it does not hold."""
        self._running.pop(entry.id).remove()
        self.console.print(ledger_line(entry), soft_wrap=True)
        explained = (Verdict.DOES_NOT_HOLD, Verdict.HOLDS_IN_PART)
        if entry.result is not None and entry.result.note and entry.result.verdict in explained:
            self.console.print(f"   {escape(plain(in_two(entry.result.note).short))}", soft_wrap=True)


def ledger_line(entry: Entry) -> str:
    """Verdict, id, title and time of a claim in one line of rich's markup; the page has its numbers."""
    result = entry.result
    mark = f"[{_COLOURS[result.verdict]}]{MARKS[result.verdict]}" if result else "[dim] "
    details = [f"from {entry.package}"] if entry.package else []
    details += ["an earlier run's"] if result and entry.unfinished else []
    details += [duration(result.seconds)] if result else []
    title, more = escape(plain(entry.title)), escape(", ".join(details))
    return f"{mark} {entry.verdict:<{_WIDTH}}[/]  [bold]{escape(entry.id):<5}[/]  {title}  [dim]{more}[/]"
