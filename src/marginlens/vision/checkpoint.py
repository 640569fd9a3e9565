"""A training run on disk: all that the next step depends on, in one .npz file without pickles that appears whole or not at all."""

from __future__ import annotations

import json
import zipfile
import zlib
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.data.files import check_place, write_whole
from marginlens.data.tokens import FloatArray
from marginlens.errors import InputError, reject
from marginlens.vision.results import BY_LAYER, EpochRecord
from marginlens.vision.settings import VisionSettings

_FORM = "marginlens vision checkpoint 1"
_FACTS, _MAPS = "facts", "maps/"


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
        differences = settings.differences(self.settings)
        if differences:
            remedy = "Go on with its settings, or name another file."
            got = f"{str(place)!r} with {', '.join(differences)}"
            raise reject("checkpoint", "one of the same settings", got, remedy)
        if fingerprint != self.fingerprint:
            raise reject("checkpoint", "one of the same data", f"{str(place)!r}, made with other images or labels")


def write_checkpoint(place: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint beside its place, then rename it into it."""
    facts = {
        "form": _FORM,
        "settings": checkpoint.settings.told(),
        "history": [asdict(one) for one in checkpoint.history],
        **{name: getattr(checkpoint, name) for name in _TOLD},
    }
    maps = {f"{_MAPS}{epoch}": one for epoch, one in checkpoint.maps.items()}
    stream = BytesIO()
    arrays: dict[str, Any] = {**checkpoint.arrays, **maps, _FACTS: np.array(json.dumps(facts))}
    np.savez(stream, **arrays)
    write_whole(place, stream.getvalue(), "checkpoint")


def read_checkpoint(place: Path) -> Checkpoint:
    """The checkpoint in a file."""
    check_place(place, "checkpoint")
    expected = "a file that marginlens.vision wrote"
    try:
        with place.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        facts = json.loads(str(arrays.pop(_FACTS)))
        if facts.pop("form") != _FORM:
            raise reject("checkpoint", expected, f"{str(place)!r}, of another form")
        maps = {int(name.removeprefix(_MAPS)): arrays.pop(name) for name in list(arrays) if name.startswith(_MAPS)}
        history = [
            EpochRecord(**{**told, **{name: tuple(told[name]) for name in BY_LAYER}}) for told in facts.pop("history")
        ]
        settings = VisionSettings.of(facts.pop("settings"))
        return Checkpoint(settings, arrays=arrays, history=history, maps=maps, **facts)
    except InputError:
        raise
    except _UNREADABLE as problem:
        raise reject("checkpoint", expected, f"{str(place)!r}, which cannot be read") from problem


_TOLD = ("fingerprint", "epoch", "place", "loss", "right", "seconds")
_UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    TypeError,
    AttributeError,
    zipfile.BadZipFile,
    zlib.error,
)
