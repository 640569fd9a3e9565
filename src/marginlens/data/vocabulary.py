"""What tokens are called: units of text, the vocabulary they make, and sequences that know it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from marginlens.data.sequences import SequenceDataset
from marginlens.errors import InputError, index_array, whole_number
from marginlens.result import Described
from marginlens.typing import IntArray

UNKNOWN = "<unknown>"
_SIGNS = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍"}


def _as_text(text: object, argument: str = "text") -> str:
    if not isinstance(text, str):
        raise InputError(argument, "a string", type(text).__name__)
    return text


def _as_names(names: object, argument: str = "names") -> list[str]:
    if not isinstance(names, Iterable) or getattr(names, "ndim", 1) != 1:
        raise InputError(argument, "a list of strings", type(names).__name__)
    listed = list(names)
    for name in listed:
        if not isinstance(name, str):
            raise InputError(argument, "a list of strings", repr(name))
    return listed


def quoted(name: str) -> str:
    """A name in quotation marks: double ones, or single ones where it holds a double one."""
    mark = "'" if '"' in name else '"'
    return f"{mark}{name}{mark}"


class Unit(Protocol):
    """What a text is cut into."""

    def split(self, text: str) -> list[str]:
        """The tokens of a text, in order."""

    def join(self, names: Sequence[str]) -> str:
        """The text of these tokens."""

    def vocabulary(self, counts: Mapping[str, int]) -> Vocabulary:
        """The vocabulary of a text, from how often each of its tokens occurs."""

    def index(self, text: str) -> tuple[Vocabulary, IntArray]:
        """The vocabulary of a text, and (n_tokens,) the text in its ids."""


@dataclass(frozen=True, repr=False)
class Vocabulary(Described):
    """The names of the tokens, id by id.

    Attributes:
        names: (n_vocabulary,) the token of each id.
        unit: what text is cut into.
        unknown: the id that stands for every token which has no name here, or None where such tokens are refused.
    """

    names: tuple[str, ...]
    unit: Unit
    unknown: int | None = None
    quantities = "{self:#} names, {unit!r}"

    def __len__(self) -> int:
        return len(self.names)

    def encode(self, text: str, argument: str = "text") -> IntArray:
        """(n_tokens,) the ids of a text."""
        return self.ids(self.unit.split(_as_text(text, argument)), argument)

    def ids(self, names: Sequence[str], argument: str = "names") -> IntArray:
        """(n_tokens,) the ids of tokens given by name."""
        names = _as_names(names, argument)
        ids = [self._places.get(name, self.unknown) for name in names]
        if None in ids:
            missing = names[ids.index(None)]
            raise InputError(
                argument, f"made of the {len(self)} tokens of the vocabulary", f"{missing!r}, which is none of them"
            )
        return np.array(ids, dtype=np.int64)

    def decode(self, ids: IntArray) -> str:
        """The text of token ids."""
        expected = f"a list of whole numbers from 0 to {len(self) - 1}"
        places = index_array(ids, "ids", expected, (-1,), below=len(self))
        return self.unit.join([self.names[i] for i in places.tolist()])

    @property
    def shown(self) -> tuple[str, ...]:
        """(n_vocabulary,) the names with signs for what would not be seen: ␣ for a space, ↵ for a new line."""
        return tuple("".join(_SIGNS.get(letter, letter) for letter in name) for name in self.names)

    @property
    def quoted(self) -> tuple[str, ...]:
        """(n_vocabulary,) the names as `shown`, in quotation marks, so that they cannot be taken for signs of the text around them."""
        return tuple(quoted(name) for name in self.shown)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names)}


@dataclass(frozen=True, repr=False)
class NamedSequences(Described):
    """A dataset and what its tokens are called; `data.dropped` lists the sequences that were left out."""

    data: SequenceDataset
    vocabulary: Vocabulary
    quantities = "{data!r}, {vocabulary!r}"


@dataclass(frozen=True)
class Characters:
    """A vocabulary in which every character is a token; ids follow the order of code points."""

    def split(self, text: str) -> list[str]:
        """The characters of a text."""
        return list(_as_text(text))

    def join(self, names: Sequence[str]) -> str:
        """The characters, one after the other."""
        return "".join(_as_names(names))

    def vocabulary(self, counts: Mapping[str, int]) -> Vocabulary:
        """The characters that occur."""
        return Vocabulary(tuple(sorted(counts)), self)

    def index(self, text: str) -> tuple[Vocabulary, IntArray]:
        """The characters that occur, and (n_characters,) the text in their ids."""
        # Half a surrogate pair is a character too.
        letters = _as_text(text).encode("utf-32-le", "surrogatepass")
        points, ids = np.unique(np.frombuffer(letters, dtype="<u4"), return_inverse=True)
        return Vocabulary(tuple(map(chr, points.tolist())), self), ids.reshape(-1).astype(np.int64)


@dataclass(frozen=True)
class Words:
    """Every word and every mark is a token; ids follow the frequency of the words, the most frequent first.

    Words too rare for the vocabulary all become one unknown token. Leaving them out instead would make neighbours of words that the text
    keeps apart; the unknown token holds their place.

    Args:
        lowercase: whether a word is the same in capitals.
        pattern: what a token is, a regular expression; by default a run of letters and digits with apostrophes inside, a word in angle
            brackets such as <unk>, a mark between two @ such as @-@, or a single mark.
        min_count: how often a word must occur to have an id of its own.
        max_vocabulary: how many words have an id of their own, the most frequent ones; None for all.
    """

    lowercase: bool = True
    pattern: str = field(default=r"\w+(?:['’]\w+)*|<\w+>|@[-,.]@|[^\w\s]", repr=False)
    min_count: int = 1
    max_vocabulary: int | None = 2_000

    def __post_init__(self) -> None:
        whole_number(self.min_count, "min_count", at_least=1)
        if self.max_vocabulary is not None:
            whole_number(self.max_vocabulary, "max_vocabulary", at_least=1)
        try:
            compiled = re.compile(self.pattern)
            # A pattern of bytes does not match text.
            compiled.match("")
        except (re.error, TypeError) as problem:
            raise InputError("pattern", "a regular expression", f"{self.pattern!r} ({problem})") from problem
        if compiled.groups:
            raise InputError(
                "pattern", "a regular expression without capturing groups", repr(self.pattern), "Write (?:…)."
            )

    def split(self, text: str) -> list[str]:
        """The words and marks of a text."""
        return re.findall(self.pattern, _as_text(text).lower() if self.lowercase else _as_text(text))

    def join(self, names: Sequence[str]) -> str:
        """The words with spaces between them, marks close to the word before."""
        return re.sub(r" ([,.;:!?])", r"\1", " ".join(_as_names(names)))

    def vocabulary(self, counts: Mapping[str, int]) -> Vocabulary:
        """The words that are frequent enough."""
        ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
        frequent = [word for word, count in ordered if count >= self.min_count and word != UNKNOWN]
        words_with_id = frequent[: self.max_vocabulary]
        unknown = len(words_with_id) if len(words_with_id) < len(ordered) else None
        return Vocabulary(tuple([*words_with_id, UNKNOWN] if unknown is not None else words_with_id), self, unknown)

    def index(self, text: str) -> tuple[Vocabulary, IntArray]:
        """The words that are frequent enough, and (n_words,) the text in their ids."""
        words = self.split(text)
        vocabulary = self.vocabulary(Counter(words))
        return vocabulary, vocabulary.ids(words)


@dataclass(frozen=True)
class Listed:
    """Tokens that a file lists by name; text names them with spaces between."""

    def split(self, text: str) -> list[str]:
        """The names in a text."""
        return _as_text(text).split()

    def join(self, names: Sequence[str]) -> str:
        """The names with spaces between."""
        return " ".join(_as_names(names))

    def vocabulary(self, counts: Mapping[str, int]) -> Vocabulary:
        """The names that occur, in the order of their letters."""
        return Vocabulary(tuple(sorted(counts)), self)

    def index(self, text: str) -> tuple[Vocabulary, IntArray]:
        """The names that occur, in the order of their letters, and (n_names,) the text in their ids."""
        names = self.split(text)
        vocabulary = self.vocabulary(Counter(names))
        return vocabulary, vocabulary.ids(names)
