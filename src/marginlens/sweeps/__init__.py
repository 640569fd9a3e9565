"""Sweeps: grids of many small problems, run chunk by chunk into a folder that survives crashes."""

from typing import TYPE_CHECKING

from marginlens.removed import no_attribute
from marginlens.sweeps.plan import Plan
from marginlens.sweeps.run import sweep
from marginlens.sweeps.store import Sweep
from marginlens.sweeps.summary import Summary

__all__ = ["Plan", "Summary", "Sweep", "sweep"]

# Type checkers must refuse names that do not exist, so this is hidden from them.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise no_attribute(__name__, name)
