"""Claims side by side in several processes: the same results, every step told, and nothing left behind."""

import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tolerances
from fake_claims import fake_claim
from marginlens.experiments.catalogue import chosen
from marginlens.experiments.claim import Effort
from marginlens.report import reproduce, workers
from marginlens.report.workers import outcomes

SMALL = ("A-K3", "A-F1a", "A-F5")


class Watcher:
    """Remembers what it is told about each claim."""

    def __init__(self):
        self.total, self.done, self.finished = {}, {}, []

    def begin(self, claim):
        watcher = self
        assert claim.id not in self.done
        self.done[claim.id] = 0

        class Progress:
            def expect(self, total):
                watcher.total[claim.id] = total

            def advance(self, units=1):
                watcher.done[claim.id] += units

        return Progress()

    def finish(self, entry):
        self.finished.append(entry.id)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A report of small claims and one made by hand, by two processes, and who watched it."""
    watcher = Watcher()
    claims = (*chosen(SMALL), fake_claim("Z-1"))
    folder = tmp_path_factory.mktemp("two") / "report"
    return reproduce(claims, folder, effort=Effort.QUICK, watcher=watcher, workers=2), watcher


def test_processes_find_what_one_process_finds(two, tmp_path):
    report, _ = two
    alone = reproduce((*chosen(SMALL), fake_claim("Z-1")), tmp_path / "report", effort=Effort.QUICK)
    found = {entry.id: entry.result.numbers for entry in alone.entries}
    assert [entry.id for entry in report.entries] == [*SMALL, "Z-1"]  # as given, whichever finishes first
    for entry in report.entries:
        assert entry.result.numbers == pytest.approx(found[entry.id])
        assert all((report.folder / picture.png).is_file() for picture in entry.result.pictures)


def test_every_claim_is_told_from_begin_to_end(two):
    _, watcher = two
    assert set(watcher.finished) == {*SMALL, "Z-1"}
    assert len(watcher.finished) == len(SMALL) + 1
    assert watcher.done == watcher.total
    assert min(watcher.total.values()) > 0


def left_behind():
    """Processes that do not end; the pool's own thread may have buried one without having noted it yet."""
    until = time.monotonic() + tolerances.HANGING
    while multiprocessing.active_children() and time.monotonic() < until:
        time.sleep(0.02)
    return multiprocessing.active_children()


def test_no_process_is_left_behind(two):
    assert left_behind() == []


def test_stopping_early_ends_the_processes():
    watcher = Watcher()
    results = outcomes(chosen(SMALL), Effort.QUICK, watcher.begin, 2)
    next(results)
    assert multiprocessing.active_children()
    results.close()
    assert left_behind() == []


def test_what_is_told_after_a_result_is_left_out(monkeypatch):
    watcher, finished = Watcher(), []
    pass_on = workers._pass_on

    def late(told, by_id, bars, begin):
        pass_on(told, by_id, bars, begin)
        after = queue.Queue()
        for one in finished:
            after.put((one, "advance", 1))
        pass_on(after, by_id, bars, begin)

    monkeypatch.setattr(workers, "_pass_on", late)
    for claim, _ in outcomes(chosen(SMALL), Effort.QUICK, watcher.begin, 2):
        finished.append(claim.id)
    assert watcher.done == watcher.total


def test_claims_whose_processes_are_killed_run_here_and_begin_once(monkeypatch):
    watcher = Watcher()
    pass_on = workers._pass_on

    def kill(told, by_id, bars, begin):
        pass_on(told, by_id, bars, begin)
        for child in multiprocessing.active_children():
            child.kill()

    monkeypatch.setattr(workers, "_pass_on", kill)
    found = {claim.id: outcome for claim, outcome in outcomes(chosen(SMALL), Effort.QUICK, watcher.begin, 2)}
    assert set(found) == set(watcher.done) == set(SMALL)
    assert all(outcome.numbers and outcome.drawings for outcome in found.values())
    assert left_behind() == []


_ENDLESS = """
import time
from fake_claims import curve as draw

ID, LABELS, TITLE, STATEMENT, PROTOCOL, PAPER_VALUE, EXPECTED = __name__, ("A Thm 4",), "", "", "", "", {}

def compute(effort, progress):
    while True:
        time.sleep(1.0)
"""
_WATCHED = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
import endless_1, endless_2
from marginlens import cli
from marginlens.experiments import catalogue
from marginlens.experiments.claim import Claim
from marginlens.report import workers

pass_on = workers._pass_on

def tell(told, by_id, bars, begin):
    pass_on(told, by_id, bars, begin)
    if len(bars) == 2:
        print("two at work", flush=True)

workers._pass_on = tell
catalogue.claims = lambda: (Claim.of(endless_1), Claim.of(endless_2))
if __name__ == "__main__":
    cli.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_every_process_and_leaves_nothing(tmp_path, number):
    scripts, here = tmp_path / "scripts", tmp_path / "here"
    for folder in (scripts, here):
        folder.mkdir()
    (scripts / "script.py").write_text(_WATCHED)
    for name in ("endless_1.py", "endless_2.py"):
        (scripts / name).write_text(_ENDLESS)
    command = [sys.executable, scripts / "script.py", "reproduce"]
    tests = str(Path(__file__).resolve().parents[1])
    paths = os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "MARGINLENS_THREADS": "2", "PYTHONPATH": paths}
    process = subprocess.Popen(
        command, cwd=here, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout.readline() == b"two at work\n", process.stderr.read()
    process.send_signal(number)
    _, errors = process.communicate(timeout=tolerances.HANGING)
    assert process.returncode == 130, errors
    assert b"interrupted" in errors
    until = time.monotonic() + tolerances.HANGING
    while alive(process.pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive(process.pid)
    assert list(here.iterdir()) == []


def alive(group):
    """Whether a process of this group is still there."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
