"""Modules of the command line that are imported when something of theirs is first used: help, version and completion do without them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from marginlens import errors
    from marginlens.cli import _rankings as rankings
    from marginlens.cli import _rows as rows
    from marginlens.cli import _terminal as terminal
    from marginlens.runtime import files

else:

    class Deferred:
        """A module that is imported on the first access to an attribute."""

        def __init__(self, name: str) -> None:
            self.name = name

        def __getattr__(self, attribute: str) -> Any:
            return getattr(import_module(self.name), attribute)

    np = Deferred("numpy")
    errors = Deferred("marginlens.errors")
    rankings = Deferred("marginlens.cli._rankings")
    rows = Deferred("marginlens.cli._rows")
    terminal = Deferred("marginlens.cli._terminal")
    files = Deferred("marginlens.runtime.files")

__all__ = ["errors", "files", "np", "rankings", "rows", "terminal"]
