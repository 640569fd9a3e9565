"""The base of results: their fields as a dict and on one line, and equality."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np

from marginlens.result.notebook import Displayed, public_fields


def jsonable(value: object, digits: int | None = None) -> Any:
    """Convert `value` to types that JSON has: arrays to lists, statuses to names, numbers that JSON lacks (nan, infinities) to None.

    Args:
        digits: the number of significant digits; all by default.
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
        return {name: jsonable(entry, digits) for name, entry in public_fields(value).items()}
    return repr(value)


class Result(Displayed):
    """The base of results that functions return.

    A subclass is a frozen dataclass that declares its `quantities`, which its repr prints. Private fields and fields declared
    with `repr=False` are left out of `to_dict` and of the table.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, in types that `json.dumps` takes."""
        return {name: jsonable(value) for name, value in public_fields(self).items()}

    def __eq__(self, other: object) -> bool:
        """Return whether two results have the same class and equal numbers, with nan equal to nan."""
        if type(self) is not type(other):
            return NotImplemented
        return all(_same(value, getattr(other, name)) for name, value in public_fields(self).items())

    def __hash__(self) -> int:
        shapes = (np.shape(value) for value in public_fields(self).values() if isinstance(value, np.ndarray))
        return hash((type(self), *shapes))


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b, equal_nan=getattr(a, "dtype", np.dtype(object)).kind in "fc")
    return bool(a == b) or bool(a != a and b != b)
