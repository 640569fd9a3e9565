"""Long runs as commands: what they are asked for, progress, exit codes and versions, with the numerical packages alone."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.training.settings import RunSettings, torch_device
from marginlens.errors import InputError, MissingExtra, positive_number
from marginlens.runtime.files import check_writable
from marginlens.runtime.versions import versions

EXIT_UNUSABLE, EXIT_INTERRUPTED = 2, 130
_LEAST_SECONDS = 1e-3  # left for training if reading the data took all of the time


def print_every_sign() -> None:
    """Print signs that the terminal's encoding lacks as their numbers, such as \\u2713, instead of failing on them."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(sentence: str) -> None:
    """Print a sentence about how a run goes, on standard error."""
    print(sentence, file=sys.stderr, flush=True)


def in_one_sentence(work: Callable[[], int]) -> int:
    """The exit code of `work`; unusable input, too little memory and Ctrl-C end in a sentence instead of a traceback."""
    print_every_sign()
    try:
        return work()
    except (InputError, MissingExtra, OSError, MemoryError) as problem:
        notes = getattr(problem, "__notes__", [])  # what a run says of its checkpoint when it fails
        print("marginlens:", str(problem) or "Not enough memory.", *notes, file=sys.stderr)
        return EXIT_UNUSABLE
    except KeyboardInterrupt as problem:
        print("marginlens: interrupted.", *getattr(problem, "__notes__", []), file=sys.stderr)
        return EXIT_INTERRUPTED


class Dots:
    """Progress as one dot for every hundredth."""

    def __init__(self) -> None:
        self.printed = 0

    def __call__(self, done: int, total: int) -> None:
        due = 100 * done // max(total, 1)
        print("." * (due - self.printed), end="", flush=True)
        self.printed = due


@dataclass(frozen=True)
class RunRequest:
    """What a training run was asked for besides its data and settings.

    Args:
        out: the folder of the results. checkpoint: kept up to date; the run goes on from it. every: epochs between two checkpoints.
        time_limit: seconds after which to stop in good order.
    """

    out: Path
    checkpoint: Path | None
    every: int
    time_limit: float | None

    def words(self, settings: RunSettings) -> list[str]:
        """The settings that are not the usual ones, and the rest, as the command line takes them; no place on this machine."""
        changed = changed_settings(settings)
        limit = [] if self.time_limit is None else ["--time-limit", f"{self.time_limit:g}"]
        return [*(["--settings", json.dumps(changed)] if changed else []), "--every", str(self.every), *limit]


def changed_settings(settings: RunSettings) -> dict[str, Any]:
    """The settings that are not the usual ones."""
    usual = type(settings)().to_dict()
    return {name: value for name, value in settings.to_dict().items() if value != usual[name]}


def beginning(data: str, settings: RunSettings) -> str:
    """What a run begins with, in a sentence: its data in a few words, and the settings that are not the usual ones."""
    changed = ", ".join(f"{name} {json.dumps(value)}" for name, value in changed_settings(settings).items())
    return f"{data}. Settings: {f'{changed}, otherwise ' if changed else ''}the usual ones."


def time_left(limit: float | None) -> Callable[[], float | None]:
    """A function that returns the seconds left of a time limit that counts from now; None without a limit."""
    if limit is None:
        return lambda: None
    until = time.perf_counter() + positive_number(limit, "time_limit")
    return lambda: max(until - time.perf_counter(), _LEAST_SECONDS)


def check_folder(place: Path, argument: str) -> None:
    """Refuse, before any work, an output path that is not a folder or cannot be written."""
    if place.exists() and not place.is_dir():
        raise InputError(argument, "a folder, which need not exist", f"{str(place)!r}, which is a file")
    check_writable(place, argument)


def parse_settings(text: str) -> dict[str, Any]:
    """The settings that `--settings` gives, as JSON or in the file that it names."""
    try:
        values = json.loads(text if text.lstrip().startswith("{") else Path(text).read_text())
    except (OSError, ValueError, RecursionError) as problem:
        raise InputError("settings", "a JSON object, or a file that holds one", repr(text)) from problem
    if not isinstance(values, dict):
        raise InputError("settings", "a JSON object, or a file that holds one", repr(text))
    return values


def versions_on(device: str) -> dict[str, str]:
    """Versions of the packages, the machine and, if the run uses one, the GPU."""
    used = versions()
    if not str(device).startswith("cpu"):
        import torch

        used["device"] = torch.cuda.get_device_name(torch_device(device))
    return used


def rounded(values: Any, digits: int) -> Any:
    """Numbers as nested lists with so many significant digits; null for what is not finite."""
    if np.ndim(values):
        return [rounded(item, digits) for item in values]
    number = np.nan if values is None else float(values)
    return float(f"{number:.{digits}g}") if np.isfinite(number) else None
