"""Rows under named columns in a terminal of any width: no word and no number is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf
from typing import Literal

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

_FRAME, _GAP = 3, 2  # what a column costs besides its words: with a frame around it, and with spaces alone

_EASY = 16  # letters of a column that is easy to read


@dataclass(frozen=True)
class Column:
    """One column: its heading and its cells, in rich's markup."""

    heading: str
    cells: Sequence[str]
    numeric: bool = False

    @cached_property
    def full(self) -> int:
        """The width that leaves every line whole."""
        return max(line.cell_len for text in self._texts() for line in text.split())

    @cached_property
    def least(self) -> int:
        """The width that leaves every word whole, and every number with its unit."""
        heading, *cells = self._texts()
        together = (
            [text.plain for text in cells] if self.numeric else [one for text in cells for one in text.plain.split()]
        )
        return max((Text(one).cell_len for one in (*heading.plain.split(), *together)), default=1)

    @cached_property
    def longest(self) -> int:
        """The width that the longest cell would take in one line."""
        return max(text.cell_len for text in self._texts())

    def _texts(self) -> list[Text]:
        return [Text.from_markup(one) for one in (self.heading, *self.cells)]


@dataclass(frozen=True)
class Rows:
    """A table with a frame; without it where words would be cut otherwise, and a line for each value where they still would be."""

    title: str
    columns: Sequence[Column]
    show_lines: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The widest of the three forms that fits."""
        n = len(self.columns)
        framed, plain = options.max_width - _FRAME * n - 1, options.max_width - _GAP * (n - 1)
        least = sum(column.least for column in self.columns)
        if least <= framed:
            yield self._table(framed, Table(show_lines=self.show_lines))
        elif least <= plain:
            bare = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
            bare.show_lines = self.show_lines
            yield self._table(plain, bare)
        else:
            yield Text.from_markup(self.title, style="bold")
            yield self._listed()

    def _table(self, room: int, table: Table) -> Table:
        """The table with the longest cells of all columns in about as many lines as each other, as few as there is room for."""

        def widths(lines: float, floor: int) -> list[int]:
            return [min(one.full, max(one.least, floor, ceil(one.longest / lines))) for one in self.columns]

        floor = max((k for k in range(1, _EASY + 1) if sum(widths(inf, k)) <= room), default=1)
        lines = 1.0
        while sum(widths(lines, floor)) > room:  # which ends, since the longest words fit
            lines *= 1.02
        table.title, table.title_justify, table.title_style = self.title, "left", "bold"
        for column, width in zip(self.columns, widths(lines, floor), strict=True):
            side: Literal["right", "left"] = "right" if column.numeric else "left"
            table.add_column(column.heading, justify=side, width=width, overflow="fold")
        for cells in self._cells():
            table.add_row(*cells)
        return table

    def _listed(self) -> Table:
        """Name and value of each cell, one below the other, and a blank line between rows."""
        table = Table.grid(padding=(0, 1))
        table.add_column(style="dim", overflow="fold")
        table.add_column(overflow="fold")
        for k, cells in enumerate(self._cells()):
            if k:
                table.add_row("", "")
            for column, cell in zip(self.columns, cells, strict=True):
                table.add_row(column.heading, cell)
        return table

    def _cells(self) -> list[tuple[str, ...]]:
        return list(zip(*(column.cells for column in self.columns), strict=True))
