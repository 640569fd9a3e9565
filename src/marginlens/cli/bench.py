"""`marginlens bench`: the door to benchmarks/, which comes with a checkout and is not installed with the library."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import marginlens
from marginlens.cli._commands import group
from marginlens.cli._deferred import errors, terminal
from marginlens.cli._exit import errors_as_sentences
from marginlens.cli._options import AsJson, Quiet

if TYPE_CHECKING:
    from rich.console import Group

CHECKOUT = Path(marginlens.__file__).resolve().parents[2]  # the folder of src/ in an editable installation
BENCHMARKS = {  # name -> title of its table, what it does
    "selection": ("Token selection", "Descend on thousands of problems, and select their tokens."),
    "gpu": ("Descents and margins on a GPU", "Descend and solve margin problems on a GPU."),
    "svm": ("Hard-margin problems", "Solve the hard-margin problems."),
    "norms": (
        "Hard-margin problems in other norms",
        "Solve hard-margin problems in other norms than the Euclidean one.",
    ),
    "steps": ("Steps of descent in other norms", "Take steps of descent in other norms than the Euclidean one."),
    "graph": ("Priority graphs and Graph-SVM", "Rank the tokens of a million windows, and solve Graph-SVM."),
    "stream": ("Priority graphs of a stream", "Rank the tokens of a corpus of a hundred million, chunk by chunk."),
    "nexttoken": ("Next-token descent", "Descend on next-token weights."),
    "probe": ("Probe of all-MiniLM-L6-v2", "Probe every head of a real model."),
    "monitor": ("A monitored training run", "Train a small GPT-2, and see what watching its heads costs."),
    "engines": ("Engines", "Run tasks without work, to see what each engine costs."),
    "sweep": ("Sweeps", "Sweep a million problems beside a bare loop over them, and ten million for their memory."),
    "embeddings": ("Trained embeddings", "Take training steps on embeddings."),
    "text": ("Text classifiers", "Train text classifiers on IMDB and Yelp, beside TF-IDF, NB-SVM and fastText."),
    "lab": ("The lab in a browser", "Open the lab in a browser, drag a token and paint basins."),
}
WITH_DEVICE = ("monitor",)  # whose functions take the device to run on
WITH_TEXTS = ("text",)  # whose functions take files of texts
SUMMARY, NOTE = (
    "summary",
    "note",
)  # the text that marks a row which sums up the others; the column of what is said below
_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 0.0))


def _command(name: str) -> Callable[..., None]:
    """The command that runs `benchmarks.<name>.bench_<name>` and prints its rows."""
    title, what = BENCHMARKS[name]

    def measure(as_json: bool, **options: Any) -> None:
        with errors_as_sentences():
            if not (CHECKOUT / "benchmarks" / "__init__.py").is_file():
                raise errors.InputError(
                    "Benchmarks come with a checkout of the project, from which marginlens is installed with pip install --editable."
                )
            if str(CHECKOUT) not in sys.path:
                sys.path.insert(0, str(CHECKOUT))
            run = getattr(import_module(f"benchmarks.{name}"), f"bench_{name}")
            with terminal.Bars() as bars:
                rows = run(progress=bars.bar(title), **options)
            if as_json:
                typer.echo(json.dumps(rows, indent=2))
            else:
                terminal.console().print(timings_table(title, rows))

    def plain(as_json: AsJson = False, quiet: Quiet = False) -> None:
        measure(as_json)

    def measure_on(
        device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu, cuda or cuda:1.")] = "cpu",
        as_json: AsJson = False,
        quiet: Quiet = False,
    ) -> None:
        measure(as_json, device=device)

    def measure_texts(
        imdb: Annotated[
            Path | None,
            typer.Option(
                metavar="FILE", help="IMDB's reviews, with columns text, label and split.", show_default=False
            ),
        ] = None,
        yelp: Annotated[
            Path | None,
            typer.Option(metavar="FILE", help="Yelp's reviews, with columns text and stars.", show_default=False),
        ] = None,
        only: Annotated[
            list[str] | None,
            typer.Option(
                metavar="PART",
                help="imdb, lengths, faithfulness, imbalance, few (all of --imdb), yelp or stars (of --yelp); may be given again.",
                show_default="all",
            ),
        ] = None,
        seed: Annotated[int, typer.Option(metavar="N", help="Of splits, draws and models.", min=0)] = 0,
        as_json: AsJson = False,
        quiet: Quiet = False,
    ) -> None:
        measure(as_json, imdb=imdb, yelp=yelp, only=only or (), seed=seed)

    kinds: list[tuple[tuple[str, ...], Callable[..., None]]] = [(WITH_DEVICE, measure_on), (WITH_TEXTS, measure_texts)]
    command = next((takes for names, takes in kinds if name in names), plain)
    data = " --imdb imdb.parquet --yelp yelp.parquet" if name in WITH_TEXTS else ""
    command.__doc__ = f"{what}\n\nExamples:\n    marginlens bench {name}{data}\n    marginlens bench {name}{data} --json > {name}.json\n"
    return command


app = group(
    {name: _command(name) for name in BENCHMARKS},
    help="Time the library against the best alternatives on this machine.",
)


def timings_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Group:
    """The rows of a benchmark with a line between sizes, which come before the first text of a row; notes and sums below."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    measured = [row for row in rows if SUMMARY not in row.values()]
    names = [name for name in dict.fromkeys(name for row in measured for name in row) if name != NOTE]
    first_text = next((k for k, name in enumerate(names) if any(isinstance(row.get(name), str) for row in rows)), 0)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=Text(title, style="bold"), title_justify="left")
    for name in names:
        numeric = all(isinstance(row.get(name), int | float | None) for row in measured)
        heading = name.replace("seconds", "time").replace("_", " ")
        table.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for k, row in enumerate(measured):
        if k and any(row.get(name) != measured[k - 1].get(name) for name in names[:first_text]):
            table.add_section()
        table.add_row(*(Text(_cell(name, row.get(name))) for name in names))
    below = [f"{_texts(row)}: {row[NOTE]}" for row in measured if row.get(NOTE)]
    for row in rows:
        if SUMMARY in row.values():
            sizes = [f"{name} = {row[name]}" for name in names[:first_text] if row.get(name) is not None]
            numbers = [
                f"{name.replace('_', ' ')} {_cell('', value)}"
                for name, value in row.items()
                if name not in names and not isinstance(value, str)
            ]
            texts = _texts(row)
            below.append(", ".join([*sizes, *numbers]) + (f": {texts}" if texts else ""))
    return Group(table, *map(Text, below))


def _texts(row: Mapping[str, Any]) -> str:
    return ", ".join(
        value for name, value in row.items() if isinstance(value, str) and name != NOTE and value != SUMMARY
    )


def _cell(name: str, value: Any) -> str:
    if not isinstance(value, float):
        return "–" if value is None else str(value)
    if name == "seconds" or name.startswith("seconds_per"):
        unit, least = next(pair for pair in _UNITS if value >= pair[1])
        return f"{value / (least or 1e-6):.4g} {unit}"
    return f"{value:.0e}" if name.endswith("residual") else f"{value:.4g}"
