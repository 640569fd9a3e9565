"""The grid of a sweep: cells as the product of axes, shared problems for cells that differ only in training, and chunks of each cell."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from marginlens.errors import InputError, whole_number
from marginlens.typing import ArrayLike

# Cells that agree in these, and in the parameters, have the same problems.
DATA_AXES = ("data", "n_inputs", "n_tokens", "d")
TRAINING_AXES = ("loss", "optimizer", "step", "start", "n_steps")
# In the order of the grid, the parameters by name after them; the last one varies fastest.
AXES = (*DATA_AXES, *TRAINING_AXES)


@dataclass(frozen=True)
class Chunk:
    """Problems first … last - 1 of a cell; `index` counts chunks through all cells, `number` within the cell."""

    index: int
    cell: int
    number: int
    first: int
    last: int

    @property
    def n_problems(self) -> int:
        """The number of problems."""
        return self.last - self.first


@dataclass(frozen=True)
class Cell:
    """One point of the grid.

    Attributes:
        index: the number of the cell.

        stream: the number of its stream of random problems, which cells with the same data share.

        settings: the values of all axes and of the settings that are the same in all cells, by key.

        axes: the settings that vary over the grid.
    """

    index: int
    stream: int
    settings: Mapping[str, Any]
    axes: Mapping[str, Any]

    def __str__(self) -> str:
        return ", ".join(f"{name} = {value}" for name, value in self.axes.items()) or "all problems"


@dataclass(frozen=True)
class Grid:
    """The cells and chunks of a sweep.

    Attributes:
        n_problems: the number of problems in each cell.

        fixed: settings that are the same in all cells.

        axes: the values of each axis, in the order of the grid.

        chunk_sizes: the number of problems in a chunk of each cell, except its last; one number if all cells have the same.
    """

    n_problems: int
    fixed: Mapping[str, Any]
    axes: Mapping[str, tuple[Any, ...]]
    chunk_sizes: tuple[int, ...]

    @classmethod
    def of(cls, plan: Mapping[str, Any]) -> Grid:
        """Make the grid from the keys of a plan, or from `Plan.to_dict`, which needs none of the plan's functions."""
        listed = {name: plan[name] for name in AXES} | dict(sorted(plan["parameters"].items()))
        axes = {name: tuple(value) for name, value in listed.items() if is_axis(name, value)}
        fixed = {name: value for name, value in listed.items() if name not in axes}
        sizes = plan["chunk"]
        return cls(plan["n_problems"], fixed, axes, tuple(sizes) if isinstance(sizes, list) else (sizes,))

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """All cells; the last axis varies fastest."""
        streams: dict[tuple[int, ...], int] = {}
        of_data = [k for k, name in enumerate(self.axes) if name not in TRAINING_AXES]
        cells = []
        for index, places in enumerate(itertools.product(*(range(len(values)) for values in self.axes.values()))):
            chosen = {name: values[k] for (name, values), k in zip(self.axes.items(), places, strict=True)}
            stream = streams.setdefault(tuple(places[k] for k in of_data), len(streams))
            cells.append(Cell(index, stream, {**self.fixed, **chosen}, chosen))
        return tuple(cells)

    @property
    def n_total(self) -> int:
        """The number of problems in all cells together."""
        return self.n_problems * len(self.cells)

    @property
    def n_chunks(self) -> int:
        """The number of chunks in all cells together."""
        return self._first_chunks[-1]

    def chunk_size(self, cell: int) -> int:
        """Return the number of problems in a chunk of a cell."""
        return self.chunk_sizes[cell if len(self.chunk_sizes) > 1 else 0]

    def chunk_at(self, index: int) -> Chunk:
        """Return the chunk with this number, counted through all cells."""
        cell = bisect_right(self._first_chunks, index) - 1
        number, size = index - self._first_chunks[cell], self.chunk_size(cell)
        return Chunk(index, cell, number, number * size, min((number + 1) * size, self.n_problems))

    def chunks_of(self, cell: int) -> range:
        """Return the numbers of the chunks of a cell."""
        return range(self._first_chunks[cell], self._first_chunks[cell + 1])

    def locate(self, index: object) -> tuple[Chunk, int]:
        """Return the chunk of problem `index`, counted through all cells, and its place there."""
        whole = whole_number(index, "index", at_least=0)
        if whole >= self.n_total:
            raise InputError("index", f"below {self.n_total}, the number of problems", whole)
        cell, problem = divmod(whole, self.n_problems)
        chunk = self.chunk_at(self._first_chunks[cell] + problem // self.chunk_size(cell))
        return chunk, problem - chunk.first

    @cached_property
    def _first_chunks(self) -> list[int]:
        """The index of the first chunk of each cell, and the number of all chunks last."""
        counts = (-(-self.n_problems // self.chunk_size(cell)) for cell in range(len(self.cells)))
        return [0, *itertools.accumulate(counts)]


def is_axis(key: str, value: Any) -> bool:
    """Return whether a key has several values, over which the grid varies; a start that is an array or a list of numbers is one value."""
    if key == "start" and (isinstance(value, np.ndarray) or _is_point(value)):
        return False
    return isinstance(value, list | tuple | range | np.ndarray)


def _is_point(start: ArrayLike) -> bool:
    return (
        isinstance(start, list | tuple | range)
        and bool(start)
        and all(isinstance(entry, int | float) for entry in start)
    )
