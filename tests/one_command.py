"""One command of the command line as two functions: what it prints, and what its JSON holds."""

import json

import pytest
from typer.testing import CliRunner

from marginlens.cli import app as cli


def command(name):
    """(run, numbers): the result of running the command, and its answer in JSON, in which nothing but finite numbers stands."""

    def run(*arguments, stdin=None):
        return CliRunner().invoke(cli.app, [name, *map(str, arguments)], input=stdin)

    def numbers(*arguments, stdin=None):
        result = run(*arguments, "--json", stdin=stdin)
        assert result.exit_code == 0, result.output
        assert result.stderr == ""
        return json.loads(result.stdout, parse_constant=pytest.fail)

    return run, numbers


def refusal(result):
    """The one sentence of a command that ended in 2 and printed nothing else."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("marginlens: ")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("marginlens: ")
