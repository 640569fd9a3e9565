"""The ledger on disk: `ledger.json`, read and written, and joined with the catalogue of claims."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from marginlens.errors import InputError
from marginlens_papers.claims import catalogue
from marginlens_papers.report.entry import Entry

LEDGER = "ledger.json"
FOLDER = "report"


def ledger(folder: str | os.PathLike[str] = FOLDER) -> list[Entry]:
    """Every claim that marginlens knows, in the order of the papers, with its last result where `folder` holds one."""
    stored = {entry.id: (entry.result, entry.unfinished) for entry in read_ledger(Path(folder))}
    return [Entry.of(claim, *stored.get(claim.id, ())) for claim in catalogue.claims()]


def read_ledger(folder: Path) -> list[Entry]:
    """The entries stored in `folder`; none when it holds no ledger."""
    path = folder / LEDGER
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError) as problem:
        raise InputError(f"The ledger {path} cannot be read ({problem}); delete it and run again.") from problem
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"The ledger {path} cannot be read (it is not a list of objects); delete it and run again.")
    try:
        return [Entry.from_row(row) for row in rows]
    except InputError as problem:
        raise InputError(f"The ledger {path} cannot be read ({problem}) Delete it and run again.") from problem


def write_ledger(entries: Iterable[Entry], folder: Path) -> None:
    """Store the entries in `folder` as strict JSON, one object per claim."""
    rows = [entry.row() for entry in entries]
    text = json.dumps(rows, indent=2, ensure_ascii=False, allow_nan=False)
    (folder / LEDGER).write_text(text + "\n", encoding="utf-8")
