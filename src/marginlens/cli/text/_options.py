"""Options that several of the text commands share: models, files of texts and how they are written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from marginlens.cli._options import argument, flag, option

if TYPE_CHECKING:
    from marginlens.text.text_files import TextFile

STDIN = "-"
OF_TEXT_FILE: dict[str, Any] = {  # what commands that read texts call the arguments of the library
    "path": "{file}",
    "X": "the texts of {file}",
    "texts": "the texts of {file}",
    "y": "the labels of {file}",
    "labels": "the labels of {file}",
    "header": "{no_header}",
    "folder": "{model}",
    "empty": "{drop}",
}

ModelFolder = Annotated[Path, argument("MODEL", "A folder that text train --out wrote.")]
TextsFile = Annotated[
    str,
    argument(
        "FILE",
        "Texts: a table (CSV, TSV, parquet), JSON lines, one text on each line (.txt), a folder for each class, any of them packed "
        "as .gz; - reads stdin.",
    ),
]
LabelledFile = Annotated[
    Path,
    argument(
        "FILE",
        "Labelled texts: a table (CSV, TSV, parquet, also .gz), JSON lines, a folder with a folder of .txt files for each class, "
        "aclImdb or Yelp's reviews; - reads stdin.",
    ),
]
Seed = Annotated[int, option("N", "Random seed.")]


@dataclass(frozen=True)
class FileForm:
    """How a file of texts is written: columns, delimiter, encoding, whether its header is missing; and whether to drop bad rows."""

    text: Annotated[str | None, option("COLUMN", "The texts of a table, by name or number from 1.")] = None
    delimiter: Annotated[str | None, option("SIGN", "Column delimiter.", "guessed")] = None
    encoding: Annotated[str | None, option("NAME", "Text encoding, such as latin-1.", "UTF-8; UTF-16 by its mark")] = (
        None
    )
    no_header: Annotated[
        bool, flag("--no-header", "The first row of a table is data: columns are numbered from 1.")
    ] = False
    drop: Annotated[bool, flag("--drop", "Leave out rows without a text or a label, and count them.")] = False
    label: str | None = None
    split: str | None = None

    def of(self, path: str | Path) -> TextFile:
        """The texts of a file of this form."""
        from marginlens.text.text_files import TextFile

        columns = (self.text, self.label, self.split)
        return TextFile(path, *columns, self.delimiter, self.encoding, not self.no_header, self.drop)


@dataclass(frozen=True)
class LabelledForm(FileForm):
    """The form of a file whose texts have labels."""

    label: Annotated[str | None, option("COLUMN", "The labels of a table, by name or number from 1.")] = None


@dataclass(frozen=True)
class SplitForm(LabelledForm):
    """The form of a file whose texts have labels, and may belong to parts."""

    split: Annotated[str | None, option("COLUMN", "The part each row belongs to.")] = None
