"""The loop that all trainings share, on a run that trains one number: whatever fails, and wherever, no step between two saves is lost."""

import errno
import os
import signal
import sys
from pathlib import Path

import pytest

from marginlens.errors import InputError
from marginlens.runs import loop
from marginlens.runs.loop import Timetable, TrainingLoop, checkpoint_place
from marginlens.runs.telling import Ending, Listener

EPOCHS, STEPS, EVERY = 5, 3, 2
HOOKS = ("begin_epoch", "measured", "save", "result", "watch", "saved")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    """A folder of the test's own, because a run locks its checkpoint's place."""
    monkeypatch.chdir(tmp_path)


class Disk:
    """Where a run is kept, and what fails: the k-th call of a hook, from 0, and then nothing any more."""

    def __init__(self):
        self.kept, self.told, self.calls, self.plan = None, [], [], {}

    def call(self, hook):
        problem = self.plan.pop((hook, self.calls.count(hook)), None)
        self.calls.append(hook)
        if problem is not None:
            raise problem


class Run(TrainingLoop):
    """One number that no step leaves as it is, so that a step too few, too many or out of order shows."""

    def __init__(self, disk, epochs=EPOCHS, file=Path("run.npz")):
        super().__init__(epochs, STEPS, file)
        self.disk, self.x = disk, 1
        if disk.kept is not None:
            epoch, place, history, self.x = disk.kept
            self.stand_at(epoch, place, history, 0.0)

    def begin_epoch(self):
        self.disk.call("begin_epoch")

    def step(self):
        self.x = 31 * self.x % 10_007
        self.disk.call("step")
        self.x = (self.x + 7 * self.epoch + self.place) % 10_007

    def measured(self, epoch):
        self.disk.call("measured")
        return (epoch, self.x)

    def save(self):
        self.disk.call("save")
        self.disk.kept = (self.epoch, self.place, tuple(self.history), self.x)

    def result(self, ending):
        self.disk.call("result")
        return (self.epoch, self.place, tuple(self.history), self.x, ending)


def train(disk, epochs=EPOCHS, limit=None, file=Path("run.npz")):
    def watch(record):
        disk.call("watch")

    def saved(run):
        disk.call("saved")
        disk.told.append(run)

    return Run(disk, epochs, file).go(Timetable.of(EVERY, limit), Listener(watch, saved))


WHOLE = train(Disk(), file=None)


def test_a_run_saves_at_once_every_few_epochs_and_at_the_end():
    disk = Disk()
    assert train(disk) == WHOLE
    assert WHOLE[0] == EPOCHS
    assert WHOLE[-1] is Ending.FINISHED
    assert [one[0] for one in WHOLE[2]] == [1, 2, 3, 4, 5]
    assert disk.calls.count("save") == 4  # before the first step, after epochs 2 and 4, at the end
    assert [(one[0], one[-1]) for one in disk.told] == [(k, Ending.UNFINISHED) for k in (0, 2, 4)]
    assert train(disk) == WHOLE  # from the last checkpoint, without a step
    assert disk.calls.count("step") == EPOCHS * STEPS


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt, SystemExit, MemoryError])
def test_a_failure_anywhere_between_two_steps_loses_none(hook, kind):
    undisturbed = Disk()
    train(undisturbed)
    for k in range(undisturbed.calls.count(hook)):
        disk, problem = Disk(), kind("planted")
        disk.plan = {(hook, k): problem}
        with pytest.raises(kind) as caught:
            train(disk)
        assert caught.value is problem
        done = disk.calls.count("step")
        if done:
            assert disk.kept[0] * STEPS + disk.kept[1] == done, (hook, k)
        last = hook == "result" and k == undisturbed.calls.count("result") - 1  # the run is saved and over by then
        if done and not last:
            assert f"run.npz holds where to go on, after {disk.kept[0]} whole epochs" in caught.value.__notes__[0]
            assert disk.told[-1][:4] == disk.kept
        assert train(disk) == WHOLE, (hook, k)
        assert disk.calls.count("step") == EPOCHS * STEPS  # none was taken twice


def interrupted_at_line(n):
    """A trace that raises KeyboardInterrupt at the n-th line of the loop, as a second Ctrl-C may."""
    functions = {TrainingLoop._run.__code__, TrainingLoop._close.__code__, TrainingLoop._keep.__code__}
    left = [n]

    def trace(frame, event, argument):
        if frame.f_code not in functions:
            return None
        if event == "line":
            left[0] -= 1
            if left[0] < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    return trace


def test_an_interruption_at_any_line_of_the_loop_leaves_a_run_to_go_on_from():
    for n in range(1000):
        disk, usual = Disk(), sys.gettrace()
        sys.settrace(interrupted_at_line(n))
        try:
            whole = train(disk)
        except KeyboardInterrupt:
            whole = None
        finally:
            sys.settrace(usual)
        if whole is not None:
            break
        assert train(disk) == WHOLE, n
        assert disk.calls.count("step") <= EPOCHS * STEPS + EVERY * STEPS
    assert n > EPOCHS * STEPS  # a line at least of every step


def test_a_step_that_fails_half_way_is_not_saved():
    disk = Disk()
    disk.plan = {("step", 3 * STEPS + 1): RuntimeError("out of memory")}
    with pytest.raises(RuntimeError) as caught:
        train(disk)
    assert caught.value.__notes__ == ["A step was left half done; run.npz holds the run as it was last saved."]
    assert disk.kept[:2] == (2, 0)
    assert train(disk) == WHOLE


def test_what_is_told_does_not_depend_on_the_checkpoint():
    disk = Disk()
    refused = OSError(28, "No space left on device")
    disk.plan = {("save", 2): refused, ("save", 3): refused}
    with pytest.raises(OSError, match="No space left") as caught:
        train(disk)
    assert not hasattr(caught.value, "__notes__")  # that saving fails is the failure itself
    assert disk.kept[:2] == (2, 0)
    assert disk.told[-1][:2] == (4, 0)
    assert train(disk) == WHOLE


def test_both_failures_are_told():
    disk = Disk()
    disk.plan = {("watch", 2): ValueError("first"), ("save", 2): OSError("second"), ("saved", 2): MemoryError()}
    with pytest.raises(ValueError, match="first") as caught:
        train(disk)
    assert caught.value.__notes__ == ["Saving failed too: second", "Saving failed too: MemoryError"]


def test_without_a_checkpoint_the_run_so_far_is_told():
    disk = Disk()
    disk.plan = {("measured", 2): ValueError("planted")}
    with pytest.raises(ValueError, match="planted") as caught:
        train(disk, file=None)
    assert not hasattr(caught.value, "__notes__")
    assert disk.told[-1][:2] == (2, STEPS)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("hook", ["step", *HOOKS])
def test_a_request_to_end_is_obeyed_wherever_it_comes(monkeypatch, hook, number):
    undisturbed = Disk()
    train(undisturbed)
    for k in range(undisturbed.calls.count(hook)):
        disk = Disk()
        usual = disk.call

        def call(name, disk=disk, usual=usual, k=k):
            if name == hook and disk.calls.count(name) == k:
                os.kill(os.getpid(), number)
            usual(name)

        disk.call = call
        with pytest.raises(KeyboardInterrupt):
            train(disk)
        assert disk.kept[0] * STEPS + disk.kept[1] == disk.calls.count("step")
        disk.call = usual
        assert train(disk) == WHOLE


def test_a_second_request_in_the_middle_of_saving_leaves_the_earlier_checkpoint():
    disk = Disk()
    usual = disk.call

    def call(name):
        if (name, disk.calls.count(name)) in (("step", 7), ("save", 2)):
            os.kill(os.getpid(), signal.SIGINT)
        usual(name)

    disk.call = call
    with pytest.raises(KeyboardInterrupt):
        train(disk)
    assert disk.kept[:2] == (2, 0)
    disk.call = usual
    assert train(disk) == WHOLE


def test_the_time_limit_counts_from_the_call_and_leaves_time_to_save(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(loop.time, "perf_counter", lambda: clock[0])
    disk, costs = Disk(), {"step": 10.0, "save": 3.0, "saved": 2.0, "measured": 1.0}
    usual = disk.call

    def call(name):
        usual(name)
        clock[0] += costs.get(name, 0.0)

    disk.call = call
    timetable = Timetable.of(EVERY, 55.0)
    clock[0] += 4.0  # making ready
    run = Run(disk).go(timetable, Listener(lambda record: call("watch"), lambda run: call("saved")))
    assert run[-1] is Ending.TIME_LIMIT
    assert run[:2] == (1, 1)  # after 4 + 5 + 31 + 10 = 50, to which 1 + 5 more would be too much
    assert clock[0] <= 155.0
    clock[0] = 0.0
    assert train(disk) == WHOLE


def test_the_seconds_of_earlier_calls_count(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(loop.time, "perf_counter", lambda: clock[0])
    run = Run(Disk())
    run.stand_at(1, 0, ((1, 1),), 7.5)
    clock[0] += 2.0
    assert run.seconds == 9.5


class Growing(Run):
    growth = 3.0


def test_time_is_left_for_the_longest_measurement_and_a_larger_checkpoint(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(loop.time, "perf_counter", lambda: clock[0])
    disk, measuring = Disk(), iter((8.0, 1.0))
    usual = disk.call

    def call(name):
        usual(name)
        clock[0] += next(measuring) if name == "measured" else {"step": 10.0, "save": 5.0}.get(name, 0.0)

    disk.call = call
    run = Growing(disk).go(Timetable.of(EVERY, 96.0), None)
    assert run[-1] is Ending.TIME_LIMIT
    assert run[:2] == (2, 0)  # after 5 + 38 + 31 = 74, to which 8 + 3 * 5 more would be too much


def test_the_shortest_limit_leaves_one_step():
    disk, pieces = Disk(), 1
    while (found := train(disk, limit=1e-9))[-1] is Ending.TIME_LIMIT:
        assert disk.calls.count("step") == pieces
        assert len(found[2]) == pieces // STEPS  # an epoch whose steps are done is closed before the run stops
        pieces += 1
    assert found == WHOLE
    assert pieces == EPOCHS * STEPS


@pytest.mark.parametrize(
    ("kept", "epochs", "sentence"),
    [
        ((2, 0, (0, 0), 1), 1, "'epochs' argument must be at least 2, which 'run.npz' has reached; got 1"),
        ((2, 1, (0, 0), 1), 2, "'epochs' argument must be at least 3, which 'run.npz' has reached; got 2"),
        ((2, 0, (0,), 1), 5, "'checkpoint' argument must be a file that marginlens wrote; got 'run.npz', which contra"),
        ((2, STEPS + 1, (0, 0), 1), 5, "which contradicts itself"),
        ((2, -1, (0, 0), 1), 5, "which contradicts itself"),
        ((2, 1.0, (0, 0), 1), 5, "which contradicts itself"),
        (("2", 0, (0, 0), 1), 5, "which contradicts itself"),
    ],
)
def test_a_checkpoint_from_where_a_run_cannot_go_on_is_refused(kept, epochs, sentence):
    disk = Disk()
    disk.kept = kept
    with pytest.raises(InputError, match=sentence):
        train(disk, epochs)
    assert disk.kept == kept


def test_no_epochs_are_no_steps_and_no_checkpoint():
    disk = Disk()
    assert train(disk, epochs=0) == (0, 0, (), 1, Ending.FINISHED)
    assert disk.calls == ["result"]


@pytest.mark.parametrize(
    ("every", "limit", "sentence"),
    [
        (0, None, "'every' argument must be a whole number of at least 1; got 0"),
        (1.5, None, "'every' argument must be a whole number of at least 1"),
        (1, 0.0, "'time_limit' argument must be a positive number; got 0.0"),
        (1, float("nan"), "'time_limit' argument must be a positive number; got nan"),
        (1, "soon", "'time_limit' argument must be a positive number; got 'soon'"),
    ],
)
def test_a_timetable_that_cannot_be_is_refused(every, limit, sentence):
    with pytest.raises(InputError, match=sentence):
        Timetable.of(every, limit)


def test_a_checkpoint_has_a_place_for_a_file(tmp_path):
    assert checkpoint_place(None) is None
    assert checkpoint_place(str(tmp_path / "c.npz")) == tmp_path / "c.npz"
    for unusable in (tmp_path, 5, b"c.npz", "a\0b", "x" * 300):
        with pytest.raises(InputError, match="'checkpoint' argument must be a file that can be written"):
            checkpoint_place(unusable)


def test_a_watcher_is_called_or_refused_before_the_first_step():
    disk = Disk()
    with pytest.raises(InputError, match="'watch' argument must be a function of an epoch's record; got 5"):
        Run(disk).go(Timetable.of(EVERY, None), 5)
    assert disk.calls == []
    records = []
    assert Run(disk).go(Timetable.of(EVERY, None), records.append) == WHOLE
    assert tuple(records) == WHOLE[2]
    assert Run(Disk()).go(Timetable.of(EVERY, None), None) == WHOLE


def test_a_checkpoint_belongs_to_one_run_at_a_time(tmp_path):
    def second(record):
        with pytest.raises(
            InputError, match=r"must be one that no other run is writing; got 'run\.npz'.* Wait for that run"
        ):
            train(Disk())
        assert train(Disk(), file=Path("other.npz")) == WHOLE

    assert Run(Disk()).go(Timetable.of(EVERY, None), second) == WHOLE
    assert train(Disk()) == WHOLE
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_was_killed_leaves_no_lock(tmp_path):
    (tmp_path / ".run.npz.lock").touch()
    assert train(Disk()) == WHOLE


@pytest.mark.parametrize("taken", [False, True])
def test_a_lock_on_a_file_that_another_run_took_away_meanwhile_is_none(tmp_path, monkeypatch, taken):
    fcntl = pytest.importorskip("fcntl")
    usual = fcntl.flock

    def late(number, how):
        (tmp_path / ".run.npz.lock").unlink()
        if taken:
            (tmp_path / ".run.npz.lock").touch()
        usual(number, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(InputError, match="must be one that no other run is writing"):
        train(Disk())


def test_where_nothing_can_be_locked_runs_go_on(tmp_path, monkeypatch):
    def refuse(number, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(pytest.importorskip("fcntl"), "flock", refuse)
    assert train(Disk()) == WHOLE
    assert train(Disk(), file=tmp_path / "nowhere" / "run.npz") == WHOLE
