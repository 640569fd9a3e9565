"""The shared library for this processor: which level it can run, where the library lies, and a rebuild where sources have changed."""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache
from pathlib import Path

from marginlens.core import build

LEVELS = {  # what a processor must have for the code of a level, from the plainest on
    "x86-64": set(),
    "x86-64-v3": {"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"},
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
}


class CoreError(ImportError):
    """The compiled core cannot be loaded; the message says what to do."""


@cache
def loaded() -> ctypes.CDLL:
    """The library, built first where that of these sources is missing and a compiler is found."""
    level = chosen_level()
    path = build.library_path(level)
    if not path.exists():
        build.build([level])
    try:
        return ctypes.CDLL(str(path))
    except OSError as problem:
        raise CoreError(
            f"marginlens cannot load its compiled core {path.name}: {problem}. Install marginlens again on this machine."
        ) from problem


def chosen_level() -> str:
    """The level that `MARGINLENS_CORE_LEVEL` names, else the highest that this processor runs and that is built, else the highest."""
    runs = supported_levels()
    asked = os.environ.get("MARGINLENS_CORE_LEVEL", "")
    if asked:
        if asked not in runs:
            raise CoreError(
                f"MARGINLENS_CORE_LEVEL must be a level that this processor runs, one of {', '.join(runs)}; got {asked} instead."
            )
        return asked
    return runs[-1]


def supported_levels() -> list[str]:
    """Levels whose code this processor runs, the plainest first."""
    machine = platform.machine().lower()
    if machine not in ("x86_64", "amd64"):
        return ["aarch64" if machine in ("aarch64", "arm64") else machine]
    flags = _processor_flags()
    levels = list(LEVELS)
    needed: set[str] = set()
    for k, (_, flags_of_level) in enumerate(LEVELS.items()):
        needed |= flags_of_level
        if not needed <= flags:
            return levels[:k]
    return levels


def _processor_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return set()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return set(line.partition(":")[2].split())
