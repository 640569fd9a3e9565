"""What tokens are called: units of text, the vocabulary they make, and sequences that know it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from marginlens.data.sequences import SequenceDataset
from marginlens.data.tokens import IntArray
from marginlens.errors import reject, whole_number

UNKNOWN = "<unknown>"
_SIGNS = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍"}


class Unit(Protocol):
    """What a text is cut into."""

    def split(self, text: str) -> list[str]:
        """The tokens of a text, in order."""

    def join(self, names: Sequence[str]) -> str:
        """The text of these tokens."""

    def index(self, text: str) -> tuple[Vocabulary, IntArray]:
        """The vocabulary of a text, and (n_tokens,) the text in its ids."""


@dataclass(frozen=True)
class Vocabulary:
    """The names of the tokens, id by id.

    Attributes:
        names: (n_vocabulary,) the token of each id. unit: what text is cut into. unknown: the id that stands for every token which
            has no name here, or None where such tokens are refused.
    """

    names: tuple[str, ...]
    unit: Unit
    unknown: int | None = None

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} names, {self.unit!r})"

    def __len__(self) -> int:
        return len(self.names)

    def encode(self, text: str, argument: str = "text") -> IntArray:
        """(n_tokens,) the ids of a text."""
        return self.ids(self.unit.split(text), argument)

    def ids(self, names: Sequence[str], argument: str = "names") -> IntArray:
        """(n_tokens,) the ids of tokens given by name."""
        found = [self._places.get(name, self.unknown) for name in names]
        if None in found:
            missing = names[found.index(None)]
            raise reject(
                argument, f"made of the {len(self)} tokens of the vocabulary", f"{missing!r}, which is none of them"
            )
        return np.array(found, dtype=np.int64)

    def decode(self, ids: IntArray) -> str:
        """The text of token ids."""
        return self.unit.join([self.names[i] for i in ids])

    @property
    def shown(self) -> tuple[str, ...]:
        """(n_vocabulary,) the names with signs for what would not be seen: ␣ for a space, ↵ for a new line."""
        return tuple("".join(_SIGNS.get(letter, letter) for letter in name) for name in self.names)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names)}


@dataclass(frozen=True, repr=False)
class NamedSequences:
    """A dataset and what its tokens are called; `data.dropped` lists the sequences that were left out."""

    data: SequenceDataset
    vocabulary: Vocabulary

    def __repr__(self) -> str:
        return f"NamedSequences({self.data!r}, {self.vocabulary!r})"


@dataclass(frozen=True)
class Characters:
    """Every character is a token; ids follow the order of code points."""

    def split(self, text: str) -> list[str]:
        """The characters of a text."""
        return list(text)

    def join(self, names: Sequence[str]) -> str:
        """The characters, one after the other."""
        return "".join(names)

    def index(self, text: str) -> tuple[Vocabulary, IntArray]:
        """The characters that occur, and (n_characters,) the text in their ids."""
        points, ids = np.unique(np.frombuffer(text.encode("utf-32-le"), dtype="<u4"), return_inverse=True)
        return Vocabulary(tuple(map(chr, points.tolist())), self), ids.reshape(-1).astype(np.int64)


@dataclass(frozen=True)
class Words:
    """Every word and every mark is a token; ids follow the frequency of the words, the most frequent first.

    Words too rare for the vocabulary all become one unknown token. Leaving them out instead would put side by side what the text
    keeps apart; the unknown token holds their place.

    Args:
        lowercase: whether a word is the same in capitals.
        pattern: what a token is, a regular expression; by default a run of letters and digits with apostrophes inside, or a single mark.
        min_count: how often a word must occur to have an id of its own.
        max_vocabulary: how many words have an id of their own, the most frequent ones; None for all.
    """

    lowercase: bool = True
    pattern: str = field(default=r"\w+(?:['’]\w+)*|[^\w\s]", repr=False)
    min_count: int = 1
    max_vocabulary: int | None = 2_000

    def __post_init__(self) -> None:
        whole_number(self.min_count, "min_count", at_least=1)
        if self.max_vocabulary is not None:
            whole_number(self.max_vocabulary, "max_vocabulary", at_least=1)
        try:
            groups = re.compile(self.pattern).groups
        except (re.error, TypeError) as problem:
            raise reject("pattern", "a regular expression", f"{self.pattern!r} ({problem})") from problem
        if groups:
            raise reject("pattern", "a regular expression without capturing groups", repr(self.pattern), "Write (?:…).")

    def split(self, text: str) -> list[str]:
        """The words and marks of a text."""
        return re.findall(self.pattern, text.lower() if self.lowercase else text)

    def join(self, names: Sequence[str]) -> str:
        """The words with spaces between them, marks close to the word before."""
        return re.sub(r" ([,.;:!?])", r"\1", " ".join(names))

    def index(self, text: str) -> tuple[Vocabulary, IntArray]:
        """The words that are frequent enough, and (n_words,) the text in their ids."""
        words = self.split(text)
        counts = sorted(Counter(words).items(), key=lambda pair: (-pair[1], pair[0]))
        kept = [word for word, count in counts if count >= self.min_count][: self.max_vocabulary]
        unknown = len(kept) if len(kept) < len(counts) else None
        vocabulary = Vocabulary(tuple([*kept, UNKNOWN] if unknown is not None else kept), self, unknown)
        return vocabulary, vocabulary.ids(words)


@dataclass(frozen=True)
class Listed:
    """Tokens that a file lists by name; text names them with spaces between."""

    def split(self, text: str) -> list[str]:
        """The names in a text."""
        return text.split()

    def join(self, names: Sequence[str]) -> str:
        """The names with spaces between."""
        return " ".join(names)

    def index(self, text: str) -> tuple[Vocabulary, IntArray]:
        """The names that occur, in the order of their letters, and (n_names,) the text in their ids."""
        names, ids = np.unique(np.array(self.split(text), dtype=np.str_), return_inverse=True)
        return Vocabulary(tuple(names.tolist()), self), ids.reshape(-1).astype(np.int64)
