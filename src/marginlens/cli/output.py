"""The output of a command: text or JSON on stdout, progress on stderr."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import typer

from marginlens.words import text

if TYPE_CHECKING:
    from marginlens.runtime.progress import ProgressCallback

# Nothing is printed earlier if the output is not a terminal.
FIRST_LINE_SECONDS = 10.0


@dataclass(frozen=True)
class Output:
    """The output of a command.

    Args:
        as_json: print numbers as JSON on stdout, and no text.

        quiet: print no text, progress or warnings.
    """

    as_json: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        if self.quiet:
            warnings.simplefilter("ignore", UserWarning)

    def show(self, numbers: object, lines: Iterable[str] = (), files: Sequence[object] = ()) -> None:
        """Print an answer: its text line by line and the files that were written, or its numbers as JSON.

        Args:
            numbers: a result, or any JSON value.

            lines: the text. An iterator may add to `numbers`, so it is read to its end even if its text is not printed.

            files: paths of files that were written; None for files that were not requested.
        """
        for line in lines:
            if not (self.as_json or self.quiet):
                typer.echo(line)
        if self.as_json:
            typer.echo(json_text(numbers))
            return
        for path in files:
            if path is not None:
                self.say(text("cli.written", path=str(path)))

    def say(self, sentence: str) -> None:
        """Print a sentence on stdout unless --quiet is given."""
        if not self.quiet:
            typer.echo(sentence)

    @contextmanager
    def stage(self, title: str) -> Iterator[ProgressCallback]:
        """Show a progress bar on stderr while a part of the work is done."""
        with Bars(quiet=self.quiet) as bars:
            yield bars.bar(title)


def json_text(numbers: object) -> str:
    """Write `numbers` as JSON in which every number is finite; others become null."""
    from marginlens.result import jsonable

    is_utf = (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")
    return json.dumps(jsonable(numbers), indent=2, allow_nan=False, ensure_ascii=not is_utf)


class Bars:
    """Progress bars on stderr, or a line after 10, 30, 70, … seconds if that is not a terminal. Use it in a `with` block."""

    def __init__(self, *, quiet: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self.console = Console(stderr=True, highlight=False, quiet=quiet)
        title = TextColumn("{task.description}", markup=False)
        columns = (SpinnerColumn(), title, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        hidden = quiet or not self.console.is_terminal
        self._display = Progress(*columns, console=self.console, transient=True, disable=hidden)
        self._prints_lines = hidden and not quiet and not os.environ.get("MARGINLENS_QUIET")
        self._ended = Event()

    def __enter__(self) -> Any:
        self._display.start()
        if self._prints_lines:
            Thread(target=self._print_lines, daemon=True).start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._ended.set()
        if not self._display.disable:
            self._display.stop()

    def bar(self, title: str) -> Bar:
        """Show a bar for one computation."""
        return Bar(self._display, title)

    def _print_lines(self) -> None:
        seconds, pause = 0.0, FIRST_LINE_SECONDS
        while not self._ended.wait(pause):
            seconds, pause = seconds + pause, 2.0 * pause
            for task in self._display.tasks[-1:]:
                count = "" if task.total is None else f", {task.completed:,.0f} of {task.total:,.0f}"
                typer.echo(f"marginlens: {task.description}{count} after {seconds:.0f} s ...", err=True)


class Bar:
    """A progress bar: a callback `bar(done, total)`."""

    def __init__(self, display: Any, title: str) -> None:
        self._display = display
        self._task = display.add_task(title, total=None)

    def __call__(self, done: int, total: int) -> None:
        self._display.update(self._task, completed=done, total=total or None)

    def remove(self) -> None:
        """Remove the bar."""
        self._display.remove_task(self._task)
