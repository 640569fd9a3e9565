"""The base of results: their fields as a dict and on one line, equality, and a picture."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np

from marginlens.result.drawing import draw_matrix, drawn
from marginlens.result.notebook import MAX_SHOWN, Displayed
from marginlens.result.palette import LOCAL
from marginlens.result.quantities import declared
from marginlens.typing import Axes


def jsonable(value: Any, digits: int | None = None) -> Any:
    """`value` in types that JSON has: arrays as lists, statuses by name, numbers that JSON lacks (nan, infinities) as None.

    Args:
        digits: significant ones to which numbers are rounded, all by default.
    """
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, np.ndarray | np.generic):
        return jsonable(value.tolist(), digits)
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return value if digits is None else float(f"{value:.{digits}g}")
    if value is None or isinstance(value, bool | int | str):
        return value
    if hasattr(value, "to_dict"):
        return jsonable(value.to_dict(), digits)
    if isinstance(value, Mapping):
        return {str(name): jsonable(entry, digits) for name, entry in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return jsonable(value._asdict(), digits)
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(entry, digits) for entry in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name), digits) for field in _public(value)}
    return repr(value)


def _public(value: Any) -> list[Any]:
    return [field for field in dataclasses.fields(value) if field.repr and not field.name.startswith("_")]


class Result(Displayed):
    """The base of what functions give back.

    A subclass is a frozen dataclass that declares its `quantities`, which its repr prints. Fields declared with `repr=False`, and private
    ones, stay out of `to_dict` and of the table.
    """

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, in types that `json.dumps` takes."""
        return {field.name: jsonable(getattr(self, field.name)) for field in _public(self)}

    @drawn
    def plot(self, ax: Axes) -> None:
        """Draw the solution `x`: entries of a vector as bars, a matrix, or the vectors of a batch, by colour."""
        x = np.asarray(getattr(self, "x"))  # noqa: B009
        if x.ndim == 1:
            ax.bar(np.arange(len(x)), x, color=LOCAL)
            ax.axhline(0.0, color="0.4", linewidth=0.8)
            ax.set(xlabel="entry", ylabel="x")
            return
        draw_matrix(ax, x if x.ndim == 2 else x.reshape(len(x), -1))
        of_batch = getattr(self, "is_batch", False)
        ax.set(xlabel="entry" if of_batch else "column", ylabel="problem" if of_batch else "row")

    def __eq__(self, other: object) -> bool:
        """Whether two results are of one kind and hold the same numbers, nan included."""
        if type(self) is not type(other):
            return NotImplemented
        return all(_same(getattr(self, field.name), getattr(other, field.name)) for field in _public(self))

    def __hash__(self) -> int:
        shapes = (
            np.shape(value) for field in _public(self) if isinstance(value := getattr(self, field.name), np.ndarray)
        )
        return hash((type(self), *shapes))

    def _facts(self) -> Mapping[str, Any]:
        """What is declared, then the fields, those of one or a few numbers first; the status stands above them."""
        shown = {known.source for known in declared(f"{self.quantities}, {self.table_quantities}") if known.whole} | {
            "status"
        }
        fields = {field.name: getattr(self, field.name) for field in _public(self) if field.name not in shown}
        return {**super()._facts(), **dict(sorted(fields.items(), key=lambda named: _is_long(named[1])))}


def _is_long(value: Any) -> bool:
    return np.size(value) > MAX_SHOWN if isinstance(value, np.ndarray) else isinstance(value, Mapping | tuple | Result)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b, equal_nan=getattr(a, "dtype", np.dtype(object)).kind in "fc")
    return bool(a == b) or bool(a != a and b != b)
