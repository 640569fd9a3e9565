"""The console command while it is still importing: a signal ends it in 130 and a sentence, and an import that fails is told as it is."""

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tolerances
from marginlens.cli._commands import Entry, group

pytestmark = pytest.mark.slow  # it starts and ends processes

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


@pytest.mark.parametrize(("package", "name"), [("typer", "SIGINT"), ("typer", "SIGTERM")])
def test_a_signal_during_the_imports_is_one_sentence_and_130(tmp_path, package, name):
    done = start(tmp_path, package, SIGNALLED.format(name=name, seconds=60))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "marginlens: interrupted.\n")


def test_ctrl_c_while_a_command_is_imported_is_one_sentence_and_130(tmp_path, monkeypatch, capsys):
    (tmp_path / "interrupted_command.py").write_text("raise KeyboardInterrupt")
    monkeypatch.syspath_prepend(tmp_path)
    app = group(
        {"run": Entry("interrupted_command", "run", "Run."), "stop": Entry("interrupted_command", "stop", "Stop.")}
    )
    with pytest.raises(SystemExit) as ending:
        app(["run"])
    assert ending.value.code == 130
    assert capsys.readouterr() == ("", "marginlens: interrupted.\n")


FINALIZED = """
import os, signal, time

import marginlens.cli.app as cli

class Compiled:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)

def command(**_):
    Compiled()
    end = time.monotonic() + {seconds}
    while time.monotonic() < end:
        pass

signal.signal(signal.SIGINT, signal.default_int_handler)
cli.app = command
cli.main()
"""


def test_ctrl_c_inside_a_finalizer_is_one_sentence_and_130():
    command = [sys.executable, "-c", FINALIZED.format(seconds=tolerances.HANGING)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=tolerances.HANGING)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "marginlens: interrupted.\n")


def test_a_signal_that_is_ignored_stays_ignored(tmp_path):
    done = start(tmp_path, "typer", SIGNALLED.format(name="SIGINT", seconds=0), sigint="SIG_IGN")
    assert done.returncode == 1
    assert "the import went on" in done.stderr


def test_an_import_that_fails_is_told_with_its_traceback(tmp_path):
    done = start(tmp_path, "typer", "raise ImportError('a broken installation')")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("ImportError: a broken installation\n")


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.default_int_handler])
def test_the_command_line_raises_on_signals_unless_they_are_ignored(monkeypatch, handler):
    from marginlens.cli import app as cli

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
