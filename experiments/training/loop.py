"""The loop of every long training run: epochs of steps that stop between two steps, report to callbacks and resume from a checkpoint."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

from experiments.training.checkpoint import Checkpoint
from experiments.training.settings import RunSettings
from marginlens.errors import InputError, positive_number, whole_number
from marginlens.runtime.interrupts import deferred_interrupts


class Ending(Enum):
    """Why training stopped."""

    FINISHED = "All epochs are done."
    UNFINISHED = "The run was still going when this was written."
    TIME_LIMIT = "The time limit came before the last epoch; the checkpoint, if there is one, holds where to go on."
    DIVERGED = "The loss or a weight is no longer a finite number, so training stopped; a smaller rate may help."

    def exit_code(self, checkpoint: Path | None) -> int:
        """Of a script: 0 if the run finished, or stopped at its time limit with a checkpoint to go on from."""
        return int(self is not Ending.FINISHED and not (self is Ending.TIME_LIMIT and checkpoint))


class Schedule:
    """A checkpoint after every `every` epochs, and a time limit in seconds that counts from now; None for no limit."""

    def __init__(self, every: int, time_limit: float | None) -> None:
        self.every = whole_number(every, "every", at_least=1)
        seconds = float("inf") if time_limit is None else positive_number(time_limit, "time_limit")
        self._deadline = time.perf_counter() + seconds

    def is_over(self) -> bool:
        """Whether the time limit has passed."""
        return time.perf_counter() > self._deadline


class TrainingLoop(ABC):
    """A run in progress: `epoch` whole epochs and `step_index` steps of the next are done; `history` has a record of each epoch.

    A subclass says what a step, a measurement and the state of its model are. The run is saved before the first step, every few
    epochs, at the time limit, at Ctrl-C, at the end, and when anything fails between two steps. A step that fails half way leaves
    the model in no state of the run, so the last checkpoint stays.

    Args:
        settings: with a field `epochs`. n_steps: steps in an epoch. path: of the checkpoint, or None.
        fingerprint: a hash of the training data, which a checkpoint must share.
    """

    KIND: ClassVar[str]  # which runs can resume each other's checkpoints
    RECORD: ClassVar[type]  # the dataclass of an epoch's record
    MEASURES_START: ClassVar[bool] = False  # whether there is a record of epoch 0, before any step

    def __init__(self, settings: RunSettings, n_steps: int, path: Path | None, fingerprint: str) -> None:
        self.settings: Any = settings
        self.n_steps, self.path, self.fingerprint = n_steps, path, fingerprint
        self.epoch, self.step_index = 0, 0
        self.history: list[Any] = []
        self._in_step = False
        self._earlier_seconds, self._began = 0.0, time.perf_counter()

    @abstractmethod
    def begin_epoch(self) -> None:
        """Prepare the steps of `epoch`, of which `step_index` are done already."""

    @abstractmethod
    def step(self) -> None:
        """The step at `step_index`."""

    @abstractmethod
    def measure(self, epoch: int) -> Any:
        """The record of an epoch whose steps are all done; None if its loss or a weight is not finite."""

    @abstractmethod
    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """All that the next step depends on: JSON values by name, and arrays by name."""

    @abstractmethod
    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        """Return to a state; KeyError, RuntimeError, TypeError or ValueError if it is another model's."""

    @abstractmethod
    def result(self, ending: Ending) -> Any:
        """The run so far."""

    @property
    def seconds(self) -> float:
        """The time spent on this run, earlier calls included."""
        return self._earlier_seconds + time.perf_counter() - self._began

    def saved_checkpoint(self) -> Checkpoint | None:
        """The checkpoint to resume from, of the same settings and data; None if there is none yet."""
        if self.path is None or not self.path.exists():
            return None
        checkpoint = Checkpoint.read(self.path, self.KIND)
        checkpoint.check(self.path, self.settings, self.fingerprint)
        return checkpoint

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue where a checkpoint stopped, which must lie within the epochs that were asked for."""
        epoch, step_index = checkpoint.epoch, checkpoint.step_index
        try:
            history = [
                self.RECORD(**{name: tuple(value) if isinstance(value, list) else value for name, value in row.items()})
                for row in checkpoint.history
            ]
            if len(history) != epoch + self.MEASURES_START or not 0 <= step_index <= self.n_steps:
                raise ValueError("contradictory counts")
            self.restore(checkpoint.values, checkpoint.arrays)
            self._earlier_seconds = float(checkpoint.seconds)
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as problem:
            raise InputError(
                "checkpoint", "one of the same model", f"{str(self.path)!r} with other contents"
            ) from problem
        reached = epoch + (step_index > 0)
        if reached > self.settings.epochs:
            raise InputError(
                "epochs", f"at least {reached}, which {str(self.path)!r} has reached", self.settings.epochs
            )
        self.epoch, self.step_index, self.history = epoch, step_index, history

    def run(self, schedule: Schedule, callback: Any) -> Any:
        """Train all epochs, or up to the time limit, and return the result; Ctrl-C stops between two steps."""
        callbacks = as_callbacks(callback)
        self._began = time.perf_counter()
        with deferred_interrupts() as interrupted:
            try:
                ending = self._train(schedule, callbacks, interrupted)
            except BaseException as problem:
                self._save_after(problem)
                raise
            return self.result(ending)

    def _train(self, schedule: Schedule, callbacks: Callbacks, interrupted: Callable[[], bool]) -> Ending:
        epochs = self.settings.epochs
        if self.MEASURES_START and not self.history:
            self.history = [self.measure(0)]
            callbacks.epoch(self.history[0])
        if self.epoch < epochs:  # a file that cannot be written shows before the first step
            self._save_and_report(callbacks)
        while self.epoch < epochs:
            self.begin_epoch()
            while self.step_index < self.n_steps:
                self._in_step = True
                self.step()
                self.step_index += 1
                self._in_step = False
                if interrupted():
                    raise KeyboardInterrupt
                if self.step_index < self.n_steps and schedule.is_over():
                    self.save()
                    return Ending.TIME_LIMIT
            record = self.measure(self.epoch + 1)
            if record is None:
                return Ending.DIVERGED
            self.history, self.epoch, self.step_index = [*self.history, record], self.epoch + 1, 0
            callbacks.epoch(record)
            if self.epoch == epochs:
                self.save()
            elif schedule.is_over():
                self.save()
                return Ending.TIME_LIMIT
            elif self.epoch % schedule.every == 0:
                self._save_and_report(callbacks)
        return Ending.FINISHED

    def save(self) -> None:
        """Write the checkpoint, if there is one."""
        if self.path is not None:
            rows = [asdict(record) for record in self.history]
            counts = (self.epoch, self.step_index, self.seconds)
            Checkpoint(self.settings.to_dict(), self.fingerprint, *counts, rows, *self.state()).write(
                self.path, self.KIND
            )

    def _save_and_report(self, callbacks: Callbacks) -> None:
        self.save()
        if callbacks.saved is not None:
            callbacks.saved(self.result(Ending.UNFINISHED))

    def _save_after(self, problem: BaseException) -> None:
        """Save what was trained when something fails between two steps, and note where it is."""
        if self.path is None or not (self.epoch or self.step_index or self._in_step):
            return
        if self._in_step:
            problem.add_note(f"A step was left half done; {self.path} holds the run as it was last saved.")
            return
        try:
            self.save()
        except Exception as other:  # the first failure is the one to report
            if repr(other) != repr(problem):
                problem.add_note(f"Saving failed too: {str(other) or type(other).__name__}")
        else:
            done = f"{self.epoch} whole epochs and {self.step_index} steps"
            problem.add_note(f"{self.path} holds where to go on, after {done}.")


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
        raise InputError("callback", "a function of an epoch's record, or Callbacks", repr(callback))
    return Callbacks(callback)


@contextmanager
def epoch_display(
    epochs: int, describe: Callable[[Any], str], *, seconds_between: float = 0.0, shown: bool = True
) -> Iterator[Callable[[Any], None]]:
    """A callback that shows records on standard error: a bar if it is a terminal and rich is installed, else lines.

    Args:
        describe: the text next to the bar. seconds_between: least time from one line to the next. shown: False for nothing at all.
    """
    if not shown:
        yield lambda record: None
        return
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
            print(f"{record} of {epochs} epochs", file=sys.stderr, flush=True)

    return show
