"""Sample files to begin with: reviews, sentences, a book of tales, a problem in the plane and a tiny transformer."""

from __future__ import annotations

import os
from pathlib import Path

from marginlens.errors import InputError
from marginlens.runtime.files import as_path, unusable

_FILES = Path(__file__).parent / "sample_files"


def write_samples(folder: str | os.PathLike[str]) -> list[Path]:
    """Write small files to try every command with. All of them are made up.

    `reviews.csv` has texts with labels for `token_statistics`, `sentences.txt` has one sentence per line for `probe`,
    `book.txt` has tales for `graph`, and `problem.npz` holds the problem "the start decides" for `predict`, `train` and `lab`.
    `tiny-model` is a BERT whose heads are set by hand. In the first layer they attend to the previous token, the next token,
    the first token and the same word. In the second layer one attends to the separator, one attends evenly, and two attend to
    words that depend on the query's word.

    Args:
        folder: the folder for the files, created if it does not exist. Existing files that are not samples are never
            overwritten.

    Returns:
        The paths of the files.
    """
    place = as_path(folder, "folder", "a folder")
    if folder == "":
        raise InputError("folder", "the name of a folder", "an empty one", "A dot is the folder that you are in.")
    files = {path.relative_to(_FILES): path.read_bytes() for path in sorted(_FILES.rglob("*")) if path.is_file()}
    try:
        for name, content in files.items():
            if (place / name).exists() and (place / name).read_bytes() != content:
                got = f"{str(place)!r}, where {name} is something else"
                raise InputError("folder", "a new folder, or one without files of these names", got)
        for name, content in files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(content)
    except OSError as problem:
        raise InputError("folder", "a folder that can be written", unusable(place, problem)) from problem
    return [place / name for name in files]
