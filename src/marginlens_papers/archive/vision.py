"""Archived training runs of vision transformers: one small file each, written once and read by reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marginlens.errors import InputError, reject
from marginlens.runtime.files import json_by_line, write_whole
from marginlens.training.loop import Ending
from marginlens_papers.archive.files import check_name, command_without_paths, results_folder
from marginlens_papers.vision.results import FACTS, FORM, VisionCurves, curves_from, curves_to_dict
from marginlens_papers.vision.settings import VisionSettings

PREFIX = "vision-"
_EXPECTED = f"a folder with {FACTS}, which marginlens_papers.vision.run wrote"


@dataclass(frozen=True, repr=False, eq=False)
class KeptVisionRun:
    """A kept run: its curves and maps, the settings, and the `accuracy` of all test images at the end.

    `facts` has the data's name, counts and SHA-256, the command and the versions. A run with another `ending` than FINISHED stopped
    after its last epoch.
    """

    name: str
    settings: VisionSettings
    curves: VisionCurves
    accuracy: float
    ending: Ending
    facts: Mapping[str, Any]

    def __repr__(self) -> str:
        stopped = "" if self.ending is Ending.FINISHED else f" of {self.settings.epochs}, then stopped"
        return (
            f"KeptVisionRun({self.name}: {int(self.curves.epochs[-1])} epochs{stopped}, accuracy {self.accuracy:.3f})"
        )


def keep_run(folder: str | Path, name: str, *, into: str | Path | None = None) -> Path:
    """Put what `marginlens_papers.vision.run` wrote into a file of the package.

    Args:
        folder: the run's `--out`. name: what the run is called, in letters, digits, dots and dashes.
        into: where the file goes; by default among the results that come with the package.
    Returns:
        The file.
    """
    check_name(name)
    values, curves = _read(Path(folder) / FACTS, "folder", _EXPECTED)
    values = {**values, **curves_to_dict(curves), "command": command_without_paths(values["command"])}
    target = (results_folder() if into is None else Path(into)) / f"{PREFIX}{name}.json"
    write_whole(target, json_by_line(values), "into")
    return target


def read_kept(path: str | Path) -> KeptVisionRun:
    """The run in a file that `keep_run` wrote."""
    file = Path(path)
    values, curves = _read(file, "path", "a file that keep_run wrote")
    fields = ("form", "settings", "epochs", "curves", "layers", "maps", "accuracy", "ending")
    return KeptVisionRun(
        file.stem.removeprefix(PREFIX),
        VisionSettings.from_dict(values["settings"]),
        curves,
        float(values["accuracy"]),
        Ending[values["ending"]],
        {name: value for name, value in values.items() if name not in fields},
    )


def kept_run(name: str) -> KeptVisionRun:
    """The run of this name that comes with the package."""
    return read_kept(results_folder() / f"{PREFIX}{name}.json")


# ---- parts


def _read(path: Path, argument: str, expected: str) -> tuple[dict[str, Any], VisionCurves]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["form"] != FORM:
            raise reject(argument, expected, f"{str(path)!r}, of another form")
        missing = {"settings", "ending", "accuracy", "data", "command", "versions"} - set(values)
        if missing:
            raise reject(argument, expected, f"{str(path)!r} without {' and '.join(sorted(missing))}")
        return values, curves_from(values)
    except OSError as problem:
        raise reject(argument, expected, f"{str(path)!r} ({problem.strerror or problem})") from problem
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise reject(argument, expected, f"{str(path)!r}, which cannot be read") from problem
