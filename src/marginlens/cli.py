"""The command line: solve and train problems, rank tokens, classify texts, probe models, reproduce the claims of the papers, time them."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from marginlens import __version__
from marginlens.commands.endings import EXIT_NOT_REPRODUCED, one_sentence
from marginlens.commands.graph import graph
from marginlens.commands.options import AsJson
from marginlens.commands.probe import probe
from marginlens.commands.solve import solve
from marginlens.commands.statement import statement
from marginlens.commands.text import app as text
from marginlens.commands.train import train
from marginlens.runs.scripts import print_every_sign

_WORKERS = 4  # processes that compute claims side by side, at most
_REPORT = Path("report")  # where the report is unless said otherwise

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


@app.command()
def reproduce(
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Run this claim alone; repeat it or separate ids by commas for several."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Reduced sizes: a few seconds per claim.")] = False,
    out: Annotated[Path, typer.Option("--out", "--output", metavar="FOLDER", help="Where the report goes.")] = _REPORT,
) -> None:
    """Run the claims, print the ledger and write the report.

    With --only, the other claims keep the results that the report already holds.
    Exits with 1 when a claim that ran was not reproduced.
    """
    with one_sentence("The earlier report, if there was one, is untouched."):
        from marginlens import report
        from marginlens.experiments import catalogue
        from marginlens.experiments.claim import Effort
        from marginlens.report.minilm import write_model_page
        from marginlens.report.terminal import Bars, console, ledger_table
        from marginlens.report.wording import tally
        from marginlens.threads import n_threads

        chosen = catalogue.chosen([name for group in only or () for name in group.split(",")]) if only else None
        with Bars(console(stderr=True)) as bars:

            def model_page(folder: Path, size: Effort) -> str:
                return write_model_page(folder, size, bars.bar("A real model"))

            published = report.reproduce(
                catalogue.claims() if chosen is None else chosen,
                out,
                effort=Effort.QUICK if quick else Effort.PAPER,
                keep=() if chosen is None else catalogue.claims(),
                watcher=bars,
                workers=min(n_threads(), _WORKERS),
                beside=model_page if chosen is None else None,
            )
    console().print(ledger_table(published.entries))
    verdicts = [entry.result.verdict for entry in published.entries if entry.result]
    typer.echo(f"{tally(verdicts)}.\nThe report is at {_shown(published.page)}")
    if published.beside:
        typer.echo(published.beside)
    if published.failures:
        raise typer.Exit(EXIT_NOT_REPRODUCED)


@app.command()
def claims(
    folder: Annotated[
        Path, typer.Option("--report", metavar="FOLDER", help="The report to take results from.")
    ] = _REPORT,
) -> None:
    """List every claim with its last result."""
    with one_sentence():
        from marginlens import report
        from marginlens.report.terminal import console, ledger_table

        entries = report.ledger(folder)
        console().print(ledger_table(entries))
        if not any(entry.result for entry in entries):
            place = "" if folder == _REPORT else f" --out {shlex.quote(str(folder))}"
            typer.echo(f"There is no report in {folder} yet: marginlens reproduce{place} makes one.", err=True)


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


def _shown(path: Path) -> str:
    """The path relative to the current folder where it is inside it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
