"""Checkpoints on disk: arrays and facts in one .npz file without pickles, that appears whole or not at all."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from marginlens.data.files import check_place
from marginlens.errors import InputError, reject
from marginlens.runs.settings import RunSettings

_FACTS = "facts"
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
Made = TypeVar("Made")
Settings = TypeVar("Settings", bound=RunSettings)


def write_archive(place: Path, form: str, facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write facts, as JSON, and arrays beside their place, then rename them into it.

    Arrays go to the disk one after the other, without a copy of the file in memory. A process that is killed meanwhile leaves its
    unfinished file, which the next one writes over, so that there is never more than one.
    """
    check_place(place, "checkpoint")
    final = place.resolve()
    aside = final.with_name(f".{final.name}.partial")
    contents: dict[str, Any] = {**arrays, _FACTS: np.array(json.dumps({"form": form, **facts}))}
    try:
        with aside.open("wb") as stream:
            np.savez(stream, **contents)
        aside.replace(final)
    except OSError as problem:
        got = f"{str(place)!r} ({problem.strerror or problem})"
        raise reject("checkpoint", "a file that can be written", got) from problem
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)


def read_archive(place: Path, form: str, made: Callable[[dict[str, Any], dict[str, Any]], Made]) -> Made:
    """What `made` builds from the facts and the arrays in a file of this form; one sentence where the file does not give it."""
    check_place(place, "checkpoint")
    expected = "a file that marginlens wrote"
    try:
        with place.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        facts = json.loads(str(arrays.pop(_FACTS)))
        if facts.pop("form") != form:
            raise reject("checkpoint", expected, f"{str(place)!r}, of another form")
        return made(facts, arrays)
    except InputError:
        raise
    except _UNREADABLE as problem:
        raise reject("checkpoint", expected, f"{str(place)!r}, which cannot be read") from problem


def refuse_other_settings(place: Path, mine: Settings, theirs: Settings) -> None:
    """Refuse to go on from a checkpoint of other settings."""
    differences = mine.differences(theirs)
    if differences:
        remedy = "Go on with its settings, or name another file."
        raise reject("checkpoint", "one of the same settings", f"{str(place)!r} with {', '.join(differences)}", remedy)


def refuse_other_data(place: Path, mine: str, theirs: str, what: str) -> None:
    """Refuse to go on from a checkpoint made with data of another fingerprint; `what` they consist of is in the sentence."""
    if mine != theirs:
        raise reject("checkpoint", "one of the same data", f"{str(place)!r}, made with other {what}")
