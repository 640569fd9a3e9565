"""The shared library for this processor: the choice of its level, and a rebuild if the sources of a checkout have changed."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

from marginlens.core import build
from marginlens.errors import CoreError


@cache
def loaded() -> ctypes.CDLL:
    """Load the library of these sources, of the highest level that this processor runs, compiled first if it is missing."""
    try:
        level = chosen_level()
        path = build.library_path(level)
        if not path.exists():
            if not os.environ.get("MARGINLENS_QUIET"):
                print("marginlens: compiling its changed core, about half a minute ...", file=sys.stderr, flush=True)
            build.build([level])
        return ctypes.CDLL(str(path))
    except build.BuildError as problem:
        raise CoreError(f"The compiled core of marginlens is missing: run make in a checkout. {problem}") from problem
    except OSError as problem:
        raise CoreError(
            f"The compiled core of marginlens was built for another system: install it again here. {problem}"
        ) from problem


def chosen_level() -> str:
    """Return the level that `MARGINLENS_CORE_LEVEL` names, or else the highest level that this processor runs."""
    runs = build.supported_levels()
    asked = os.environ.get("MARGINLENS_CORE_LEVEL", "") or runs[-1]
    if asked not in runs:
        raise CoreError(
            f"MARGINLENS_CORE_LEVEL must be a level that this processor runs, one of {', '.join(runs)}; got {asked} instead."
        )
    return asked
