"""The other commands: version, help, benchmarks."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import marginlens
from marginlens.cli import app as cli


def invoke(*arguments):
    return CliRunner().invoke(cli.app, list(arguments))


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
