"""How a training run is watched: a bar in a terminal, plain lines everywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def watched(epochs: int, told: Callable[[Any], str], *, between: float = 0.0) -> Iterator[Callable[[Any], None]]:
    """A watcher of epoch records: a bar where standard error is a terminal and rich is installed, else lines on standard output.

    Args:
        told: what the bar says beside how far it is. between: at least so many seconds from one line to the next.
    """
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        rich = False
    else:
        rich = sys.stderr.isatty()
    if not rich:
        yield Lines(epochs, between)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=epochs)
        yield lambda record: bar.update(task, completed=record.epoch, description=told(record))


class Lines:
    """Progress as plain lines: the first epoch, the last, and what comes between them every few seconds."""

    def __init__(self, epochs: int, between: float) -> None:
        self.epochs, self.between, self.last = epochs, between, 0.0

    def __call__(self, record: Any) -> None:
        now = time.monotonic()
        if record.epoch in (1, self.epochs) or now - self.last >= self.between:
            self.last = now
            print(f"{record} of {self.epochs} epochs", flush=True)
