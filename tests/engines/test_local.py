"""Threads, processes and made-up GPUs: every task once, a bounded number in flight, and workers that fail or are killed."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from marginlens.engines import Engine, Gpus, Processes, Threads, as_engine
from marginlens.errors import EngineError, MissingExtra
from marginlens.runtime.threads import limited_threads, n_threads
from refusals import refused

ENGINES = {"one thread": Threads(), "three threads": Threads(3), "processes": Processes(2)}
each_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)


def square(task):
    return task * task


def share(task):
    return os.getpid(), n_threads()


def refuse_seven(task):
    if task == 7:
        raise ValueError("seven is not wanted")
    return task


@dataclass(frozen=True)
class Mortal:
    """Work whose process kills itself: at task 3, as long as the folder has fewer than `deaths` marks."""

    folder: Path
    deaths: int

    def __call__(self, task):
        marks = len(list(self.folder.iterdir()))
        if task == 3 and marks < self.deaths:
            (self.folder / str(marks)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return task


@dataclass(frozen=True)
class Stillborn:
    """Work whose process kills itself while it is loaded there, as long as the folder has fewer than `deaths` marks."""

    folder: Path
    deaths: int

    def __setstate__(self, state):
        self.__dict__.update(state)
        marks = len(list(self.folder.iterdir()))
        if marks < self.deaths:
            (self.folder / f"{marks}-{os.getpid()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def __call__(self, task):
        return -task


def workers():
    return [thread for thread in threading.enumerate() if thread.name.startswith("marginlens-task")]


@each_engine
def test_every_task_is_yielded_once_with_its_result(engine):
    assert isinstance(engine, Engine)
    assert sorted(engine.run(square, range(12))) == [(task, task * task) for task in range(12)]
    assert list(engine.run(square, ())) == []
    assert workers() == []


@each_engine
def test_tasks_are_taken_a_few_at_a_time(engine):
    taken = []

    def tasks():
        for task in range(10**9):
            taken.append(task)
            yield task

    results = engine.run(square, tasks())
    for finished in range(1, 6):
        next(results)
        assert len(taken) <= finished + 2 * engine.n_workers
    results.close()
    assert workers() == []
    assert multiprocessing.active_children() == []


@each_engine
def test_an_error_in_the_work_is_raised_once_as_it_is(engine):
    finished = []
    with pytest.raises(ValueError, match="seven is not wanted"):
        finished.extend(task for task, _ in engine.run(refuse_seven, range(1000)))
    assert workers() == []
    assert multiprocessing.active_children() == []


def test_what_cannot_be_pickled_by_name_runs_in_processes():
    factor = 3
    assert dict(Processes(1).run(lambda task: factor * task, range(3))) == {0: 0, 1: 3, 2: 6}


def test_processes_take_their_share_of_the_processors(monkeypatch):
    monkeypatch.setenv("MARGINLENS_THREADS", "8")
    results = dict(Processes(2).run(share, range(8)))
    assert {threads for _, threads in results.values()} == {4}
    assert os.getpid() not in {process for process, _ in results.values()}
    assert {threads for _, threads in dict(Threads(4).run(share, range(8))).values()} == {2}


def test_a_limit_concerns_its_block_alone(monkeypatch):
    monkeypatch.setenv("MARGINLENS_THREADS", "8")
    with limited_threads(3):
        assert n_threads() == 3
        with limited_threads(5):
            assert n_threads() == 3
    assert n_threads() == 8


@pytest.mark.slow
def test_the_task_of_a_killed_process_is_run_again(tmp_path):
    assert dict(Processes(2).run(Mortal(tmp_path, 2), range(10))) == {task: task for task in range(10)}
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.slow
def test_a_task_that_kills_its_processes_is_named(tmp_path):
    finished = []
    with pytest.raises(EngineError, match=r"^Task 3 ended 3 worker processes one after the other[^.]*\.$"):
        finished.extend(Processes(2).run(Mortal(tmp_path, 99), range(50)))
    assert len(finished) == len(set(finished))
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_processes_that_die_while_they_start_are_no_tasks_fault(tmp_path, monkeypatch):
    monkeypatch.setattr("marginlens.engines.local._LONGEST_PAUSE", 0.01)
    assert dict(Processes(1).run(Stillborn(tmp_path, 5), range(4, 8))) == {task: -task for task in range(4, 8)}
    assert len(list(tmp_path.iterdir())) == 5


@pytest.mark.slow
def test_processes_that_never_start_end_the_run_and_blame_no_task(tmp_path, monkeypatch):
    monkeypatch.setattr("marginlens.engines.local._LONGEST_PAUSE", 0.01)
    with pytest.raises(EngineError, match=r"^8 times one after the other worker processes died") as caught:
        list(Processes(2).run(Stillborn(tmp_path, 99), range(20)))
    assert "Task" not in str(caught.value)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("engine", ["Threads()", "Processes(2)"])
@pytest.mark.parametrize("deferred", [True, False], ids=["deferred", "at once"])
def test_ctrl_c_ends_a_run_and_deferred_yields_the_tasks_in_hand(engine, deferred):
    script = f"""
import time
from contextlib import nullcontext
from itertools import takewhile
from marginlens.engines import Processes, Threads
from marginlens.runtime.interrupts import deferred_interrupts

def nap(task):
    time.sleep(0.2)
    return task

if __name__ == "__main__":
    finished, begun = [], []
    try:
        with deferred_interrupts() if {deferred} else nullcontext(lambda: False) as interrupted:
            for task, _ in {engine}.run(nap, takewhile(lambda task: begun.append(task) or not interrupted(), range(1000))):
                finished.append(task)
                print("finished", task, flush=True)
    except KeyboardInterrupt:
        print("interrupted", len(begun) - 1 - len(finished), flush=True)
"""
    command = [sys.executable, "-c", script]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        assert process.stdout.readline().startswith("finished")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    last = output.splitlines()[-1].split()
    assert last[0] == "interrupted"
    assert int(last[1]) == 0 or not deferred


def test_processes_end_with_the_one_that_started_them(tmp_path):
    script = f"""
import os, time
from pathlib import Path
from marginlens.engines import Processes

def stay(task):
    (Path({str(tmp_path)!r}) / str(os.getpid())).touch()
    time.sleep(600)

list(Processes(1).run(stay, range(2)))
"""
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        while not (children := list(tmp_path.iterdir())):
            time.sleep(0.02)
        process.kill()
    child = int(children[0].name)
    for _ in range(500):
        if not Path(f"/proc/{child}").exists() and not alive(child):
            return
        time.sleep(0.02)
    raise AssertionError("the worker process outlives its parent")


def alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_nothing_is_this_machine_and_what_is_no_engine_is_refused():
    assert isinstance(as_engine(), Threads)
    engine = Processes(2)
    assert as_engine(engine) is engine
    for wrong in (7, Threads, object()):
        with refused("engine"):
            as_engine(wrong)
    with refused("n_workers"):
        Threads(0)
    assert (repr(Threads(2)), repr(Processes(3))) == ("Threads(2)", "Processes(3)")


# ---- one thread for each GPU, with made-up devices; the GPU itself is tested by hand


class FakeDevice:
    current = threading.local()

    def __init__(self, number):
        self.number = number

    def use(self):
        self.current.number = self.number


@pytest.fixture
def three_devices(monkeypatch):
    runtime = SimpleNamespace(getDeviceCount=lambda: 3, CUDARuntimeError=RuntimeError)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime, Device=FakeDevice)))


@pytest.mark.usefixtures("three_devices")
def test_each_device_has_a_thread_of_its_own():
    all_at_once = threading.Barrier(3, timeout=30)

    def device(task):
        all_at_once.wait()
        return FakeDevice.current.number

    results = dict(Gpus().run(device, range(3)))
    assert sorted(results.values()) == [0, 1, 2]
    assert [Gpus(2).n_workers, repr(Gpus(2))] == [2, "Gpus(2)"]
    for count in (0, 4):
        with refused("count"):
            Gpus(count)


def test_without_cupy_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(MissingExtra, match=r"marginlens\[gpu\]"):
        Gpus()
