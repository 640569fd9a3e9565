"""What `marginlens graph`, `solve` and `train` read of next tokens: windows of a text, or sequences that a file lists."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marginlens.data.files import read_sequences
from marginlens.data.sequences import reject_unrealizable
from marginlens.data.text_windows import SequenceSplit, read_text, split_sequences, split_text_windows, text_windows
from marginlens.data.vocabulary import NamedSequences, Unit, Words


@dataclass(frozen=True)
class TextSource:
    """Windows of a text."""

    file: Path
    window: int
    unit: Unit
    d_model: int | None
    seed: int

    def read(self) -> NamedSequences:
        """The windows, and the names of their tokens."""
        return text_windows(read_text(self.file), self.window, self.unit, d_model=self.d_model, rng=self.seed)

    def split(self, held_out: float) -> SequenceSplit:
        """The windows of the beginning of the text, and those of its end."""
        text = read_text(self.file)
        return split_text_windows(text, self.window, self.unit, held_out=held_out, d_model=self.d_model, rng=self.seed)

    def settings(self) -> dict[str, Any]:
        """What decides what is read, besides the file."""
        embeddings = "one-hot" if self.d_model is None else f"{self.d_model} random coordinates, seed {self.seed}"
        return {"tokens": _words(self.unit), "window": self.window, "embeddings": embeddings}

    def options(self) -> list[str]:
        """The options of the command line that read it so."""
        words = ["--words", "--vocabulary", str(self.unit.max_vocabulary)] if isinstance(self.unit, Words) else []
        width = [] if self.d_model is None else ["--d-model", str(self.d_model), "--seed", str(self.seed)]
        return ["--window", str(self.window), *words, *width]


@dataclass(frozen=True)
class ListSource:
    """Sequences that a JSON or .npz file lists."""

    file: Path
    drop: bool
    seed: int = 0
    window: int | None = None

    def read(self) -> NamedSequences:
        """The sequences, and the names of their tokens."""
        if self.drop:
            return read_sequences(self.file, unrealizable="drop")
        found = read_sequences(self.file, unrealizable="keep")
        if len(found.data.unrealizable):
            raise reject_unrealizable(found.data.unrealizable, found.data.labels, "Leave them out with --drop.")
        return found

    def split(self, held_out: float) -> SequenceSplit:
        """Some of the sequences at random, and the others."""
        return split_sequences(self.read(), held_out=held_out, rng=self.seed)

    def settings(self) -> dict[str, Any]:
        """What decides what is read, besides the file."""
        return {"tokens": "listed", "unrealizable": "drop" if self.drop else "refuse"}

    def options(self) -> list[str]:
        """The options of the command line that read it so."""
        return [*(["--drop"] if self.drop else []), *(["--seed", str(self.seed)] if self.seed else [])]


Source = TextSource | ListSource


def _words(unit: Unit) -> str:
    return f"words, the {unit.max_vocabulary} most frequent" if isinstance(unit, Words) else "characters"
