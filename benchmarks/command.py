"""`marginlens bench`: one command for each benchmark of this folder, and the tables that they print."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any

from marginlens.cli._commands import group
from marginlens.cli._deferred import terminal
from marginlens.cli._exit import Answer, command
from marginlens.cli._options import option

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
    "collapse": (
        "Collapse seen coming",
        "Train 220 small GPT-2s, half at rates that provoke collapse, and see how it is forecast.",
    ),
    "engines": ("Engines", "Run tasks without work, to see what each engine costs."),
    "sweep": ("Sweeps", "Sweep a million problems beside a bare loop over them, and ten million for their memory."),
    "embeddings": ("Trained embeddings", "Take training steps on embeddings."),
    "lab": ("The lab in a browser", "Open the lab in a browser, drag a token and paint basins."),
}
WITH_DEVICE = ("monitor",)  # whose functions take the device to run on
SUMMARY = "summary"  # the text that marks a row which sums up the others
NOTE = "note"  # the column of what is said below the table
_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 0.0))


def _command(name: str) -> Callable[..., None]:
    """The command that runs `benchmarks.<name>.bench_<name>` and prints its rows."""
    title, what = BENCHMARKS[name]

    def measure(**options: Any) -> Answer:
        run = getattr(import_module(f"benchmarks.{name}"), f"bench_{name}")
        with terminal.stage(title) as bar:
            rows = run(progress=bar, **options)
        return Answer(rows, timings_text(title, rows))

    def plain() -> Answer:
        return measure()

    def measure_on(device: Annotated[str, option("NAME", "cpu, cuda or cuda:1.")] = "cpu") -> Answer:
        return measure(device=device)

    made: Callable[..., Answer] = measure_on if name in WITH_DEVICE else plain
    made.__doc__ = (
        f"{what}\n\nExamples:\n    marginlens bench {name}\n    marginlens bench {name} --json > {name}.json\n"
    )
    return command()(made)


app = group(
    {name: _command(name) for name in BENCHMARKS},
    help="Time the library against the best alternatives on this machine.",
)


def timings_text(title: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
    """The rows of a benchmark as a table, and below it notes and the rows that sum others up."""
    measured = [row for row in rows if SUMMARY not in row.values()]
    names = [name for name in dict.fromkeys(name for row in measured for name in row) if name != NOTE]
    headings = {name: name.replace("seconds", "time") for name in names}
    yield terminal.rows_table(
        title, [{headings[name]: _cell(name, row.get(name)) for name in names} for row in measured]
    )
    for row in measured:
        if row.get(NOTE):
            yield f"{_texts(row)}: {row[NOTE]}"
    for row in rows:
        if SUMMARY in row.values():
            numbers = {name: value for name, value in row.items() if value is not None and not isinstance(value, str)}
            shown = ", ".join(f"{name.replace('_', ' ')} {_cell('', value)}" for name, value in numbers.items())
            yield shown + (f": {_texts(row)}" if _texts(row) else "")


def _texts(row: Mapping[str, Any]) -> str:
    return ", ".join(
        value for name, value in row.items() if isinstance(value, str) and name != NOTE and value != SUMMARY
    )


def _cell(name: str, value: Any) -> Any:
    if not isinstance(value, float):
        return value
    if name == "seconds" or name.startswith("seconds_per"):
        unit, least = next(pair for pair in _UNITS if value >= pair[1])
        return f"{value / (least or 1e-6):.4g} {unit}"
    return f"{value:.0e}" if name.endswith("residual") else f"{value:.4g}"
