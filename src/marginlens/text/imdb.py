"""Reviews from the folder of the Large Movie Review Dataset, aclImdb."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.data.files import as_path
from marginlens.errors import reject
from marginlens.text.reviews import Reviews, unreadable

_EXPECTED = "the folder aclImdb, with train/pos, train/neg, test/pos and test/neg in it"
_PARTS = [(split, name) for split in ("train", "test") for name in ("neg", "pos")]


@dataclass(frozen=True)
class ImdbFolder:
    """The folder aclImdb as it is unpacked: one text file for each review, named by its number and rating.

    Args:
        path: the folder, or the one that holds it. Reviews come in the order train before test, negative before positive, by number.
    """

    path: str | os.PathLike[str]

    def read(self) -> Reviews:
        """The texts, -1 for neg and +1 for pos, and the split."""
        texts, y, split = [], [], []
        for part, name, place, content in self._files():
            try:
                texts.append(content.decode("utf-8"))
            except UnicodeDecodeError as problem:
                raise reject(
                    "path", f"{_EXPECTED}, in UTF-8", f"{str(place)!r}, which is not at byte {problem.start}"
                ) from problem
            y.append(1.0 if name == "pos" else -1.0)
            split.append(part)
        return Reviews(texts, np.array(y), ("neg", "pos"), np.array(split))

    def digest(self) -> str:
        """SHA-256 of all names and contents in that order."""
        total = hashlib.sha256()
        for part, name, place, content in self._files():
            total.update(f"{part}/{name}/{place.name}\0{len(content)}\0".encode())
            total.update(content)
        return total.hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """The kind of source."""
        return {"source": "aclImdb"}

    def _files(self) -> Iterator[tuple[str, str, Path, bytes]]:
        root = as_path(self.path, "path", _EXPECTED)
        if not (root / "train").is_dir() and (root / "aclImdb").is_dir():
            root = root / "aclImdb"
        for part, name in _PARTS:
            folder = root / part / name
            try:
                places = sorted(folder.glob("*.txt"), key=_number) if folder.is_dir() else []
                if not places:
                    raise reject("path", _EXPECTED, f"{str(self.path)!r}, where {part}/{name} holds no .txt file")
                for place in places:
                    yield part, name, place, place.read_bytes()
            except OSError as problem:
                raise unreadable(folder, _EXPECTED, problem) from problem


def _number(place: Path) -> tuple[int, str]:
    number = place.stem.split("_")[0]
    return (int(number) if number.isdecimal() else -1), place.name
