"""Time the library against the best alternatives on this machine: `python -m benchmarks NAME`, from a checkout."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from rich.console import Console
from rich.table import Table

from marginlens.errors import InputError

BENCHMARKS = {  # name -> what it does
    "selection": "descend on thousands of problems, and select their tokens",
    "gpu": "descend and solve margin problems on a GPU",
    "svm": "solve hard-margin problems",
    "norms": "solve hard-margin problems in other norms than the Euclidean one",
    "steps": "take steps of descent in other norms than the Euclidean one",
    "graph": "rank the tokens of a million windows, and solve Graph-SVM",
    "nexttoken": "descend on next-token weights",
    "probe": "probe every head of all-MiniLM-L6-v2",
}
SUMMARY = "summary"  # the text that marks a row which sums up the others
NOTE = "note"  # the column of what is said below the table
_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 0.0))
_MIN_WIDTH = 120  # of a table, if the output is no terminal


def main(words: Sequence[str] | None = None) -> int:
    """Run one benchmark and print its rows. Returns the exit code."""
    listed = "\n".join(f"  {name:<10} {what}" for name, what in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description=__doc__, epilog=listed, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("name", choices=BENCHMARKS, metavar="NAME", help="Benchmark to run; they are listed below.")
    parser.add_argument("--json", action="store_true", help="Print the rows as JSON.")
    chosen = parser.parse_args(words)
    try:
        rows = getattr(import_module(f"benchmarks.{chosen.name}"), f"bench_{chosen.name}")()
    except (InputError, ImportError) as problem:
        print(f"benchmarks: {problem}", file=sys.stderr)
        return 2
    if chosen.json:
        print(json.dumps(rows, indent=1))
        return 0
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(_MIN_WIDTH, console.width))
    for block in timings(chosen.name, rows):
        console.print(block, markup=False)
    return 0


def timings(title: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[Table | str]:
    """The rows of a benchmark as a table, and below it notes and the rows that sum others up."""
    measured = [row for row in rows if SUMMARY not in row.values()]
    names = [name for name in dict.fromkeys(name for row in measured for name in row) if name != NOTE]
    table = Table(*(name.replace("seconds", "time").replace("_", " ") for name in names), title=title)
    for row in measured:
        table.add_row(*(_cell(name, row.get(name)) for name in names))
    yield table
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


def _cell(name: str, value: Any) -> str:
    if not isinstance(value, float):
        return "" if value is None else str(value)
    if name == "seconds" or name.startswith("seconds_per"):
        unit, least = next(pair for pair in _UNITS if value >= pair[1])
        return f"{value / (least or 1e-6):.4g} {unit}"
    return f"{value:.0e}" if name.endswith("residual") else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main())
