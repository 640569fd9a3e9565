"""What `marginlens graph` reads: the windows of a text of any length, and sequences that a file lists."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import marginlens as ml
from marginlens.data.files import read_sequences
from marginlens.data.text_windows import embeddings, held_out_share, split_ids, split_sequences, windows_of
from marginlens.data.tokenizer import read_tokenizer
from marginlens.data.vocabulary import NamedSequences
from marginlens.errors import calling

if TYPE_CHECKING:
    from marginlens.data import SequenceSplit

MAX_POSITIONS_IN_MEMORY = 1 << 25  # tokens of all windows that are made at once: 256 MB, several times in a dataset


@dataclass(frozen=True)
class TextSource:
    """Windows of a text of any length; None is what was not given.

    Args:
        words: how many words have an id of their own; None if characters are the tokens, or what a tokenizer makes.
    """

    file: Path
    window: int
    words: int | None
    d_model: int | None
    seed: int
    encoding: str | None = None
    tokenizer: Path | None = None

    @cached_property
    def text(self) -> ml.data.TextTokens:
        """The text in ids."""
        unit: Any = ml.data.Characters() if self.words is None else ml.data.Words(max_vocabulary=self.words)
        if self.tokenizer is not None:
            with calling(path="tokenizer"):
                unit = read_tokenizer(self.tokenizer)
        return ml.data.TextTokens(self.file, unit, encoding=self.encoding or "utf-8")

    def n_training(self, held_out: float | None) -> int:
        """How many tokens at the beginning are not held out."""
        share = 0.0 if held_out is None else held_out_share(held_out)
        return len(self.text) - round(share * len(self.text))

    @property
    def n_in_memory(self) -> int:
        """Largest number of tokens whose windows are made at once."""
        return max(MAX_POSITIONS_IN_MEMORY // self.window, self.window + 1)

    def read_in_memory(self, held_out: float | None) -> NamedSequences | SequenceSplit:
        """The windows that fit in memory; if a share is held out, those of the beginning of the text and those of its end."""
        vocabulary, end = self.text.vocabulary, self.n_training(held_out)
        E = embeddings(len(vocabulary), self.d_model, self.seed)
        first = self.text.read(0, min(end, self.n_in_memory))
        if held_out is None:
            return NamedSequences(windows_of(first, self.window, E), vocabulary)
        rest = self.text.read(end, min(len(self.text), end + self.n_in_memory))
        return split_ids(first, rest, self.window, vocabulary, E)

    def settings(self) -> dict[str, Any]:
        """What decides what is read, besides the file."""
        width = "one-hot" if self.d_model is None else f"{self.d_model} random coordinates, seed {self.seed}"
        units = "characters" if self.words is None else f"words, the {self.words} most frequent"
        if self.tokenizer is not None:
            units = f"tokenizer {self.tokenizer.name}"
        return {"tokens": units, "window": self.window, "embeddings": width}


@dataclass(frozen=True)
class ListSource:
    """Sequences that a JSON or .npz file lists."""

    file: Path
    drop: bool
    seed: int = 0
    window: int | None = None

    def read(self, held_out: float | None) -> NamedSequences | SequenceSplit:
        """The sequences; if a share is held out, some of them at random, and the others."""
        named = read_sequences(self.file, unrealizable="drop" if self.drop else "refuse")
        return named if held_out is None else split_sequences(named, held_out=held_out, rng=self.seed)

    def settings(self) -> dict[str, Any]:
        """What decides what is read, besides the file."""
        return {"tokens": "listed", "unrealizable": "drop" if self.drop else "refuse"}
