"""What ends a command besides its answer: a full disk, a signal, benchmarks without a checkout."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tolerances
from marginlens.cli import app as cli
from marginlens.data import figure_8, write_problem


def invoke(*arguments):
    return CliRunner().invoke(cli.app, list(arguments))


@pytest.fixture
def files(here):
    write_problem("f.npz", *figure_8())
    return here


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_output_that_cannot_be_printed_ends_in_one_sentence(files):
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "marginlens", "solve", "f.npz", "--json"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env={**os.environ})
    assert done.returncode != 0
    assert os.strerror(errno.ENOSPC) in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_during_a_run_is_one_sentence_and_130_and_leaves_no_file(files, name):
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import marginlens as ml; "
    code += "ml.descend(*ml.data.figure_1b(), n_steps=1); print('ready', flush=True); "
    code += "import marginlens_command as c; c.main()"
    command = [sys.executable, "-c", code, "train", "f.npz", "--steps", "2000000000", "--plot", "x.png"]
    before = sorted(files.rglob("*"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(2.0)
        process.send_signal(getattr(signal, name))
        out, told = process.communicate(timeout=tolerances.HANGING)
    lines = [line for line in told.splitlines() if not line.endswith("...")]
    assert (process.returncode, out, lines) == (130, "", ["marginlens: interrupted."])
    assert sorted(files.rglob("*")) == before


def test_benchmarks_need_a_checkout_and_print_rows(monkeypatch, tmp_path):
    rows = [{"method": "fused loop", "problems": 1000, "seconds": 1.23456}]
    (tmp_path / "benchmarks").mkdir()
    monkeypatch.setattr("marginlens.cli.bench.CHECKOUT", tmp_path)
    result = invoke("bench", "svm")
    assert result.exit_code == 2
    assert result.stderr.startswith("marginlens: Benchmarks come with a checkout of the project")
    monkeypatch.undo()
    monkeypatch.setattr("benchmarks.svm.bench_svm", lambda progress: progress(1, 1) or rows)
    assert json.loads(invoke("bench", "svm", "--json").stdout) == rows
    assert "1.235 s" in invoke("bench", "svm").stdout
