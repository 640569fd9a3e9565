"""Texts in files as people have them: CSV of any dialect, JSON lines, parquet, a folder for each class, plain lines, stdin."""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from marginlens.data.plain_text import STDIN, incremental_decoder, unpacked_blocks
from marginlens.errors import Remedy, reject, require
from marginlens.runtime.files import as_path

TEXT_COLUMNS = ("text", "review", "sentence", "content")
LABEL_COLUMNS = ("label", "sentiment", "class", "y")
_SNIFFED = 65_536  # letters from which the delimiter is guessed
_DELIMITERS = ",;\t|"
_PACKED = re.compile(r"\.(gz|bz2|xz)$")
_JSON_LINES = (".json", ".jsonl", ".ndjson")
_EXPECTED = (
    "a table (CSV, TSV, parquet), JSON lines, plain lines, or a folder with a folder of .txt files for each class"
)
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_REMEDY = Remedy("{drop} leaves them out.", drop="True")


_Sample = tuple[str, str, Any, dict[str, Any]]  # text, label, part, and all columns of the row


class LabelledTexts(NamedTuple):
    """Texts, their labels as words and the parts they belong to, None where there are none, and what was left out, by reason."""

    texts: list[str]
    labels: list[str] | None
    split: list[str] | None
    left_out: dict[str, int]


@dataclass(frozen=True)
class TextFile:
    """Texts in a file, a folder or stdin.

    Args:
        path: a table (.csv, .tsv, .parquet), JSON lines (.json, .jsonl, .ndjson), a text with one sample on each line (.txt), any of
            them packed (.gz, .bz2, .xz), a folder with a folder of .txt files for each class, or with such folders for
            its parts (train, test), or "-" for stdin.
        text, label, split: columns by name, or by number from 1; the usual names unless said otherwise.
        delimiter: of a table; guessed unless said. encoding: UTF-8 unless said; UTF-16 is recognised by its mark.
        header: whether the first row of a table names its columns.
        drop: leave out samples without a text or a label instead of refusing them, and count them.
    """

    path: str | os.PathLike[str]
    text: str | None = None
    label: str | None = None
    split: str | None = None
    delimiter: str | None = None
    encoding: str | None = None
    header: bool = True
    drop: bool = False

    def __post_init__(self) -> None:
        if self.delimiter is not None and len(self.delimiter.replace("\\t", "\t")) != 1:
            raise reject("delimiter", "one sign such as ; or \\t", repr(self.delimiter))
        if self.encoding is not None:
            incremental_decoder(self.encoding)

    def digest(self) -> str:
        """SHA-256 of the file or of stdin, or of all names and contents of a folder in their order."""
        if self._is_stdin:
            return hashlib.sha256(self._stdin).hexdigest()
        total = hashlib.sha256()
        root = Path(self.path)
        for file in [root] if root.is_file() else sorted([*root.glob("*/*.txt"), *root.glob("*/*/*.txt")]):
            total.update(b"" if root.is_file() else f"{file.relative_to(root).as_posix()}\0".encode())
            total.update(file.read_bytes())
        return total.hexdigest()

    def rows(self, *, labelled: bool) -> LabelledTexts:
        """The texts, with their labels where they are asked for."""
        texts, labels, split = [], [], []
        left_out = {"no text": 0, "no label": 0}
        for number, (text, label, part, _) in enumerate(self._samples(labelled), 1):
            missing = "text" if not text.strip() else "label" if labelled and not label.strip() else None
            if missing is not None:
                if not self.drop:
                    raise reject(missing, f"a {missing} in every row", f"none in row {number}", _REMEDY)
                left_out[f"no {missing}"] += 1
                continue
            texts.append(text)
            labels.append(label.strip())
            split.append(part)
        if not texts:
            raise reject("path", _EXPECTED, f"{str(self.path)!r}, which has no texts")
        parts = split if any(part is not None for part in split) else None
        return LabelledTexts(texts, labels if labelled else None, parts, {k: n for k, n in left_out.items() if n})

    def entries(self) -> tuple[list[str], list[dict[str, Any]]]:
        """Every text, empty ones too unless they are to be dropped, and with it all columns of its row."""
        found = [
            (text, row) for text, _, _, row in self._samples(False, blank_lines=True) if text.strip() or not self.drop
        ]
        if not found:
            raise reject("path", _EXPECTED, f"{str(self.path)!r}, which has no texts")
        return [text for text, _ in found], [row for _, row in found]

    @property
    def _is_stdin(self) -> bool:
        return str(self.path) == STDIN

    @cached_property
    def _stdin(self) -> bytes:
        """All of stdin, which can be read once only."""
        return sys.stdin.buffer.read()

    def _samples(self, labelled: bool, *, blank_lines: bool = False) -> Iterator[_Sample]:
        """Text, label and part of each sample, empty where they are missing, and its whole row; of plain text blank lines where asked."""
        path = as_path(self.path, "path", _EXPECTED)
        if path.is_dir():
            yield from self._folder(path)
            return
        name = _PACKED.sub("", path.name.lower())
        if name.endswith(".parquet"):
            yield from self._table(*self._parquet(path), labelled)
            return
        content = self._decoded(path)
        if name.endswith(_JSON_LINES) or (self._is_stdin and content.lstrip()[:1] == "{"):
            yield from self._json_lines(content, labelled)
        elif name.endswith(".txt") or (self._is_stdin and not labelled and self.text is None):
            if labelled:
                raise reject("path", "a file with labels", f"{str(self.path)!r}, which is plain text")
            lines = (line for line in content.rstrip("\r\n").splitlines() if blank_lines or line.strip())
            yield from ((line, "", None, {"text": line}) for line in lines)
        else:
            yield from self._table(*self._csv(content), labelled)

    def _folder(self, root: Path) -> Iterator[_Sample]:
        """Texts of root/CLASS/*.txt; where there are none, of root/PART/CLASS/*.txt in the classes that all parts have."""
        parts: dict[str | None, Path] = {None: root}
        if not any(root.glob("*/*.txt")):
            parts = {folder.parent.parent.name: folder.parent.parent for folder in sorted(root.glob("*/*/*.txt"))}
        classes = [{folder.name for folder in part.iterdir() if folder.is_dir()} for part in parts.values()]
        if not classes:
            raise reject("path", _EXPECTED, f"{str(self.path)!r}, where no folder holds .txt files")
        for part, folder in parts.items():
            for label in sorted(set.intersection(*classes)):
                for file in sorted((folder / label).glob("*.txt")):
                    text = self._decoded(file)
                    yield text, label, part, {"folder": label, "file": file.name, "text": text}

    def _decoded(self, path: Path) -> str:
        content = b"".join(unpacked_blocks(path, "path", self._stdin if self._is_stdin else None))
        marked = next((name for mark, name in _MARKS if content.startswith(mark)), None)
        encoding = self.encoding or marked or "utf-8"
        try:
            return content.decode(encoding)
        except UnicodeDecodeError as problem:
            if self.encoding is None and b"\0" in content[:_SNIFFED]:
                raise reject("path", _EXPECTED, f"{str(path)!r}, which is no text") from problem
            got = f"{str(path)!r}, which is not at byte {problem.start}"
            raise reject(
                "encoding", f"the encoding of the file, {encoding} unless given", got, "latin-1 reads any."
            ) from problem

    def _csv(self, content: str) -> tuple[list[str], list[list[str]]]:
        csv.field_size_limit(2**31 - 1)
        delimiter = None if self.delimiter is None else self.delimiter.replace("\\t", "\t")
        if delimiter is None:
            delimiter = _guessed(content[:_SNIFFED])
        rows = [row for row in csv.reader(io.StringIO(content, newline=""), delimiter=delimiter) if row]
        if not rows:
            raise reject("path", _EXPECTED, f"{str(self.path)!r}, which is empty")
        if self.header:
            return rows[0], rows[1:]
        return [str(k + 1) for k in range(max(map(len, rows)))], rows

    def _parquet(self, path: Path) -> tuple[list[str], list[list[str]]]:
        require("pyarrow", "sweep", "Reading parquet")
        try:
            table = import_module("pyarrow.parquet").read_table(path)
        except (OSError, ValueError) as problem:
            raise reject("path", _EXPECTED, f"{str(self.path)!r}, which is no parquet file") from problem
        values = [[_word(one) for one in column.to_pylist()] for column in table.columns]
        return table.column_names, [list(row) for row in zip(*values, strict=True)]

    def _table(self, names: list[str], rows: list[list[str]], labelled: bool) -> Iterator[_Sample]:
        if not self.header and self.text is None and self.label is None and len(names) == 2 and labelled:
            counts = [len({row[k] for row in rows if len(row) > k}) for k in (0, 1)]
            label = int(np.argmin(counts))  # the column with fewer different values
            text = 1 - label
        else:
            text = self._index("text", self.text, TEXT_COLUMNS, names)
            label = self._index("label", self.label, LABEL_COLUMNS, names) if labelled else -1
        if text == label:
            raise reject("label", "another column than that of the texts", repr(names[label]))
        split = self._index("split", self.split, ("split",), names) if self.split or "split" in names else -1
        numbered = [str(k + 1) for k in range(len(names), max(map(len, rows), default=0))]  # columns without a name
        every = free_names([*names, *numbered])
        for row in rows:
            cells = [*row, *[""] * (len(every) - len(row))]
            part = cells[split] if split >= 0 else None
            yield cells[text], cells[label] if labelled else "", part, dict(zip(every, cells, strict=True))

    def _index(self, argument: str, asked: str | None, usual: tuple[str, ...], names: list[str]) -> int:
        """Which column is meant: by a name that no other column has, or by number from 1."""
        plain = [name.strip().lower() for name in names]
        wanted = usual if asked is None else (asked.strip().lower(),)
        name = next((name for name in wanted if name in plain), None)
        if name is not None and plain.count(name) > 1:
            numbers = " and ".join(str(k + 1) for k, other in enumerate(plain) if other == name)
            expected = f"a name that one column of {str(self.path)!r} has"
            raise reject(argument, expected, f"{name!r} for columns {numbers}", "Give the number of one of them.")
        found = None if name is None else plain.index(name)
        if found is None and asked is not None and asked.isdecimal() and 1 <= int(asked) <= len(names):
            found = int(asked) - 1
        if found is None:
            shown = ", ".join(map(repr, names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            got = f"none of {', '.join(map(repr, usual))}" if asked is None else repr(asked)
            expected = f"a column of {str(self.path)!r}, by name or by number, which has {shown}"
            advice = Remedy(f"Name it with {{{argument}}}.", **{argument: ""})
            if self.header:
                first = "Where the first row is data, give {header}."
                advice = Remedy(f"{advice.sentence} {first}", **advice.arguments, header="False")
            raise reject(argument, expected, got, advice if asked is None else "")
        return found

    def _json_lines(self, content: str, labelled: bool) -> Iterator[_Sample]:
        for number, line in enumerate(content.splitlines(), 1):
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                entry = None
            if not isinstance(entry, dict):
                raise reject("path", "JSON lines, an object on each", f"{line[:40]!r} in line {number}")
            text = self._value(entry, "text", self.text, TEXT_COLUMNS, number)
            label = self._value(entry, "label", self.label, LABEL_COLUMNS, number) if labelled else ""
            part = entry.get(self.split or "split")
            yield text, label, None if part is None else str(part), entry

    def _value(self, entry: dict[str, Any], argument: str, asked: str | None, usual: tuple[str, ...], line: int) -> str:
        name = next((name for name in (usual if asked is None else (asked,)) if name in entry), None)
        if name is None:
            got = f"only {', '.join(map(repr, list(entry)[:8]))} in line {line}"
            expected = f"a name in every line, {' or '.join(map(repr, (asked,) if asked else usual))}"
            raise reject(
                argument,
                expected,
                got,
                Remedy(f"Name it with {{{argument}}}.", **{argument: ""}) if asked is None else "",
            )
        value = entry[name]
        return json.dumps(value) if isinstance(value, bool | list | dict) else _word(value)


def free_names(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """The names, with a number behind each that is taken or comes again."""
    found: dict[str, None] = dict.fromkeys(taken)
    n_taken = len(found)
    for name in names:
        numbers = (f"{name}_{k}" for k in count(2))
        found[name if name not in found else next(new for new in numbers if new not in found)] = None
    return list(found)[n_taken:]


def _word(value: Any) -> str:
    """A value as a label or a text: nothing for what is missing, one word for 1 and 1.0."""
    if value is None or value != value:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _guessed(beginning: str) -> str:
    """The delimiter that parts the first line into most cells; a comma where none does."""
    first = next((line for line in beginning.splitlines() if line.strip()), "")
    counts = {sign: len(next(csv.reader([first], delimiter=sign), [])) for sign in _DELIMITERS}
    return max(counts, key=lambda sign: counts[sign])
