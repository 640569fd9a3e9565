"""Results in .npz files: plain arrays and the name of their format, written aside and read without pickle."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from io import BytesIO
from typing import Any

import numpy as np

from marginlens.errors import InputError, reject
from marginlens.runtime.files import as_path, check_place, unusable, write_whole

DATA_FORMAT = "marginlens-data-1"  # of every dataset


def write_result(path: str | os.PathLike[str], format: str, arrays: Mapping[str, Any]) -> None:
    """Write the arrays and the format's name to a .npz file."""
    place = as_path(path, "path", "the path of a file")
    check_place(place, "path", (".npz",))
    stream = BytesIO()
    np.savez_compressed(stream, format=np.array(format), **arrays)
    write_whole(place, stream.getvalue(), "path")


def read_result(
    path: str | os.PathLike[str], format: str, expected: str, required: Iterable[str]
) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a file that `write_result` wrote in this format; the refusal of any other says what is `expected`."""
    place = as_path(path, "path", "the path of a file")
    try:
        with np.load(place, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as problem:
        reason = unusable(path, problem) if isinstance(problem, OSError) else repr(str(path))
        raise reject("path", expected, reason) from problem
    if str(arrays.pop("format", "")) != format or set(required) - set(arrays):
        raise not_such_a_file(path, expected, arrays)
    return arrays


def not_such_a_file(path: str | os.PathLike[str], expected: str, arrays: Mapping[str, Any]) -> InputError:
    """The refusal of a file whose arrays are not those of its format."""
    return reject("path", expected, f"{str(path)!r}, which holds {', '.join(sorted(arrays)) or 'nothing'}")
