"""Compiled functions: numba's njit with a cache on disk where one can be written, and a word on the first long compilation."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numba
from numba.core import event

_SILENT_SECONDS = 1.0  # of compiling, after which a word is due
_told: dict[str, bool] = {}


def njit(*, cache: bool = True, **options: Any) -> Callable[[Any], Any]:
    """`numba.njit(cache=cache, **options)`; without the cache, and with one warning, where no folder for it can be written."""

    def decorate(function: Any) -> Any:
        if cache:
            try:
                return numba.njit(cache=True, **options)(function)
            except RuntimeError:  # numba found no folder it can write to
                if not _told.setdefault("cache", False):
                    _told["cache"] = True
                    message = "marginlens finds no folder to keep compiled functions in, so every process compiles them anew, about 20 s."
                    warnings.warn(f"{message} Set NUMBA_CACHE_DIR to a folder that can be written.", stacklevel=2)
        return numba.njit(**options)(function)

    return decorate


class _CompilationNotice(event.Listener):
    """Says once on stderr that the library is compiling, when that takes long; not where MARGINLENS_QUIET is set."""

    def __init__(self) -> None:
        self.began: float | None = None

    def on_start(self, event: Any) -> None:
        if not event.data["dispatcher"].py_func.__module__.startswith("marginlens"):
            return
        now = time.perf_counter()
        self.began = now if self.began is None else self.began
        if now - self.began > _SILENT_SECONDS and not _told.get("compiling") and not os.environ.get("MARGINLENS_QUIET"):
            _told["compiling"] = True
            print("marginlens: compiling once, about 20 s ...", file=sys.stderr, flush=True)

    def on_end(self, event: Any) -> None:
        pass


event.register("numba:compile", _CompilationNotice())
