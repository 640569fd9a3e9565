"""Claims side by side in several processes: the same results, every step told, and nothing left behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tolerances
from fake_claims import changed, fake_claim
from marginlens_papers.claim import Effort
from marginlens_papers.claims.catalogue import chosen
from marginlens_papers.report import reproduce, run
from marginlens_papers.report.ledger import read_ledger
from marginlens_papers.report.run import outcomes

pytestmark = pytest.mark.slow  # it starts and ends processes

SMALL = ("A-K3", "A-F1a", "A-F5")


class Watcher:
    """Remembers what it is told about each claim."""

    def __init__(self):
        self.total, self.done, self.finished = {}, {}, []

    def begin(self, claim):
        watcher = self
        assert claim.id not in self.done
        self.done[claim.id] = 0

        def report(done, total):
            watcher.done[claim.id], watcher.total[claim.id] = done, total

        return report

    def finish(self, entry):
        self.finished.append(entry.id)


def test_two_processes_give_the_results_of_one(tmp_path):
    watcher, claims = Watcher(), (*chosen(SMALL), fake_claim("Z-1"))
    report = reproduce(claims, tmp_path / "two", effort=Effort.QUICK, watcher=watcher, workers=2)
    alone = reproduce(claims, tmp_path / "one", effort=Effort.QUICK)
    assert [entry.id for entry in report.entries] == [*SMALL, "Z-1"]  # as given, whichever finishes first
    for entry, expected in zip(report.entries, alone.entries, strict=True):
        assert entry.result.numbers == pytest.approx(
            expected.result.numbers, rel=tolerances.SIX_DIGITS, abs=tolerances.ROUNDING
        )
        assert all((report.folder / picture.file).is_file() for picture in entry.result.pictures)
    assert sorted(watcher.finished) == sorted([*SMALL, "Z-1"])
    assert watcher.done == watcher.total
    assert min(watcher.total.values()) > 0
    assert left_behind() == []


def test_claims_start_with_a_short_one_then_the_longest():
    claims = [changed(fake_claim(f"Z-{k}"), seconds=seconds) for k, seconds in enumerate((5.0, 0.0, 90.0, 0.0, 30.0))]
    assert [claim.seconds for claim in run._longest_first(claims)] == [0.0, 90.0, 30.0, 5.0, 0.0]


def left_behind():
    """Processes that do not end; the pool's own thread may have buried one without having noted it yet."""
    until = time.monotonic() + tolerances.HANGING
    while multiprocessing.active_children() and time.monotonic() < until:
        time.sleep(0.02)
    return multiprocessing.active_children()


def test_stopping_early_ends_the_processes():
    watcher = Watcher()
    results = outcomes(chosen(SMALL), Effort.QUICK, watcher.begin, 2)
    next(results)
    assert multiprocessing.active_children()
    results.close()
    assert left_behind() == []


def test_claims_of_killed_processes_run_in_the_parent(monkeypatch):
    watcher = Watcher()
    deliver = run._deliver

    def kill(messages, by_id, reports, begin):
        deliver(messages, by_id, reports, begin)
        for child in multiprocessing.active_children():
            child.kill()

    monkeypatch.setattr(run, "_deliver", kill)
    found = {claim.id: outcome for claim, outcome in outcomes(chosen(SMALL), Effort.QUICK, watcher.begin, 2)}
    assert set(found) == set(watcher.done) == set(SMALL)
    assert all(outcome.numbers and outcome.drawings for outcome in found.values())
    assert left_behind() == []


_CLAIM = """
import time
from fake_claims import FakeClaim, finding

class NAME(FakeClaim):
    title = ""

    def compute(self, effort, progress):
        while self.id.startswith("endless"):
            time.sleep(1.0)
        return finding(0.9996)(effort, progress)
"""
_COMMAND = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from importlib import import_module
from marginlens.cli import app as cli
from marginlens_papers.claims import catalogue
from marginlens_papers.report import run

deliver, seen = run._deliver, set()

def tell(messages, by_id, reports, begin):
    deliver(messages, by_id, reports, begin)
    for claim_id in set(reports) - seen:
        print("begun", claim_id, flush=True)
    seen.update(reports)

run._deliver = tell
catalogue.claims = lambda: tuple(getattr(import_module(name), name)() for name in NAMES)
if __name__ == "__main__":
    cli.main()
"""


def start_reproducing(tmp_path, names):
    """`marginlens reproduce` by two workers on claims of these names, in a process group of its own; endless ones never finish."""
    scripts, current = tmp_path / "scripts", tmp_path / "current"
    for folder in (scripts, current):
        folder.mkdir(exist_ok=True)
    (scripts / "script.py").write_text(f"NAMES = {names!r}\n{_COMMAND}")
    for name in names:
        (scripts / f"{name}.py").write_text(_CLAIM.replace("NAME", name))
    tests = str(Path(__file__).resolve().parents[1])
    paths = os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, scripts / "script.py", "reproduce"],
        cwd=current,
        env={**os.environ, "MARGINLENS_THREADS": "2", "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def signal_group(process, number):
    """Send a signal to every process of the group, as a terminal does, and return (stdout, stderr) once all of them have ended."""
    os.killpg(process.pid, number)
    output, errors = process.communicate(timeout=tolerances.HANGING)
    assert process.returncode == 130, errors
    until = time.monotonic() + tolerances.HANGING
    while alive(process.pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive(process.pid)
    return output, errors


@pytest.mark.posix("signal for a group of processes")
def test_a_signal_keeps_the_claims_that_the_processes_finished(tmp_path):
    process = start_reproducing(tmp_path, ["endless_1", "short_1", "short_2", "endless_2"])
    finished = [process.stderr.readline() for _ in range(2)]
    assert {word for line in finished for word in line.split() if "-" in word} == {"short-1", "short-2"}, finished
    _, errors = signal_group(process, signal.SIGINT)
    assert errors.startswith("marginlens: interrupted. 2 of 4 claims")
    assert errors.endswith(": marginlens reproduce --resume.\n")
    entries = read_ledger(tmp_path / "current" / "report")
    assert [(entry.id, entry.result is None) for entry in entries] == [
        ("endless-1", True),
        ("short-1", False),
        ("short-2", False),
        ("endless-2", True),
    ]
    assert [entry.unfinished for entry in entries] == [Effort.PAPER, None, None, Effort.PAPER]
    assert [path.name for path in (tmp_path / "current").iterdir()] == ["report"]


def alive(group):
    """Whether a process of this group is still there."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
