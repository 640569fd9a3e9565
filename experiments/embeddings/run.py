"""A whole training run on encoded sequences from a file or the K-level model: what it is asked for, and what it leaves in a folder."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.embeddings.settings import TrainingSettings
from experiments.embeddings.train import FACTS, EpochRecord, TrainingRun, train_embeddings
from experiments.training.loop import Callbacks, epoch_display
from experiments.training.script import RunRequest, beginning, check_folder, time_left, versions_on
from marginlens.data.files import read_labelled
from marginlens.data.labelled import LabelledSequences
from marginlens.data.sequence_generators import Levels, level_sequences
from marginlens.errors import InputError

EVERY = 50  # epochs between two checkpoints
LENGTH = 256  # tokens of a K-level sequence
_SECONDS_BETWEEN_LINES = 5.0


@dataclass(frozen=True)
class EmbeddingSource:
    """The sequences of a run: those of a file, or of the K-level model of B's Figure 2.

    Args:
        file: a .npz with tokens, offsets, y and names, as `experiments.encode` writes it. split: only the sequences of this part of it.
        held_out: the part on which loss and accuracy are measured too.
        levels: how many K-level sequences, in place of a file. length: tokens of each; 256. seed: of drawing them; 0.
    """

    file: Path | None = None
    split: str | None = None
    held_out: str | None = None
    levels: int | None = None
    length: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.file is None and self.levels is None:
            raise InputError("file", "given, or K-level sequences asked for with levels", "neither")
        if self.file is not None and self.levels is not None:
            raise InputError("levels", "left out with a file", self.levels)
        for name in ("split", "held_out") if self.file is None else ("length", "seed"):
            if getattr(self, name) is not None:
                argument = "data_seed" if name == "seed" else name
                raise InputError(
                    argument, f"left out {'unless' if self.file is None else 'if'} a file is given", "both"
                )

    def read(self) -> tuple[LabelledSequences, list[str] | None]:
        """The sequences and what their tokens are called."""
        if self.file is not None:
            return read_labelled(self.file, self.split)
        length = LENGTH if self.length is None else self.length
        return level_sequences(int(self.levels or 0), length, self.seed or 0), None

    def read_held_out(self) -> LabelledSequences | None:
        """The sequences to measure on, None if there are none."""
        return None if self.file is None or self.held_out is None else read_labelled(self.file, self.held_out)[0]

    def to_dict(self) -> dict[str, Any]:
        """Where the sequences are from, without a place on this machine."""
        if self.file is not None:
            return {"file": self.file.name, "split": self.split, "held_out": self.held_out}
        length = LENGTH if self.length is None else self.length
        return {"levels": repr(Levels()), "sequences": self.levels, "length": length, "seed": self.seed or 0}

    def words(self) -> list[str]:
        """The source as the command line takes it."""
        options = {
            "--split": self.split,
            "--held-out": self.held_out,
            "--levels": self.levels,
            "--length": self.length,
            "--data-seed": self.seed,
        }
        given = [word for name, value in options.items() if value is not None for word in (name, str(value))]
        return [*([] if self.file is None else [self.file.name]), *given]


def run_embeddings(
    source: EmbeddingSource,
    settings: TrainingSettings,
    request: RunRequest,
    say: Callable[[str], None] | None = None,
) -> TrainingRun:
    """Train, and write the run's table and facts to a folder, also whenever a checkpoint is written.

    Args:
        say: gets a sentence about the data at the start; with None, nothing about progress is shown either.
    """
    left = time_left(request.time_limit)
    check_folder(request.out, "out")
    data, names = source.read()
    held_out = source.read_held_out()
    if say is not None:
        say(beginning(re.sub(r"^\w+\((.*)\)$", r"\1", repr(data)), settings))
    facts = {
        "data": source.to_dict(),
        "command": shlex.join(["python", "-m", "experiments.embeddings", *source.words(), *request.words(settings)]),
        "versions": versions_on(settings.device),
        "sequences": len(data),
        "held_out_sequences": 0 if held_out is None else len(held_out),
    }

    def write(so_far: TrainingRun) -> None:
        if so_far.history or not (request.out / FACTS).exists():  # no epochs are no reason to replace another run's
            so_far.write(request.out, names=names, facts=facts)

    overflow = np.errstate(over="ignore", invalid="ignore")  # a run whose numbers overflow ends, and says so
    display = epoch_display(settings.epochs, _describe, seconds_between=_SECONDS_BETWEEN_LINES, shown=say is not None)
    with overflow, display as show:
        run = train_embeddings(
            data,
            settings,
            held_out=held_out,
            checkpoint=request.checkpoint,
            every=request.every,
            time_limit=left(),
            callback=Callbacks(show, write),
        )
    run.write(request.out, names=names, facts=facts)
    return run


def _describe(record: EpochRecord) -> str:
    return f"loss {record.loss:.4g}, Spearman {record.correlation_v:+.3f} (v) {record.correlation_p:+.3f} (p)"
