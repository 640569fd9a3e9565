"""The loop that all training runs share, on a run that trains one number: it stops anywhere, and resuming changes no bit."""

import os
import signal
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from experiments.training.checkpoint import Checkpoint, checkpoint_path
from experiments.training.loop import Callbacks, Ending, Schedule, TrainingLoop
from experiments.training.settings import RunSettings, positive, whole
from refusals import refused

EPOCHS, STEPS, EVERY = 5, 3, 2


@dataclass(frozen=True)
class Values:
    epochs: int = EPOCHS
    rate: float = 0.5


@dataclass(frozen=True)
class Settings(RunSettings, Values):
    CHECKS: ClassVar = {"epochs": whole(), "rate": positive()}
    FREE: ClassVar[tuple[str, ...]] = ("epochs",)


@dataclass(frozen=True)
class Record:
    epoch: int
    x: int


class Loop(TrainingLoop):
    """One number that every step changes, so that a step too few, too many or out of order shows."""

    KIND = "test"
    RECORD = Record

    def __init__(self, path, in_step=lambda loop: None, data="data", **settings):
        super().__init__(Settings(**settings), STEPS, path, data)
        self.x, self.in_step = 1, in_step
        if (checkpoint := self.saved_checkpoint()) is not None:
            self.resume(checkpoint)

    def begin_epoch(self):
        pass

    def step(self):
        self.x = 31 * self.x % 10_007
        self.in_step(self)
        self.x = (self.x + 7 * self.epoch + self.step_index) % 10_007

    def measure(self, epoch):
        return Record(epoch, self.x)

    def state(self):
        return {}, {"x": np.array(self.x)}

    def restore(self, values, arrays):
        self.x = int(arrays["x"])

    def result(self, ending):
        return self.epoch, tuple(self.history), self.x, ending


def train(path, callback=None, limit=None, **given):
    return Loop(path, **given).run(Schedule(EVERY, limit), callback)


def at(epoch, step, action):
    """What happens in the middle of one step."""
    return lambda loop: action() if (loop.epoch, loop.step_index) == (epoch, step) else None


def raising(problem):
    def act(*given):
        raise problem

    return act


WHOLE = train(None)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.npz"


def test_a_run_saves_at_the_start_periodically_and_at_the_end(path):
    records, saved = [], []
    assert train(path, Callbacks(records.append, saved.append)) == WHOLE
    assert WHOLE[0] == EPOCHS
    assert WHOLE[-1] is Ending.FINISHED
    assert tuple(records) == WHOLE[1]
    assert [(run[0], run[-1]) for run in saved] == [(k, Ending.UNFINISHED) for k in (0, 2, 4)]
    assert train(path, in_step=raising(AssertionError)) == WHOLE  # from the last checkpoint, without a step
    assert [file.name for file in path.parent.iterdir()] == ["run.npz"]


def test_a_run_stopped_after_every_step_equals_the_uninterrupted_one(path):
    for pieces in range(1, EPOCHS * STEPS):
        run = train(path, limit=1e-9)
        assert run[-1] is Ending.TIME_LIMIT
        assert len(run[1]) == pieces // STEPS
    assert train(path, limit=1e-9) == WHOLE
    assert train(path, epochs=EPOCHS + 1)[1][:EPOCHS] == WHOLE[1]


@pytest.mark.posix("signal that a process sends to itself")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_stop_finishes_the_step_and_leaves_a_checkpoint(path, number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt) as caught:
        train(path, in_step=at(1, 1, lambda: os.kill(os.getpid(), number)))
    (note,) = caught.value.__notes__
    assert str(path) in note
    assert "after 1 whole epochs and 2 steps" in note
    assert signal.getsignal(number) is before
    assert train(path) == WHOLE


def interrupt_twice():
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.posix("signal that a process sends to itself")
@pytest.mark.parametrize("action", [interrupt_twice, raising(MemoryError())])
def test_an_unfinished_step_keeps_the_last_checkpoint(path, action):
    with pytest.raises((KeyboardInterrupt, MemoryError)) as caught:
        train(path, in_step=at(3, 1, action))
    (note,) = caught.value.__notes__
    assert str(path) in note
    assert Checkpoint.read(path, "test").epoch == 2
    assert train(path) == WHOLE


@pytest.mark.parametrize("problem", [BrokenPipeError(), KeyboardInterrupt(), SystemExit(1)])
def test_a_callback_that_fails_loses_no_epoch(path, problem):
    with pytest.raises(type(problem)) as caught:
        train(path, lambda record: raising(problem)() if record.epoch == 3 else None)
    assert "after 3 whole epochs and 0 steps" in caught.value.__notes__[0]
    assert train(path) == WHOLE


@pytest.mark.parametrize(
    ("argument", "given", "changed"),
    [
        ("checkpoint", {"rate": 0.1}, {}),
        ("checkpoint", {"data": "other"}, {}),
        ("epochs", {"epochs": 0}, {}),
        ("checkpoint", {}, {"step_index": STEPS + 1}),
        ("checkpoint", {}, {"history": [{"loss": 1.0}]}),
        ("checkpoint", {}, {"arrays": {}}),
    ],
)
def test_an_inconsistent_checkpoint_is_refused_and_kept(path, argument, given, changed):
    train(path, limit=1e-9)
    Checkpoint(**{**vars(Checkpoint.read(path, "test")), **changed}).write(path, "test")
    before = path.read_bytes()
    with refused(argument):
        train(path, **given)
    assert path.read_bytes() == before


def test_invalid_checkpoints_are_refused_before_the_first_step(path):
    train(path, limit=1e-9)
    (path.parent / "text.npz").write_bytes(b"PK\x03\x04 no")
    for argument, call in (
        ("checkpoint", lambda: Checkpoint.read(path, "other kind")),
        ("checkpoint", lambda: train(path.parent / "text.npz")),
        ("checkpoint", lambda: checkpoint_path(path.parent)),
        ("checkpoint", lambda: checkpoint_path(5)),
        ("callback", lambda: train(None, 5, in_step=raising(AssertionError))),
        ("every", lambda: Schedule(0, None)),
        ("time_limit", lambda: Schedule(1, 0.0)),
    ):
        with refused(argument):
            call()
