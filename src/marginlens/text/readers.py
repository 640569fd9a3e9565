"""Labelled reviews: tables (CSV, parquet), the folder aclImdb, Yelp's JSON lines, and parts of any of them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from marginlens.errors import missing_extra, real_number, reject, whole_number
from marginlens.runtime.files import as_path, unusable
from marginlens.typing import FloatArray, IntArray

TRAIN, HELD_OUT = "train", "held-out"  # the parts that `ReviewPart(hold_out=...)` makes
TEXT_COLUMNS = ("text", "review", "sentence", "content")
LABEL_COLUMNS = ("label", "sentiment", "class", "y")
SHORTEST, LONGEST = 1_000, 1_500  # characters of a Yelp review, paper B
_TABLE_FILE = "a CSV or parquet file with a column of texts and a column of labels"
_IMDB = "the folder aclImdb, with train/pos, train/neg, test/pos and test/neg in it"
_YELP = "Yelp's reviews as JSON lines, each with 'text' and 'stars'"
_JSON_LINES = (".json", ".jsonl", ".ndjson")
_CSV_BLOCK = 1 << 26  # bytes that pyarrow reads at once; a row must fit


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


def review_source(
    path: str | os.PathLike[str], text: str | None = None, label: str | None = None, split: str | None = None
) -> ReviewSource:
    """The source of reviews at a path.

    Args:
        path: the folder aclImdb, Yelp's JSON lines (.json, .jsonl, .ndjson), or a table (CSV, parquet).
        text, label, split: the columns of a table, where they are not the usual ones.
    Returns:
        An `ImdbFolder`, `YelpLines` or `ReviewTable`: `read()` gives the reviews.
    """
    location = as_path(path, "path", "a file or folder of reviews")
    if not location.exists():
        raise reject("path", "a file or folder of reviews", f"{str(path)!r}, which is not there")
    if not location.is_dir() and location.suffix.lower() not in _JSON_LINES:
        return ReviewTable(path, text, label, split)
    for argument, column in (("text", text), ("label", label), ("split", split)):
        if column is not None:
            raise reject(argument, "left out unless the reviews are in a table", repr(column))
    return ImdbFolder(path) if location.is_dir() else YelpLines(path)


# ---- tables


@dataclass(frozen=True)
class ReviewTable:
    """A CSV (.csv, tab-separated .tsv) or parquet file with one review in each row, read by pyarrow.

    Args:
        path: the file, in UTF-8; the first row of a CSV names its columns.
        text: the column of texts; by default "text", "review", "sentence" or "content", the first that is there.
        label: the column of labels; by default "label", "sentiment", "class" or "y".
        split: the column that says which part a review belongs to; by default "split" where it is there.
    """

    path: str | os.PathLike[str]
    text: str | None = None
    label: str | None = None
    split: str | None = None

    def __post_init__(self) -> None:
        for argument in ("text", "label", "split"):
            name = getattr(self, argument)
            if not isinstance(name, str | None):
                raise reject(argument, "the name of a column", type(name).__name__)

    def read(self) -> Reviews:
        """The texts, labels as -1 and +1, and the parts where the table names them."""
        path = _nonempty_file(self.path, _TABLE_FILE)
        try:
            pyarrow = import_module("pyarrow")
        except ImportError as problem:
            raise missing_extra("pyarrow", "text", "Reading tables") from problem
        try:
            texts, labels, split = self._parquet(path) if _is_parquet(path) else self._csv(path, pyarrow)
        except (OSError, pyarrow.ArrowException) as problem:
            reason = shorten(str(problem), 120, placeholder="…")
            raise reject("path", _TABLE_FILE, f"{str(self.path)!r}, which cannot be read ({reason})") from problem
        if not texts:
            raise reject("path", _TABLE_FILE, f"{str(self.path)!r}, which has no rows")
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                kind = "nothing" if text is None else f"a {type(text).__name__}"
                raise reject("path", _TABLE_FILE, f"{str(self.path)!r} with {kind} for a text in row {i}")
        y, classes = two_classes(labels, "label")
        return Reviews(texts, y, classes, None if split is None else np.array([str(part) for part in split]))

    def digest(self) -> str:
        """SHA-256 of the file."""
        return _file_digest(_nonempty_file(self.path, _TABLE_FILE))

    def _csv(self, path: Path, pyarrow: Any) -> tuple[list[Any], list[Any], list[Any] | None]:
        csv = import_module("pyarrow.csv")
        as_written = (*TEXT_COLUMNS, *LABEL_COLUMNS, "split", self.text, self.label, self.split)
        table = csv.read_csv(
            path,
            csv.ReadOptions(block_size=_CSV_BLOCK),
            csv.ParseOptions(delimiter="\t" if path.suffix.lower() == ".tsv" else ",", newlines_in_values=True),
            csv.ConvertOptions(
                column_types={name: pyarrow.large_string() for name in as_written if name is not None},
                strings_can_be_null=False,
            ),
        )
        return self._columns(table, self._choose(table.column_names))

    def _parquet(self, path: Path) -> tuple[list[Any], list[Any], list[Any] | None]:
        with import_module("pyarrow.parquet").ParquetFile(path) as file:
            chosen = self._choose(file.schema_arrow.names)
            return self._columns(file.read(columns=[name for name in chosen if name is not None]), chosen)

    def _columns(
        self, table: Any, chosen: tuple[str, str, str | None]
    ) -> tuple[list[Any], list[Any], list[Any] | None]:
        text, label, split = chosen
        parts = None if split is None else table[split].to_pylist()
        return table[text].to_pylist(), table[label].to_pylist(), parts

    def _choose(self, columns: list[str]) -> tuple[str, str, str | None]:
        """The columns to read, out of those that the table has."""
        text = self._column("text", self.text, TEXT_COLUMNS, columns)
        label = self._column("label", self.label, LABEL_COLUMNS, columns)
        if self.split is None and "split" not in columns:
            return text, label, None
        return text, label, self._column("split", self.split, ("split",), columns)

    def _column(self, argument: str, asked: str | None, usual: tuple[str, ...], columns: list[str]) -> str:
        wanted = usual if asked is None else (asked,)
        name = next((name for name in wanted if name in columns), None)
        if name is None:
            shown = ", ".join(repr(shorten(column, 40, placeholder="…")) for column in columns[:8])
            more = f" and {len(columns) - 8} more" if len(columns) > 8 else ""
            got = f"none of {', '.join(map(repr, usual))}" if asked is None else repr(asked)
            raise reject(argument, f"a column of {str(self.path)!r}, which has {shown}{more}", got)
        if columns.count(name) > 1:
            got = f"{name!r}, which it has {columns.count(name)} times"
            raise reject(argument, f"a column that {str(self.path)!r} has once", got)
        return name


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
        for part in ("train", "test"):
            for name in ("neg", "pos"):
                with _readable(root / part / name, _IMDB):
                    files = sorted((root / part / name).glob("*.txt"), key=_review_number)
                    if not files:
                        raise reject("path", _IMDB, f"{str(self.path)!r}, where {part}/{name} holds no .txt file")
                    for file in files:
                        yield part, name, file, file.read_bytes()


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

    One and two stars become -1, four and five +1; three stars are left out. `ReviewPart(YelpLines(path), sample=n)` draws some.
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
        for text, stars in self._lines():
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
        return _file_digest(_nonempty_file(self.path, _YELP))

    def _lines(self) -> Iterator[tuple[str, int]]:
        path = _nonempty_file(self.path, _YELP)
        with _readable(path, _YELP), path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if not line.strip():
                    continue
                try:
                    review = json.loads(line)
                    text, stars = review["text"], review["stars"]
                    is_review = isinstance(text, str) and not isinstance(stars, bool) and stars in (1, 2, 3, 4, 5)
                except (ValueError, TypeError, KeyError, RecursionError):
                    is_review = False
                if not is_review:
                    shown = shorten(line.decode("utf-8", "replace"), 60, placeholder="…")
                    raise reject("path", f"{_YELP} from 1 to 5", f"{shown!r} in line {number} of {str(self.path)!r}")
                yield text, int(stars)


# ---- parts


@dataclass(frozen=True)
class ReviewPart:
    """Some reviews of a source, in the source's order.

    Args:
        source: where the reviews are.
        part: take only the reviews whose `split` is this; all by default.
        sample: how many of them to draw at random, each class in proportion; all by default.
        hold_out: the share to hold out, of each class; the reviews are then in the parts "train" and "held-out" instead of the source's
            own. Equal texts stay together, so that nothing held out is trained on.
        seed: of both draws.
    """

    source: ReviewSource
    part: str | None = None
    sample: int | None = None
    hold_out: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.sample is not None:
            whole_number(self.sample, "sample", at_least=2)
        if self.hold_out is not None:
            expected = "a share between 0 and 1"
            object.__setattr__(self, "hold_out", real_number(self.hold_out, "hold_out", expected))
            if not 0.0 < self.hold_out < 1.0:
                raise reject("hold_out", expected, repr(self.hold_out))
        whole_number(self.seed, "seed", at_least=0)

    def read(self) -> Reviews:
        """The reviews that are taken, with their part where some are held out."""
        reviews = self.source.read()
        rng = np.random.default_rng(self.seed)
        if self.part is not None:
            reviews = reviews.subset(np.flatnonzero(reviews.in_part(self.part)))
        if self.sample is not None:
            if self.sample > len(reviews):
                raise reject("sample", f"at most {len(reviews)}, the reviews that are there", self.sample)
            reviews = reviews.subset(_stratified_sample(reviews, self.sample, rng))
        if self.hold_out is None:
            return reviews
        return replace(reviews, split=_hold_out(reviews, self.hold_out, rng))

    def digest(self) -> str:
        """SHA-256 of the bytes that the source reads."""
        return self.source.digest()


def _stratified_sample(reviews: Reviews, size: int, rng: np.random.Generator) -> IntArray:
    """(size,) indices drawn at random, each class in proportion, in ascending order."""
    positive = round(size * float(np.mean(reviews.y > 0)))
    drawn = [
        rng.choice(np.flatnonzero(reviews.y == sign), count, replace=False)
        for sign, count in ((-1.0, size - positive), (1.0, positive))
    ]
    return np.sort(np.concatenate(drawn))


def _hold_out(reviews: Reviews, share: float, rng: np.random.Generator) -> npt.NDArray[np.str_]:
    """(n_reviews,) the part of each review; a text that occurs several times goes where its first occurrence goes."""
    _, first, distinct = np.unique(np.array(reviews.texts, dtype=object), return_index=True, return_inverse=True)
    drawn = np.zeros(len(first), dtype=bool)
    for sign in (-1.0, 1.0):
        texts = np.flatnonzero(reviews.y[first] == sign)
        chosen = rng.permutation(texts)[: round(share * len(texts))]
        if not 0 < len(chosen) < len(texts):
            raise reject("hold_out", f"a share that parts {len(texts)} texts of one class", share)
        drawn[chosen] = True
    return np.where(drawn[distinct.reshape(-1)], HELD_OUT, TRAIN)


# ---- labels


def two_classes(labels: Iterable[Any], argument: str = "labels") -> tuple[FloatArray, tuple[str, str]]:
    """Labels of two classes as -1 and +1.

    Args:
        labels: numbers, booleans or words, with exactly two values among them.
        argument: the name that an error gives them.
    Returns:
        (n_labels,) numbers -1 or +1, and the names of the class that became -1 and of the one that became +1: the smaller number
        first, or the word that comes first in the alphabet ("neg" before "pos", "negative" before "positive").
    """
    is_sequence = isinstance(labels, Iterable) and not isinstance(labels, str | bytes | Mapping | Set)
    if not is_sequence or not getattr(labels, "ndim", 1):
        raise reject(argument, "a list of labels of two classes", type(labels).__name__)
    names = [_class_name(label, i, argument) for i, label in enumerate(labels)]
    classes = sorted(set(names), key=_class_order)
    if len(classes) != 2:
        some = ", ".join(map(repr, classes[:4])) + (", ..." if len(classes) > 4 else "")
        raise reject(argument, "labels of exactly two classes", f"{len(classes)} ({some})" if classes else "none")
    negative, positive = classes
    return np.where(np.array(names, dtype=object) == positive, 1.0, -1.0), (negative, positive)


def _class_name(label: Any, index: int, argument: str) -> str:
    """One name for 1, 1.0 and "1"."""
    value = label.item() if isinstance(label, np.generic) else label
    if isinstance(value, str):
        value = value.strip() or None
    elif isinstance(value, Iterable):
        raise reject(argument, "numbers, booleans or words", f"{type(value).__name__} at index {index}")
    if value is None or value != value:
        raise reject(argument, "a label for every review", f"none at index {index}")
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _class_order(name: str) -> tuple[bool, float, str, str]:
    """Numbers before words; "nan" is a word, and words that differ in capitals only have their order too."""
    try:
        number = float(name)
    except ValueError:
        number = float("nan")
    is_word = number != number
    return is_word, 0.0 if is_word else number, name.lower(), name


# ---- files


@contextmanager
def _readable(path: str | os.PathLike[str], expected: str) -> Iterator[None]:
    """A file that the system does not let us read ends in one sentence."""
    try:
        yield
    except OSError as problem:
        raise reject("path", expected, unusable(path, problem)) from problem


def _nonempty_file(path: str | os.PathLike[str], expected: str) -> Path:
    file = as_path(path, "path", expected)
    with _readable(path, expected), file.open("rb") as stream:
        if not stream.read(1):
            raise reject("path", expected, f"{str(path)!r}, which is empty")
    return file


def _file_digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as stream:
        return path.suffix.lower() == ".parquet" or stream.read(4) == b"PAR1"
