"""Benchmarks in the terminal: one short table per problem size, and in one line below it what it amounts to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from textwrap import wrap
from typing import Any

from rich import box
from rich.console import Group
from rich.markup import escape
from rich.table import Table

Row = Mapping[str, Any]
SUMMARY = "summary"  # the text by which a benchmark marks the row that sums up the others
NOTE = "note"  # the name of what is said about a row, below its table
_HEADING = 9  # letters of a numeric column's heading in one line, where no word is longer


def timings_table(title: str, rows: Sequence[Row]) -> Group:
    """The rows of a benchmark, grouped by the sizes that come before the first text in each row.

    Columns that are empty in a group are left out, notes and summary rows become lines below it, times get their unit.
    """
    parts: list[Any] = [f"[bold]{escape(title)}[/]"]
    sizes = _sizes(rows)
    plain = [row for row in rows if not _is_summary(row)]
    everywhere = {name for row in plain for name in row}
    if len(sizes) < 2:  # one size or none: a single table says it in less room
        sums = [_sum(row, everywhere) for row in rows if _is_summary(row)]
        return Group(*parts, _table(plain, sizes), *_notes(plain), *sums)
    for values, group in groupby(rows, key=lambda row: tuple(row.get(name) for name in sizes)):
        members = list(group)
        parts.append("\n" + escape(", ".join(f"{name} = {one}" for name, one in zip(sizes, values, strict=True))))
        shown = [{name: row[name] for name in row if name not in sizes} for row in members if not _is_summary(row)]
        if shown:
            parts += [_table(shown, ()), *_notes(shown)]
        parts += [_sum(row, everywhere) for row in members if _is_summary(row)]
    return Group(*parts)


def _sizes(rows: Sequence[Row]) -> tuple[str, ...]:
    """The names before the first text of a row, where every row has whole numbers or nothing."""
    names: list[str] = []
    for name in rows[0] if rows else ():
        if any(isinstance(row.get(name), str | float) for row in rows):
            break
        names.append(name)
    return tuple(names)


def _is_summary(row: Row) -> bool:
    return SUMMARY in row.values()


def _table(rows: Sequence[Row], sections: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    every = dict.fromkeys(name for row in rows for name in row if name != NOTE)
    names = [name for name in every if any(row.get(name) is not None for row in rows)]
    for name in names:
        numeric = all(isinstance(row.get(name), int | float | None) for row in rows)
        heading = name.replace("seconds", "time").replace("_", " ")
        if numeric:  # a narrow heading leaves the room to the texts
            table.add_column(
                escape("\n".join(wrap(heading, _HEADING, break_long_words=False))), justify="right", no_wrap=True
            )
        else:
            table.add_column(escape(heading), overflow="fold")
    for k, row in enumerate(rows):
        if k and any(row.get(name) != rows[k - 1].get(name) for name in sections):
            table.add_section()
        table.add_row(*(escape(_cell(name, row.get(name))) for name in names))
    return table


def _notes(rows: Sequence[Row]) -> list[str]:
    """What is said about single rows, each after the row's texts."""
    noted = [row for row in rows if row.get(NOTE)]
    texts = [[value for name, value in row.items() if isinstance(value, str) and name != NOTE] for row in noted]
    return [escape(f"{', '.join(words)}: {row[NOTE]}") for words, row in zip(texts, noted, strict=True)]


def _sum(row: Row, everywhere: set[str]) -> str:
    """A summary row in one line: what no other row has, then its texts."""
    own = [f"{name.replace('_', ' ')} {_cell('', row[name])}" for name in row if name not in everywhere]
    texts = [value for value in row.values() if isinstance(value, str) and value != SUMMARY]
    return f"[bold]{escape(', '.join(own))}[/]" + escape(f": {', '.join(texts)}" if texts else "")


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if not isinstance(value, float):
        return str(value)
    if name == "seconds" or name.startswith("seconds_per"):
        unit, scale = next((pair for pair in (("s", 1.0), ("ms", 1e-3)) if value >= pair[1]), ("µs", 1e-6))
        return f"{value / scale:.4g} {unit}"
    return f"{value:.0e}" if name.endswith("residual") else f"{value:.4g}"
