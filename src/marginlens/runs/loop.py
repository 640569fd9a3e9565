"""The loop of every long training: epochs of steps that stop anywhere in good order, of which nothing is lost when something fails."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from marginlens.data.files import check_place
from marginlens.errors import InputError, positive_number, reject, whole_number
from marginlens.runs.alone import alone_with
from marginlens.runs.interrupts import held_interrupts
from marginlens.runs.telling import Ending

Watcher = Callable[[Any], None]


@dataclass(frozen=True)
class Timetable:
    """When a run saves, every so many epochs, and by which time of `time.perf_counter` it is to have stopped."""

    every: int
    until: float | None

    @classmethod
    def of(cls, every: int, time_limit: float | None) -> Timetable:
        """The timetable of a run that is called now."""
        until = None if time_limit is None else time.perf_counter() + positive_number(time_limit, "time_limit")
        return cls(whole_number(every, "every", at_least=1), until)


def checkpoint_place(checkpoint: str | Path | None) -> Path | None:
    """The file that a checkpoint goes to, where there can be one; None where none is wanted."""
    if checkpoint is None:
        return None
    try:
        place = Path(checkpoint)
        check_place(place, "checkpoint")
    except InputError:
        raise
    except (TypeError, ValueError, OSError) as problem:
        raise reject("checkpoint", "a file that can be written", repr(checkpoint)) from problem
    return place


class TrainingLoop(ABC):
    """A run in progress: `epoch` whole epochs and `place` steps of the next are done, and `history` has a record of each epoch.

    A subclass says what a step, a measurement and a checkpoint are; here is when they come. Whatever fails between two steps, the run is
    saved first. A step that fails half way leaves the model in no state of the run, so the last checkpoint stays.

    Args:
        epochs: how many to run. steps: how many make an epoch. file: of the checkpoint, where there is one.
    """

    measures_the_start: ClassVar[bool] = False  # whether there is a record of epoch 0, before any step

    def __init__(self, epochs: int, steps: int, file: Path | None) -> None:
        self.epochs, self.steps, self.file = epochs, steps, file
        self.epoch, self.place = 0, 0
        self.history: list[Any] = []
        self._before, self._began = 0.0, time.perf_counter()
        self._closing, self._keeping = 0.0, 0.0  # the longest that measuring and saving took, in seconds
        self._whole = True
        self._saved: Callable[[Any], None] | None = None

    # ---- what a subclass says

    @abstractmethod
    def begin_epoch(self) -> None:
        """Make ready for the steps of `epoch`, of which `place` are done already."""

    @abstractmethod
    def step(self) -> None:
        """The step at `place`."""

    @abstractmethod
    def measured(self, epoch: int) -> Any:
        """The record of an epoch whose steps are all done; None where its loss or a weight is no number."""

    @abstractmethod
    def save(self) -> None:
        """Write the checkpoint, where there is one."""

    @abstractmethod
    def result(self, ending: Ending) -> Any:
        """The run so far."""

    @property
    def growth(self) -> float:
        """How many times longer the next save may take than one now."""
        return 1.0

    # ---- what all runs do

    @property
    def seconds(self) -> float:
        """The time spent on this run, in earlier calls too."""
        return self._before + time.perf_counter() - self._began

    def stand_at(self, epoch: int, place: int, history: Sequence[Any], seconds: float) -> None:
        """Go on from where a checkpoint stands, which must be in the epochs that were asked for."""
        numbers = type(epoch) is int and type(place) is int and isinstance(seconds, int | float)
        if not numbers or len(history) != epoch + self.measures_the_start or not 0 <= place <= self.steps:
            raise reject("checkpoint", "a file that marginlens wrote", f"{str(self.file)!r}, which contradicts itself")
        reached = epoch + (place > 0)
        if reached > self.epochs:
            raise reject("epochs", f"at least {reached}, which {str(self.file)!r} has reached", self.epochs)
        self.epoch, self.place, self.history, self._before = epoch, place, list(history), float(seconds)

    def go(self, timetable: Timetable, watch: Watcher | None) -> Any:
        """Run all epochs, or up to the time limit, and give the result; the first Ctrl-C ends it between two steps."""
        if not (watch is None or callable(watch)):
            raise reject("watch", "a function of an epoch's record", repr(watch))
        self._began = time.perf_counter()
        self._saved = getattr(watch, "saved", None)
        with held_interrupts() as interrupted, alone_with(self.file):
            with self._kept_where_it_fails():
                ending = self._run(timetable, watch or (lambda record: None), interrupted)
            return self.result(ending)

    def _run(self, timetable: Timetable, watch: Watcher, interrupted: Callable[[], bool]) -> Ending:
        if self.measures_the_start and not self.history:
            self._close(0)
            watch(self.history[0])
        if self.epoch < self.epochs:
            self._keep()  # says before the first step what cannot be written, and how long it takes
        until = timetable.until
        while self.epoch < self.epochs:
            self.begin_epoch()
            while self.place < self.steps:
                try:
                    self.step()
                    self.place += 1
                except BaseException:
                    self._whole = False
                    raise
                if interrupted():
                    raise KeyboardInterrupt
                if until is not None and self.place < self.steps and self._late(until):
                    self.save()
                    return Ending.TIME_LIMIT
            if not self._close(self.epoch + 1):
                return Ending.DIVERGED
            watch(self.history[-1])
            if self.epoch == self.epochs:
                self.save()
            elif until is not None and self._late(until):
                self.save()
                return Ending.TIME_LIMIT
            elif self.epoch % timetable.every == 0:
                self._keep()
        return Ending.FINISHED

    def _late(self, until: float) -> bool:
        """Whether closing an epoch and saving, as long as they took so far, would pass the time limit."""
        return time.perf_counter() + self._closing + self._keeping > until

    def _close(self, epoch: int) -> bool:
        """Measure an epoch, and only then count it as done: all at once, so that no interruption finds half of it counted."""
        began = time.perf_counter()
        record = self.measured(epoch)
        if record is None:
            return False
        history = [*self.history, record]
        self._closing = max(self._closing, time.perf_counter() - began)
        self.history, self.epoch, self.place = history, epoch, 0
        return True

    def _keep(self) -> None:
        """Write the checkpoint, and tell who listens of the run so far."""
        began, growth = time.perf_counter(), self.growth
        self.save()
        self._tell()
        self._keeping = max(self._keeping, growth * (time.perf_counter() - began))

    def _tell(self) -> None:
        if self._saved is not None:
            self._saved(self.result(Ending.UNFINISHED))

    @contextmanager
    def _kept_where_it_fails(self) -> Iterator[None]:
        """Keep what was trained when anything fails in whatever way, and let the failure go on with a note of where that is."""
        try:
            yield
        except BaseException as problem:
            if not self._whole:
                if self.file is not None:
                    problem.add_note(f"A step was left half done; {self.file} holds the run as it was last saved.")
            elif self.epoch or self.place:
                self._keep_after(problem)
            raise

    def _keep_after(self, problem: BaseException) -> None:
        for work in (self.save, self._tell):  # one may work where the other fails
            try:
                work()
            except Exception as other:  # the first failure is the one to tell
                if repr(other) != repr(problem):
                    problem.add_note(f"Saving failed too: {str(other) or type(other).__name__}")
            else:
                if work == self.save and self.file is not None:
                    done = f"{self.epoch} whole epochs and {self.place} steps"
                    problem.add_note(f"{self.file} holds where to go on, after {done}.")
