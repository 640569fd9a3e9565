"""The tables of long runs that come with the package, as claims read them; the runs themselves are in `experiments/` of a checkout.

A table is a small JSON file in `results/` with its settings, the command that made it and the versions it was made with. Its command
stays as it was typed: an earlier version may have called it otherwise.
"""

from __future__ import annotations

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from marginlens.errors import InputError
from marginlens.runtime.files import as_path
from marginlens.typing import FloatArray

_Values = dict[str, Any]  # what a file holds, by name


class Table(ABC):
    """What one kind of table becomes: a frozen dataclass that is made from the values of the file.

    Attributes:
        FORM: what the file says of itself under "form"; None for a kind of table without it.
        MADE_BY: the command that makes such a table, in a checkout.
    """

    FORM: ClassVar[str | None] = None
    MADE_BY: ClassVar[str]

    @classmethod
    @abstractmethod
    def from_table(cls, name: str, values: _Values) -> Self:
        """The table of this name; LookupError, TypeError or ValueError if the values are those of something else."""


Kind = TypeVar("Kind", bound=Table)


def results_folder() -> Path:
    """The folder of the tables that come with the package."""
    return Path(str(files("marginlens_papers") / "results"))


def read(name: str, kind: type[Kind], settings: Mapping[str, Any] | None = None) -> Kind:
    """The table of this name that comes with the package.

    Args:
        name: of the file, without its end. kind: what it becomes.
        settings: what the file must say it was made with: names to values, or to further names. Others are ignored.
    """
    path = results_folder() / f"{name}.json"
    if not path.is_file():
        expected = "the name of a table that comes with the package"
        raise InputError("name", expected, repr(name), f"In a checkout, `{kind.MADE_BY}` makes it.")
    return read_file(path, kind, settings)


def read_all(prefix: str, kind: type[Kind]) -> list[Kind]:
    """All tables that come with the package whose names begin with a prefix, in the order of their names."""
    return [read_file(path, kind) for path in sorted(results_folder().glob(f"{prefix}*.json"))]


def read_file(path: str | Path, kind: type[Kind], settings: Mapping[str, Any] | None = None) -> Kind:
    """The table in a file; one of other contents, or made with other settings, is refused in one sentence."""
    expected = f"a table that `{kind.MADE_BY}` wrote"
    file = as_path(path, "path", expected)
    with unreadable_is_refused("path", expected, file):
        values = json.loads(file.read_text(encoding="utf-8"))
        if kind.FORM is not None and values["form"] != kind.FORM:
            raise InputError("path", expected, f"{str(file)!r}, of another form")
        for setting, asked, made_with in _differences(json.loads(json.dumps(settings or {})), values):
            raise InputError("path", f"{expected} with {setting} {asked}", f"{str(file)!r}, with {made_with}")
        return kind.from_table(file.stem, values)


def numbers(values: Any) -> FloatArray:
    """Numbers as an array, in which a table's null is NaN."""
    return np.array(values, dtype=np.float64)


@contextmanager
def unreadable_is_refused(argument: str, expected: str, path: Path) -> Iterator[None]:
    """Refuse a file of other contents in one sentence, for any error that they cause."""
    try:
        yield
    except InputError:
        raise
    except OSError as problem:
        raise InputError(argument, expected, f"{str(path)!r} ({problem.strerror or problem})") from problem
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, csv.Error) as problem:
        raise InputError(argument, expected, f"{str(path)!r}, which cannot be read") from problem


def _differences(asked: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """The settings of a table that differ from those asked for: the name, what is asked, what it has."""
    for name, value in asked.items():
        if isinstance(value, dict):
            yield from _differences(value, values[name])
        elif values.get(name) != value:
            yield name, value, values.get(name)
