"""Reviews from a table: CSV by the standard library, parquet by pyarrow, one row for each review."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from importlib import import_module
from textwrap import shorten
from typing import Any

import numpy as np

from marginlens.errors import missing_extra, reject
from marginlens.text.reviews import Reviews, check_file, file_digest, two_classes, unreadable

TEXT_NAMES = ("text", "review", "sentence", "content")
LABEL_NAMES = ("label", "sentiment", "class", "y")
_EXPECTED = "a CSV or parquet file with a column of texts and a column of labels"
_NAMES, _NAME = (
    8,
    40,
)  # how many columns are listed where the one asked for is not there, and how many characters of each
_LONGEST = 10_000_000  # characters in one field of a CSV file


@dataclass(frozen=True)
class ReviewTable:
    """A CSV (.csv, tab-separated .tsv) or parquet file with one review in each row.

    Args:
        path: the file; the first row of a CSV names its columns.
        text: the column of texts; by default "text", "review", "sentence" or "content", the first that is there.
        label: the column of labels; by default "label", "sentiment", "class" or "y".
        split: the column that says which part a review belongs to; by default "split" where it is there.
    """

    path: str | os.PathLike[str]
    text: str | None = None
    label: str | None = None
    split: str | None = None

    def read(self) -> Reviews:
        """The texts, labels as -1 and +1, and the parts where the table names them."""
        check_file(self.path, _EXPECTED)
        columns = self._parquet() if self._is_parquet() else self._csv()
        text, label, split = columns
        for i, one in enumerate(text):
            if not isinstance(one, str):
                raise reject("path", _EXPECTED, f"{str(self.path)!r} with {_kind(one)} for a text in row {i}")
        y, classes = two_classes(label, "label")
        return Reviews(text, y, classes, None if split is None else np.array([str(one) for one in split]))

    def digest(self) -> str:
        """SHA-256 of the file."""
        return file_digest(check_file(self.path, _EXPECTED))

    def to_dict(self) -> dict[str, Any]:
        """The columns asked for, and how the file is read."""
        form = "parquet" if self._is_parquet() else "tsv" if self._is_tsv() else "csv"
        return {"source": "table", "form": form, "text": self.text, "label": self.label, "split": self.split}

    def _is_tsv(self) -> bool:
        return str(self.path).lower().endswith(".tsv")

    def _is_parquet(self) -> bool:
        if str(self.path).lower().endswith(".parquet"):
            return True
        with check_file(self.path, _EXPECTED).open("rb") as stream:
            return stream.read(4) == b"PAR1"

    def _choose(self, there: list[str]) -> tuple[str, str, str | None]:
        """The columns to read, out of those that are there."""
        text = self._column("text", self.text, TEXT_NAMES, there)
        label = self._column("label", self.label, LABEL_NAMES, there)
        if self.split is None and "split" not in there:
            return text, label, None
        return text, label, self._column("split", self.split, ("split",), there)

    def _column(self, argument: str, asked: str | None, usual: tuple[str, ...], there: list[str]) -> str:
        if asked is not None and not isinstance(asked, str):
            raise reject(argument, "the name of a column", type(asked).__name__)
        found = next((name for name in (usual if asked is None else (asked,)) if name in there), None)
        if found is not None and there.count(found) > 1:
            raise reject(
                argument,
                f"a column that {str(self.path)!r} has once",
                f"{found!r}, which it has {there.count(found)} times",
            )
        if found is not None:
            return found
        expected = f"a column of {str(self.path)!r}, which has {_listed(there)}"
        got = f"none of {', '.join(map(repr, usual))}" if asked is None else repr(asked)
        raise reject(argument, expected, got)

    def _csv(self) -> tuple[list[Any], list[Any], list[Any] | None]:
        limit = csv.field_size_limit(_LONGEST)
        number = 1
        try:
            with open(self.path, encoding="utf-8-sig", newline="") as stream:
                rows = csv.reader(stream, delimiter="\t" if self._is_tsv() else ",")
                there = next(rows, [])
                chosen = self._choose(there)
                places = [there.index(name) for name in chosen if name is not None]
                columns: list[list[Any]] = [[] for _ in places]
                for row in rows:
                    number = rows.line_num
                    if not row:
                        continue
                    if len(row) != len(there):
                        got = (
                            f"{len(row)} fields in the row that ends on line {number} and {len(there)} names of columns"
                        )
                        raise reject("path", _EXPECTED, f"{str(self.path)!r} with {got}")
                    for column, place in zip(columns, places, strict=True):
                        column.append(row[place])
        except OSError as problem:
            raise unreadable(self.path, _EXPECTED, problem) from problem
        except UnicodeDecodeError as problem:
            raise reject("path", _EXPECTED, f"{str(self.path)!r}, which is not UTF-8 after line {number}") from problem
        except csv.Error as problem:
            raise reject(
                "path", _EXPECTED, f"{str(self.path)!r}, which is no CSV after line {number} ({problem})"
            ) from problem
        finally:
            csv.field_size_limit(limit)
        if not columns[0]:
            raise reject("path", _EXPECTED, f"{str(self.path)!r}, which has names but no rows")
        return columns[0], columns[1], columns[2] if len(columns) > 2 else None

    def _parquet(self) -> tuple[list[Any], list[Any], list[Any] | None]:
        try:
            parquet = import_module("pyarrow.parquet")
        except ImportError as problem:
            raise missing_extra("pyarrow", "text", "Reading parquet") from problem
        try:
            with parquet.ParquetFile(self.path) as file:
                chosen = self._choose(list(file.schema_arrow.names))
                table = file.read(columns=[name for name in chosen if name is not None])
        except (OSError, import_module("pyarrow").ArrowException) as problem:
            raise reject("path", _EXPECTED, f"{str(self.path)!r}, which is damaged") from problem
        if not table.num_rows:
            raise reject("path", _EXPECTED, f"{str(self.path)!r}, which has no rows")
        lists = [None if name is None else table[name].to_pylist() for name in chosen]
        return lists[0] or [], lists[1] or [], lists[2]


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _listed(names: list[str]) -> str:
    """The first names of columns, each cut where it is longer than a name would be."""
    shown = [repr(shorten(name, _NAME, placeholder="…")) for name in names[:_NAMES]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "") if names else "none"
