"""Checkpoints: the state of a training run in one .npz file without pickles, replaced as a whole."""

from __future__ import annotations

import json
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from experiments.training.settings import RunSettings
from marginlens.errors import InputError
from marginlens.result import Described
from marginlens.runtime.files import check_place, written_aside

_VERSION = 2
_HEADER = "header"  # the array that holds everything but arrays, as JSON
_CHECKPOINT_FILE = "a file that marginlens wrote"
_UNREADABLE = (OSError, ValueError, EOFError, KeyError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True, repr=False, eq=False)
class Checkpoint(Described):
    """Where a run stands: `epoch` whole epochs and `step_index` steps of the next are done, in `seconds`.

    `settings` and `history` are plain values, the latter one entry per epoch; `fingerprint` is a hash of the training data; `values`
    (JSON) and `arrays` are the state of model, optimizer and random generator.
    """

    settings: dict[str, Any]
    fingerprint: str
    epoch: int
    step_index: int
    seconds: float
    history: list[dict[str, Any]]
    values: dict[str, Any]
    arrays: dict[str, Any]
    quantities = "{epoch} epochs and {step_index} steps, {arrays:#} arrays"

    def write(self, path: Path, kind: str) -> None:
        """Write the file aside, then rename it: an earlier checkpoint stays whole until the new one is."""
        header = {name: value for name, value in vars(self).items() if name != "arrays"}
        header |= {"kind": kind, "version": _VERSION}
        with written_aside(path, "checkpoint") as aside, aside.open("wb") as stream:
            np.savez(stream, **{**self.arrays, _HEADER: np.array(json.dumps(header))})

    @classmethod
    def read(cls, path: Path, kind: str) -> Self:
        """The checkpoint in a file, which must be of this kind of run."""
        check_place(path, "checkpoint")
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            header = json.loads(str(arrays.pop(_HEADER)))
            if (header.pop("kind"), header.pop("version")) != (kind, _VERSION):
                raise InputError("checkpoint", _CHECKPOINT_FILE, f"{str(path)!r}, of another form")
            return cls(**header, arrays=arrays)
        except InputError:
            raise
        except _UNREADABLE as problem:
            raise InputError("checkpoint", _CHECKPOINT_FILE, f"{str(path)!r}, which cannot be read") from problem

    def check(self, path: Path, settings: RunSettings, fingerprint: str) -> None:
        """Refuse to continue with other settings or other data."""
        differences = settings.differences(type(settings).from_dict(self.settings))
        if differences:
            remedy = "Go on with its settings, or name another file."
            got = f"{str(path)!r} with {', '.join(differences)}"
            raise InputError("checkpoint", "one of the same settings", got, remedy)
        if fingerprint != self.fingerprint:
            raise InputError("checkpoint", "one of the same data", f"{str(path)!r}, made with other samples or labels")


def checkpoint_path(checkpoint: str | Path | None) -> Path | None:
    """The file that a checkpoint goes to, if there can be one; None if none is wanted."""
    if checkpoint is None:
        return None
    try:
        path = Path(checkpoint)
        check_place(path, "checkpoint")
    except InputError:
        raise
    except (TypeError, ValueError, OSError) as problem:
        raise InputError("checkpoint", "a file that can be written", repr(checkpoint)) from problem
    return path
