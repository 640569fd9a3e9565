"""How the training of a vision transformer is watched: a bar in a terminal, a line for every epoch elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from marginlens.vision.results import EpochRecord


@contextmanager
def watched(epochs: int) -> Iterator[Callable[[EpochRecord], None]]:
    """A watcher for `train_vision`: a bar where standard error is a terminal and rich is installed, else lines on standard output."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        yield _line(epochs)
        return
    if not sys.stderr.isatty():
        yield _line(epochs)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=epochs)

        def show(record: EpochRecord) -> None:
            told = f"accuracy {record.test_accuracy:.3f}, nnz/T {record.sparsity[-1]:.3f}, ‖W‖ {record.norm[-1]:.4g}"
            bar.update(task, completed=record.epoch, description=told)

        yield show


def _line(epochs: int) -> Callable[[EpochRecord], None]:
    return lambda record: print(f"{record} of {epochs} epochs", flush=True)
