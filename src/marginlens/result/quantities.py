"""Quantities of a result, declared once: a line that its repr prints, and whose numbers its table shows; and the columns of its frame."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np


class Described:
    """What prints itself on one line, as `quantities` declares it, e.g. "last={last}, {edges:#} edges, margin={margin:.4g}".

    Between braces stands an attribute or a part of one ({x.shape[1]}), or `self`; a method is called ({gap.min:.4g}). Behind a colon
    stands a format of Python, or one of: `#` how many entries there are, `# edge` the same with the noun in singular or plural, `norm`
    the length of a vector or matrix, `mean` that of all numbers but nan, `tally` how often each name occurs, `yes|no` the one word or the
    other. What the parts between commas call their numbers are the labels of a table.
    """

    __slots__ = ()

    quantities: ClassVar[str] = ""
    batch_quantities: ClassVar[str] = ""  # of an object whose `is_batch` is true, where they are others

    def __repr__(self) -> str:
        return f"{type(self).__name__}({line(self)})"

    @property
    def _declared(self) -> str:
        return self.batch_quantities if self.batch_quantities and getattr(self, "is_batch", False) else self.quantities


def line(shown: Described) -> str:
    """The declared quantities of an object on one line."""
    return _LINES.vformat(shown._declared, (), {"self": shown})


def labelled(shown: Described) -> dict[str, Any]:
    """The declared quantities of an object by label; parts without a label, or with several numbers, have none."""
    named = {}
    for part in shown._declared.split(", "):
        pieces = list(_LINES.parse(part))
        fields = [(source, form or "") for _, source, form, _ in pieces if source is not None]
        nouns = (f"{form[2:]}s" for _, form in fields if form.startswith("# "))
        label = "".join([*(literal for literal, *_ in pieces), *nouns]).strip(" =:≤")
        if label and len(fields) == 1:
            source, form = fields[0]
            named[label] = _LINES.measured(_LINES.get_field(source, (), {"self": shown})[0], form)
    return named


_STEP = re.compile(r"(?:^|\.)(\w+)|\[(?:(-?\d+)|(\w+))\]")  # an attribute, or an entry by its number or its name


class Lines(string.Formatter):
    """Formats lines of quantities of an object, the argument `self`; those of a mapping are its entries."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        value = kwargs["self"]
        for name, index, key in _STEP.findall("" if field_name == "self" else field_name):
            is_attribute = name and not isinstance(value, Mapping)
            value = getattr(value, name) if is_attribute else value[name or key or int(index)]
        return (value() if callable(value) and field_name != "self" else value), "self"

    def measured(self, value: Any, form: str) -> Any:
        """The number or words that a format of ours makes of a value, which is left as it is by formats of Python."""
        if form.startswith("#"):
            return len(value)
        if form == "norm":
            largest = float(np.max(np.abs(value), initial=0.0))  # which keeps squares within the range of numbers
            return largest * float(np.linalg.norm(value / largest)) if 0.0 < largest < np.inf else largest
        if form == "mean":
            return float(np.nanmean(value))
        if form == "tally":
            return tally(value)
        yes, bar, no = form.partition("|")
        return (yes if value else no) if bar else value

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("# "):
            return counted(len(value), format_spec[2:])
        measured = self.measured(value, format_spec)
        if measured is value:
            return super().format_field(value, format_spec)
        digits = {"norm": ".6g", "mean": ".3g"}.get(format_spec)
        return format(measured, digits) if digits else str(measured)


_LINES = Lines()


def table(rows: str, *names: str, **renamed: str) -> Callable[[Any], dict[str, Any]]:
    """The method `_columns` of a result whose columns are attributes: `names`, then those that another name is given.

    Args:
        rows: the name of a first column that counts the rows from 0; none where it is empty.
    """
    sources = {name: name for name in names} | renamed

    def _columns(self: Any) -> dict[str, Any]:
        columns = {name: _column(_LINES.get_field(source, (), {"self": self})[0]) for name, source in sources.items()}
        count = {rows: np.arange(len(next(iter(columns.values()))))} if rows else {}
        return count | columns

    return _columns


def _column(value: Any) -> Any:
    return np.atleast_1d(value) if isinstance(value, np.ndarray | np.generic | float | int) else value


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number of things: 1 layer, 12 layers, 1,204 queries; the plural may be given."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def tally(values: Any) -> str:
    """How often each of some names or statuses occurs: "3 OPTIMAL, 1 INFEASIBLE"."""
    counts = Counter(str(getattr(value, "name", value)) for value in values)
    return ", ".join(f"{count} {name}" for name, count in counts.items())
