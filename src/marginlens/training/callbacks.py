"""What a training run reports as it goes: the record of each epoch, and the run so far with each checkpoint."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from marginlens.errors import reject


@dataclass(frozen=True)
class Callbacks:
    """`epoch` gets every epoch's record; `saved` gets the run so far whenever a checkpoint is written or would be."""

    epoch: Callable[[Any], None] = lambda record: None
    saved: Callable[[Any], None] | None = None


Callback = Callable[[Any], None] | Callbacks


def as_callbacks(callback: Any) -> Callbacks:
    """`Callbacks` as they are, a function as the one that gets every epoch's record, None as nothing."""
    if callback is None:
        return Callbacks()
    if isinstance(callback, Callbacks):
        return callback
    if not callable(callback):
        raise reject("callback", "a function of an epoch's record, or Callbacks", repr(callback))
    return Callbacks(callback)


@contextmanager
def epoch_display(
    epochs: int, describe: Callable[[Any], str], *, seconds_between: float = 0.0
) -> Iterator[Callable[[Any], None]]:
    """A callback that shows records: a bar where standard error is a terminal and rich is installed, else lines on standard output.

    Args:
        describe: the text beside the bar. seconds_between: least time from one line to the next.
    """
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        bar = False
    else:
        bar = sys.stderr.isatty()
    if not bar:
        yield _line_printer(epochs, seconds_between)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=epochs)
        yield lambda record: progress.update(task, completed=record.epoch, description=describe(record))


def _line_printer(epochs: int, seconds_between: float) -> Callable[[Any], None]:
    """Prints the first epoch, the last, and others when the last line is old enough."""
    printed = float("-inf")

    def show(record: Any) -> None:
        nonlocal printed
        if record.epoch in (1, epochs) or time.monotonic() - printed >= seconds_between:
            printed = time.monotonic()
            print(f"{record} of {epochs} epochs", flush=True)

    return show
