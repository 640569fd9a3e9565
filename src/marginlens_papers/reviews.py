"""Reviews as paper B takes them: two classes as -1 and +1, parts of a source, and the encoding of its texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from marginlens.errors import real_number, reject, whole_number
from marginlens.runtime.progress import ProgressCallback
from marginlens.text.readers import Reviews, ReviewSource
from marginlens.text.text_files import TextFile
from marginlens.text.vectorize import EncodedTexts, Snowball, SubwordTokenizer, TextPipeline
from marginlens.typing import FloatArray, IntArray

TRAIN, HELD_OUT = "train", "held-out"  # the parts that `ReviewPart(hold_out=...)` makes


@dataclass(frozen=True)
class TwoClassFile:
    """The texts of a file with their two classes as -1 and +1."""

    file: TextFile

    def read(self) -> Reviews:
        """The texts, the numbers of their classes, and the parts where the file names them."""
        found = self.file.rows(labelled=True)
        y, classes = two_classes(found.labels or [], "label")
        split = None if found.split is None else np.array([str(part) for part in found.split])
        return Reviews(found.texts, y, classes, split, found.left_out)

    def digest(self) -> str:
        """SHA-256 of the file."""
        return self.file.digest()


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
        raise reject("source", "where reviews are read from, e.g. TwoClassFile(TextFile(path))", type(source).__name__)
    if not isinstance(pipeline, TextPipeline):
        raise reject("pipeline", "a TextPipeline", type(pipeline).__name__)
    reviews = source.read()
    counted = None if count_in is None else reviews.in_part(count_in, "count_in")
    encoded = pipeline.encode(reviews.texts, reviews.y, counted=counted, progress=progress)
    n_empty = len(reviews) - len(encoded.kept)
    return EncodedTexts(
        encoded.data,
        encoded.vocabulary,
        encoded.kept,
        reviews.classes,
        None if reviews.split is None else reviews.split[encoded.kept],
        dict(reviews.left_out) | ({"no token left": n_empty} if n_empty else {}),
    )
