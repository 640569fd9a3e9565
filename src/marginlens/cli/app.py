"""The command line: solve, train and sweep problems, the lab, graphs of tokens, texts, probes of models, the papers' claims, benchmarks."""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import typer

from marginlens import __version__
from marginlens.cli import papers_module
from marginlens.cli._exit import errors_as_sentences
from marginlens.cli.bench import app as bench
from marginlens.cli.graph import graph
from marginlens.cli.lab import lab
from marginlens.cli.probe import probe
from marginlens.cli.solve import solve
from marginlens.cli.statement import statement
from marginlens.cli.sweep import app as sweep
from marginlens.cli.text import app as text
from marginlens.cli.train import train
from marginlens.training.script import print_every_sign

app = typer.Typer(
    help="Predict, train and verify what softmax attention selects.",
    epilog="Exit codes: 0 done, 1 a claim was not reproduced, 2 something given is unusable, 130 interrupted.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(solve)
app.command()(train)
app.command()(graph)
app.command()(probe)
app.command()(lab)
app.command()(statement)
if (papers := papers_module("commands")) is not None:
    app.command()(papers.reproduce)
    app.command()(papers.claims)
app.add_typer(text, name="text")
app.add_typer(sweep, name="sweep")
app.add_typer(bench, name="bench")


def main() -> None:
    """The command line, once it is imported; `marginlens_command` is what the console calls."""
    print_every_sign()
    try:
        with errors_as_sentences():  # also where the help or the last table cannot be printed
            _interruptible()
            app()
    except typer.Exit as ending:
        sys.exit(ending.exit_code)


@app.callback(invoke_without_command=True)
def _options(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    if version:
        typer.echo(f"marginlens {__version__}")
        raise typer.Exit


def _interruptible() -> None:
    """Let Ctrl-C, unless it is ignored, and being asked to terminate raise: what was begun is cleaned up."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
