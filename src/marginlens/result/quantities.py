"""Declared quantities of a result, used for its one-line repr and the columns of its data frame."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from marginlens.typing import FloatArray
from marginlens.words.renderer import Templates


class Described:
    """The base of objects with a one-line repr, which `quantities` declares.

    In a declaration such as "{nodes:#} tokens, margin={margin:.4g}", braces hold the name of an attribute, a part of one
    ({x.shape[1]}), or `self`. Methods are called ({gap.min:.4g}). The formats are those of Python and of
    `marginlens.words.renderer`, and four more:

    - `#` is the number of entries, and `# edge|edges` is that number with its noun;
    - `norm` is the length of a vector or matrix;
    - `mean` is the mean of all numbers that are not nan;
    - `tally` is how often each name occurs.
    """

    __slots__ = ()

    quantities: ClassVar[str] = ""
    # A batch, whose `is_batch` is true, prints this line unless it is empty.
    batch_quantities: ClassVar[str] = ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({line(self)})"


def line(shown: Described) -> str:
    """Format the declared quantities of an object on one line."""
    declared = shown.batch_quantities if shown.batch_quantities and getattr(shown, "is_batch", False) else ""
    return _LINES.vformat(declared or shown.quantities, (), {"self": shown})


# An attribute, or an entry by its number or its name.
_STEP = re.compile(r"(?:^|\.)(\w+)|\[(?:(-?\d+)|(\w+))\]")


class Lines(Templates):
    """A formatter for lines with the quantities of an object, the argument `self`; the quantities of a mapping are its entries."""

    def get_field(self, field_name: str, args: Sequence[object], kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        value = kwargs["self"]
        for name, index, key in _STEP.findall("" if field_name == "self" else field_name):
            is_attribute = name and not isinstance(value, Mapping)
            value = getattr(value, name) if is_attribute else value[name or key or int(index)]
        return (value() if callable(value) and field_name != "self" else value), "self"

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("#") and hasattr(value, "__len__"):
            value = len(value)
        if format_spec == "#":
            return str(value)
        if format_spec == "norm":
            return f"{_norm(value):.6g}"
        if format_spec == "mean":
            return f"{float(np.nanmean(value)):.3g}"
        if format_spec == "tally":
            return tally(value)
        return super().format_field(value, format_spec)


_LINES = Lines()


def _norm(value: FloatArray) -> float:
    # Divided by the largest entry, no square leaves the range of numbers.
    largest = float(np.max(np.abs(value), initial=0.0))
    return largest * float(np.linalg.norm(value / largest)) if 0.0 < largest < np.inf else largest


def table(rows: str, *names: str, **renamed: str) -> Callable[[Any], dict[str, Any]]:
    """Make the method `_columns` for a result whose columns are attributes.

    Args:
        rows: the name of a first column that counts the rows from 0; if empty, there is no such column.

        names: attributes whose columns have the same names.

        renamed: other attributes, by the names of their columns.
    """
    sources = {name: name for name in names} | renamed

    def _columns(self: Any) -> dict[str, Any]:
        columns = {name: _column(_LINES.get_field(source, (), {"self": self})[0]) for name, source in sources.items()}
        count = {rows: np.arange(len(next(iter(columns.values()))))} if rows else {}
        return count | columns

    return _columns


def _column(value: object) -> Any:
    return np.atleast_1d(value) if isinstance(value, np.ndarray | np.generic | float | int) else value


def counted(number: int, noun: str, plural: str = "") -> str:
    """Format a number of things: 1 layer, 12 layers, 1,204 queries; the plural may be given."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def tally(values: Iterable[object]) -> str:
    """Count how often each of some names or statuses occurs: "3 OPTIMAL, 1 INFEASIBLE"."""
    counts = Counter(str(getattr(value, "name", value)) for value in values)
    return ", ".join(f"{count} {name}" for name, count in counts.items())
