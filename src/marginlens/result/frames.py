"""Tables as data frames: of pandas where it is installed, else of polars, else of pyarrow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from importlib import import_module
from typing import Any

import numpy as np

from marginlens.errors import missing_extra, reject

LIBRARIES = ("pandas", "polars", "pyarrow")  # in the order in which they are tried


class Tabular(ABC):
    """Results that are tables: `to_frame` makes a data frame of them, whose rows and columns the docstring of the class describes."""

    @abstractmethod
    def _columns(self) -> Mapping[str, Any]:
        """Name → what its column holds, arrays or lists of one length; a two-dimensional array is a column of lists."""

    def _preview(self, n_rows: int) -> tuple[int, Mapping[str, Any]]:
        """How many rows there are, and the columns of at least the first `n_rows` of them, for a display."""
        columns = self._columns()
        return max((len(values) for values in columns.values()), default=0), columns

    def to_frame(self, library: str | None = None) -> Any:
        """The table as a data frame: of pandas if it is installed, else of polars, else a `pyarrow.Table`.

        Args:
            library: "pandas", "polars" or "pyarrow", to ask for one of them.
        """
        return frame(self._columns(), library)


def frame(columns: Mapping[str, Any], library: str | None = None) -> Any:
    """Columns of one length as a data frame of the first library that is installed, or of the one that is named."""
    made, plain = _installed(library), {name: plain_column(values) for name, values in columns.items()}
    if made.__name__ == "pandas":
        return made.DataFrame({name: made.Series(values, dtype=_kind(values)) for name, values in plain.items()})
    return made.DataFrame(plain) if made.__name__ == "polars" else made.table(plain)


def frame_of_arrow(table: Any, library: str | None = None) -> Any:
    """A `pyarrow.Table` as a data frame, by the same choice."""
    made = _installed(library)
    if made.__name__ == "polars":
        return made.from_arrow(table)
    return table.to_pandas() if made.__name__ == "pandas" else table


def _installed(library: str | None) -> Any:
    """The library to use: the one that is named, else the first that is installed."""
    if library is not None and library not in LIBRARIES:
        raise reject("library", f"one of {', '.join(LIBRARIES)}", repr(library))
    for name in LIBRARIES if library is None else (library,):
        with suppress(ImportError):
            return import_module(name)
    named = library or "pandas"
    feature = "A data frame" if library is None else f"A data frame of {library}"
    raise missing_extra(named, {"pyarrow": "sweep"}.get(named, named), feature)


def plain_column(values: Any) -> Any:
    """A column as a flat array of numbers, booleans or texts, or as a list; statuses and other enumerations by name."""
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "biufU":
        return values
    if isinstance(values, np.ndarray) and values.dtype.kind in "biufU":
        return values.tolist()
    return [_plain(value) for value in values]


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _kind(values: Any) -> Any:
    """The dtype of a pandas column: pandas' choice, but object for lists, also where there are none of them."""
    return object if isinstance(values, list) and (not values or isinstance(values[0], list)) else None
