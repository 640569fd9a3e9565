"""What the text classifier reads: words and frequent pairs of neighbouring words, or token ids as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from marginlens.data.labelled import LabelledSequences
from marginlens.data.sequences import flat_sequences
from marginlens.data.tokens import FloatArray, IntArray
from marginlens.errors import InputError, n_axes, reject
from marginlens.progress import Progress, Silence
from marginlens.text.pipeline import TextPipeline, Vocabulary
from marginlens.text.words import as_texts

MOST_TOKENS = 300_000  # words and pairs together; the rarest pairs give way
_EXPECTED = "a list of texts, or a list of token-id lists"


@dataclass(frozen=True)
class Place:
    """A stretch `text[start:end]` and the tokens that it is part of; `shares` of one occurrence of each belong to it."""

    start: int
    end: int
    tokens: tuple[int, ...]
    shares: tuple[float, ...]


@dataclass(frozen=True, repr=False, eq=False)
class WordsAndPairs:
    """Tokens of texts: the words of a vocabulary, then the pairs of them that follow one another often enough.

    `pairs` (n_pairs, 2) are word ids in ascending order; token `len(vocabulary) + k` is pair k. A pair is two words that stand next to
    each other once words outside the vocabulary are left out.
    """

    vocabulary: Vocabulary
    pairs: IntArray

    @cached_property
    def names(self) -> tuple[str, ...]:
        """(n_tokens,) what each token is called; a pair is its two words with a blank between them."""
        words = self.vocabulary.names
        return (*words, *(f"{words[left]} {words[right]}" for left, right in self.pairs.tolist()))

    def __len__(self) -> int:
        return len(self.vocabulary) + len(self.pairs)

    def __repr__(self) -> str:
        return f"WordsAndPairs({len(self.vocabulary)} words, {len(self.pairs)} pairs)"

    def positions(self, texts: Any) -> tuple[IntArray, IntArray]:
        """Tokens of all texts in one array, and where each text starts; a text may have none."""
        with _named("texts", "X"):
            return self.with_pairs(*self.vocabulary.positions(as_texts(texts)))

    def with_pairs(self, words: IntArray, offsets: IntArray) -> tuple[IntArray, IntArray]:
        """Word ids with the tokens of their pairs added behind each text's words."""
        if not len(self.pairs):
            return words.astype(np.int64), offsets
        found, sample = _neighbours(words, offsets, len(self.vocabulary))
        k = self._pair_of(found)
        k, sample = k[k >= 0], sample[k >= 0]
        added = np.concatenate([[0], np.cumsum(np.bincount(sample, minlength=len(offsets) - 1))])
        tokens = np.empty(len(words) + len(k), dtype=np.int64)
        owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        tokens[np.arange(len(words)) + added[owner]] = words
        tokens[np.arange(len(k)) + offsets[sample + 1]] = len(self.vocabulary) + k
        return tokens, offsets + added

    def places(self, text: str) -> list[Place]:
        """The words of one text that have tokens; a pair is shared by the words it joins."""
        spans = self.vocabulary.places(text)
        ids = np.array([s for _, _, several in spans for s in several.tolist()], dtype=np.int64)
        owner = np.array([k for k, (_, _, several) in enumerate(spans) for _ in several], dtype=np.int64)
        tokens: list[list[int]] = [[] for _ in spans]
        shares: list[list[float]] = [[] for _ in spans]

        def give(k: int, token: int, share: float) -> None:
            tokens[k].append(token)
            shares[k].append(share)

        for k, s in zip(owner.tolist(), ids.tolist(), strict=True):
            give(k, s, 1.0)
        found, _ = _neighbours(ids, np.array([0, len(ids)]), len(self.vocabulary))
        for t, j in enumerate(self._pair_of(found).tolist()):
            if j >= 0:
                give(int(owner[t]), len(self.vocabulary) + j, 0.5)
                give(int(owner[t + 1]), len(self.vocabulary) + j, 0.5)
        return [Place(start, end, tuple(tokens[k]), tuple(shares[k])) for k, (start, end, _) in enumerate(spans)]

    def _pair_of(self, keys: IntArray) -> IntArray:
        """Which pair has each of these numbers, -1 where none has."""
        if not len(self.pairs):
            return np.full(len(keys), -1)
        mine = self.pairs @ np.array([len(self.vocabulary), 1])
        k = np.minimum(np.searchsorted(mine, keys), len(mine) - 1)
        return np.where(mine[k] == keys, k, -1)


@dataclass(frozen=True)
class PlainIds:
    """Token ids that are their own tokens: neither counted out nor paired. Ids that training never met are left out."""

    n_tokens: int

    @property
    def names(self) -> tuple[str, ...]:
        """(n_tokens,) each id in digits."""
        return tuple(map(str, range(self.n_tokens)))

    def __len__(self) -> int:
        return self.n_tokens

    def positions(self, sequences: Any) -> tuple[IntArray, IntArray]:
        """Tokens of all sequences in one array, and where each starts."""
        with _named("sequences", "X"):
            tokens, offsets = flat_sequences(sequences)
        kept = (tokens >= 0) & (tokens < self.n_tokens)
        return tokens[kept], np.concatenate([[0], np.cumsum(kept)])[offsets]

    def places(self, sequence: Any) -> list[Place]:
        """The known ids of one sequence; `start` counts positions."""
        ids = flat_sequences([sequence])[0].tolist()
        return [Place(t, t + 1, (s,), (1.0,)) for t, s in enumerate(ids) if 0 <= s < self.n_tokens]


Tokens = WordsAndPairs | PlainIds


def fit_words(
    texts: Sequence[str], y: FloatArray, pipeline: TextPipeline, pair_count: int, progress: Progress | None = None
) -> tuple[WordsAndPairs, LabelledSequences, IntArray]:
    """The tokens of texts, the texts as sequences of them, and the indices of the texts that kept a token.

    Args:
        texts, y: with labels of ±1. pipeline: how words are found and which are kept.
        pair_count: pairs that occur this often become tokens; 0 for none.
    """
    with _named("texts", "X"):
        encoded = pipeline.encode(as_texts(texts), y, progress=progress or Silence())
    words, data = encoded.vocabulary, encoded.data
    pairs = np.empty((0, 2), dtype=np.int64)
    if pair_count:
        keys, counts = np.unique(_neighbours(data.tokens, data.offsets, len(words))[0], return_counts=True)
        room = max(MOST_TOKENS - len(words), 0)
        if int(np.sum(counts >= pair_count)) > room:
            pair_count = max(pair_count, int(np.sort(counts)[::-1][room]) + 1)
        chosen = keys[counts >= pair_count]
        pairs = np.column_stack([chosen // len(words), chosen % len(words)])
    tokens = WordsAndPairs(words, pairs)
    with_pairs = tokens.with_pairs(data.tokens, data.offsets)
    return tokens, LabelledSequences.of_positions(*with_pairs, data.y, len(tokens)), encoded.kept


def fit_ids(sequences: Any, y: FloatArray) -> tuple[PlainIds, LabelledSequences, IntArray]:
    """The same for token ids."""
    with _named("sequences", "X"):
        data = LabelledSequences(sequences, y)
    return PlainIds(data.n_vocabulary), data, np.arange(len(data))


def are_texts(X: Any) -> bool:
    """Whether these samples are texts and not token ids, told by the first."""
    if isinstance(X, str | bytes):
        raise reject("X", _EXPECTED, "one string", "Put it into a list.")
    if hasattr(X, "columns"):
        raise reject("X", _EXPECTED, type(X).__name__, "Give the column that has the texts.")
    if isinstance(X, Mapping | Set):
        raise reject("X", _EXPECTED, f"{type(X).__name__}, which has no order", "Put its texts into a list.")
    try:
        n_samples, first = len(X), next(iter(X), None)
    except TypeError as problem:
        raise reject("X", _EXPECTED, type(X).__name__) from problem
    if n_samples == 0:
        raise reject("X", "at least one sample", "none")
    return isinstance(first, str) or first is None or not n_axes(first)


def check_sample(sample: Any, *, is_text: bool) -> Any:
    """`sample` if it is one text, or one list of token ids."""
    if is_text and not isinstance(sample, str):
        raise reject("text", "one text, as in training", type(sample).__name__)
    if not is_text:
        try:
            flat_sequences([sample])
        except InputError as problem:
            raise reject("text", "one list of at least one token id, as in training", repr(sample)[:60]) from problem
    return sample


@contextmanager
def _named(inner: str, outer: str) -> Iterator[None]:
    """Errors about the argument `inner` of what is called here name the argument `outer` that users gave."""
    try:
        yield
    except InputError as problem:
        raise InputError(str(problem).replace(f"The '{inner}", f"The '{outer}", 1)) from problem


def _neighbours(words: IntArray, offsets: IntArray, n_words: int) -> tuple[IntArray, IntArray]:
    """A number for every two neighbouring words of one text, left · n_words + right, and the text each stands in."""
    sample = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    same = sample[1:] == sample[:-1]
    keys = words[:-1].astype(np.int64) * n_words + words[1:]
    return keys[same], sample[1:][same]
