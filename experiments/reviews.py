"""Reviews as paper B takes them: aclImdb, Yelp's lines and files of two classes, parts of a source, and the encoding of its texts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from experiments.texts.text_files import TextFile
from experiments.texts.vectorize import (
    Snowball,
    SubwordTokenizer,
    TextPipeline,
    TextVocabulary,
    as_texts,
    offsets_of,
)
from marginlens.data.labelled import LabelledSequences
from marginlens.errors import InputError, array_of_any, real_number, whole_number
from marginlens.result import Described
from marginlens.runtime.files import as_path, unusable
from marginlens.runtime.progress import ProgressCallback
from marginlens.typing import ArrayLike, BoolArray, FloatArray, IntArray

TRAIN, HELD_OUT = "train", "held-out"  # the parts that `ReviewPart(hold_out=...)` makes
SHORTEST, LONGEST = 1_000, 1_500  # characters of a Yelp review, paper B
_IMDB = "the folder aclImdb, with train/pos, train/neg, test/pos and test/neg in it"
_YELP = "Yelp's reviews as JSON lines, each with 'text' and 'stars'"


@dataclass(frozen=True, repr=False, eq=False)
class Reviews:
    """Texts and their labels.

    `y` (n_reviews,) holds -1 for the class `classes[0]` and +1 for `classes[1]`; `split` (n_reviews,) names each review's part
    ("train", "test") if the source says it, else None; `left_out` counts what the reader left out, by reason.
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
            raise InputError(argument, f"a part that the reviews name ({named})", repr(name))
        return self.split == name

    def subset(self, indices: IntArray) -> Reviews:
        """The reviews with these indices."""
        split = None if self.split is None else self.split[indices]
        return replace(self, texts=[self.texts[i] for i in indices], y=self.y[indices], split=split)


class ReviewSource(Protocol):
    """Where reviews come from."""

    def read(self) -> Reviews:
        """All reviews of the source."""


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
                raise InputError("path", f"{_IMDB}, in UTF-8", got) from problem
            y.append(1.0 if name == "pos" else -1.0)
            split.append(part)
        return Reviews(texts, np.array(y), ("neg", "pos"), np.array(split))

    def _files(self) -> Iterator[tuple[str, str, Path, bytes]]:
        root = as_path(self.path, "path", _IMDB)
        if not (root / "train").is_dir() and (root / "aclImdb").is_dir():
            root = root / "aclImdb"
        for part, name in product(("train", "test"), ("neg", "pos")):
            try:
                files = sorted((root / part / name).glob("*.txt"), key=_review_number)
                contents = [file.read_bytes() for file in files]
            except OSError as problem:
                raise InputError("path", _IMDB, unusable(root / part / name, problem)) from problem
            if not files:
                raise InputError("path", _IMDB, f"{str(self.path)!r}, where {part}/{name} holds no .txt file")
            yield from ((part, name, file, content) for file, content in zip(files, contents, strict=True))


def _review_number(file: Path) -> tuple[int, str]:
    number = file.stem.split("_")[0]
    return (int(number) if number.isdecimal() else -1), file.name


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
        file = TextFile(self.path, text="text", label="stars")
        table = file.table()
        columns = (file.column(table, name, ()) for name in ("text", "label"))
        for number, (text, stars) in enumerate(zip(*columns, strict=True), start=1):
            if isinstance(stars, bool) or stars not in (1, 2, 3, 4, 5):
                got = f"{stars!r} in review {number} of {str(self.path)!r}"
                raise InputError("path", f"{_YELP} from 1 to 5", got)
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
            raise InputError("path", f"{_YELP}, of exactly two classes", got)
        return Reviews(texts, np.array(y), ("1 or 2 stars", "4 or 5 stars"), None, left_out)


@dataclass(frozen=True, repr=False, eq=False)
class EncodedTexts(Described):
    """Texts as token ids: sample i of `data` is the text at index `kept[i]` of those given.

    The last three are what a source of labelled texts says: -1 stands for `classes[0]` and +1 for `classes[1]`, sample i is in part
    `split[i]` if there are parts, and `left_out` counts what the reader and the pipeline left out.
    """

    data: LabelledSequences
    vocabulary: TextVocabulary
    kept: IntArray
    classes: tuple[str, str] = ("-1", "+1")
    split: npt.NDArray[np.str_] | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    quantities = "{data!r}"

    @property
    def names(self) -> tuple[str, ...]:
        """The token that each id stands for."""
        return self.vocabulary.names


@dataclass(frozen=True)
class TwoClassFile:
    """The texts of a file with their two classes as -1 and +1."""

    file: TextFile

    def read(self) -> Reviews:
        """The texts, the numbers of their classes, and the parts if the file names them."""
        texts, labels, parts = self.file.rows()
        y, classes = two_classes(labels, "label")
        return Reviews(texts, y, classes, None if parts is None else np.array(parts))


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
                raise InputError("hold_out", expected, repr(self.hold_out))
        whole_number(self.seed, "seed", at_least=0)

    def read(self) -> Reviews:
        """The reviews that are taken, with their part if some are held out."""
        reviews = self.source.read()
        rng = np.random.default_rng(self.seed)
        if self.part is not None:
            reviews = reviews.subset(np.flatnonzero(reviews.in_part(self.part)))
        if self.sample is not None:
            if self.sample > len(reviews):
                raise InputError("sample", f"at most {len(reviews)}, the reviews that are there", self.sample)
            reviews = reviews.subset(_stratified_sample(reviews, self.sample, rng))
        if self.hold_out is None:
            return reviews
        return replace(reviews, split=_hold_out(reviews, self.hold_out, rng))


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
            raise InputError("hold_out", f"a share that parts {len(texts)} texts of one class", share)
        drawn[chosen] = True
    return np.where(drawn[distinct.reshape(-1)], HELD_OUT, TRAIN)


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
        raise InputError(argument, "a list of labels of two classes", type(labels).__name__)
    names = [_class_name(label, i, argument) for i, label in enumerate(labels)]
    classes = sorted(set(names), key=_class_order)
    if len(classes) != 2:
        some = ", ".join(map(repr, classes[:4])) + (", ..." if len(classes) > 4 else "")
        raise InputError(argument, "labels of exactly two classes", f"{len(classes)} ({some})" if classes else "none")
    negative, positive = classes
    return np.where(np.array(names, dtype=object) == positive, 1.0, -1.0), (negative, positive)


def _class_name(label: Any, index: int, argument: str) -> str:
    """One name for 1, 1.0 and "1"."""
    value = label.item() if isinstance(label, np.generic) else label
    if isinstance(value, str):
        value = value.strip() or None
    elif isinstance(value, Iterable):
        raise InputError(argument, "numbers, booleans or words", f"{type(value).__name__} at index {index}")
    if value is None or value != value:
        raise InputError(argument, "a label for every review", f"none at index {index}")
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _class_order(name: str) -> tuple[bool, float, str, str]:
    """Numbers before words; "nan" is a word, and words that differ in capitals only have their order too."""
    try:
        number = float(name)
    except ValueError:
        number = float("nan")
    is_word = number != number
    return is_word, 0.0 if is_word else number, name.lower(), name


def paper_pipeline(pieces: SubwordTokenizer, *, empty: str = "refuse") -> TextPipeline:
    """The preprocessing of paper B, Appendix E: no punctuation, no stop words, stems, BERT's pieces, tokens that occur 50 times."""
    return TextPipeline(stemming=Snowball("english"), pieces=pieces, min_count=50, empty=empty)


def encode_reviews(
    source: ReviewSource,
    pipeline: TextPipeline,
    *,
    count_in: str | None = None,
    progress: ProgressCallback | None = None,
) -> EncodedTexts:
    """Read and encode the reviews of a source.

    Args:
        source: where the reviews are, e.g. `TwoClassFile(TextFile(path))`.
        pipeline: how they are encoded.
        count_in: the part in which tokens are counted, e.g. "train"; all reviews by default.
        progress: called as `progress(done, total)` in reviews read.
    """
    if not callable(getattr(source, "read", None)):
        raise InputError(
            "source", "where reviews are read from, e.g. TwoClassFile(TextFile(path))", type(source).__name__
        )
    if not isinstance(pipeline, TextPipeline):
        raise InputError("pipeline", "a TextPipeline", type(pipeline).__name__)
    reviews = source.read()
    counted = None if count_in is None else reviews.in_part(count_in, "count_in")
    encoded = encode_labelled(pipeline, reviews.texts, reviews.y, counted=counted, progress=progress)
    n_empty = len(reviews) - len(encoded.kept)
    return replace(
        encoded,
        classes=reviews.classes,
        split=None if reviews.split is None else reviews.split[encoded.kept],
        left_out=dict(reviews.left_out) | ({"no token left": n_empty} if n_empty else {}),
    )


def encode_labelled(
    pipeline: TextPipeline,
    texts: Sequence[str],
    y: ArrayLike,
    *,
    counted: Any = None,
    progress: ProgressCallback | None = None,
) -> EncodedTexts:
    """Find the vocabulary of the texts and encode them by it, reading them once.

    Args:
        texts: n_texts strings. y: (n_texts,) labels, each -1 or +1.
        counted: (n_texts,) True for the texts in which tokens are counted, e.g. those to train on; all by default.
    """
    listed = as_texts(texts)
    labels, mask = _signs(y, len(listed)), None if counted is None else _mask(counted, len(listed))
    tokenized = pipeline.tokenize(listed, progress)
    vocabulary = pipeline.vocabulary(tokenized, mask)
    tokens, offsets = tokenized.renumbered(vocabulary.ids(tokenized.names))
    lengths = np.diff(offsets)
    kept, empty = np.flatnonzero(lengths), np.flatnonzero(lengths == 0)
    if len(empty) and pipeline.empty == "refuse":
        more = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
        got, remedy = f"none in the review at index {int(empty[0])}{more}", 'Use `empty="drop"` to leave them out.'
        raise InputError("texts", "reviews that keep at least one token", got, remedy)
    data = LabelledSequences.of_positions(tokens, offsets_of(lengths[kept]), labels[kept], len(vocabulary))
    return EncodedTexts(data, vocabulary, kept)


def _signs(y: Any, n_texts: int) -> FloatArray:
    expected = f"labels, each -1 or +1, of shape ({n_texts},)"
    labels = array_of_any(y, "y", expected)
    if labels.shape != (n_texts,):
        raise InputError("y", expected, f"shape {labels.shape}")
    if not np.isin(labels, (-1, 1)).all():
        raise InputError("y", expected, "other labels", "Map your two classes to -1 and +1.")
    return labels.astype(np.float64)


def _mask(counted: Any, n_texts: int) -> BoolArray:
    expected = f"booleans of shape ({n_texts},)"
    mask = array_of_any(counted, "counted", expected)
    if mask.shape != (n_texts,) or mask.dtype != bool:
        raise InputError("counted", expected, f"shape {mask.shape} with dtype {mask.dtype}")
    return mask
