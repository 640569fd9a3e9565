"""Tokens of texts: words and the phrases of two and three of them, or ids as they are, and where each stands in a text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np

from marginlens.data.labelled import LabelledSequences
from marginlens.data.sequences import flat_sequences
from marginlens.errors import calling, reject
from marginlens.runtime.progress import ProgressCallback
from marginlens.text.vectorize import TextPipeline, TextVocabulary, offsets_of
from marginlens.typing import FloatArray, IntArray

MAX_TOKENS = (
    1_500_000  # words and phrases together; the rarest phrases give way. Its cube, a phrase's key, is below 2^63
)
MAX_PHRASE = 3  # words


class Span(NamedTuple):
    """A stretch `text[start:end]` and the tokens that it is part of, none of an unknown word; `shares` of each occurrence are its."""

    start: int
    end: int
    tokens: tuple[int, ...]
    shares: tuple[float, ...]


class TokenPlaces(NamedTuple):
    """Tokens of all texts in the order of their places, and where each text starts; a text may have none."""

    tokens: IntArray
    offsets: IntArray


class ReadText(NamedTuple):
    """One text: its tokens in the order of their places, where its words start and end, and the tokens that each word is part of.

    Word `word[k]`, counted from 0 and in ascending order, has the share `share[k]` of one occurrence of the token `part_of[k]`.
    """

    tokens: IntArray
    bounds: list[tuple[int, int]]
    word: IntArray
    part_of: IntArray
    share: FloatArray

    def spans(self) -> list[Span]:
        """The words with their tokens."""
        token, share = tuple(self.part_of.tolist()), tuple(self.share.tolist())
        starts = np.searchsorted(self.word, np.arange(len(self.bounds) + 1)).tolist()
        several = zip(self.bounds, pairwise(starts), strict=True)
        return [Span(start, end, token[i:j], share[i:j]) for (start, end), (i, j) in several]


@dataclass(frozen=True, repr=False, eq=False)
class WordsAndPhrases:
    """Tokens of texts: the words of a vocabulary, then the phrases of two and of three of them that occur often enough.

    `phrases` has an array (n_phrases, length) of word ids for each length from 2, in ascending order. A phrase is words that stand next to
    each other once words outside the vocabulary are left out.
    """

    vocabulary: TextVocabulary
    phrases: tuple[IntArray, ...]

    @classmethod
    def fit(
        cls,
        texts: Any,
        pipeline: TextPipeline,
        ngrams: int,
        phrase_count: int,
        progress: ProgressCallback | None = None,
        max_tokens: int = MAX_TOKENS,
    ) -> tuple[WordsAndPhrases, TokenPlaces]:
        """The tokens of texts, and where they stand in them.

        Args:
            pipeline: how words are found and which are tokens. ngrams: most words of a phrase, 1 for single words only.
            phrase_count: phrases that occur this often become tokens, the most frequent as far as there is place for `max_tokens`.
        """
        with calling(texts="X"):
            tokenized = pipeline.tokenize(texts, progress)
            words = pipeline.vocabulary(tokenized)
        check_unicode(words.names, "X", "texts")
        ids, offsets = tokenized.renumbered(words.ids(tokenized.names))
        most = max(min(max_tokens, MAX_TOKENS) - len(words), 0)
        found: list[tuple[IntArray, IntArray]] = []  # keys and counts of the phrases of each length
        for length in range(2, ngrams + 1 if most else 2):
            keys, _ = _phrase_keys(ids, offsets, len(words), length)
            distinct, counts = np.unique(keys, return_counts=True)
            often = counts >= phrase_count
            found.append((distinct[often], counts[often]))
        counts = np.concatenate([counts for _, counts in found]) if found else np.empty(0, dtype=np.int64)
        least = int(np.sort(counts)[::-1][most]) + 1 if len(counts) > most else 0
        phrases = tuple(
            _words_of_keys(keys[n_times >= least], len(words), length)
            for length, (keys, n_times) in enumerate(found, start=2)
        )
        tokens = cls(words, phrases)
        return tokens, _in_order(ids, offsets, tokens._phrases_in(ids, offsets))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """(n_tokens,) what each token is called; a phrase is its words with blanks between them."""
        words = self.vocabulary.names
        return (*words, *(" ".join([words[k] for k in row]) for several in self.phrases for row in several.tolist()))

    def __len__(self) -> int:
        return len(self.vocabulary) + sum(map(len, self.phrases))

    def __repr__(self) -> str:
        return f"WordsAndPhrases({len(self.vocabulary)} words, {len(self) - len(self.vocabulary)} phrases)"

    def positions(self, texts: Any) -> TokenPlaces:
        """The tokens of texts, in the order of their places."""
        with calling(texts="X"):
            ids, offsets = self.vocabulary.positions(texts)
        return _in_order(ids, offsets, self._phrases_in(ids, offsets))

    def read(self, text: str) -> ReadText:
        """One text; a phrase is shared by the words it joins."""
        bounds, words = self.vocabulary.spans(text)
        ids = np.fromiter(chain.from_iterable(words), dtype=np.int64)
        offsets = np.array([0, len(ids)])
        found = list(self._phrases_in(ids, offsets))
        word_of = np.repeat(np.arange(len(words)), np.fromiter(map(len, words), dtype=np.int64))
        joined = [word_of, *(word_of[(t[:, None] + np.arange(length)).ravel()] for length, _, t in found)]
        word, part_of = np.concatenate(joined), np.concatenate([ids, *(np.repeat(s, length) for length, s, _ in found)])
        share = np.repeat([1.0, *(1.0 / length for length, _, _ in found)], list(map(len, joined)))
        order = np.argsort(word, kind="stable")
        return ReadText(_in_order(ids, offsets, found).tokens, bounds, word[order], part_of[order], share[order])

    @cached_property
    def _keys(self) -> tuple[IntArray, ...]:
        return tuple(
            several @ len(self.vocabulary) ** np.arange(several.shape[1] - 1, -1, -1, dtype=np.int64)
            for several in self.phrases
        )

    def _phrases_in(self, words: IntArray, offsets: IntArray) -> Iterator[tuple[int, IntArray, IntArray]]:
        """For each length: the tokens of the phrases in these texts, and the places of their first words."""
        first = len(self.vocabulary)
        for length, known in enumerate(self._keys, start=2):
            keys, places = _phrase_keys(words, offsets, len(self.vocabulary), length)
            if len(known):
                k = np.minimum(np.searchsorted(known, keys), len(known) - 1)
                hit = known[k] == keys
                yield length, first + k[hit], places[hit]
            first += len(known)


@dataclass(frozen=True)
class PlainIds:
    """Token ids that are their own tokens: neither counted out nor paired. Ids that training never met are left out."""

    n_tokens: int

    @classmethod
    def fit(cls, sequences: Any) -> tuple[PlainIds, TokenPlaces]:
        """As `WordsAndPhrases.fit`, for token ids."""
        with calling(sequences="X"):
            data = LabelledSequences(sequences, np.ones(len(sequences)))
        return cls(data.n_vocabulary), TokenPlaces(data.tokens, data.offsets)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """(n_tokens,) each id in digits."""
        return tuple(map(str, range(self.n_tokens)))

    def __len__(self) -> int:
        return self.n_tokens

    def positions(self, sequences: Any) -> TokenPlaces:
        """The known tokens of sequences."""
        with calling(sequences="X"):
            tokens, offsets = flat_sequences(sequences)
        kept = (tokens >= 0) & (tokens < self.n_tokens)
        return TokenPlaces(tokens[kept], offsets_of(kept)[offsets])

    def read(self, sequence: Any) -> ReadText:
        """One sequence, whose words are its ids; their places count positions."""
        with calling(sequences="X"):
            ids = flat_sequences([sequence])[0]
        word = np.flatnonzero((ids >= 0) & (ids < self.n_tokens))
        bounds = [(t, t + 1) for t in range(len(ids))]
        return ReadText(ids[word], bounds, word, ids[word], np.ones(len(word)))


def check_unicode(words: Iterable[str], argument: str, what: str) -> None:
    """Refuse words with half a surrogate pair, which no file can hold: they come from bytes read in a wrong encoding."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError as problem:
            got = f"a lone surrogate in {word!a}"
            raise reject(argument, f"{what} of Unicode characters", got, "Read the file in its encoding.") from problem


def _phrase_keys(words: IntArray, offsets: IntArray, n_words: int, length: int) -> tuple[IntArray, IntArray]:
    """A number for every phrase of this length inside one text, its word ids as digits in base n_words, and the place of its first word."""
    ends = np.repeat(offsets[1:], np.diff(offsets))
    places = np.flatnonzero(np.arange(len(words)) + length <= ends)
    keys = words[places].astype(np.int64)
    for j in range(1, length):
        keys = keys * n_words + words[places + j]
    return keys, places


def _in_order(words: IntArray, offsets: IntArray, found: Iterable[tuple[int, IntArray, IntArray]]) -> TokenPlaces:
    """Every word, followed by the phrases that start with it."""
    tokens, order = [words.astype(np.int64)], [MAX_PHRASE * np.arange(len(words))]
    for length, phrase, places in found:
        tokens.append(phrase)
        order.append(MAX_PHRASE * places + length - 1)
    rank = np.concatenate(order)
    sorting = np.argsort(rank, kind="stable")
    return TokenPlaces(np.concatenate(tokens)[sorting], np.searchsorted(rank[sorting], MAX_PHRASE * offsets))


def _words_of_keys(keys: IntArray, n_words: int, length: int) -> IntArray:
    """(n_phrases, length) the word ids of phrases by their numbers."""
    return np.column_stack([keys // n_words ** (length - 1 - j) % n_words for j in range(length)])
