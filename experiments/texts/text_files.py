"""Texts in files: a table (CSV, TSV, parquet), JSON lines, or a folder with a folder of .txt files for each class."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from marginlens.errors import InputError, require
from marginlens.runtime.files import as_path
from marginlens_papers.tables import unreadable_is_refused

TEXT_COLUMNS = ("text", "review", "sentence", "content")
LABEL_COLUMNS = ("label", "sentiment", "class", "y")
_PACKED = re.compile(r"\.(gz|bz2|xz)$")
_JSON_LINES = (".json", ".jsonl", ".ndjson")
_EXPECTED = "a table (CSV, TSV, parquet), JSON lines, or a folder with a folder of .txt files for each class"


class LabelledTexts(NamedTuple):
    """Texts, the values of their labels, and the parts they belong to, None if there are none."""

    texts: list[str]
    labels: list[Any]
    split: list[str] | None


@dataclass(frozen=True)
class TextFile:
    """Texts in a file or a folder.

    Args:
        path: a table or JSON lines, packed or not, or a folder with a folder of .txt files for each class, or with such folders for its
            parts (train, test).
        text: column of the texts, by name or by number from 1; the usual names unless given.
        label: column of the labels.
        split: column that names the part of each row.
        delimiter: of a table; guessed unless given.
        encoding: of a table or of JSON lines.
        header: whether the first row of a table names its columns.
    """

    path: str | os.PathLike[str]
    text: str | None = None
    label: str | None = None
    split: str | None = None
    delimiter: str | None = None
    encoding: str = "utf-8-sig"
    header: bool = True

    def rows(self) -> LabelledTexts:
        """The texts with their labels, and their parts if there are any."""
        table = self.table()
        texts, labels = self.column(table, "text", TEXT_COLUMNS), self.column(table, "label", LABEL_COLUMNS)
        parts = None
        if self.split is not None or "split" in table.columns:
            parts = [str(part) for part in self.column(table, "split", ("split",))]
        for k, text in enumerate(texts):
            if not isinstance(text, str) or not text.strip():
                raise InputError("text", "a text in every row", f"{text!r} in row {k + 1}")
        return LabelledTexts(texts, labels, parts)

    def table(self) -> Any:
        """All columns as a data frame of pandas; of a folder text, label and split."""
        path = as_path(self.path, "path", _EXPECTED)
        name = _PACKED.sub("", path.name.lower())
        require("pandas", "pandas", "Reading texts")
        import pandas as pd

        with unreadable_is_refused("path", _EXPECTED, path):
            if path.is_dir():
                table = pd.DataFrame(_in_folder(path))
            elif name.endswith(".parquet"):
                table = pd.read_parquet(path)
            elif name.endswith(_JSON_LINES):
                table = pd.read_json(path, lines=True, encoding=self.encoding, dtype=False)
            else:
                as_text: dict[str, Any] = {"dtype": str, "keep_default_na": False, "engine": "python"}
                header = 0 if self.header else None
                table = pd.read_csv(path, sep=self.delimiter, encoding=self.encoding, header=header, **as_text)
        if not len(table):
            raise InputError("path", _EXPECTED, f"{str(path)!r}, which has no texts")
        return table

    def column(self, table: Any, argument: str, usual: tuple[str, ...]) -> list[Any]:
        """The values of a column: by the name that is asked for or a usual one, or by number from 1."""
        asked = getattr(self, argument)
        plain = [str(name).strip().lower() for name in table.columns]
        wanted = usual if asked is None else (asked.strip().lower(),)
        index = next((plain.index(name) for name in wanted if name in plain), None)
        if asked is not None and asked.isdecimal() and 1 <= int(asked) <= len(plain):
            index = int(asked) - 1
        if index is None:
            expected = f"a column of {str(self.path)!r} by name or number, which has {', '.join(plain[:8])}"
            raise InputError(argument, expected, repr(asked) if asked else f"none of {', '.join(usual)}")
        values: list[Any] = table.iloc[:, index].tolist()
        return values


def _in_folder(root: Path) -> list[dict[str, str]]:
    """Texts of root/CLASS/*.txt; if there are none, of root/PART/CLASS/*.txt in the classes that all parts have."""
    files = sorted(root.glob("*/*.txt"))
    if files:
        return [{"text": file.read_text(encoding="utf-8"), "label": file.parent.name} for file in files]
    files = sorted(root.glob("*/*/*.txt"))
    parts = {file.parents[1].name for file in files}
    classes = [{file.parent.name for file in files if file.parents[1].name == part} for part in parts]
    shared = set.intersection(*classes) if classes else set()
    return [
        {"text": file.read_text(encoding="utf-8"), "label": file.parent.name, "split": file.parents[1].name}
        for file in files
        if file.parent.name in shared
    ]
