"""Tables as data frames of pandas."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np

from marginlens.errors import require


class Tabular(ABC):
    """The base of results with a table: `to_frame` makes a data frame, whose rows and columns the class's docstring describes."""

    @abstractmethod
    def _columns(self) -> Mapping[str, Any]:
        """Return the columns by name, arrays or lists of one length; a two-dimensional array is a column of lists."""

    def to_frame(self) -> Any:
        """Return the table as a data frame of pandas."""
        return frame(self._columns())


def frame(columns: Mapping[str, Any]) -> Any:
    """Make a data frame of columns of one length."""
    require("pandas", "pandas", "A data frame")
    import pandas

    plain = {name: plain_column(values) for name, values in columns.items()}
    return pandas.DataFrame({name: pandas.Series(values, dtype=_kind(values)) for name, values in plain.items()})


def plain_column(values: Any) -> Any:
    """Return a column as a flat array of numbers, booleans or texts, or as a list; statuses and other enumerations by name."""
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "biufU":
        return values
    if isinstance(values, np.ndarray) and values.dtype.kind in "biufU":
        return values.tolist()
    return [_plain(value) for value in values]


def _plain(value: object) -> Any:
    if isinstance(value, Enum):
        return value.name
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _kind(values: object) -> Any:
    """Return the dtype of a column: pandas' choice, but object for lists, even if there are none of them."""
    return object if isinstance(values, list) and (not values or isinstance(values[0], list)) else None
