"""Files and folders that appear complete or not at all: they are written aside and then renamed. Results in .npz files without pickle."""

from __future__ import annotations

import errno
import json
import os
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from marginlens.errors import InputError

if TYPE_CHECKING:
    import numpy as np

# The end of the name of a file that is being written, which begins with a dot.
PARTIAL = ".partial"
# The entry "format" of every dataset.
DATA_FORMAT = "marginlens-data-1"


def as_path(path: object, argument: str, expected: str) -> Path:
    """Return `path` as a `Path`, otherwise raise."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(argument, expected, type(path).__name__)
    return Path(path)


def resolved(place: str | os.PathLike[str]) -> Path:
    """Resolve a path, with ~ for a home; ~nobody stays as it is, as in shells."""
    return Path(os.path.expanduser(place)).resolve()


def unusable(path: str | os.PathLike[str], problem: OSError) -> str:
    """Return a path with the reason why the system refuses it, for the end of a sentence."""
    return f"{str(path)!r} ({problem.strerror or problem})"


def check_place(place: Path, argument: str, suffixes: tuple[str, ...] = ()) -> None:
    """Raise if a file cannot be at a place: its folder is missing, something other than a file is there, or its suffix is not allowed."""
    if suffixes and place.suffix.lower() not in suffixes:
        raise InputError(argument, f"a name that ends in {' or '.join(suffixes)}", repr(str(place)))
    if place.exists() and not place.is_file():
        raise InputError(argument, "a file that can be written", f"{str(place)!r}, which is there and is no file")
    if not place.resolve().parent.is_dir():
        raise InputError(argument, "a file in a folder that exists", repr(str(place)))
    check_writable(place, argument)


def check_writable(place: Path, argument: str) -> None:
    """Raise before any work if a folder cannot be written: a temporary file is made in it and removed.

    If folders above the place are missing, the nearest existing one counts.
    """
    try:
        with tempfile.TemporaryFile(dir=next(folder for folder in place.resolve().parents if folder.exists())):
            pass
    except OSError as problem:
        raise InputError(argument, "a place that can be written", unusable(place, problem)) from problem


@contextmanager
def written_aside(place: Path, argument: str) -> Iterator[Path]:
    """Give a path to write to; it is renamed to `place` when the block ends without an error, and removed otherwise."""
    check_place(place, argument)
    final = place.resolve()
    try:
        with tempfile.TemporaryDirectory(prefix=f".{final.name}-", suffix=".partial", dir=final.parent) as workshop:
            aside = Path(workshop) / final.name
            yield aside
            aside.replace(final)
    except OSError as problem:
        raise InputError(argument, "a file that can be written", unusable(place, problem)) from problem


@contextmanager
def durable_file(place: Path) -> Iterator[IO[bytes]]:
    """Give a file to write to; at the end of the block, file and name are flushed to the disk and renamed to `place`, which
    survives a crash.

    If the block or the disk fails, nothing is left. A process that is killed leaves a file `.NAME.partial`.
    """
    aside = place.with_name(f".{place.name}{PARTIAL}")
    try:
        with aside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(place)
    except BaseException:
        with suppress(OSError):
            # Gives back the space that it took.
            aside.unlink(missing_ok=True)
        raise
    if sys.platform == "win32":  # which opens no folders, and logs their changes itself
        return
    handle = os.open(place.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as problem:
        if problem.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def write_whole(place: Path, content: bytes, argument: str) -> None:
    """Write a file aside and rename it into its place."""
    with written_aside(place, argument) as aside:
        aside.write_bytes(content)


def replace_folder(made: Path, place: Path, earlier: Path) -> None:
    """Rename the folder `made` to `place`; what is there goes to `earlier` first, and back if anything goes wrong."""
    try:
        if place.exists():
            place.rename(earlier)
        made.rename(place)
    except BaseException:
        if earlier.exists() and not place.exists():
            earlier.rename(place)
        raise


def write_folder(place: Path, files: Mapping[str, bytes], argument: str) -> None:
    """Write a folder with these files aside and rename it into its place, instead of the folder that may be there."""
    final = resolved(place)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{final.name}-", suffix=".partial", dir=final.parent) as workshop:
            made = Path(workshop) / "new"
            made.mkdir()
            for name, content in files.items():
                (made / name).write_bytes(content)
            replace_folder(made, final, Path(workshop) / "earlier")
    except OSError as problem:
        raise InputError(argument, "a place that can be written", unusable(place, problem)) from problem


def json_by_line(values: Mapping[str, object]) -> bytes:
    """Write a JSON object with one line for each name."""
    lines = (
        f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}"
        for name, value in values.items()
    )
    # half a surrogate pair, which UTF-8 does not have, becomes the escape that JSON has for it
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode("utf-8", "backslashreplace")


def write_result(path: str | os.PathLike[str], format: str, arrays: Mapping[str, Any]) -> None:
    """Write the arrays and the format's name to a .npz file."""
    import numpy as np

    place = as_path(path, "path", "the path of a file")
    check_place(place, "path", (".npz",))
    stream = BytesIO()
    np.savez_compressed(stream, format=np.array(format), **arrays)
    write_whole(place, stream.getvalue(), "path")


def write_numbers(path: str | os.PathLike[str], format: str, arrays: Mapping[str, Any]) -> None:
    """Write arrays with all digits of their numbers to a .json file, for programs that share no code with this library."""
    import numpy as np

    listed = {name: value if isinstance(value, dict) else np.asarray(value).tolist() for name, value in arrays.items()}
    content = json.dumps({"format": format, **listed}).encode()
    write_whole(as_path(path, "path", "the path of a file"), content, "path")


def read_result(
    path: str | os.PathLike[str], format: str, expected: str, required: Iterable[str]
) -> dict[str, np.ndarray[Any, Any]]:
    """Read the arrays of a file that `write_result` wrote in this format; the error for any other file says what is `expected`."""
    import numpy as np

    place = as_path(path, "path", "the path of a file")
    try:
        with np.load(place, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as problem:
        reason = unusable(path, problem) if isinstance(problem, OSError) else repr(str(path))
        raise InputError("path", expected, reason) from problem
    if str(arrays.pop("format", "")) != format or set(required) - set(arrays):
        raise not_such_a_file(path, expected, arrays)
    return arrays


def not_such_a_file(path: str | os.PathLike[str], expected: str, arrays: Mapping[str, object]) -> InputError:
    """Make the error for a file whose arrays are not those of its format."""
    return InputError("path", expected, f"{str(path)!r}, which holds {', '.join(sorted(arrays)) or 'nothing'}")
