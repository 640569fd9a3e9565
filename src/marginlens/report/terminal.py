"""The report in the terminal: one progress bar per running claim, one line per finished one, and the ledger as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Display
from rich.table import Table

from marginlens.experiments.claim import Claim, Progress, Verdict
from marginlens.report.entry import Entry
from marginlens.report.rows import Column, Rows
from marginlens.report.wording import MARKS, duration

_COLOURS: dict[Verdict, str] = {
    Verdict.REPRODUCED: "green",
    Verdict.REPRODUCED_WITH_NOTE: "blue",
    Verdict.PARTLY_REPRODUCED: "magenta",
    Verdict.NOT_REPRODUCED: "bold red",
    Verdict.ASSUMPTION_NOT_MET: "yellow",
}
_NARROWEST = 120


def console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal; where there is none, wide enough for a table."""
    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=max(_NARROWEST, made.width))


class Bar:
    """The progress of one computation, shown as one bar."""

    def __init__(self, display: Display, title: str) -> None:
        self._display = display
        self._task: TaskID = display.add_task(escape(title), total=None)

    def expect(self, total: int) -> None:
        """Say how many units of work there are."""
        self._display.update(self._task, total=total)

    def advance(self, units: int = 1) -> None:
        """Say that this many more units are done."""
        self._display.advance(self._task, units)

    def remove(self) -> None:
        """Take the bar away."""
        self._display.remove_task(self._task)


class Bars:
    """The watcher that shows a run of claims on a console, bars only where it is a terminal; use it in a `with` block."""

    def __init__(self, on: Console) -> None:
        self._console = on
        self._display = Display(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=on,
            transient=True,
            disable=not on.is_terminal,
        )
        self._running: dict[str, Bar] = {}

    def __enter__(self) -> Bars:
        if not self._display.disable:
            self._display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._display.disable:
            self._display.stop()

    def bar(self, title: str) -> Bar:
        """A bar for a computation that is no claim."""
        return Bar(self._display, title)

    def begin(self, claim: Claim) -> Progress:
        """Show the bar of a claim that starts."""
        self._running[claim.id] = self.bar(f"{claim.id}  {claim.title}")
        return self._running[claim.id]

    def finish(self, entry: Entry) -> None:
        """Replace the bar of a claim by its result."""
        self._running.pop(entry.id).remove()
        if entry.result is not None:
            time = duration(entry.result.seconds)
            self._console.print(
                f"{_verdict(entry)}  [bold]{escape(entry.id)}[/]  {escape(entry.title)}  [dim]{time}[/]"
            )
            if entry.result.verdict in (Verdict.NOT_REPRODUCED, Verdict.PARTLY_REPRODUCED) and entry.result.note:
                self._console.print(f"   {escape(entry.result.note)}")


_MEASURED = 150  # letters of what was measured that the ledger shows on the terminal


def ledger_table(entries: Iterable[Entry]) -> Rows:
    """The ledger, one row per claim."""
    rows = [
        (
            f"[bold]{escape(entry.id)}[/]\n[dim]{escape(entry.label)}[/]",
            escape(entry.title),
            escape(entry.paper_value),
            escape(_shortened(entry.result.measured)) if entry.result else "",
            _verdict(entry),
            duration(entry.result.seconds) if entry.result else "",
        )
        for entry in entries
    ]
    names = ("claim", "statement", "paper", "measured", "verdict", "time")
    columns = [Column(name, [row[k] for row in rows], numeric=name == "time") for k, name in enumerate(names)]
    return Rows("The ledger", columns, show_lines=True)


def _shortened(text: str) -> str:
    """The beginning of a long text, cut after a word; the page has all of it."""
    return text if len(text) <= _MEASURED else text[:_MEASURED].rsplit(" ", 1)[0].rstrip(",;:. ") + " …"


def rows_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Rows:
    """Flat rows with the same keys as a table; numbers are right-aligned and rounded to four digits."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = []
    for name in names:
        numeric = all(isinstance(row.get(name), int | float | None) for row in rows)
        cells = [_alone(_cell(row.get(name))) for row in rows]
        columns.append(Column(escape(name.replace("_", " ")), cells, numeric))
    return Rows(title, columns)


def facts_table(title: str, facts: Mapping[str, str]) -> Table:
    """Named facts about one thing, one per line."""
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, text in facts.items():
        table.add_row(escape(name), _alone(text))
    return table


def _verdict(entry: Entry) -> str:
    if entry.result is None:
        return "[dim]not run[/]"
    verdict = entry.result.verdict
    earlier = "" if entry.unfinished is None else "\n[dim]of an earlier run[/]"
    return f"[{_COLOURS[verdict]}]{MARKS[verdict]} {verdict.value}[/]{earlier}"


def _alone(text: str) -> str:
    """`text` as markup that nothing follows: `escape` doubles a single last backslash in case a tag does."""
    return escape(text)[:-1] if text.endswith("\\") and not text.endswith("\\\\") else escape(text)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
