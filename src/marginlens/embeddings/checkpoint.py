"""A training run on disk: all that the next step depends on, in one .npz file without pickles that appears whole or not at all."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.data.labelled import LabelledSequences
from marginlens.embeddings.settings import TrainingSettings
from marginlens.errors import reject
from marginlens.runs.checkpoints import read_archive, refuse_other_data, refuse_other_settings, write_archive

_FORM = "marginlens training checkpoint 1"
_TOLD = ("fingerprint", "generator", "epoch", "place", "taken", "loss", "history", "seconds")


@dataclass(frozen=True, repr=False)
class Checkpoint:
    """Where a run stands: `epoch` whole epochs and `place` minibatches of the next are done.

    `arrays` are the parameters and moments, `taken` the AdamW steps so far, `loss` the summed loss of the unfinished epoch, `generator`
    the state of the random generator before it drew that epoch's order, `history` one entry per finished epoch, `seconds` the time spent.
    """

    settings: TrainingSettings
    fingerprint: str
    arrays: dict[str, Any]
    generator: dict[str, Any]
    epoch: int
    place: int
    taken: int
    loss: float
    history: list[list[float]]
    seconds: float

    def __repr__(self) -> str:
        return f"Checkpoint({self.epoch} epochs and {self.place} minibatches, {self.settings})"

    def check(self, settings: TrainingSettings, fingerprint: str, place: Path) -> None:
        """Refuse to go on with other settings or other data."""
        refuse_other_settings(place, settings, self.settings)
        refuse_other_data(place, fingerprint, self.fingerprint, "sequences or labels")

    def check_arrays(self, needed: dict[str, Any], place: Path | None) -> None:
        """Refuse a file that lacks an array, or has one of another shape; products can be formed again."""
        for name, mine in needed.items():
            found = self.arrays.get(name)
            if (found is None and name not in ("a", "b")) or (found is not None and found.shape != mine.shape):
                raise reject("checkpoint", f"one with {name} of shape {mine.shape}", f"{str(place)!r} without it")


def fingerprint_of(data: LabelledSequences) -> str:
    """A name for the data that any change of a token, a label or a length changes."""
    digest = hashlib.sha256()
    for one in (data.tokens.astype(np.int32), data.offsets.astype(np.int64), data.y.astype(np.int8)):
        digest.update(np.ascontiguousarray(one).data)
    digest.update(str(data.n_vocabulary).encode())
    return digest.hexdigest()


def write_checkpoint(place: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint beside its place, then rename it into it."""
    facts = {"settings": checkpoint.settings.told(), **{name: getattr(checkpoint, name) for name in _TOLD}}
    write_archive(place, _FORM, facts, checkpoint.arrays)


def read_checkpoint(place: Path) -> Checkpoint:
    """The checkpoint in a file."""
    return read_archive(place, _FORM, _made)


def _made(facts: dict[str, Any], arrays: dict[str, Any]) -> Checkpoint:
    return Checkpoint(TrainingSettings.of(facts.pop("settings")), arrays=arrays, **facts)
