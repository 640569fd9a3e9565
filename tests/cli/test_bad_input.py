"""Bad input of every command ends in one sentence, exit code 2 and no file; so do a full disk and an absent checkout, and Ctrl-C in 130."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import tolerances
from marginlens.cli import app as cli
from marginlens.data import figure_2, figure_8, sphere_tokens, write_problem, write_sequences

CASES = [
    ("solve", "gone.npz", "FILE"),
    ("solve", "empty.npz", "FILE"),
    ("solve", "f.npz --selected a,b", "--selected"),
    ("solve", "f.npz --selected 0,2", "--selected"),
    ("solve", "f.npz --start 1,2 --selected 0,0", "--start"),
    ("solve", "deep.npz --plot x.png", "--plot"),
    ("solve", "f.npz --plot no/x.png", "--plot"),
    ("solve", "s.json --plot x.png", "--plot"),
    ("solve", "f.npz --drop", "--drop"),
    ("solve", "f.npz --norm spectral", "--norm"),
    ("solve", "f.npz --norm l0.5", "--norm"),
    ("solve", "f.npz --norm longest", "--norm"),
    ("solve", "f.npz --norm l1 --start 1,2", "--start"),
    ("solve", "s.json --norm l1", "--norm"),
    ("train", "f.npz --loss hinge", "--loss"),
    ("train", "f.npz --steps 0", "--steps"),
    ("train", "f.npz --steps 99999999999999999999", "--steps"),
    ("train", "f.npz --step-size nan", "--step-size"),
    ("train", "f.npz --start inf,0", "--start"),
    ("train", "s.json --loss hinge", "--loss"),
    ("train", "s.json --start 1,2", "--start"),
    ("graph", "no.txt", "FILE"),
    ("graph", "latin.txt", "--encoding"),
    ("graph", "t.txt --encoding klingon", "--encoding"),
    ("graph", "s.json --encoding utf-8", "--encoding"),
    ("graph", "t.txt --window 40", "--window"),
    ("graph", "t.txt --last Z", "--last"),
    ("graph", "t.txt --vocabulary 3", "--vocabulary"),
    ("graph", "t.txt --tokens 5", "--tokens"),
    ("graph", "t.txt --held-out 1", "--held-out"),
    ("graph", "t.txt --drop", "--drop"),
    ("graph", "t.txt --save a.txt", "--save"),
    ("graph", "s.json --words", "--words"),
    ("probe", "someone/some-model", "MODEL_OR_PATH"),
    ("probe", "here --text t.txt --images x.npy", "--images"),
    ("probe", "here --out t.txt", "--out"),
    ("probe", "here --out .", "--out"),
    ("probe", "run", "MODEL_OR_PATH"),
    ("probe", "here --out /proc/x", "--out"),
    ("text train", "r.csv --out /proc/x", "--out"),
    ("solve", "f.npz --plot /proc/x.png", "--plot"),
    ("statement", "A Thm 99", "LABEL"),
    ("text train", "nothing.csv", "FILE"),
    ("text train", "r.csv --text body", "--text"),
    ("text train", "r.csv --test dev", "--test"),
    ("text train", "r.csv --test 1.5", "--test"),
    ("text train", "r.csv --out no/where", "--out"),
    ("text explain", "nothing words", "MODEL"),
    ("text figure", "nothing --plot f.png", "MODEL_OR_RESULT"),
    ("text encode", "r.csv --out x.txt --pieces v.txt", "--out"),
]


def invoke(*arguments):
    return CliRunner().invoke(cli.app, list(arguments))


@pytest.fixture
def files(here):
    write_problem("f.npz", *figure_8())
    write_problem("deep.npz", *sphere_tokens(2, 2, 3, 4, 0))
    write_sequences("s.json", figure_2(), ["e1", "e2", "e3", "e4"])
    np.savez("empty.npz")
    Path("t.txt").write_text("to be or not to be that is the question\n", encoding="utf-8")
    Path("latin.txt").write_bytes(b"caf\xe9 au lait")
    Path("r.csv").write_text("text,label,split\n" + "good good,1,train\nbad bad,0,train\n" * 10)
    Path("here").mkdir()
    for name in ("checkpoint-1", "checkpoint-2"):
        (Path("run") / name).mkdir(parents=True)
        (Path("run") / name / "config.json").write_text("{}")
    return here


@pytest.mark.parametrize(("command", "arguments", "argument"), CASES, ids=[f"{c} {a}" for c, a, _ in CASES])
def test_one_sentence_exit_code_2_and_no_file(files, command, arguments, argument):
    before = sorted(files.rglob("*"))
    result = invoke(*command.split(), *arguments.split())
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith(f"marginlens: {argument} must be ")
    assert result.stderr.count("\n") == 1
    assert sorted(files.rglob("*")) == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_output_that_cannot_be_printed_ends_in_one_sentence(files):
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "marginlens", "solve", "f.npz", "--json"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env={**os.environ})
    assert done.returncode != 0
    assert os.strerror(errno.ENOSPC) in done.stderr


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
