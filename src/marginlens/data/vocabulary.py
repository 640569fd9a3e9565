"""Names of tokens: units of text, vocabularies, and sequences with named tokens."""

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
    """Put a name in quotation marks: double ones, or single ones if it holds a double one."""
    mark = "'" if '"' in name else '"'
    return f"{mark}{name}{mark}"


class Unit(Protocol):
    """A way to cut a text into tokens."""

    def split(self, text: str) -> list[str]:
        """Cut a text into its tokens, in order."""

    def join(self, names: Sequence[str]) -> str:
        """Join tokens to a text."""

    def vocabulary(self, counts: Mapping[str, int]) -> Vocabulary:
        """Make the vocabulary of a text from how often each of its tokens occurs."""

    def index(self, text: str) -> tuple[Vocabulary, IntArray]:
        """Return the vocabulary of a text, and the text in its ids (n_tokens,)."""


@dataclass(frozen=True, repr=False)
class Vocabulary(Described):
    """The names of the tokens, id by id.

    Attributes:
        names: (n_vocabulary,) the token of each id.

        unit: how a text is cut into tokens.

        unknown: the id of every token without a name here, or None if such tokens are refused.
    """

    names: tuple[str, ...]
    unit: Unit
    unknown: int | None = None
    quantities = "{self:#} names, {unit!r}"

    def __len__(self) -> int:
        return len(self.names)

    def encode(self, text: str, argument: str = "text") -> IntArray:
        """Return the ids of a text (n_tokens,)."""
        return self.ids(self.unit.split(_as_text(text, argument)), argument)

    def ids(self, names: Sequence[str], argument: str = "names") -> IntArray:
        """Return the ids of named tokens (n_tokens,)."""
        names = _as_names(names, argument)
        ids = [self._places.get(name, self.unknown) for name in names]
        if None in ids:
            missing = names[ids.index(None)]
            raise InputError(
                argument, f"made of the {len(self)} tokens of the vocabulary", f"{missing!r}, which is none of them"
            )
        return np.array(ids, dtype=np.int64)

    def decode(self, ids: IntArray) -> str:
        """Return the text of token ids."""
        expected = f"a list of whole numbers from 0 to {len(self) - 1}"
        places = index_array(ids, "ids", expected, (-1,), below=len(self))
        return self.unit.join([self.names[i] for i in places.tolist()])

    @property
    def shown(self) -> tuple[str, ...]:
        """The names (n_vocabulary,), with visible signs for blanks: ␣ for a space, ↵ for a new line."""
        return tuple("".join(_SIGNS.get(letter, letter) for letter in name) for name in self.names)

    @property
    def quoted(self) -> tuple[str, ...]:
        """The names (n_vocabulary,) as in `shown`, in quotation marks that set them apart from the surrounding text."""
        return tuple(quoted(name) for name in self.shown)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names)}


@dataclass(frozen=True, repr=False)
class NamedSequences(Described):
    """A dataset and the names of its tokens; `data.dropped` lists the sequences that were left out."""

    data: SequenceDataset
    vocabulary: Vocabulary
    quantities = "{data!r}, {vocabulary!r}"


@dataclass(frozen=True)
class Characters:
    """A vocabulary in which every character is a token; ids follow the order of code points."""

    def split(self, text: str) -> list[str]:
        """Cut a text into its characters."""
        return list(_as_text(text))

    def join(self, names: Sequence[str]) -> str:
        """Join characters to a text."""
        return "".join(_as_names(names))

    def vocabulary(self, counts: Mapping[str, int]) -> Vocabulary:
        """Return the vocabulary of the characters that occur."""
        return Vocabulary(tuple(sorted(counts)), self)

    def index(self, text: str) -> tuple[Vocabulary, IntArray]:
        """Return the vocabulary of the characters that occur, and the text in their ids (n_characters,)."""
        # Half a surrogate pair is a character too.
        letters = _as_text(text).encode("utf-32-le", "surrogatepass")
        points, ids = np.unique(np.frombuffer(letters, dtype="<u4"), return_inverse=True)
        return Vocabulary(tuple(map(chr, points.tolist())), self), ids.reshape(-1).astype(np.int64)


@dataclass(frozen=True)
class Words:
    """Every word and every mark is a token; ids follow the frequency of the words, the most frequent first.

    Words too rare for the vocabulary all become one unknown token. If they were left out instead, words that the text keeps
    apart would become neighbours.

    Args:
        lowercase: whether to ignore case.

        pattern: a regular expression for tokens; by default a run of letters and digits with apostrophes inside, a word in
            angle brackets such as <unk>, a mark between two @ such as @-@, or a single mark.

        min_count: how often a word must occur to have its own id.

        max_vocabulary: the largest number of words with their own ids, the most frequent ones; None for no limit.
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
        """Cut a text into its words and marks."""
        return re.findall(self.pattern, _as_text(text).lower() if self.lowercase else _as_text(text))

    def join(self, names: Sequence[str]) -> str:
        """Join words by spaces, with marks close to the word before."""
        return re.sub(r" ([,.;:!?])", r"\1", " ".join(_as_names(names)))

    def vocabulary(self, counts: Mapping[str, int]) -> Vocabulary:
        """Return the vocabulary of the words that are frequent enough."""
        ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
        frequent = [word for word, count in ordered if count >= self.min_count and word != UNKNOWN]
        words_with_id = frequent[: self.max_vocabulary]
        unknown = len(words_with_id) if len(words_with_id) < len(ordered) else None
        return Vocabulary(tuple([*words_with_id, UNKNOWN] if unknown is not None else words_with_id), self, unknown)

    def index(self, text: str) -> tuple[Vocabulary, IntArray]:
        """Return the vocabulary of the words that are frequent enough, and the text in their ids (n_words,)."""
        words = self.split(text)
        vocabulary = self.vocabulary(Counter(words))
        return vocabulary, vocabulary.ids(words)


@dataclass(frozen=True)
class Listed:
    """Tokens that a file lists by name; in a text they are separated by spaces."""

    def split(self, text: str) -> list[str]:
        """Split a text into the names in it."""
        return _as_text(text).split()

    def join(self, names: Sequence[str]) -> str:
        """Join names by spaces."""
        return " ".join(_as_names(names))

    def vocabulary(self, counts: Mapping[str, int]) -> Vocabulary:
        """Return the vocabulary of the names that occur, in alphabetical order."""
        return Vocabulary(tuple(sorted(counts)), self)

    def index(self, text: str) -> tuple[Vocabulary, IntArray]:
        """Return the vocabulary of the names that occur, in alphabetical order, and the text in their ids (n_names,)."""
        names = self.split(text)
        vocabulary = self.vocabulary(Counter(names))
        return vocabulary, vocabulary.ids(names)
