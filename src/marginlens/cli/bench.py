"""`marginlens bench`: the door to benchmarks/, which comes with a checkout and is not installed with the library."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import typer

import marginlens
from marginlens.cli._exit import one_sentence
from marginlens.cli._options import AsJson
from marginlens.errors import InputError

app = typer.Typer(help="Time the library against the best alternatives on this machine.", no_args_is_help=True)
CHECKOUT = Path(marginlens.__file__).resolve().parents[2]  # the folder of src/ in an editable installation


@app.command()
def selection(as_json: AsJson = False) -> None:
    """Descend on thousands of problems, and select their tokens."""
    _measure("selection", "Token selection", as_json)


@app.command()
def svm(as_json: AsJson = False) -> None:
    """Solve the hard-margin problems."""
    _measure("svm", "Hard-margin problems", as_json)


@app.command()
def graph(as_json: AsJson = False) -> None:
    """Rank the tokens of a million windows, and solve Graph-SVM."""
    _measure("graph", "Priority graphs and Graph-SVM", as_json)


@app.command()
def nexttoken(as_json: AsJson = False) -> None:
    """Descend on next-token weights."""
    _measure("nexttoken", "Next-token descent", as_json)


@app.command()
def probe(as_json: AsJson = False) -> None:
    """Probe every head of a real model."""
    _measure("probe", "Probe of all-MiniLM-L6-v2", as_json)


@app.command()
def embeddings(as_json: AsJson = False) -> None:
    """Take training steps on embeddings."""
    _measure("embeddings", "Trained embeddings", as_json)


def _measure(name: str, title: str, as_json: bool) -> None:
    """Run `benchmarks.<name>.bench_<name>` and print its rows."""
    with one_sentence():
        if not (CHECKOUT / "benchmarks" / "__init__.py").is_file():
            raise InputError(
                "Benchmarks come with a checkout of the project, from which marginlens is installed with pip install --editable."
            )
        if str(CHECKOUT) not in sys.path:
            sys.path.insert(0, str(CHECKOUT))
        from marginlens.cli._terminal import Bars, console
        from marginlens.cli.timings import timings_table

        measure = getattr(import_module(f"benchmarks.{name}"), f"bench_{name}")
        with Bars(console(stderr=True)) as bars:
            rows = measure(progress=bars.bar(title))
        if as_json:
            typer.echo(json.dumps(rows, indent=2))
        else:
            console().print(timings_table(title, rows))
