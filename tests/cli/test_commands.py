"""The other commands: version, help, benchmarks."""

import errno
import io
import json
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

import marginlens
from marginlens.cli import _rows
from marginlens.cli import app as cli
from marginlens.errors import missing_extra

ROWS = [
    {"method": "fused loop", "problems": 1000, "seconds": 1.23456, "speedup": 12.0},
    {"method": "[tensor]", "problems": 1000, "seconds": 6.3, "speedup": None},
]


def invoke(*arguments):
    return CliRunner().invoke(cli.app, list(arguments))


@pytest.fixture(params=["selection", "svm"])
def bench(request, monkeypatch):
    """A benchmark by name, whose measuring function can be set."""

    def install(measure):
        module = types.ModuleType(f"benchmarks.{request.param}")
        setattr(module, f"bench_{request.param}", measure)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return request.param

    return install


def measure(progress=None):
    progress.expect(2)
    progress.advance()
    return ROWS


def test_bench_prints_a_table(bench):
    result = invoke("bench", bench(measure))
    assert result.exit_code == 0, result.output
    for word in ("fused loop", "[tensor]", "1.235", "6.3", "–", "speedup"):
        assert word in result.stdout


def test_bench_json_is_the_only_thing_on_stdout(bench):
    result = invoke("bench", bench(measure), "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == ROWS


def test_a_benchmark_that_lacks_a_package_says_how_to_get_it(bench):
    def lacking(progress=None):
        raise missing_extra("cvxopt", "bench", "The comparison")

    result = invoke("bench", bench(lacking))
    assert result.exit_code == 2
    assert result.stderr == (
        "marginlens: The comparison needs the package cvxopt: install it with pip install 'marginlens[bench]'.\n"
    )


def test_without_a_checkout_bench_ends_in_2_and_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr("marginlens.cli.bench.CHECKOUT", tmp_path)
    result = invoke("bench", "svm")
    assert result.exit_code == 2
    assert result.stderr.startswith("marginlens: Benchmarks come with a checkout of the project")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "command", [[Path(sys.executable).with_name("marginlens")], [sys.executable, "-m", "marginlens"]]
)
def test_the_command_says_its_version_installed_and_as_a_module(command):
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"marginlens {marginlens.__version__}\n"


def test_help_names_every_command():
    result = invoke("--help")
    assert result.exit_code == 0
    for name in ("reproduce", "claims", "bench", "solve", "train", "graph", "text", "probe", "statement"):
        assert name in result.stdout
    assert "Exit codes" in result.stdout


@pytest.mark.parametrize("arguments", [("dance",), ("reproduce", "--dance"), ("bench", "dance")])
def test_a_word_that_is_no_command_ends_in_2_without_a_traceback(arguments):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert "dance" in result.output


def test_names_that_are_imported_late_are_listed():
    import marginlens

    assert "AttentionTextClassifier" in dir(marginlens)
    assert set(marginlens.__all__) <= set(dir(marginlens))


@pytest.fixture
def main(monkeypatch):
    """The console entry point around a command that is set."""

    def run(command):
        monkeypatch.setattr(cli, "app", command)
        before = signal.getsignal(signal.SIGTERM)
        try:
            cli.main()
        finally:
            signal.signal(signal.SIGTERM, before)

    return run


def test_signs_that_the_encoding_lacks_are_printed_as_their_numbers(main, monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    main(lambda: print("✓ holds", flush=True))
    assert stream.buffer.getvalue() == b"\\u2713 holds\n"


@pytest.mark.parametrize(
    ("problem", "code", "sentence"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 2, "marginlens: [Errno 28] No space left on device\n"),
        (KeyboardInterrupt(), 130, "marginlens: interrupted.\n"),
    ],
)
def test_what_goes_wrong_outside_of_commands_ends_in_one_sentence_too(main, capsys, problem, code, sentence):
    def failing():
        raise problem

    with pytest.raises(SystemExit) as ended:
        main(failing)
    assert ended.value.code == code
    assert capsys.readouterr().err == sentence


def test_json_is_json_in_every_encoding(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    text = _rows.as_json({"token": "é😀"})
    assert text.isascii()
    assert json.loads(text) == {"token": "é😀"}


def test_too_little_memory_ends_in_2_and_one_sentence(bench):
    def hungry(progress=None):
        raise MemoryError

    result = invoke("bench", bench(hungry))
    assert result.exit_code == 2
    assert result.stderr == "marginlens: Not enough memory.\n"


def test_a_reader_that_has_left_is_told_nothing(bench):
    def unread(progress=None):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    result = invoke("bench", bench(unread))
    assert result.exit_code == 1
    assert result.stderr == ""
