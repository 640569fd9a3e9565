"""What ends a command besides its answer: signals, also while it is still importing, a full disk."""

import errno
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tolerances
from marginlens.cli import app as cli
from marginlens.data import figure_8, write_problem

slow = pytest.mark.slow  # it starts and ends processes
ROOT = Path(__file__).resolve().parents[2]
ENTRY = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]["marginlens"]
SIGNALLED = """
import os, signal, time

try:
    os.kill(os.getpid(), signal.{name})
    time.sleep({seconds})
except BaseException:  # as packages do that can go without another one
    pass
raise ImportError("the import went on")
"""


def start(folder, package, code, *, sigint="default_int_handler"):
    """Start the console command where importing `package` runs `code` instead."""
    (folder / f"{package}.py").write_text(code)
    module, function = ENTRY.split(":")
    calling = f"import signal; signal.signal(signal.SIGINT, signal.{sigint}); import {module}; {module}.{function}()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "src")])}
    command = [sys.executable, "-c", calling, "--version"]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=tolerances.HANGING
    )


@pytest.mark.posix("signal that a process sends to itself")
@slow
@pytest.mark.parametrize(("package", "name"), [("typer", "SIGINT"), ("typer", "SIGTERM")])
def test_a_signal_during_imports_exits_130_with_one_line(tmp_path, package, name):
    done = start(tmp_path, package, SIGNALLED.format(name=name, seconds=60))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "marginlens: interrupted.\n")


@pytest.mark.posix("signal that a process sends to itself")
def test_ctrl_c_in_a_command_exits_130_with_one_line(here, monkeypatch):
    def interrupted(path):
        raise KeyboardInterrupt

    monkeypatch.setattr("marginlens.data.files.holds_sequences", interrupted)
    done = CliRunner().invoke(cli.app, ["predict", "f.npz"])
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", "marginlens: interrupted.\n")


FINALIZED = """
import os, signal, sys, time

import marginlens.cli.app as cli

class Compiled:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)

@cli.app.command()
def spin():
    Compiled()
    end = time.monotonic() + {seconds}
    while time.monotonic() < end:
        pass

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = ["marginlens", "spin"]
cli.main()
"""


@pytest.mark.posix("signal that a process sends to itself")
@slow
def test_ctrl_c_in_a_finalizer_exits_130_with_one_line():
    command = [sys.executable, "-c", FINALIZED.format(seconds=tolerances.HANGING)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=tolerances.HANGING)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "marginlens: interrupted.\n")


@slow
def test_a_signal_that_is_ignored_stays_ignored(tmp_path):
    done = start(tmp_path, "typer", SIGNALLED.format(name="SIGINT", seconds=0), sigint="SIG_IGN")
    assert done.returncode == 1
    assert "the import went on" in done.stderr


@slow
def test_a_failing_import_shows_its_traceback(tmp_path):
    done = start(tmp_path, "typer", "raise ImportError('a broken installation')")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("ImportError: a broken installation\n")


@slow
@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.default_int_handler])
def test_command_line_raises_on_signals_unless_ignored(monkeypatch, handler):
    seen = {}
    monkeypatch.setattr(cli, "app", lambda **_: seen.update({one: signal.getsignal(one) for one in before}))
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, handler)
    try:
        cli.main()
    finally:
        for one, earlier in before.items():
            signal.signal(one, earlier)
    assert seen == {signal.SIGINT: handler, signal.SIGTERM: signal.default_int_handler}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_unprintable_output_exits_with_one_line(here):
    write_problem("f.npz", *figure_8())
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "marginlens", "predict", "f.npz", "--json"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env={**os.environ})
    assert done.returncode != 0
    assert os.strerror(errno.ENOSPC) in done.stderr


@pytest.mark.posix("signal that a process sends to itself")
@slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_during_a_run_exits_130_and_leaves_no_file(here, name):
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import marginlens as ml; "
    code += "ml.descend(*ml.data.figure_1b(), n_steps=1); print('ready', flush=True); "
    code += "import marginlens_command as c; c.main()"
    command = [sys.executable, "-c", code, "train", "f.npz", "--steps", "2000000000", "--plot", "x.png"]
    write_problem("f.npz", *figure_8())
    before = sorted(here.rglob("*"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(2.0)
        process.send_signal(getattr(signal, name))
        out, told = process.communicate(timeout=tolerances.HANGING)
    lines = [line for line in told.splitlines() if not line.endswith("...")]
    assert (process.returncode, out, lines) == (130, "", ["marginlens: interrupted."])
    assert sorted(here.rglob("*")) == before
