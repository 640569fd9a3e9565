"""Training scripts: common options, exit codes and versions, with the numerical packages alone."""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from marginlens.errors import InputError, MissingExtra, positive_number, reject
from marginlens.runtime.versions import versions
from marginlens.training.settings import torch_device

EXIT_UNUSABLE, EXIT_INTERRUPTED = 2, 130
_LEAST_SECONDS = 1e-3  # left for training where reading the data took all of the time


def print_every_sign() -> None:
    """Print signs that the terminal's encoding lacks as their numbers, such as \\u2713, instead of failing on them."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def in_one_sentence(work: Callable[[], int], checkpoint: Path | None = None) -> int:
    """The exit code of `work`; unusable input, too little memory and Ctrl-C end in a sentence instead of a traceback."""
    print_every_sign()
    try:
        return work()
    except (InputError, MissingExtra, OSError, MemoryError) as problem:
        notes = getattr(problem, "__notes__", [])  # what a run says of its checkpoint when it fails
        print("marginlens:", str(problem) or "Not enough memory.", *notes, file=sys.stderr)
        return EXIT_UNUSABLE
    except KeyboardInterrupt as problem:
        notes = getattr(problem, "__notes__", [])
        kept = f"; {checkpoint} holds where to go on" if not notes and checkpoint and checkpoint.is_file() else ""
        print(f"marginlens: interrupted{kept}.", *notes, file=sys.stderr)
        return EXIT_INTERRUPTED


def run_script(
    parser: argparse.ArgumentParser, train: Callable[[Any, list[str]], int], given: Sequence[str] | None
) -> int:
    """The exit code of `train`, which is called with the options and the words they were parsed from, the command line's for None."""
    words = list(sys.argv[1:] if given is None else given)
    options = parser.parse_args(words)
    return in_one_sentence(lambda: train(options, words), options.checkpoint)


def add_run_options(parser: argparse.ArgumentParser, *, every: int) -> None:
    """The options of every training script; a checkpoint comes after `every` epochs unless the user says otherwise."""
    parser.add_argument(
        "--settings", default="{}", metavar="JSON", help="settings by name, as JSON or a file that holds it"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the results go")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="kept up to date; the run goes on from it")
    parser.add_argument("--every", type=int, default=every, metavar="N", help=f"epochs between checkpoints ({every})")
    parser.add_argument("--time-limit", type=float, metavar="S", help="stop in good order after S seconds")


def time_left(limit: float | None) -> Callable[[], float | None]:
    """A function that returns the seconds left of a time limit that counts from now; None without a limit."""
    if limit is None:
        return lambda: None
    until = time.perf_counter() + positive_number(limit, "time_limit")
    return lambda: max(until - time.perf_counter(), _LEAST_SECONDS)


def check_folder(place: Path, argument: str) -> None:
    """Refuse, before any work, an output path that is not a folder."""
    if place.exists() and not place.is_dir():
        raise reject(argument, "a folder, which need not exist", f"{str(place)!r}, which is a file")


def parse_settings(text: str) -> dict[str, Any]:
    """The settings that `--settings` gives, as JSON or in the file that it names."""
    try:
        values = json.loads(text if text.lstrip().startswith("{") else Path(text).read_text())
    except (OSError, ValueError, RecursionError) as problem:
        raise reject("settings", "a JSON object, or a file that holds one", repr(text)) from problem
    if not isinstance(values, dict):
        raise reject("settings", "a JSON object, or a file that holds one", repr(text))
    return values


def versions_on(device: str) -> dict[str, str]:
    """Versions of the packages, the machine and, where the run uses one, the GPU."""
    known = versions()
    if not str(device).startswith("cpu"):
        import torch

        known["device"] = torch.cuda.get_device_name(torch_device(device))
    return known
