"""The terminal: a console, progress bars, and tables of rows and of facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Display
from rich.table import Table

from marginlens.cli.tables import Column, Rows
from marginlens.runtime.progress import Progress

_NARROWEST = 120


def console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal; where there is none, wide enough for a table."""
    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=max(_NARROWEST, made.width))


class Bar(Progress):
    """A progress bar: a callback `bar(done, total)`."""

    def __init__(self, display: Display, title: str) -> None:
        super().__init__(self)
        self._display = display
        self._task: TaskID = display.add_task(escape(title), total=None)

    def __call__(self, done: int, total: int) -> None:
        self._display.update(self._task, completed=done, total=total or None)

    def remove(self) -> None:
        """Take the bar away."""
        self._display.remove_task(self._task)


class Bars:
    """Progress bars on a console, only where it is a terminal; use it in a `with` block."""

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

    def __enter__(self) -> Self:
        if not self._display.disable:
            self._display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._display.disable:
            self._display.stop()

    def bar(self, title: str) -> Bar:
        """A bar for one computation."""
        return Bar(self._display, title)


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


def _alone(text: str) -> str:
    """`text` as markup that nothing follows: `escape` doubles a single last backslash in case a tag does."""
    return escape(text)[:-1] if text.endswith("\\") and not text.endswith("\\\\") else escape(text)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
