"""Which reader fits a path."""

from __future__ import annotations

import os

from marginlens.data.files import as_path
from marginlens.errors import reject
from marginlens.text.imdb import ImdbFolder
from marginlens.text.reviews import ReviewSource
from marginlens.text.tables import ReviewTable
from marginlens.text.yelp import YelpLines

_LINES = (".json", ".jsonl", ".ndjson")


def review_source(path: str | os.PathLike[str], text: str | None = None, label: str | None = None) -> ReviewSource:
    """The source of reviews at a path.

    Args:
        path: the folder aclImdb, Yelp's JSON lines (.json, .jsonl, .ndjson), or a table (CSV, parquet).
        text, label: the columns of a table, where they are not the usual ones.
    Returns:
        An `ImdbFolder`, `YelpLines` or `ReviewTable`: `read()` gives the reviews.
    """
    place = as_path(path, "path", "a file or folder of reviews")
    if not place.exists():
        raise reject("path", "a file or folder of reviews", f"{str(path)!r}, which is not there")
    if not place.is_dir() and place.suffix.lower() not in _LINES:
        return ReviewTable(path, text, label)
    if text is not None or label is not None:
        asked = "text" if text is not None else "label"
        raise reject(asked, "left out unless the reviews are in a table", repr(text or label))
    return ImdbFolder(path) if place.is_dir() else YelpLines(path)
