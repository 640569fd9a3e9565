"""Labelled reviews as they are published: the folder aclImdb, and Yelp's JSON lines."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from marginlens.errors import reject, whole_number
from marginlens.runtime.files import as_path, unusable
from marginlens.text.text_files import TextFile
from marginlens.typing import FloatArray, IntArray

SHORTEST, LONGEST = 1_000, 1_500  # characters of a Yelp review, paper B
_IMDB = "the folder aclImdb, with train/pos, train/neg, test/pos and test/neg in it"
_YELP = "Yelp's reviews as JSON lines, each with 'text' and 'stars'"


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

    def in_part(self, name: str, argument: str = "part") -> npt.NDArray[np.bool_]:
        """(n_reviews,) which reviews belong to a part."""
        parts = [] if self.split is None else sorted(set(self.split.tolist()))
        if self.split is None or name not in parts:
            named = ", ".join(map(repr, parts)) or "none"
            raise reject(argument, f"a part that the reviews name ({named})", repr(name))
        return self.split == name

    def subset(self, indices: IntArray) -> Reviews:
        """The reviews with these indices."""
        split = None if self.split is None else self.split[indices]
        return replace(self, texts=[self.texts[i] for i in indices], y=self.y[indices], split=split)


class ReviewSource(Protocol):
    """Where reviews come from."""

    def read(self) -> Reviews:
        """All reviews of the source."""

    def digest(self) -> str:
        """SHA-256 of the bytes that `read` would read."""


# ---- the folder aclImdb


@dataclass(frozen=True)
class ImdbFolder:
    """The Large Movie Review Dataset as it is unpacked: one text file for each review, named by its number and rating.

    Args:
        path: the folder aclImdb, or the one that holds it. Reviews come in the order train before test, negative before positive, by
            number.
    """

    path: str | os.PathLike[str]

    def read(self) -> Reviews:
        """The texts, -1 for neg and +1 for pos, and the split."""
        texts, y, split = [], [], []
        for part, name, file, content in self._files():
            try:
                texts.append(content.decode("utf-8"))
            except UnicodeDecodeError as problem:
                got = f"{str(file)!r}, which is not at byte {problem.start}"
                raise reject("path", f"{_IMDB}, in UTF-8", got) from problem
            y.append(1.0 if name == "pos" else -1.0)
            split.append(part)
        return Reviews(texts, np.array(y), ("neg", "pos"), np.array(split))

    def digest(self) -> str:
        """SHA-256 of all names and contents in that order."""
        total = hashlib.sha256()
        for part, name, file, content in self._files():
            total.update(f"{part}/{name}/{file.name}\0{len(content)}\0".encode())
            total.update(content)
        return total.hexdigest()

    def _files(self) -> Iterator[tuple[str, str, Path, bytes]]:
        root = as_path(self.path, "path", _IMDB)
        if not (root / "train").is_dir() and (root / "aclImdb").is_dir():
            root = root / "aclImdb"
        for part, name in product(("train", "test"), ("neg", "pos")):
            try:
                files = sorted((root / part / name).glob("*.txt"), key=_review_number)
                contents = [file.read_bytes() for file in files]
            except OSError as problem:
                raise reject("path", _IMDB, unusable(root / part / name, problem)) from problem
            if not files:
                raise reject("path", _IMDB, f"{str(self.path)!r}, where {part}/{name} holds no .txt file")
            yield from ((part, name, file, content) for file, content in zip(files, contents, strict=True))


def _review_number(file: Path) -> tuple[int, str]:
    number = file.stem.split("_")[0]
    return (int(number) if number.isdecimal() else -1), file.name


# ---- Yelp


@dataclass(frozen=True)
class YelpLines:
    """Yelp's open dataset: JSON lines, one review in each with `text` and `stars` from 1 to 5, by the rules of paper B.

    Args:
        path: the file, e.g. yelp_academic_dataset_review.json.
        shortest, longest: reviews outside these numbers of characters are left out; both ends belong.

    One and two stars become -1, four and five +1; three stars are left out.
    """

    path: str | os.PathLike[str]
    shortest: int = SHORTEST
    longest: int = LONGEST

    def __post_init__(self) -> None:
        whole_number(self.shortest, "shortest", at_least=0)
        whole_number(self.longest, "longest", at_least=self.shortest)

    def read(self) -> Reviews:
        """The texts in the file's order and their labels; `left_out` counts neutral, too short and too long ones."""
        neutral = "3 stars"
        short, long = f"under {self.shortest} characters", f"over {self.longest} characters"
        left_out = {neutral: 0, short: 0, long: 0}
        texts, y = [], []
        for number, (text, entry) in enumerate(zip(*self._file.entries(), strict=True), start=1):
            stars = entry.get("stars")
            if isinstance(stars, bool) or stars not in (1, 2, 3, 4, 5):
                got = f"{stars!r} in review {number} of {str(self.path)!r}"
                raise reject("path", f"{_YELP} from 1 to 5", got)
            if stars == 3:
                left_out[neutral] += 1
            elif len(text) < self.shortest:
                left_out[short] += 1
            elif len(text) > self.longest:
                left_out[long] += 1
            else:
                texts.append(text)
                y.append(1.0 if stars > 3 else -1.0)
        if len(set(y)) != 2:
            counts = ", ".join(f"{count} with {reason}" for reason, count in left_out.items())
            got = f"{str(self.path)!r} with {len(y)} that count ({counts} left out)"
            raise reject("path", f"{_YELP}, of exactly two classes", got)
        return Reviews(texts, np.array(y), ("1 or 2 stars", "4 or 5 stars"), None, left_out)

    def digest(self) -> str:
        """SHA-256 of the file."""
        return self._file.digest()

    @property
    def _file(self) -> TextFile:
        return TextFile(self.path, text="text")
