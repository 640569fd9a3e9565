"""A training run on disk: all that the next step depends on, in one .npz file without pickles that appears whole or not at all."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from marginlens.data.tokens import FloatArray
from marginlens.runs.checkpoints import read_archive, refuse_other_data, refuse_other_settings, write_archive
from marginlens.vision.results import BY_LAYER, EpochRecord
from marginlens.vision.settings import VisionSettings

_FORM = "marginlens vision checkpoint 1"
_MAPS = "maps/"
_TOLD = ("fingerprint", "epoch", "place", "loss", "right", "seconds")


@dataclass(frozen=True, repr=False, eq=False)
class Checkpoint:
    """Where a run stands: `epoch` whole epochs and `place` steps of the next are done.

    `arrays` are weights and moments by name, `loss` and `right` the sums of the unfinished epoch, `history` the finished epochs from 0,
    `maps` those of chosen images by epoch, `seconds` the time spent. Random numbers need no state: each step has its own seed.
    """

    settings: VisionSettings
    fingerprint: str
    arrays: dict[str, Any]
    epoch: int
    place: int
    loss: float
    right: float
    seconds: float
    history: list[EpochRecord]
    maps: dict[int, FloatArray]

    def __repr__(self) -> str:
        return f"Checkpoint({self.epoch} epochs and {self.place} steps, {self.settings})"

    def check(self, settings: VisionSettings, fingerprint: str, place: Path) -> None:
        """Refuse to go on with other settings or other images."""
        refuse_other_settings(place, settings, self.settings)
        refuse_other_data(place, fingerprint, self.fingerprint, "images or labels")


def write_checkpoint(place: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint beside its place, then rename it into it."""
    facts = {
        "settings": checkpoint.settings.told(),
        "history": [asdict(one) for one in checkpoint.history],
        **{name: getattr(checkpoint, name) for name in _TOLD},
    }
    maps = {f"{_MAPS}{epoch}": one for epoch, one in checkpoint.maps.items()}
    write_archive(place, _FORM, facts, {**checkpoint.arrays, **maps})


def read_checkpoint(place: Path) -> Checkpoint:
    """The checkpoint in a file."""
    return read_archive(place, _FORM, _made)


def _made(facts: dict[str, Any], arrays: dict[str, Any]) -> Checkpoint:
    maps = {int(name.removeprefix(_MAPS)): arrays.pop(name) for name in list(arrays) if name.startswith(_MAPS)}
    history = [
        EpochRecord(**{**told, **{name: tuple(told[name]) for name in BY_LAYER}}) for told in facts.pop("history")
    ]
    settings = VisionSettings.of(facts.pop("settings"))
    return Checkpoint(settings, arrays=arrays, history=history, maps=maps, **facts)
