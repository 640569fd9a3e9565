"""The words of many texts as numbers, and what each distinct word becomes: the part of the work that is done once per word."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.data.tokens import BoolArray, IntArray
from marginlens.errors import reject
from marginlens.progress import Progress

_STRIDE = 500  # texts between two words about progress


@dataclass(frozen=True, repr=False)
class WordStream:
    """All words of all texts in one array of numbers.

    `numbers` (n_words,) index `distinct`; text i holds `numbers[offsets[i]:offsets[i + 1]]`.
    """

    distinct: list[str]
    numbers: IntArray
    offsets: IntArray

    def counts(self, counted: BoolArray | None = None) -> IntArray:
        """How often each distinct word occurs, in all texts or in those marked in `counted` (n_texts,)."""
        numbers = self.numbers if counted is None else self.numbers[np.repeat(counted, np.diff(self.offsets))]
        return np.bincount(numbers, minlength=len(self.distinct))

    def __repr__(self) -> str:
        return f"WordStream({len(self.offsets) - 1} texts, {len(self.numbers)} words, {len(self.distinct)} distinct)"


@dataclass(frozen=True, repr=False)
class PieceTable:
    """What each distinct word becomes: word w the pieces `pieces[offsets[w]:offsets[w + 1]]`, which index `names`."""

    names: list[str]
    pieces: IntArray
    offsets: IntArray

    def counts(self, word_counts: IntArray) -> IntArray:
        """How often each piece occurs when word w occurs `word_counts[w]` times."""
        weights = np.repeat(word_counts, np.diff(self.offsets))
        return np.bincount(self.pieces, weights=weights, minlength=len(self.names)).astype(np.int64)

    def renamed(self, ids: IntArray) -> PieceTable:
        """The same table in other ids: piece k becomes `ids[k]`, and is left out where that is negative."""
        pieces = ids[self.pieces] if len(self.pieces) else self.pieces
        kept = pieces >= 0
        offsets = np.concatenate([[0], np.cumsum(kept)])[self.offsets]
        return PieceTable([], pieces[kept], offsets)

    def expand(self, words: WordStream) -> tuple[IntArray, IntArray]:
        """Every word of every text replaced by its pieces: (n_positions,) pieces, and where each text starts."""
        lengths = np.diff(self.offsets)
        said = lengths[words.numbers] > 0
        ends = np.concatenate([[0], np.cumsum(lengths[words.numbers])])
        numbers = words.numbers[said]
        sizes = lengths[numbers]
        starts = np.cumsum(sizes) - sizes
        place = np.repeat(self.offsets[numbers] - starts, sizes) + np.arange(int(sizes.sum()))
        return self.pieces[place], ends[words.offsets]

    def __repr__(self) -> str:
        return f"PieceTable({len(self.offsets) - 1} words, {len(self.names)} names)"


class _Numbering(dict[str, int]):
    """Numbers for words in the order in which they are first met."""

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number


def number_words(texts: Sequence[str], words: Callable[[str], list[str]], progress: Progress) -> WordStream:
    """The words of each text, found by `words`, as numbers."""
    numbering = _Numbering()
    number = numbering.__getitem__
    parts: list[IntArray] = []
    progress.expect(len(texts))
    for i, text in enumerate(texts):
        found = words(text)
        parts.append(np.fromiter(map(number, found), dtype=np.int32, count=len(found)))
        if i % _STRIDE == _STRIDE - 1:
            progress.advance(_STRIDE)
    progress.advance(len(texts) % _STRIDE)
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return WordStream(list(numbering), np.concatenate([np.empty(0, np.int32), *parts]), offsets)


def tabulate(pieces: list[tuple[str, ...]]) -> PieceTable:
    """A table from the pieces of each distinct word by name."""
    numbering = _Numbering()
    flat = [numbering[name] for one in pieces for name in one]
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in pieces])]).astype(np.int64)
    return PieceTable(list(numbering), np.array(flat, dtype=np.int64), offsets)


def as_texts(texts: Any) -> list[str]:
    """`texts` as a list of strings, or a sentence with the first that is none."""
    expected = "a list of strings, one for each review"
    if isinstance(texts, str | bytes):
        raise reject("texts", expected, "one string", "Put it into a list.")
    if isinstance(texts, Mapping | Set) or hasattr(texts, "columns"):
        raise reject(
            "texts", expected, type(texts).__name__, "Give the texts themselves, in the order of their labels."
        )
    try:
        listed = list(texts)
    except TypeError as problem:
        raise reject("texts", expected, type(texts).__name__) from problem
    if not listed:
        raise reject("texts", "at least one review", "none")
    for i, text in enumerate(listed):
        if not isinstance(text, str):
            raise reject("texts", expected, f"{type(text).__name__} at index {i}")
    return listed
