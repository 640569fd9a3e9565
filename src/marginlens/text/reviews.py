"""Reviews with their labels: what every reader returns, and how two classes become -1 and +1."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from marginlens.data.files import as_path
from marginlens.data.tokens import FloatArray
from marginlens.errors import InputError, reject


@dataclass(frozen=True, repr=False, eq=False)
class Reviews:
    """Texts and their labels.

    `y` (n_reviews,) holds -1 for the class `classes[0]` and +1 for `classes[1]`; `split` (n_reviews,) names each review's part
    ("train", "test") where the source says it, else None; `left_out` counts what the reader left out, by reason.
    """

    texts: list[str]
    y: FloatArray
    classes: tuple[str, str]
    split: npt.NDArray[np.str_] | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        negative, positive = self.classes
        sizes = f"{int(np.sum(self.y < 0))} {negative!r} as -1, {int(np.sum(self.y > 0))} {positive!r} as +1"
        return f"Reviews({len(self)}: {sizes})"


class ReviewSource(Protocol):
    """Where reviews come from; a small frozen object."""

    def read(self) -> Reviews:
        """All reviews of the source."""

    def digest(self) -> str:
        """SHA-256 of the bytes that `read` would read."""

    def to_dict(self) -> dict[str, Any]:
        """The settings that decide, besides those bytes, what `read` returns."""


def two_classes(labels: Iterable[Any], argument: str = "labels") -> tuple[FloatArray, tuple[str, str]]:
    """Labels of two classes as -1 and +1.

    Args:
        labels: numbers, booleans or words, with exactly two values among them.
        argument: the name that an error gives them.
    Returns:
        (n_labels,) numbers -1 or +1, and the names of the class that became -1 and of the one that became +1: the smaller number
        first, or the word that comes first in the alphabet ("neg" before "pos", "negative" before "positive").
    """
    ordered = isinstance(labels, Iterable) and not isinstance(labels, str | bytes | Mapping | Set)
    if not ordered or not getattr(labels, "ndim", 1):
        raise reject(argument, "a list of labels of two classes", type(labels).__name__)
    listed = [_plain(label) for label in labels]
    for i, label in enumerate(listed):
        if isinstance(label, Iterable) and not isinstance(label, str):
            raise reject(argument, "numbers, booleans or words", f"{type(label).__name__} at index {i}")
        if label is None:
            raise reject(argument, "a label for every review", f"none at index {i}")
    found = sorted({_name(label) for label in listed}, key=_order)
    if len(found) != 2:
        some = ", ".join(map(repr, found[:4])) + (", ..." if len(found) > 4 else "")
        got = f"{len(found)} ({some})" if found else "none"
        raise reject(argument, "labels of exactly two classes", got)
    negative, positive = found
    return np.array([1.0 if _name(label) == positive else -1.0 for label in listed]), (negative, positive)


def check_file(path: str | os.PathLike[str], expected: str) -> Path:
    """A path to a file that is there and not empty."""
    place = as_path(path, "path", expected)
    try:
        size = place.stat().st_size
        if place.is_dir():
            raise reject("path", expected, f"the folder {str(path)!r}")
        with place.open("rb") as stream:
            stream.read(1)
    except OSError as problem:
        raise unreadable(path, expected, problem) from problem
    if size == 0:
        raise reject("path", expected, f"{str(path)!r}, which is empty")
    return place


def unreadable(path: str | os.PathLike[str], expected: str, problem: OSError) -> InputError:
    """The error for a file that the system does not let us read."""
    return reject("path", expected, f"{str(path)!r} ({problem.strerror or problem})")


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _plain(label: Any) -> Any:
    """A label without NumPy's wrapping or blanks around it; None where there is none."""
    if isinstance(label, np.generic):
        label = label.item()
    if isinstance(label, str):
        return label.strip() or None
    if isinstance(label, Iterable):
        return label
    return None if label is None or label != label else label


def _name(label: Any) -> str:
    """One name for 1, 1.0 and "1"."""
    if isinstance(label, float) and label.is_integer():
        return str(int(label))
    return str(label)


def _order(name: str) -> tuple[bool, float, str, str]:
    """Numbers before words; words that differ in capitals only, or are no number such as "nan", have their order too."""
    try:
        number = float(name)
    except ValueError:
        number = float("nan")
    is_word = number != number
    return is_word, 0.0 if is_word else number, name.lower(), name
