"""The terminal: a console, progress bars, and tables of rows and of facts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Display
from rich.table import Table
from rich.text import Text

from marginlens.cli._commands import is_quiet, takes
from marginlens.result.quantities import counted as counted  # noqa: PLC0414  which commands take from here, as they take tables

_FIRST_LINE_SECONDS = 10.0  # before which nothing is said where the output is no terminal
_MIN_WIDTH = 120  # of a table, where the output is no terminal


def console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal; where there is none, wide enough for a table. With --quiet it prints nothing."""
    quiet = is_quiet()
    made = Console(stderr=stderr, highlight=False, quiet=quiet)
    if made.is_terminal:
        return made
    return Console(stderr=stderr, highlight=False, quiet=quiet, width=max(_MIN_WIDTH, made.width))


class Line(str):
    """A sentence that stays in one line, however long it is."""


def show(blocks: Iterable[Any]) -> None:
    """Print sentences and tables one below the other; nothing with --quiet."""
    out = console()
    for block in blocks:
        out.print(block, markup=False, soft_wrap=isinstance(block, Line))


def bold(sentence: str) -> Text:
    """A sentence that stands out."""
    return Text(sentence, style="bold")


def indented(text: str) -> Padding:
    """A text whose lines all start two columns to the right."""
    return Padding(Text(text), (0, 0, 0, 2), expand=False)


def say(sentence: str) -> None:
    """Print a sentence in one line, however long it is; nothing with --quiet."""
    show([Line(sentence)])


class Bar:
    """A progress bar: a callback `bar(done, total)`."""

    def __init__(self, display: Display, title: str) -> None:
        self._display = display
        self._task = display.add_task(title, total=None)

    def __call__(self, done: int, total: int) -> None:
        self._display.update(self._task, completed=done, total=total or None)

    def remove(self) -> None:
        """Take the bar away."""
        self._display.remove_task(self._task)


class _Rate(ProgressColumn):
    """Problems a second."""

    def render(self, task: Any) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f} problems/s")


class Bars(Display):
    """Progress bars on stderr; where it is no terminal, a line after 10, 30, 70, … s instead. Use it in a `with` block.

    Args:
        rates: whether they count problems, whose rate and the time left are shown, and are silent without a terminal.
    """

    def __init__(self, *, rates: bool = False) -> None:
        on, title = console(stderr=True), TextColumn("{task.description}", markup=False)
        last = (_Rate(), TimeRemainingColumn()) if rates else (TimeElapsedColumn(),)
        columns = (SpinnerColumn(), title, BarColumn(), MofNCompleteColumn(), *last)
        off = not on.is_terminal or on.quiet
        super().__init__(*columns, console=on, transient=True, disable=off, speed_estimate_period=60.0)
        self._speaks = off and not rates and not on.quiet and not os.environ.get("MARGINLENS_QUIET")
        self._ended = Event()

    def start(self) -> None:
        """Show the bars, or say from time to time how far they are."""
        super().start()
        if self._speaks:
            Thread(target=self._speak, daemon=True).start()

    def stop(self) -> None:
        """Take all bars away."""
        self._ended.set()
        if not self.disable:
            super().stop()

    def _speak(self) -> None:
        seconds, pause = 0.0, _FIRST_LINE_SECONDS
        while not self._ended.wait(pause):
            seconds, pause = seconds + pause, 2.0 * pause
            for task in self.tasks[-1:]:
                count = "" if task.total is None else f", {task.completed:,.0f} of {task.total:,.0f}"
                typer.echo(f"marginlens: {task.description}{count} after {seconds:.0f} s ...", err=True)

    def bar(self, title: str) -> Bar:
        """A bar for one computation."""
        return Bar(self, title)


@contextmanager
def stage(title: str, *, rates: bool = False) -> Iterator[Bar]:
    """A bar on stderr while one part of the work is done; it is gone before results are printed."""
    with Bars(rates=rates) as bars:
        yield bars.bar(title)


class RowsTable:
    """Flat rows with the same keys as a table below its title; the last columns are named instead where the terminal is too narrow."""

    def __init__(self, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self.title, self.rows = title, rows
        self.names = list(dict.fromkeys(name for row in rows for name in row))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The title, the table, and which columns are missing."""
        shown = self._fitting(options.max_width)
        yield Text(self.title, style="bold")
        yield self._table(shown)
        if len(shown) < len(self.names):
            missing = ", ".join(name.replace("_", " ") for name in self.names[len(shown) :])
            yield Text(f"Too narrow for {missing}{'; --json has all' if takes('--json') else ''}.", style="dim")

    def _fitting(self, width: int) -> list[str]:
        """The first columns, as many as fit with every word whole; one at least."""
        left = width - 1
        for place, name in enumerate(self.names):
            words = [name.replace("_", " "), *(_cell(row.get(name)) for row in self.rows)]
            left -= 3 + max((cell_len(word) for text in words for word in text.split()), default=0)
            if left < 0:
                return self.names[: max(place, 1)]
        return self.names

    def _table(self, names: list[str]) -> Table:
        table = Table()
        for name in names:
            if all(isinstance(row.get(name), int | float | None) for row in self.rows):
                table.add_column(Text(name.replace("_", " ")), justify="right", no_wrap=True)
            else:
                table.add_column(Text(name.replace("_", " ")), overflow="fold")
        for row in self.rows:
            table.add_row(*(Text(_cell(row.get(name))) for name in names))
        return table


def rows_table(title: str, rows: Sequence[Mapping[str, Any]]) -> RowsTable:
    """Rows as a table; numbers are right-aligned and rounded to four digits, long texts wrap."""
    return RowsTable(title, rows)


def facts_table(title: str, facts: Mapping[str, str]) -> Group:
    """Named facts about one thing, one per line, below their title."""
    table = Table(show_header=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, text in facts.items():
        table.add_row(Text(name), Text(text))
    return Group(Text(title, style="bold"), table)


def duration(seconds: float) -> str:
    """A time as people say it: 0.4 s, 12 s, 3 min 4 s, 1 h 2 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
