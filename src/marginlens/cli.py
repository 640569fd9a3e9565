"""The command line: solve and train problems, rank tokens, classify texts, probe models, reproduce the claims of the papers, time them."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from marginlens import __version__
from marginlens.commands.endings import one_sentence
from marginlens.commands.graph import graph
from marginlens.commands.options import AsJson
from marginlens.commands.probe import probe
from marginlens.commands.reproduce import claims, reproduce
from marginlens.commands.solve import solve
from marginlens.commands.statement import statement
from marginlens.commands.text import app as text
from marginlens.commands.train import train
from marginlens.runs.scripts import print_every_sign

app = typer.Typer(
    help="Predict, train and verify what softmax attention selects.",
    epilog="Exit codes: 0 done, 1 a claim was not reproduced, 2 something given is unusable, 130 interrupted.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
bench = typer.Typer(help="Time the library against the best alternatives on this machine.", no_args_is_help=True)
app.command()(solve)
app.command()(train)
app.command()(graph)
app.command()(probe)
app.command()(statement)
app.command()(reproduce)
app.command()(claims)
app.add_typer(text, name="text")
app.add_typer(bench, name="bench")


def main() -> None:
    """The command line, once it is imported; `marginlens_command` is what the console calls."""
    print_every_sign()
    try:
        with one_sentence():  # also where the help or the last table cannot be printed
            _interruptible()
            app()
    except typer.Exit as ending:
        sys.exit(ending.exit_code)


@app.callback(invoke_without_command=True)
def _options(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    if version:
        typer.echo(f"marginlens {__version__}")
        raise typer.Exit


@bench.command("selection")
def bench_selection(as_json: AsJson = False) -> None:
    """Descend on thousands of problems, and select their tokens."""
    with one_sentence():
        from marginlens.benchmarks.selection import bench_selection as measure

        _bench("Token selection", measure, as_json)


@bench.command("svm")
def bench_svm(as_json: AsJson = False) -> None:
    """Solve the hard-margin problems."""
    with one_sentence():
        from marginlens.benchmarks.svm import bench_svm as measure

        _bench("Hard-margin problems", measure, as_json)


@bench.command("graph")
def bench_graph(as_json: AsJson = False) -> None:
    """Rank the tokens of a million windows, and solve Graph-SVM."""
    with one_sentence():
        from marginlens.benchmarks.graph import bench_graph as measure

        _bench("Priority graphs and Graph-SVM", measure, as_json)


@bench.command("nexttoken")
def bench_nexttoken(as_json: AsJson = False) -> None:
    """Descend on next-token weights."""
    with one_sentence():
        from marginlens.benchmarks.nexttoken import bench_nexttoken as measure

        _bench("Next-token descent", measure, as_json)


@bench.command("probe")
def bench_probe(as_json: AsJson = False) -> None:
    """Probe every head of a real model."""
    with one_sentence():
        from marginlens.benchmarks.probe import bench_probe as measure

        _bench("Probe of all-MiniLM-L6-v2", measure, as_json)


@bench.command("embeddings")
def bench_embeddings(as_json: AsJson = False) -> None:
    """Take training steps on embeddings."""
    with one_sentence():
        from marginlens.benchmarks.embeddings import bench_embeddings as measure

        _bench("Trained embeddings", measure, as_json)


def _bench(title: str, measure: Callable[..., list[dict[str, Any]]], as_json: bool) -> None:
    from marginlens.commands.timings import timings_table
    from marginlens.report.terminal import Bars, console

    with Bars(console(stderr=True)) as bars:
        rows = measure(progress=bars.bar(title))
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        console().print(timings_table(title, rows))


def _interruptible() -> None:
    """Let Ctrl-C, unless it is ignored, and being asked to terminate raise: what was begun is cleaned up."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
