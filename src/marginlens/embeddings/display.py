"""How a training run is watched: a bar with loss and rank correlations in a terminal, plain lines everywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from marginlens.embeddings.results import EpochRecord

_BETWEEN_LINES = 5.0  # seconds


@contextmanager
def watched(epochs: int) -> Iterator[Callable[[EpochRecord], None]]:
    """A watcher for `train_embeddings`: a bar where standard error is a terminal and rich is installed, else lines on standard output."""
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        Progress = None  # type: ignore[assignment, misc]
    if Progress is None or not sys.stderr.isatty():
        yield Lines(epochs)
        return
    from rich.console import Console

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=epochs)

        def show(record: EpochRecord) -> None:
            told = f"loss {record.loss:.4g}, Spearman {record.correlation_v:+.3f} (v) {record.correlation_p:+.3f} (p)"
            bar.update(task, completed=record.epoch, description=told)

        yield show


class Lines:
    """Progress as plain lines: the first epoch, the last, and what comes between them every few seconds."""

    def __init__(self, epochs: int) -> None:
        self.epochs, self.last = epochs, 0.0

    def __call__(self, record: EpochRecord) -> None:
        now = time.monotonic()
        if record.epoch in (1, self.epochs) or now - self.last > _BETWEEN_LINES:
            self.last = now
            print(f"{record} of {self.epochs} epochs", flush=True)
